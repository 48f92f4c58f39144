"""One asset for each way to write, the expected rows of its table, and a process that runs one and can be killed.

All assets read only outside tables, so any of them can be killed in any round without holding up the others.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.at_effect import end_at
from tests.support.lake import Event, Lake
from tests.support.lake_definitions import manager_on
from tests.support.pipeline import expected_agg, expected_plays, materialize, plays

SOURCES = ("playback", "other")

Rows = Counter[tuple[object, ...]]


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.append() | ips.table("media.appended", partition_by=["event_date"]),
)
def appended(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.merge(on=["event_date", "account"]) | ips.table("media.merged", partition_by=["event_date"]),
)
def merged(playback: ips.IcdcView) -> DataFrame:
    affected = playback.affected("event_date", "account")
    return affected.groupBy("event_date", "account").agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


@dg.asset(
    ins={name: ips.incremental() for name in SOURCES},
    metadata=ips.combine(
        on=["event_date", "account"],
        aggregates={
            "plays": "count(*)",
            "seconds": "sum(seconds)",
            "known": "count(seconds)",
            "longest": "max(seconds)",
        },
    )
    | ips.table("media.combined", partition_by=["event_date"]),
)
def combined(playback: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return playback.weighted.unionByName(other.weighted)


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.overwrite_partitions() | ips.table("media.by_day", partition_by=["event_date"]),
)
def by_day(playback: ips.IcdcView) -> DataFrame:
    return playback.scope.groupBy("event_date", "account").agg(
        F.count("*").alias("plays"), F.sum("seconds").alias("seconds")
    )


@dg.asset(
    ins={"playback": ips.incremental(ranges=["event_date"])},
    metadata=ips.table("media.running", partition_by=["event_date"]),
)
def running(playback: ips.IcdcView) -> ips.Overwrite:
    days = playback.source.groupBy("event_date", "account").agg(F.sum("seconds").alias("seconds"))
    so_far = F.sum("seconds").over(Window.partitionBy("account").orderBy("event_date"))
    scope = playback.range("event_date").since("event_date")
    return ips.Overwrite(days.select("event_date", "account", so_far.alias("total")).where(scope), where=scope)


@dg.asset(
    ins={"playback": ips.incremental(), "other": ips.incremental()}, metadata=ips.append() | ips.table("media.united")
)
def united(playback: ips.IcdcView, other: ips.IcdcView) -> DataFrame:
    return playback.added.unionByName(other.added)


@dg.asset(deps=[ips.incremental_dep(name) for name in SOURCES], metadata=ips.table("media.counted"))
def counted(context):  # noqa: ANN001, ANN201  # Dagster reads its annotation at run time, and annotations are strings here
    with ips.capture(context, columns="source STRING, account STRING, plays BIGINT") as icdc:
        for name in SOURCES:
            icdc.sql(f"""
                MERGE INTO {{target}} t
                USING (SELECT account, count(*) AS plays FROM {{{name}.added}} GROUP BY account) c
                ON t.source = '{name}' AND t.account = c.account
                WHEN MATCHED THEN UPDATE SET plays = t.plays + c.plays
                WHEN NOT MATCHED THEN INSERT (source, account, plays) VALUES ('{name}', c.account, c.plays)
            """)


@dg.multi_asset(
    specs=[
        dg.AssetSpec(name, deps=[ips.incremental_dep("playback")], metadata=ips.table(f"media.{name}"))
        for name in ("even", "odd")
    ]
)
def halves(context):  # noqa: ANN001, ANN201  # as above
    """Writes each table with its own statements."""
    for rest, name in enumerate(("even", "odd")):
        with ips.capture(context, writes=f"media.{name}", columns="id BIGINT, seconds BIGINT") as icdc:
            icdc.sql(f"INSERT INTO {{target}} SELECT event_id, seconds FROM {{added}} WHERE event_id % 2 = {rest}")
        yield dg.MaterializeResult(name)


@dg.multi_asset(
    ins={"playback": ips.incremental()},
    outs={
        "per_account": dg.AssetOut(metadata=ips.merge(on=["event_date", "account"]) | ips.table("media.per_account")),
        "per_day": dg.AssetOut(
            metadata=ips.overwrite_partitions() | ips.table("media.per_day", partition_by=["event_date"])
        ),
    },
)
def sums(playback: ips.IcdcView):  # noqa: ANN201  # as above
    days = playback.affected("event_date")
    plays, seconds = F.count("*").alias("plays"), F.sum("seconds").alias("seconds")
    return days.groupBy("event_date", "account").agg(plays, seconds), days.groupBy("event_date").agg(seconds)


@dg.multi_asset(
    ins={name: ips.incremental() for name in SOURCES},
    outs={name: dg.AssetOut(metadata=ips.append() | ips.table(f"media.{name}")) for name in ("early", "late")},
)
def parts(playback: ips.IcdcView, other: ips.IcdcView):  # noqa: ANN201  # as above
    rows = playback.added.unionByName(other.added)
    return rows.where("event_id % 3 = 0"), rows.where("event_id % 3 > 0")


def _per_day(rows: Sequence[Event]) -> Rows:
    seconds: Counter[object] = Counter()
    for row in rows:
        seconds[row[1]] += row[3]
    return Counter((day, total) for day, total in seconds.items())


def _combined(rows: Sequence[Event]) -> Rows:
    groups: dict[tuple[object, object], list[int]] = {}
    for _, day, account, seconds in rows:
        groups.setdefault((day, account), []).append(seconds)
    return Counter((*key, len(all_), sum(all_), len(all_), max(all_)) for key, all_ in groups.items())


def _counted(playback: Sequence[Event], other: Sequence[Event]) -> Rows:
    plays = Counter([("playback", row[2]) for row in playback] + [("other", row[2]) for row in other])
    return Counter((*key, count) for key, count in plays.items())


def _half(rows: Sequence[Event], *, rest: int) -> Rows:
    return Counter((row[0], row[3]) for row in rows if row[0] % 2 == rest)


def _running(rows: Sequence[Event]) -> Rows:
    total: Counter[object] = Counter()
    found: Rows = Counter()
    for (date, account), events in groupby(sorted(rows, key=lambda row: row[1:3]), key=lambda row: row[1:3]):
        total[account] += sum(seconds for *_, seconds in events)
        found[date, account, total[account]] = 1
    return found


@dataclass(frozen=True)
class Kind:
    """The assets of a step, the inputs they track, and what their tables must hold, given the rows of ``SOURCES``."""

    asset: dg.AssetsDefinition
    upstreams: tuple[str, ...]
    expected: dict[str, Callable[[Sequence[Event], Sequence[Event]], Rows]]

    @property
    def names(self) -> tuple[str, ...]:
        """The assets' names."""
        return tuple(sorted(key.to_user_string() for key in self.asset.keys))


