"""A two-stage pipeline for tests, with more assets that a test can add."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.lake import Event
from tests.support.lake_catalog import catalog_resource
from tests.support.spark_resource import NO_CONF, spark_resource


@dg.asset(
    ins={"playback": ips.incremental(ranges=["event_date"])},
    metadata=ips.append() | ips.table("media.daily", partition_by=["event_date"]),
)
def daily(playback: ips.IcdcView) -> DataFrame:
    return playback.changes.withColumn("minutes", F.floor(F.col("seconds") / 60))


@dg.asset(
    ins={"daily": ips.incremental()},
    metadata=ips.merge(on=["event_date", "account"]) | ips.table("media.agg", partition_by=["event_date"]),
)
def agg(daily: ips.IcdcView) -> DataFrame:
    affected = daily.affected("event_date", "account")
    return affected.groupBy("event_date", "account").agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


@dg.asset(metadata=ips.table("media.report"))
def report(agg: DataFrame) -> DataFrame:
    return agg.groupBy("event_date").agg(F.sum("plays").alias("plays"))


@dg.asset(
    ins={"playback": ips.incremental(max_files=2)},
    metadata=ips.append(remove_on=["event_id"]) | ips.table("media.daily_in_bites", partition_by=["event_date"]),
)
def daily_in_bites(playback: ips.IcdcView) -> DataFrame:
    return playback.added.withColumn("minutes", F.floor(F.col("seconds") / 60))


@dg.asset(
    ins={"playback": ips.incremental(max_files=2)},
    metadata=ips.merge(on=["event_date", "account"]) | ips.table("media.agg_in_bites", partition_by=["event_date"]),
)
def agg_in_bites(playback: ips.IcdcView) -> DataFrame:
    affected = playback.affected("event_date", "account")
    return affected.groupBy("event_date", "account").agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


@dg.asset(deps=[ips.incremental_dep("playback")], metadata=ips.table("media.plays"))
def plays(context):  # noqa: ANN001, ANN201  # Dagster reads its annotation at run time, and annotations are strings here
    """Writes with two statements of its own. The first one counts twice if it runs twice."""
    with ips.capture(context, "playback", columns="account STRING, plays BIGINT") as icdc:
        icdc.sql("""
            MERGE INTO {target} t USING (SELECT account, count(*) AS plays FROM {added} GROUP BY account) c
            ON t.account = c.account
            WHEN MATCHED THEN UPDATE SET plays = t.plays + c.plays WHEN NOT MATCHED THEN INSERT *
        """)
        icdc.sql("INSERT INTO {target} SELECT 'last of ' || account, event_id FROM {added} WHERE event_id % 5 = 0")


def pipeline(
    lake_folder: Path,
    spark_folder: Path,
    *more: dg.AssetsDefinition,
    icdc_keep_last: int = 1,
    spark_config: Mapping[str, str] = NO_CONF,
) -> dg.Definitions:
    """The pipeline on the lake in ``lake_folder``, with additional assets.

    It keeps as few ICDC tables as possible, so that every test also drops some.
    """
    manager = ips.IcdcIOManager(
        catalog=catalog_resource(lake_folder),
        spark=spark_resource(spark_folder, spark_config),
        icdc_keep_last=icdc_keep_last,
    )
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = dg.Definitions(assets=[playback, daily, agg, report, *more], resources={"io_manager": manager})
    return ips.with_incremental(definitions)


def with_every_asset(lake_folder: Path, spark_folder: Path) -> dg.Definitions:
    """The pipeline with all assets that a test can add."""
    return pipeline(lake_folder, spark_folder, daily_in_bites, agg_in_bites, plays)


def materialize(
    definitions: dg.Definitions, instance: dg.DagsterInstance, *assets: str, tags: dict[str, str] | None = None
) -> dg.ExecuteInProcessResult:
    """One run of ``assets``; raises the run's error."""
    job = definitions.resolve_implicit_global_asset_job_def()
    selection = [dg.AssetKey(asset) for asset in assets]
    return job.execute_in_process(instance=instance, asset_selection=selection, tags=tags)


def expected_daily(rows: list[Event]) -> Counter[tuple[object, ...]]:
    """What ``daily`` must hold, computed without Spark."""
    return Counter((*row, row[3] // 60) for row in rows)


def expected_agg(rows: list[Event]) -> Counter[tuple[object, ...]]:
    """What ``agg`` must hold, computed without Spark."""
    plays: Counter[tuple[object, object]] = Counter()
    seconds: Counter[tuple[object, object]] = Counter()
    for _, date, account, played in rows:
        plays[date, account] += 1
        seconds[date, account] += played
    return Counter((date, account, count, seconds[date, account]) for (date, account), count in plays.items())


def expected_plays(rows: list[Event]) -> Counter[tuple[object, ...]]:
    """What ``plays`` must hold, computed without Spark."""
    counted = Counter(row[2] for row in rows)
    return Counter([*counted.items(), *((f"last of {row[2]}", row[0]) for row in rows if row[0] % 5 == 0)])
