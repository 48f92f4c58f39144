"""The same two stages as one would write them without dagster_ips: rewrite the last 14 days of both tables, every day.

    python -m example_project.lookback --remote sc://127.0.0.1:15002

Works on copies in namespace ``lookback``, made first. Prints what each stage took,
as JSON; with ``--ui`` and ``--pid`` of a Spark on this machine also what it read.
"""

import argparse
import datetime as dt
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from example_project.lake import CATALOG, lake_folder
from example_project.lake_spark import spark_on_lake
from example_project.spark_meter import SparkMeter
from example_project.transforms import enriched_plays, plays_per_account

DAYS = 14
_PLAYBACK = f"{CATALOG}.media.playback"
_TITLE = f"{CATALOG}.media.title"
_DAILY = f"{CATALOG}.lookback.playback_daily"
_DAILY_AGG = f"{CATALOG}.lookback.playback_daily_agg"


def playback_daily(spark: SparkSession, since: dt.date) -> None:
    """Stage 1: every event of the window, again."""
    events = _since(spark.table(_PLAYBACK), since)
    enriched_plays(events, spark.table(_TITLE)).writeTo(_DAILY).overwritePartitions()


def playback_daily_agg(spark: SparkSession, since: dt.date) -> None:
    """Stage 2: every account's every day of the window, again."""
    plays_per_account(_since(spark.table(_DAILY), since)).writeTo(_DAILY_AGG).overwritePartitions()


def copy_tables(spark: SparkSession) -> None:
    """The pipeline's two tables as they are, under other names."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.lookback")
    for copy, original in ((_DAILY, "playback_daily"), (_DAILY_AGG, "playback_daily_agg")):
        rows = spark.table(f"{CATALOG}.media.{original}")
        rows.writeTo(copy).using("iceberg").partitionedBy(F.col("event_date")).createOrReplace()


def first_day_of_window(spark: SparkSession) -> dt.date:
    """The 14th day, counted back from the newest in ``media.playback``."""
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
    parser.add_argument("--lake", type=Path, default=None, help="the lake's folder, else $PLAYBACK_LAKE or .local/lake")
    parser.add_argument("--ui", default=None, help="http://host:port of that Spark's UI, to count rows")
    parser.add_argument("--pid", type=int, default=None, help="that Spark's process on this machine, to count bytes")
    given = parser.parse_args(arguments)
    spark = spark_on_lake(given.lake.absolute() if given.lake else lake_folder(), given.remote)
    meter = SparkMeter(given.ui, given.pid) if given.ui and given.pid else None
    copy_tables(spark)
    since = first_day_of_window(spark)
    daily = _measured(lambda: playback_daily(spark, since), meter)
    daily_agg = _measured(lambda: playback_daily_agg(spark, since), meter)
    spark.stop()
    print(json.dumps({"since": str(since), "playback_daily": daily, "playback_daily_agg": daily_agg}))


if __name__ == "__main__":
    main()
