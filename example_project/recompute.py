"""Checks that every table equals a full recompute from the source. A separate job, without Dagster and dagster_ips.

    python -m example_project.recompute --source-snapshot 123456789 --plan-snapshot 987654321 --remote sc://spark.example:15002

Reads ``media.playback`` and ``media.account_plan`` as of the snapshots up to which the pipeline has consumed them,
computes every table from them and compares row by row, including duplicates. Prints
``{table: {"missing": rows, "extra": rows}}``; exits with 1 if any row differs.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from example_project.lake import CATALOG, lake_folder
from example_project.lake_spark import spark_on_lake
from example_project.transforms import (
    PLAYS_PER_GENRE,
    enriched_plays,
    medians_per_title,
    plays_per_account,
    plays_per_title,
    running_totals,
    totals_per_day,
    totals_per_week,
)


@dataclass(frozen=True)
class Difference:
    """How many rows a table lacks, and how many it shouldn't have, including duplicates."""

    missing: int
    extra: int


def compare(
    spark: SparkSession, source_snapshot_id: int, plan_snapshot_id: int, tables: Sequence[str] = ()
) -> dict[str, Difference]:
    """Compare ``tables``, or all of the pipeline's, with their recompute from the two sources at these snapshots."""
    events = spark.read.option("versionAsOf", source_snapshot_id).table(f"{CATALOG}.media.playback")
    plans = spark.read.option("versionAsOf", plan_snapshot_id).table(f"{CATALOG}.media.account_plan")
    plays = enriched_plays(events, spark.table(f"{CATALOG}.media.title"))
    accounts = plays_per_account(plays)
    plays.createOrReplaceTempView("playback_daily")
    spark.table(f"{CATALOG}.media.title").createOrReplaceTempView("title")
    expected = {
        "media.playback_daily": plays,
        "media.playback_daily_agg": accounts,
        "media.playback_weekly": totals_per_week(accounts),
        "media.account_running_total": running_totals(events, plans),
        "media.title_median": medians_per_title(events),
        "media.by_title": plays_per_title(events),
        "media.plays_per_genre": spark.sql(PLAYS_PER_GENRE),
        "media.daily_report": totals_per_day(accounts),
    }
    wanted = {table: frame for table, frame in expected.items() if table in (tables or expected)}
    return {table: difference(frame, spark.table(f"{CATALOG}.{table}")) for table, frame in wanted.items()}


def difference(expected: DataFrame, actual: DataFrame) -> Difference:
    """How many rows of ``expected`` are missing from ``actual``, and vice versa; columns are matched by name.

    The library's hidden columns, which begin with _ips_, aren't compared.
    """
    actual = actual.select(*[column for column in actual.columns if not column.startswith("_ips_")])
    # Both directions of EXCEPT ALL in one pass: how many more of each distinct row there are than there should be.
    expected = expected.select(*actual.columns)
    counted = actual.withColumn("__more", F.lit(1)).unionByName(expected.withColumn("__more", F.lit(-1)))
    rows = counted.groupBy(*actual.columns).agg(F.sum("__more").alias("__more"))
    missing, extra = rows.agg(F.sum(F.expr("greatest(-__more, 0)")), F.sum(F.expr("greatest(__more, 0)"))).collect()[0]
    return Difference(missing=missing or 0, extra=extra or 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m example_project.recompute")
    parser.add_argument("--source-snapshot", type=int, required=True, help="the consumed snapshot of media.playback")
    parser.add_argument("--plan-snapshot", type=int, required=True, help="the consumed snapshot of media.account_plan")
    parser.add_argument("--tables", nargs="+", default=(), help="for example media.playback_daily (default: all)")
    parser.add_argument("--remote", default=None, help="a Spark Connect server, sc://host:port")
    parser.add_argument(
        "--lake", type=Path, default=None, help="the lake's folder (default: $PLAYBACK_LAKE or .local/lake)"
    )
    given = parser.parse_args(arguments)
    spark = spark_on_lake(given.lake.absolute() if given.lake else lake_folder(), given.remote)
    found = compare(spark, given.source_snapshot, given.plan_snapshot, given.tables)
    spark.stop()
    print(json.dumps({table: asdict(each) for table, each in found.items()}))
    return 1 if any(each.missing or each.extra for each in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
