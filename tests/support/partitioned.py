"""A pipeline of partitioned assets for tests: daily from an outside table, daily from daily, weekly from daily."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.lake import FIRST_DAY, Event
from tests.support.lake_definitions import manager_on
from tests.support.ticks import tick

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")
WEEKS = dg.WeeklyPartitionsDefinition(start_date="2025-12-28")
FROM_DAYS = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)
SENSOR = {"dagster/sensor_name": "ips_automation"}


@dg.asset(
    partitions_def=DAYS,
    ins={"playback": ips.incremental(ranges=["event_date"])},
    metadata=ips.append() | ips.table("media.day", partition_by=["event_date"]) | {"partition_expr": "event_date"},
)
def day(playback: ips.IcdcView) -> DataFrame:
    return playback.added.withColumn("minutes", F.floor(F.col("seconds") / 60))


@dg.asset(
    partitions_def=DAYS,
    ins={"day": ips.incremental()},
    metadata=ips.merge(on=["event_date", "account"])
    | ips.table("media.day_agg", partition_by=["event_date"])
    | {"partition_expr": "event_date"},
)
def day_agg(day: ips.IcdcView) -> DataFrame:
    affected = day.affected("event_date", "account")
    return affected.groupBy("event_date", "account").agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


@dg.asset(
    partitions_def=WEEKS,
    ins={"day_agg": ips.incremental(partition_mapping=FROM_DAYS)},
    metadata=ips.replace() | ips.table("media.week", partition_by=["week"]) | {"partition_expr": "week"},
)
def week(day_agg: ips.IcdcView) -> DataFrame:
    sunday = F.expr("date_sub(event_date, dayofweek(event_date) - 1)").alias("week")
    return day_agg.source.groupBy(sunday).agg(F.sum("plays").alias("plays"))


def partitioned(lake_folder: Path, spark_folder: Path, *more: dg.AssetsDefinition) -> dg.Definitions:
    """The pipeline on the lake in ``lake_folder``, with additional assets."""
    manager = manager_on(lake_folder, spark_folder, icdc_keep_last=1)
    playback = ips.iceberg_asset("playback", table="media.playback")
    assets = [playback, day, day_agg, week, *more]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


def run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, asset: str, first: str, last: str = "", **tags: str
) -> dg.ExecuteInProcessResult:
    """One run of the partitions from ``first`` to ``last``; ``asset`` is like ``"an_asset"`` or ``"one+another"``."""
    job = definitions.resolve_implicit_global_asset_job_def()
    ends = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last or first}
    return job.execute_in_process(
        instance=instance, asset_selection=[dg.AssetKey(a) for a in asset.split("+")], tags={**ends, **tags}
    )


def follow(definitions: dg.Definitions, instance: dg.DagsterInstance) -> list[tuple[str, str, str]]:
    """Run what the automation sensor requests until it requests nothing; returns (asset, first, last) of each run."""
    cursor, runs = None, []
    while True:
        data = tick(definitions, instance, cursor=cursor)
        cursor = data.cursor
        if not data.run_requests:
            return runs
        for request in data.run_requests:
            asset = "+".join(sorted(key.to_user_string() for key in request.asset_selection or ()))
            tags = dict(request.tags)
            first = tags.pop("dagster/asset_partition_range_start", None) or tags.pop("dagster/partition")
            last = tags.pop("dagster/asset_partition_range_end", first)
            run(definitions, instance, asset, first, last, **SENSOR)
            runs.append((asset, first, last))


def expected_day(rows: list[Event]) -> Counter[tuple[Any, ...]]:
    """What ``day`` must hold, computed without Spark."""
    return Counter((*row, row[3] // 60) for row in rows)


def expected_week(rows: list[Event]) -> Counter[tuple[Any, ...]]:
    """What ``week`` must hold, computed without Spark."""
    weeks = Counter(date - dt.timedelta(days=(date.weekday() + 1) % 7) for _, date, _, _ in rows)
    return Counter(dict.fromkeys(weeks.items(), 1))


def key(day_number: int) -> str:
    """The partition key of the day with this number, counted from the first day."""
    return (FIRST_DAY + dt.timedelta(days=day_number)).isoformat()
