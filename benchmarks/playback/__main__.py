"""What two stages of playback cost incrementally and by lookback: ``python -m benchmarks.playback > docs/playback.md``.

A window of days is there at the beginning. Then day after day arrives in small commits, and the ways process it in
turns. The first of these days warm up; the median of the others counts. At the end, every table is compared with a
recompute.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.playback.source import MEMORY, Source, Workload
from benchmarks.playback.stages import STAGES
from benchmarks.playback.ways import NAMESPACE, ByChange, ByChangelogView, ByScan, Copy, Lookback, Way
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.local_spark.connect_server import WITH_UI, ensure_connect_server, stop_connect_server
from dagster_ips.spark.writes.partials import as_read
from example_project.spark_meter import Read, SparkMeter

PARTS = ("stage 1", "stage 2", "both")
BASE = "lookback"
BY_CHANGE = ("combine", "combine, as partials", "merge of affected keys")
INTRODUCTION = """# Two stages of playback compared with a lookback

Written by `python -m benchmarks.playback`. Stage 1 joins events with their titles, and stage 2 aggregates them per day
and account. A day of events arrives in eight small commits, and some of the events are late. Each approach then
processes the day, one after the other, on tables of its own:

- `combine` and `merge of affected keys` use this library, run by Dagster in a new process, as `ForkingRunLauncher`
  starts it; its start is included in the times. With `combine, as partials`, stage 2 appends the aggregates of each
  change, and readers add them up; reading isn't measured here.
- The others are what you would write by hand, in a Spark that is already running. `lookback` rewrites the whole window.
  `scan` uses Iceberg's incremental scan, and `changelog` uses `create_changelog_view`.
- `short` is a lookback of 3 days, which loses late rows. `copy` only copies the changed rows.

At the end, all tables except those of `short` and `copy` were compared with a recompute. The numbers in parentheses are
relative to `lookback`. CPU and bytes are those of Spark's process, including planning and shuffles. The first table
shows what the library takes for both stages, as a fraction of `lookback`.
"""
Costs = dict[str, dict[str, dict[str, float]]]
"""The medians by way, part and measure."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[30_000, 300_000], help="a day's; each in a lake of its own"
    )
    parser.add_argument("--late", type=float, default=0.03, help="share of them that is of the days before")
    parser.add_argument("--stages", choices=STAGES, default="wide", help="the example's narrow rows, or wide ones")
    parser.add_argument("--decay", type=float, default=0.6, help="how much fewer late rows each earlier day has")
    parser.add_argument("--only", nargs="+", default=(), help="these ways, beside the lookback")
    parser.add_argument("--window", type=int, default=14, help="days that late rows may be of, which lookback rewrites")
    parser.add_argument("--rounds", type=int, default=3, help="days that are measured")
    parser.add_argument("--warm-up", type=int, default=3, help="days before them; Spark gets faster day by day")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    os.environ["PLAYBACK_STAGES"] = given.stages
    only = [BASE, *given.only] if given.only else []
    kinds = {"decay": given.decay, "stages": STAGES[given.stages]}
    found = {
        rows: run(Workload(rows, given.late, given.window, **kinds), given.rounds, only, warm_up=given.warm_up)
        for rows in given.rows
    }
    load = os.getloadavg()[0]
    print(INTRODUCTION)
    how = f"{given.late:.0%} of the rows are late, within {given.window} days."
    print(f"{how} Each figure is the median of {given.rounds} days, after {given.warm_up}")
    print(f"days of warm-up, on {os.cpu_count()} cores; the load was {load:.1f} at the end.\n")
    print("\n".join(summary(found)))
    for rows, costs in found.items():
        print("\n".join(report(costs, rows)))
    if given.json:
        given.json.write_text(json.dumps({"load": load, "late": given.late, "costs": found}, indent=1) + "\n")


def run(workload: Workload, rounds: int, only: Sequence[str] = (), *, warm_up: int = 1) -> Costs:
    """What each way costs, or ``only`` some of them, in a temporary lake with its own Spark."""
    with tempfile.TemporaryDirectory() as folder:
        spark = Path(folder) / "spark"
        server = ensure_connect_server(spark, driver_memory=MEMORY, conf=WITH_UI, say=said)
        try:
            lake = LakeCatalog.embedded("lake", Path(folder) / "lake")
            for namespace in ("db", "ips"):
                lake.create_namespace(namespace)
            session = server.session(lake.spark_configuration())
            meter = SparkMeter(str(server.ui), server.pid)
            source = Source(session, NAMESPACE, workload)
            chosen = [way for way in ways(source, Path(folder)) if not only or way.name in only]
            costs = measure(source, chosen, meter, rounds, warm_up)
            check(source, chosen, lake)
            return costs
        finally:
            stop_connect_server(spark)


