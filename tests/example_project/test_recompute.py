"""The independent check finds a single wrong row, and only then; the lookback it is compared with is right, too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from example_project import lookback
from example_project.events import Workload
from example_project.ingest import PLAYBACK, ingest
from example_project.lake import open_catalog
from example_project.recompute import Difference, compare, difference
from example_project.transforms import enriched_plays, plays_per_account, totals_per_day
from tests.lake import Lake

SMALL = Workload(rows_per_day=600, late=0.1)
SAME = Difference(missing=0, extra=0)
DAILY, AGG, REPORT = (f"media.{name}" for name in ("playback_daily", "playback_daily_agg", "daily_report"))


def source_snapshot(lake: Lake) -> int:
    snapshot = open_catalog(lake.folder).load_table(PLAYBACK).current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


@pytest.fixture
def built(lake: Lake) -> int:
    """Three days, and every table as it should be; the source's snapshot that they were made of."""
    ingest(lake.folder, 3, SMALL)
    table = lake.session.table
    _create(enriched_plays(table("lake.media.playback"), table("lake.media.title")), DAILY, by_date=True)
    _create(plays_per_account(table(f"lake.{DAILY}")), AGG, by_date=True)
    _create(totals_per_day(table(f"lake.{AGG}")), REPORT, by_date=False)
    return source_snapshot(lake)


def _create(frame: DataFrame, name: str, *, by_date: bool) -> None:
    writer = frame.writeTo(f"lake.{name}").using("iceberg").tableProperty("write.distribution-mode", "none")
    (writer.partitionedBy(F.col("event_date")) if by_date else writer).create()


def recompute_as_a_job(lake: Lake, snapshot: int, remote: str) -> subprocess.CompletedProcess[str]:
    where = ["--source-snapshot", str(snapshot), "--remote", remote, "--lake", str(lake.folder)]
    command = [sys.executable, "-m", "example_project.recompute", *where]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_tables_that_are_right_are_the_same_at_the_snapshot_they_consumed(lake: Lake, built: int) -> None:
    assert compare(lake.session, built) == {DAILY: SAME, AGG: SAME, REPORT: SAME}
    ingest(lake.folder, 1, SMALL)  # What landed later isn't held against them.
    assert compare(lake.session, built) == {DAILY: SAME, AGG: SAME, REPORT: SAME}
    behind = compare(lake.session, source_snapshot(lake))
    assert behind[DAILY] == Difference(missing=600, extra=0)
    assert behind[AGG].missing
    assert behind[REPORT].missing


def test_one_wrong_row_makes_the_job_fail(lake: Lake, built: int, spark_server: object) -> None:
    remote = spark_server.remote  # type: ignore[attr-defined]
    right = recompute_as_a_job(lake, built, remote)
    assert right.returncode == 0, right.stderr
    lake.sql(f"UPDATE lake.{DAILY} SET play_seconds = play_seconds + 1 WHERE event_id = 1000000007")
    wrong = recompute_as_a_job(lake, built, remote)
    assert wrong.returncode == 1, wrong.stderr
    same = {"missing": 0, "extra": 0}
    assert json.loads(wrong.stdout) == {DAILY: {"missing": 1, "extra": 1}, AGG: same, REPORT: same}


@pytest.mark.parametrize(
    ("table", "statement", "expected"),
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
    ],
    ids=["row lost", "row doubled", "sum wrong", "value null"],
)
def test_one_planted_difference_is_found(
    lake: Lake, built: int, table: str, statement: str, expected: Difference
) -> None:
    lake.sql(statement)
    assert compare(lake.session, built) == {DAILY: SAME, AGG: SAME, REPORT: SAME, table: expected}


def test_the_recompute_shares_no_process_with_dagster_or_this_library() -> None:
    loaded = "import example_project.recompute, sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert not {"dagster", "dagster_ips"} & set(done.stdout.split())


def test_the_lookback_that_is_measured_does_the_whole_work(lake: Lake, built: int) -> None:  # noqa: ARG001  # the tables
    """Its copies are a day behind and then, after it ran, what a full recompute makes of the source."""
    ingest(lake.folder, 1, SMALL)
    spark, table = lake.session, lake.session.table
    lookback.copy_tables(spark)
    since = lookback.first_day_of_window(spark)
    plays = enriched_plays(table("lake.media.playback"), table("lake.media.title"))
    assert difference(plays, table("lake.lookback.playback_daily")) != SAME
    lookback.playback_daily(spark, since)
    lookback.playback_daily_agg(spark, since)
    assert difference(plays, table("lake.lookback.playback_daily")) == SAME
    assert difference(plays_per_account(plays), table("lake.lookback.playback_daily_agg")) == SAME
