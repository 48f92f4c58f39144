"""The independent check finds a single wrong row, and nothing else; the lookback used for comparison is right, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.local_spark.connect_server import ConnectServer
from example_project import lookback
from example_project.events import Workload
from example_project.ingest import ACCOUNT_PLAN, PLAYBACK, ingest
from example_project.lake import open_catalog
from example_project.recompute import Difference, compare, difference
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
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

SMALL = Workload(rows_per_day=600, late=0.1)
SAME = Difference(missing=0, extra=0)
DAILY, AGG, WEEKLY, TOTAL, MEDIAN, TITLES, GENRES, REPORT = TABLES = tuple(
    f"media.{name}"
    for name in (
        "playback_daily",
        "playback_daily_agg",
        "playback_weekly",
        "account_running_total",
        "title_median",
        "by_title",
        "plays_per_genre",
        "daily_report",
    )
)
ALL_SAME = dict.fromkeys(TABLES, SAME)


def source_snapshots(lake: Lake) -> tuple[int, int]:
    """The current snapshots of the events and of the plans."""
    catalog = open_catalog(lake.folder)
    heads = [catalog.load_table(table).current_snapshot() for table in (PLAYBACK, ACCOUNT_PLAN)]
    events, plans = [head.snapshot_id for head in heads if head is not None]
    return events, plans


@pytest.fixture
def built(lake: Lake) -> tuple[int, int]:
    """Three days and every table as it should be; returns the source snapshots from which they were made."""
    ingest(lake.folder, 3, SMALL)
    table = lake.session.table
    _create(enriched_plays(table("lake.media.playback"), table("lake.media.title")), DAILY, by_date=True)
    _create(plays_per_account(table(f"lake.{DAILY}")), AGG, by_date=True)
    _create(totals_per_week(table(f"lake.{AGG}")), WEEKLY, by_date=False)
    _create(running_totals(table(f"lake.{DAILY}"), table(f"lake.{ACCOUNT_PLAN}")), TOTAL, by_date=True)
    _create(medians_per_title(table(f"lake.{DAILY}")), MEDIAN, by_date=True)
    _create(plays_per_title(table(f"lake.{DAILY}")), TITLES, by_date=False)
    for name, source in (("playback_daily", DAILY), ("title", "media.title")):
        table(f"lake.{source}").createOrReplaceTempView(name)
    _create(lake.session.sql(PLAYS_PER_GENRE), GENRES, by_date=False)
    _create(totals_per_day(table(f"lake.{AGG}")), REPORT, by_date=False)
    return source_snapshots(lake)


def _create(frame: DataFrame, name: str, *, by_date: bool) -> None:
    writer = frame.writeTo(f"lake.{name}").using("iceberg").tableProperty("write.distribution-mode", "none")
    (writer.partitionedBy(F.col("event_date")) if by_date else writer).create()


def recompute_as_a_job(
    lake: Lake, snapshots: tuple[int, int], spark: ConnectServer
) -> subprocess.CompletedProcess[str]:
    at = [f"--source-snapshot={snapshots[0]}", f"--plan-snapshot={snapshots[1]}"]
    command = [sys.executable, "-m", "example_project.recompute", *at, "--lake", str(lake.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | spark.environment())


@pytest.mark.slow
def test_right_tables_equal_a_recompute_at_the_snapshots_they_consumed(lake: Lake, built: tuple[int, int]) -> None:
    assert compare(lake.session, *built) == ALL_SAME
    ingest(lake.folder, 1, SMALL)  # Later rows don't count as a difference.
    assert compare(lake.session, *built) == ALL_SAME
    behind = compare(lake.session, *source_snapshots(lake))
    assert behind[DAILY] == Difference(missing=600, extra=0)
    assert all(each.missing for each in behind.values())


@pytest.mark.slow
def test_one_wrong_row_makes_the_job_fail(lake: Lake, built: tuple[int, int], spark_server: ConnectServer) -> None:
    right = recompute_as_a_job(lake, built, spark_server)
    assert right.returncode == 0, right.stderr
    lake.sql(f"UPDATE lake.{DAILY} SET play_seconds = play_seconds + 1 WHERE event_id = 1000000007")
    wrong = recompute_as_a_job(lake, built, spark_server)
    assert wrong.returncode == 1, wrong.stderr
    nothing = {table: {"missing": 0, "extra": 0} for table in TABLES}
    assert json.loads(wrong.stdout) == nothing | {DAILY: {"missing": 1, "extra": 1}}


@pytest.mark.parametrize(
    ("table", "statement", "expected"),
    mostly_slow(
        [
            (DAILY, f"DELETE FROM lake.{DAILY} WHERE event_id = 5", Difference(missing=1, extra=0)),
            (
                DAILY,
                f"INSERT INTO lake.{DAILY} SELECT * FROM lake.{DAILY} WHERE event_id = 5",
                Difference(missing=0, extra=1),
            ),
            (
                AGG,
                f"UPDATE lake.{AGG} SET plays = plays + 1 WHERE account_id = 0 AND event_date = DATE'2026-01-02'",
                Difference(missing=1, extra=1),
            ),
            (
                REPORT,
                f"UPDATE lake.{REPORT} SET plays = NULL WHERE event_date = DATE'2026-01-02'",
                Difference(missing=1, extra=1),
            ),
            (
                TOTAL,
                f"UPDATE lake.{TOTAL} SET plan = 'other' WHERE account_id = 0 AND event_date = DATE'2026-01-02'",
                Difference(missing=1, extra=1),
            ),
            (
                MEDIAN,
                f"DELETE FROM lake.{MEDIAN} WHERE title_id = 0 AND event_date = DATE'2026-01-02'",
                Difference(missing=1, extra=0),
            ),
        ],
        quick=1,
    ),
    ids=["row lost", "row doubled", "sum wrong", "value null", "plan wrong", "median lost"],
)
def test_one_planted_difference_is_found(
    lake: Lake, built: tuple[int, int], table: str, statement: str, expected: Difference
) -> None:
    lake.sql(statement)
    assert compare(lake.session, *built) == ALL_SAME | {table: expected}


def test_the_recompute_shares_no_process_with_dagster_or_this_library() -> None:
    loaded = "import example_project.recompute, sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not {"dagster", "dagster_ips"} & set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_the_lookback_in_the_comparison_does_the_whole_work(lake: Lake) -> None:
    """Before the lookback runs, its copies are a day behind; afterwards they equal a full recompute."""
    ingest(lake.folder, 1, SMALL)
    spark, table = lake.session, lake.session.table
    lookback.copy_tables(spark, lookback.STAGES)
    since = lookback.first_day_of_window(spark)
    plays = enriched_plays(table("lake.media.playback"), table("lake.media.title"))
    expected = {
        "playback_daily": plays,
        "playback_daily_agg": plays_per_account(plays),
        "account_running_total": running_totals(plays, table(f"lake.{ACCOUNT_PLAN}")),
        "title_median": medians_per_title(plays),
    }
    assert list(lookback.STAGES) == list(expected)
    assert all(difference(frame, table(f"lake.lookback.{name}")) != SAME for name, frame in expected.items())
    for stage in lookback.STAGES.values():
        stage(spark, since)
    assert all(difference(frame, table(f"lake.lookback.{name}")) == SAME for name, frame in expected.items())
