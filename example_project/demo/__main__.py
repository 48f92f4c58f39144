"""``python -m example_project.demo``: watch two stages follow new days and late rows automatically.

With ``--check`` it exits at the end instead of staying, with exit code 1 if a check fails.
"""

import argparse
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

from rich.markup import escape

from example_project.demo.pipeline import BY_QUERY, REPORT, STAGES, Materialization, Pipeline
from example_project.demo.services import Job, Services
from example_project.demo.show import Comparison, Show
from example_project.spark_meter import Read, SparkMeter

HISTORY_DAYS = 14
ROUNDS = ("the first 14 days", "one more day with late rows", "another day with late rows")
_FOLDER = Path(".local/demo")
_LOOK_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m example_project.demo")
    parser.add_argument(
        "--check", action="store_true", help="exit after printing the table; exit code 1 if a check fails"
    )
    parser.add_argument("--no-sensor", action="store_true", help="leave the automation sensor off, so nothing runs")
    parser.add_argument("--rows-per-day", type=int, default=250_000)
    parser.add_argument(
        "--patience", type=float, default=180.0, help="give up after this many seconds without any activity"
    )
    given = parser.parse_args(arguments)
    for ending in (signal.SIGTERM, signal.SIGHUP):  # The demo is asked to end, or the terminal was closed.
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    show = Show()
    try:
        with Services(_FOLDER.absolute(), "example_project.demo.definitions") as services:
            problems = _run(services, show, given)
            if not given.check and not problems:
                _stay(services, show)
    except KeyboardInterrupt:
        show.say("stopped")
        return 130
    for problem in problems:
        show.say(f"[red]✗[/] {escape(problem)}")
    return 1 if problems else 0


def _run(services: Services, show: Show, given: argparse.Namespace) -> list[str]:
    meter = _start(services, show, given)
    spark, pipeline = services.spark, Pipeline(services.home, services.lake, more=BY_QUERY)
    link = f"http://127.0.0.1:{services.webserver_port}/assets/playback_daily"
    show.say(f"Dagster's UI: {link}")
    before: dict[str, list[Materialization]] = {stage: [] for stage in STAGES}
    rounds: list[dict[str, list[Materialization]]] = []
    landed: list[int] = []
    for number, title in enumerate(ROUNDS):
        if number:
            with show.phase(f"an outside job lands {title}") as at:
                _await_job(_begin_landing(services, 1, given.rows_per_day), at)
        landed.append(pipeline.total_records("playback") - sum(landed))
        with show.phase(f"Dagster follows {title} on its own: {landed[-1]:,} rows") as at:
            _await_caught_up(services, pipeline, meter, given.patience, at)
        now = {stage: pipeline.materializations(stage) for stage in STAGES}
        rounds.append({stage: now[stage][len(before[stage]) :] for stage in STAGES})
        before = now
    by_change = {stage: _read(meter, rounds[-1][stage]) for stage in STAGES}
    both = _read(meter, [run for stage in STAGES for run in rounds[-1][stage]])
    with show.phase("the same day with a 14-day lookback, on a copy"):
        where = ["--ui", _required(spark.ui), "--pid", str(spark.pid)]
        measured = json.loads(
            services.run_on_spark("python", "-m", "example_project.lookback", "--stages", *STAGES, *where)
        )
    with show.phase("a full recompute of every table, compared row by row"):
        different = _recompute(services, pipeline)
    by_lookback = {stage: Read(**measured[stage]) for stage in STAGES}
    show.table(
        [Comparison(stage, by_change[stage], by_lookback[stage]) for stage in STAGES],
        Comparison("both", both, reduce(Read.plus, by_lookback.values())),
    )
    show.console.print(f"\nequals full recompute: [bold]{'no' if different else 'yes'}[/]\n")
    return [*different, *_unmet(pipeline, rounds, landed)]


def _start(services: Services, show: Show, given: argparse.Namespace) -> SparkMeter:
    """Start Spark and Dagster while the first days land."""
    with show.phase(f"starting Spark and Dagster, while an outside job lands {ROUNDS[0]}") as at:
        spark, landing = services.begin_spark(), _begin_landing(services, HISTORY_DAYS, given.rows_per_day)
        services.begin_dagster()
        _await_job(landing, at)
        services.start_dagster(automation=not given.no_sensor)
        _await_job(spark, at)
    return SparkMeter(_required(services.spark.ui), services.spark.pid)


