"""The playback pipeline with different rows a day, lateness and window length: ``python -m benchmarks.sweeps``.

Each point runs ``benchmarks.playback`` with only the lookback and ``combine``, whose tables it compares with a
recompute. With ``--docs``, plots are written, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.playback.__main__ import BASE, BY_CHANGE, Costs, run
from benchmarks.playback.source import Workload
from benchmarks.report import Report, said, table

WAY = BY_CHANGE[0]
USUAL = Workload(30_000, 0.03, 14)
ROUNDS, FULL_ROUNDS = 2, 3
ROWS, FULL_ROWS = (3_000, 30_000, 300_000), (1_000_000, 3_000_000)
LATE, FULL_LATE = (0.01, 0.1), (0.003, 0.3)
WINDOWS, FULL_WINDOWS = (3, 30), (7, 60)
MEASURES = {"seconds": "s", "cpu": "Spark's CPU s", "rows": "rows read", "read": "bytes read"}


@dataclass(frozen=True)
class Point:
    """Both stages of one workload: what the lookback takes, and what the incremental run takes."""

    workload: Workload
    lookback: Mapping[str, float]
    by_change: Mapping[str, float]

    @classmethod
    def of(cls, workload: Workload, costs: Costs) -> "Point":
        return cls(workload, costs[BASE]["both"], costs[WAY]["both"])

    def ratio(self, measure: str) -> float:
        return self.by_change[measure] / self.lookback[measure]


@dataclass(frozen=True)
class Sweep:
    """The points along one axis, in order."""

    name: str
    axis: str
    points: Sequence[Point]

    def at(self, point: Point) -> float:
        return float(asdict(point.workload)[self.axis])


def sweeps(*, full: bool) -> list[Sweep]:
    """All sweeps; each point is measured once, even if it is on several axes."""
    known: dict[Workload, Point] = {}

    def along(name: str, axis: str, values: Sequence[float]) -> Sweep:
        for value in values:
            changed = Workload(**{**asdict(USUAL), axis: value})
            if changed not in known:
                said(f"{changed}")
                known[changed] = Point.of(changed, run(changed, FULL_ROUNDS if full else ROUNDS, (BASE, WAY)))
        return Sweep(name, axis, [known[Workload(**{**asdict(USUAL), axis: value})] for value in values])

    return [
        along("rows a day", "rows", sorted({USUAL.rows, *ROWS, *FULL_ROWS * full})),
        along("share of late rows", "late", sorted({USUAL.late, *LATE, *FULL_LATE * full})),
        along("days of the window", "window", sorted({USUAL.window, *WINDOWS, *FULL_WINDOWS * full})),
    ]


def break_even(sweep: Sweep, measure: str) -> float | None:
    """Where on its axis an incremental run starts to take less than the lookback; 0 if it always does, None if never.

    Between two points, both are assumed to grow linearly.
    """
    gaps = [(sweep.at(each), each.by_change[measure] - each.lookback[measure]) for each in sweep.points]
    if gaps[-1][1] > 0:
        return None
    for (low, before), (high, after) in reversed(list(pairwise(gaps))):
        if before > 0:
            return low + (high - low) * before / (before - after)
    return 0.0


def told(sweep: Sweep) -> str:
    """Sentences on how many rows a day it takes until the incremental runs are cheaper."""
    sentences = []
    for measure, unit in (("seconds", "seconds"), ("cpu", "CPU seconds of Spark")):
        at, largest = break_even(sweep, measure), sweep.points[-1].workload.rows
        if at is None:
            sentences.append(f"Up to {largest:,} rows a day the lookback takes fewer {unit}.")
        elif at == 0:
            sentences.append(f"From {sweep.points[0].workload.rows:,} rows a day on it takes fewer {unit}.")
        else:
            sentences.append(f"From about {at:,.0f} rows a day on it takes fewer {unit}.")
    return " ".join(sentences)


def plot(sweep: Sweep, path: Path) -> None:
    """Plot the ratios along the axis."""
    import matplotlib as mpl  # noqa: PLC0415  # needed only for plots

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "sweeps"  # So that the same figures give the same file.
    from matplotlib import pyplot as plt  # noqa: PLC0415  # must follow use()

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for measure, title in MEASURES.items():
        axes.plot([sweep.at(p) for p in sweep.points], [p.ratio(measure) for p in sweep.points], "o-", label=title)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xlabel=sweep.name, ylabel="by change / lookback", ylim=(0, None), xscale="log")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    report = Report.from_arguments("sweeps", __doc__)
    found = sweeps(full=report.is_full)
    parts = [HEAD.format(conditions=report.conditions(), fixed=told(found[0]))]
    for sweep in found:
        parts.append(f"## By {sweep.name}")
        if report.docs is not None:
            image = f"images/sweep-{sweep.axis}.svg"
            plot(sweep, report.docs / image)
            parts.append(f"![Both stages, incremental, as a fraction of the lookback, by {sweep.name}]({image})")
        heads = [sweep.name, *[f"{unit}, lookback" for unit in MEASURES.values()], *MEASURES.values()]
        parts.append(table(heads, [line(sweep, each) for each in sweep.points], words=0))
    figures = [{"axis": each.axis, "points": [asdict(point) for point in each.points]} for each in found]
    report.publish("\n\n".join(parts), figures)


def line(sweep: Sweep, point: Point) -> list[str]:
    spent = [f"{point.lookback[m]:.1f}" if m in ("seconds", "cpu") else f"{point.lookback[m]:,.0f}" for m in MEASURES]
    return [f"{sweep.at(point):,g}", *spent, *[f"{point.ratio(measure):.2f}" for measure in MEASURES]]


HEAD = f"""# When incremental processing pays off

Written by `python -m benchmarks.sweeps`: both stages of the [playback pipeline](playback.md) with `combine`, as a
fraction of what a lookback takes, while one parameter changes at a time. The others stay at {USUAL.rows:,} rows a day,
{USUAL.late:.0%} late rows and a window of {USUAL.window} days. Incremental runs include starting a Dagster process; the
lookback doesn't. Every table was compared with a recompute.

{{fixed}}

{{conditions}}"""

if __name__ == "__main__":
    main()
