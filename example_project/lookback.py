"""The same stages as you would write them without dagster_ips: rewrite the last 14 days of every table, every day.

    python -m example_project.lookback --remote sc://spark.example:15002

Works on copies in the namespace ``lookback``, which it creates first. Prints how long each stage took as JSON, and also
what it read, if ``--ui`` and ``--pid`` of a Spark on this machine are given.
"""

import argparse
import datetime as dt
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from example_project.lake import CATALOG, lake_folder
from example_project.lake_spark import spark_on_lake
from example_project.spark_meter import SparkMeter
from example_project.transforms import enriched_plays, medians_per_title, plays_per_account, running_totals

DAYS = 14
_PLAYBACK = f"{CATALOG}.media.playback"
_ACCOUNT_PLAN = f"{CATALOG}.media.account_plan"
_TITLE = f"{CATALOG}.media.title"
_DAILY = f"{CATALOG}.lookback.playback_daily"
_DAILY_AGG = f"{CATALOG}.lookback.playback_daily_agg"
_RUNNING_TOTAL = f"{CATALOG}.lookback.account_running_total"
_TITLE_MEDIAN = f"{CATALOG}.lookback.title_median"


def playback_daily(spark: SparkSession, since: dt.date) -> None:
    """Stage 1: recompute every event of the window."""
    events = _since(spark.table(_PLAYBACK), since)
    enriched_plays(events, spark.table(_TITLE)).writeTo(_DAILY).overwritePartitions()


def playback_daily_agg(spark: SparkSession, since: dt.date) -> None:
    """Stage 2: recompute every account and day of the window."""
    plays_per_account(_since(spark.table(_DAILY), since)).writeTo(_DAILY_AGG).overwritePartitions()


def account_running_total(spark: SparkSession, since: dt.date) -> None:
    """Recompute every account's totals in the window; this misses plans that were backdated to before the window."""
    totals = running_totals(spark.table(_DAILY), spark.table(_ACCOUNT_PLAN))
    _since(totals, since).writeTo(_RUNNING_TOTAL).overwritePartitions()


def title_median(spark: SparkSession, since: dt.date) -> None:
    """Recompute every title and day of the window."""
    medians_per_title(_since(spark.table(_DAILY), since)).writeTo(_TITLE_MEDIAN).overwritePartitions()


STAGES = {stage.__name__: stage for stage in (playback_daily, playback_daily_agg, account_running_total, title_median)}


def copy_tables(spark: SparkSession, names: Iterable[str]) -> None:
    """Copy the pipeline's tables as they are now to the namespace ``lookback``, under the same names."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.lookback")
    for name in names:
        copy, rows = f"{CATALOG}.lookback.{name}", spark.table(f"{CATALOG}.media.{name}")
        rows.writeTo(copy).using("iceberg").partitionedBy(F.col("event_date")).createOrReplace()


def first_day_of_window(spark: SparkSession) -> dt.date:
    """The first of the 14 days that end with the newest day in ``media.playback``."""
    newest: dt.date = spark.table(_PLAYBACK).agg(F.max("event_date")).collect()[0][0]
    return newest - dt.timedelta(days=DAYS - 1)


def _since(rows: DataFrame, day: dt.date) -> DataFrame:
    return rows.where(F.col("event_date") >= F.lit(day))


def _measured(stage: Callable[[], None], meter: SparkMeter | None) -> dict[str, float]:
    started = time.time()
    stage()
    ended = time.time()
    return asdict(meter.read_between(started, ended)) if meter else {"seconds": ended - started}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m example_project.lookback")
    parser.add_argument("--remote", default=None, help="a Spark Connect server, sc://host:port")
    parser.add_argument(
        "--lake", type=Path, default=None, help="the lake's folder (default: $PLAYBACK_LAKE or .local/lake)"
    )
    parser.add_argument("--ui", default=None, help="http://host:port of its Spark UI, to count rows")
    parser.add_argument("--pid", type=int, default=None, help="its process id on this machine, to count bytes")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="which stages, in this order")
    given = parser.parse_args(arguments)
    spark = spark_on_lake(given.lake.absolute() if given.lake else lake_folder(), given.remote)
    meter = SparkMeter(given.ui, given.pid) if given.ui and given.pid else None
    copy_tables(spark, given.stages)
    since = first_day_of_window(spark)
    took = {name: _measured(partial(STAGES[name], spark, since), meter) for name in given.stages}
    spark.stop()
    print(json.dumps({"since": str(since), **took}))


if __name__ == "__main__":
    main()