def ways(source: Source, folder: Path) -> list[Way]:
    return [
        Lookback(source, "lookback", source.workload.window),
        ByChange(folder, BY_CHANGE[0], ("sums_daily", "sums_by_account")),
        ByChange(folder, BY_CHANGE[1], ("parts_daily", "parts_by_account")),
        ByChange(folder, BY_CHANGE[2], ("keys_daily", "keys_by_account")),
        Lookback(source, "short", 3),
        ByScan(source, "scan"),
        ByChangelogView(source, "changelog"),
        Copy(source, "copy"),
    ]


def measure(source: Source, ways: Sequence[Way], meter: SparkMeter, rounds: int, warm_up: int) -> Costs:
    source.create()
    source.past(source.workload.window)
    said(f"{source.workload.window} days of {source.workload.rows:,} events are there")
    for way in ways:
        way.create()
        said(f"{way.name}: tables are made")
    taken: dict[str, list[dict[str, dict[str, float]]]] = {way.name: [] for way in ways}
    for day in range(warm_up + rounds):
        source.arrive()
        for way in [*ways[day % len(ways) :], *ways[: day % len(ways)]]:
            spans = way.update()
            parts = [measures(meter.read_between(*span)) for span in spans]
            parts[-1]["own cpu"] = way.own_cpu
            taken[way.name].append(dict(zip(PARTS, parts, strict=True)))
            said(f"day {source.days}, {way.name}: {parts[-1]['seconds']:.1f} s")
    return {name: medians(found[warm_up:]) for name, found in taken.items()}


def measures(read: Read) -> dict[str, float]:
    return {
        "seconds": read.seconds,
        "cpu": read.cpu_seconds,
        "rows": read.rows,
        "read": read.size_bytes,
        "written": read.written_bytes,
    }


def medians(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        part: {name: statistics.median(each[part][name] for each in rounds) for name in rounds[0][part]}
        for part in PARTS
    }


def check(source: Source, ways: Sequence[Way], lake: LakeCatalog) -> None:
    """Fail if a table differs from a recompute from the source."""

    def table(name: str) -> DataFrame:
        return as_read(source.session.table(name), lake.load(name.removeprefix("lake."), asset=name).properties)

    stages = source.workload.stages
    daily = stages.enriched(table(f"{NAMESPACE}.playback"), table(f"{NAMESPACE}.title"))
    right = [checksum(daily), checksum(stages.per_account(daily))]
    for way in ways:
        if not way.is_right:
            continue
        for part, name, wanted in zip(PARTS, way.tables, right, strict=False):
            if (found := checksum(table(name))) != wanted:
                raise RuntimeError(way.name, part, found, "instead of", wanted)
        said(f"{way.name}: both tables equal a recompute")


def checksum(rows: DataFrame) -> tuple[int, ...]:
    columns = ", ".join(sorted(column for column in rows.columns if not column.startswith("_ips_")))
    hashed = rows.selectExpr(f"xxhash64({columns}) AS h").selectExpr("count(*)", "bit_xor(h)", "sum(h % 1000003)")
    return tuple(hashed.collect()[0])


MEASURES = (
    ("seconds", 1, "s"),
    ("cpu", 1, "Spark's CPU s"),
    ("rows", 1_000, "thousand rows read"),
    ("read", 10**6, "MB read"),
)


def summary(found: Mapping[int, Costs]) -> Iterator[str]:
    """Both stages by this library, as a fraction of what the lookback took, by rows a day."""
    yield f"| rows a day | stage 2 | {' | '.join(title for _, _, title in MEASURES)} |"
    yield f"| ---: | --- |{' ---: |' * len(MEASURES)}"
    for rows, costs in found.items():
        for name in BY_CHANGE:
            if name not in costs:
                continue
            ratios = [costs[name]["both"][key] / costs[BASE]["both"][key] for key, _, _ in MEASURES]
            yield f"| {rows:,} | {name} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |"
    yield ""


def report(costs: Costs, rows: int) -> Iterator[str]:
    yield f"## {rows:,} rows a day\n"
    for part in PARTS:
        yield from [f"### {part.capitalize()}\n", *table(costs, part), ""]


def table(costs: Costs, part: str) -> Iterator[str]:
    yield f"| | {' | '.join(title for _, _, title in MEASURES)} | MB written | its own process's CPU s |"
    yield f"| --- |{' ---: |' * (len(MEASURES) + 2)}"
    base = costs[BASE][part]
    for name, parts in costs.items():
        found = parts[part]
        cells = [f"{found[key] / unit:,.1f} ({found[key] / base[key]:.2f})" for key, unit, _ in MEASURES]
        own = f"{found['own cpu']:.1f}" if found.get("own cpu") else ""
        yield f"| {name} | {' | '.join(cells)} | {found['written'] / 10**6:,.0f} | {own} |"


def said(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
