"""How long it takes from an outside commit until both stages are published.

Run ``python -m benchmarks.latency --commits 5``. It runs the example project with Dagster's daemon, code server and
webserver, and a warm local Spark. All times are read from the tables' snapshots and from Dagster's event log.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import dagster as dg

from example_project.demo.pipeline import Pipeline
from example_project.demo.services import Services
from example_project.lake import open_catalog

STAGES = ("playback_daily", "playback_daily_agg")


@dataclass(frozen=True)
class Hop:
    """The seconds of one stage, from the commit upstream to the end of its own publication; see ``EXPLAINED``."""

    tick: float
    queue: float
    process: float
    step: float
    capture: float
    work: float


EXPLAINED = {
    "tick": "from the commit upstream until the automation sensor has requested the run",
    "queue": "until the daemon takes it from the queue and launches it",
    "process": "until the run's own process has started, imported the definitions and begun",
    "step": "until the asset's step begins; of a stage in the run of the one before it, since that published",
    "capture": "the capture and the Spark session",
    "work": "the asset function, Spark's work, the branch and its publication",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=5)
    parser.add_argument("--rows-per-day", type=int, default=20_000)
    parser.add_argument("--late", type=float, default=0.0, help="fraction of rows from the 13 days before")
    given = parser.parse_args()
    hops: dict[str, list[Hop]] = {stage: [] for stage in STAGES}
    totals = []
    with tempfile.TemporaryDirectory() as folder, Services(Path(folder) / "demo") as services:
        services.start_spark()
        services.start_dagster(automation=True)
        pipeline = Pipeline(services.home, services.lake)
        with dg.DagsterInstance.from_config(str(services.home)) as instance:
            for number in range(given.commits + 1):
                days = 1 if number else 14
                rows = (f"--rows-per-day={given.rows_per_day}", f"--late={given.late}")
                services.run("python", "-m", "example_project.ingest", f"--days={days}", *rows)
                committed = _committed(services.lake, "playback")
                while not pipeline.is_caught_up():
                    services.require_alive()
                    time.sleep(0.2)
                if number == 0:  # The first is a full run, by a Dagster that has just been started.
                    continue
                began = committed
                for stage in STAGES:
                    hop, began = _hop(instance, pipeline, stage, began, services.lake)
                    hops[stage].append(hop)
                totals.append(began - committed)
    print(f"| seconds, median of {given.commits} | {' | '.join(EXPLAINED)} | sum |")
    print(f"| --- |{' --- |' * (len(EXPLAINED) + 1)}")
    for stage, found in hops.items():
        parts = [statistics.median(column) for column in zip(*map(astuple, found), strict=True)]
        whole = statistics.median(sum(astuple(hop)) for hop in found)
        print(f"| {stage} | {' | '.join(f'{part:.1f}' for part in [*parts, whole])} |")
    print(f"\nboth stages: median {statistics.median(totals):.1f}, {min(totals):.1f} to {max(totals):.1f} s\n")
    for part, text in EXPLAINED.items():
        print(f"- {part}: {text}")


def _hop(instance: dg.DagsterInstance, pipeline: Pipeline, stage: str, began: float, lake: Path) -> tuple[Hop, float]:
    """The times of the newest run of ``stage``, and when its result was committed to its table."""
    newest = pipeline.materializations(stage)[-1]
    of_run = {
        entry.dagster_event.event_type: entry.timestamp
        for entry in instance.all_logs(newest.run_id)
        if entry.dagster_event and not entry.dagster_event.step_key
    }
    kind = dg.DagsterEventType
    queued, launched, started = (
        of_run[k] for k in (kind.PIPELINE_ENQUEUED, kind.PIPELINE_STARTING, kind.PIPELINE_START)
    )
    waited = (queued - began, launched - queued, started - launched, newest.start - started)
    if started < began:  # The same run computed the stage before.
        waited = (0.0, 0.0, 0.0, newest.start - began)
    event = instance.get_latest_materialization_event(dg.AssetKey(stage))
    assert event is not None  # noqa: S101  # it was among the materializations
    assert event.asset_materialization is not None  # noqa: S101  # as above
    shown = event.asset_materialization.metadata
    capture = float(str((shown.get("whole run: capture seconds") or shown["capture seconds"]).value))
    published = _committed(lake, stage)
    work = published - newest.start - capture
    return Hop(*waited, capture, work), published


def _committed(lake: Path, table: str) -> float:
    snapshot = open_catalog(lake).load_table(f"media.{table}").current_snapshot()
    assert snapshot is not None  # noqa: S101  # something was committed
    return snapshot.timestamp_ms / 1000


if __name__ == "__main__":
    main()