def _begin_landing(services: Services, days: int, rows_per_day: int) -> Job:
    arguments = ("-m", "example_project.ingest", f"--days={days}", f"--rows-per-day={rows_per_day}")
    return services.begin("ingest", "python", *arguments)


def _await_job(job: Job, at: Callable[[str], None]) -> None:
    while job.is_running():
        at(job.last_line())
        time.sleep(0.1)
    job.require_success()


def _await_caught_up(
    services: Services, pipeline: Pipeline, meter: SparkMeter, patience: float, at: Callable[[str], None]
) -> None:
    """Wait until all assets have caught up, as long as anything happens in Dagster or Spark.

    Raises:
        SystemExit: a run failed, a service ended, or nothing happened any more; the message says what is known.
    """
    seen: tuple[int | None, int] = (None, 0)
    since = time.monotonic()
    while time.monotonic() - since < patience:
        services.require_alive()
        now = (pipeline.newest_event(), meter.tasks())
        if now != seen:
            seen, since = now, time.monotonic()
            if failures := pipeline.failures():
                message = f"a run failed: {failures[0]}"
                raise SystemExit(message)
        if pipeline.is_caught_up():
            return
        at(pipeline.current_step())
        time.sleep(_LOOK_SECONDS)
    tail = services.log_tail("daemon")
    message = (
        f"the stages did not follow: nothing happened in Dagster or Spark for {patience:.0f} s, after "
        f"{pipeline.run_count()} runs; the daemon says:\n{tail}"
    )
    raise SystemExit(message)


def _read(meter: SparkMeter, runs: list[Materialization]) -> Read:
    """What was read while any of ``runs`` was working. Time in which several worked counts once."""
    spans: list[tuple[float, float]] = []
    for start, end in sorted((run.start, run.end) for run in runs):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return reduce(Read.plus, (meter.read_between(*span) for span in spans), Read(0.0, 0, 0))


def _recompute(services: Services, pipeline: Pipeline) -> list[str]:
    events = f"--source-snapshot={pipeline.head('playback')}"
    plans = f"--plan-snapshot={pipeline.head('account_plan')}"
    try:
        tables = [f"media.{name}" for name in (*STAGES, *BY_QUERY, REPORT)]
        services.run_on_spark("python", "-m", "example_project.recompute", events, plans, "--tables", *tables)
    except SystemExit as failed:
        if isinstance(failed.code, int):  # The demo was asked to end.
            raise
        return [f"a full recompute differs: {failed}"]
    return []


def _unmet(pipeline: Pipeline, rounds: list[dict[str, list[Materialization]]], landed: list[int]) -> list[str]:
    """The demo's claims that turned out to be wrong."""
    problems = [f"run {run_id} was not launched by the automation sensor" for run_id in pipeline.runs_not_by_sensor()]
    computed: dict[str, frozenset[str]] = defaultdict(frozenset)
    for number, (stages, rows) in enumerate(zip(rounds, landed, strict=True), start=1):
        first, second = stages["playback_daily"], stages["playback_daily_agg"]
        captured = sum(run.rows_captured for run in first)
        if captured != rows:
            problems.append(f"round {number}: playback_daily read {captured:,} of the {rows:,} rows that landed")
        for run in (*first, *second):
            anew = run.partitions & computed[run.asset] if run.mode != "incremental" else ()
            if anew:
                problems.append(f"round {number}: {run.asset} recomputed {', '.join(sorted(anew))}")
            computed[run.asset] |= run.partitions
        consumed = sum(run.rows_captured for run in second)
        if consumed != rows:
            problems.append(f"round {number}: playback_daily_agg consumed {consumed:,} of {rows:,} new rows of stage 1")
    return problems


def _stay(services: Services, show: Show) -> None:
    link = f"http://127.0.0.1:{services.webserver_port}/assets/playback_daily"
    show.console.print(f"Open [link={link}]{link}[/link]   (Ctrl-C stops everything)")
    while True:
        services.require_alive()
        time.sleep(1)


def _required(address: str | None) -> str:
    if address is None:
        message = "the local Spark has no UI, which the demo needs to count rows"
        raise SystemExit(message)
    return address


if __name__ == "__main__":
    sys.exit(main())