KINDS = (
    Kind(appended, ("playback",), {"media.appended": lambda playback, _: Counter(playback)}),
    Kind(merged, ("playback",), {"media.merged": lambda playback, _: expected_agg(list(playback))}),
    Kind(combined, SOURCES, {"media.combined": lambda *rows: _combined([row for of_one in rows for row in of_one])}),
    Kind(by_day, ("playback",), {"media.by_day": lambda playback, _: expected_agg(list(playback))}),
    Kind(running, ("playback",), {"media.running": lambda playback, _: _running(playback)}),
    Kind(united, SOURCES, {"media.united": lambda playback, other: Counter([*playback, *other])}),
    Kind(plays, ("playback",), {"media.plays": lambda playback, _: expected_plays(list(playback))}),
    Kind(counted, SOURCES, {"media.counted": _counted}),
    Kind(
        halves,
        ("playback",),
        {
            "media.even": lambda playback, _: _half(playback, rest=0),
            "media.odd": lambda playback, _: _half(playback, rest=1),
        },
    ),
    Kind(
        sums,
        ("playback",),
        {
            "media.per_account": lambda playback, _: expected_agg(list(playback)),
            "media.per_day": lambda playback, _: _per_day(playback),
        },
    ),
    Kind(
        parts,
        SOURCES,
        {
            "media.early": lambda *rows: Counter(row for of_one in rows for row in of_one if row[0] % 3 == 0),
            "media.late": lambda *rows: Counter(row for of_one in rows for row in of_one if row[0] % 3 > 0),
        },
    ),
)


def kinds(lake_folder: Path, spark_folder: Path) -> dg.Definitions:
    """The assets of all kinds on the lake in ``lake_folder``. They keep as few ICDC tables as possible."""
    manager = manager_on(lake_folder, spark_folder, icdc_keep_last=1)
    sources = [ips.iceberg_asset(name, table=f"media.{name}") for name in SOURCES]
    assets = [*sources, *(kind.asset for kind in KINDS)]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


def kinds_job(lake_folder: str, spark_folder: str) -> dg.JobDefinition:
    """The assets of all kinds as a job that Dagster can build again for a re-execution."""
    definitions = kinds(Path(lake_folder), Path(spark_folder))
    job = dg.define_asset_job("kinds", [kind.asset for kind in KINDS], executor_def=dg.in_process_executor)
    return dg.Definitions.merge(definitions, dg.Definitions(jobs=[job])).resolve_job_def("kinds")


Make = Callable[[Path, Path], dg.Definitions]
"""Makes definitions from the folder of the lake and the folder of the Spark server."""

# Processes fork from one that has imported everything, so starting one saves 3 seconds of imports.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.support.kinds"])


def start_run(
    home: str, lake: Lake, *assets: str, at: str = "", order: signal.Signals = signal.SIGKILL, of: Make = kinds
) -> multiprocessing.Process:
    """Start a process that runs ``assets`` and sends itself the signal ``order`` at the point ``at``.

    If the run fails, the process ends with exit code 1, and the error is in Dagster's event log.
    """
    place = (home, lake.folder, lake.spark_folder, of)
    process = _PROCESSES.Process(target=_run, args=(place, assets, at, order))
    process.start()
    return process  # type: ignore[return-value]  # the type of this context


def run_killed(home: str, lake: Lake, *assets: str, at: str, of: Make = kinds) -> None:
    """Like ``start_run``, for a run that is killed at the point ``at``."""
    process = start_run(home, lake, *assets, at=at, of=of)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _run(place: tuple[str, Path, Path, Make], assets: Sequence[str], at: str, order: signal.Signals) -> None:
    home, lake_folder, spark_folder, of = place
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Dagster logs every event to stderr.
    end_at(at, order)
    with dg.DagsterInstance.from_config(home) as instance:
        materialize(of(lake_folder, spark_folder), instance, *assets)
