"""Every write mode leaves the target as a full recompute would, run after run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_agg, expected_daily, materialize, pipeline


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("event_date").agg(F.count("*").alias("plays"), F.max("seconds").alias("longest"))


def rounds(lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, check: Callable[[], None]) -> None:
    """Four runs with new and late rows in between; none arrive before the third."""
    name = asset.key.to_user_string()
    definitions = pipeline(lake.folder, lake.spark_folder, asset)
    lake.create_playback(events(range(8)) + events(range(8, 12), day=1))
    for new in (None, events(range(12, 15)) + events(range(15, 20), day=2), [], events(range(20, 24), day=1)):
        if new:
            lake.append(new)
        materialize(definitions, instance, name)
        check()


@pytest.mark.slow
@pytest.mark.everywhere
def test_overwritten_partitions_equal_a_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.overwrite_partitions() | ips.table("media.totals", partition_by=["event_date"]),
    )
    def totals_per_day(playback: ips.IcdcView) -> DataFrame:
        return totals(playback.affected("event_date"))

    def check() -> None:
        expected = Counter(tuple(row) for row in totals(lake.sql("SELECT * FROM lake.media.playback")).collect())
        assert lake.rows("media.totals") == expected

    rounds(lake, instance, totals_per_day, check)


def test_a_partition_whose_rows_are_all_filtered_away_becomes_empty(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.overwrite_partitions() | ips.table("media.quiet_days", partition_by=["event_date"]),
    )
    def quiet_days(playback: ips.IcdcView) -> DataFrame:
        return totals(playback.affected("event_date")).where("plays < 5")

    definitions = pipeline(lake.folder, lake.spark_folder, quiet_days)
    lake.create_playback(events(range(3)) + events(range(3, 6), day=1))
    materialize(definitions, instance, "quiet_days")
    lake.append(events(range(6, 12)))
    materialize(definitions, instance, "quiet_days")
    assert [row[1] for row in lake.rows("media.quiet_days")] == [3]


def test_a_replaced_table_equals_a_recompute(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.replace() | ips.table("media.copy"))
    def copy(playback: ips.IcdcView) -> DataFrame:
        return playback.source

    rounds(lake, instance, copy, lambda: _same(lake, "media.copy", "media.playback"))


def test_an_append_with_dedup_on_keeps_one_row_per_key(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.append(dedup_on=["event_id"]) | ips.table("media.once", partition_by=["event_date"]),
    )
    def once(playback: ips.IcdcView) -> DataFrame:
        return playback.changes

    definitions = pipeline(lake.folder, lake.spark_folder, once)
    lake.create_playback(events(range(6)) + events(range(6)))
    materialize(definitions, instance, "once")
    assert lake.rows("media.once") == Counter(events(range(6)))
    lake.append(events(range(4, 9)) + events(range(7, 9)))
    materialize(definitions, instance, "once")
    assert lake.rows("media.once") == Counter(events(range(9)))


def test_a_key_with_a_null_is_appended_once_by_dedup_on(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"some": ips.incremental()},
        metadata=ips.append(dedup_on=["day", "id", "ratio"]) | ips.table("media.once", partition_by=["day", "ratio"]),
    )
    def once(some: ips.IcdcView) -> DataFrame:
        return some.added

    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.some (day DATE, id STRING, ratio DOUBLE) USING iceberg")
    keys = "(NULL, NULL, NULL), (NULL, 'a', 0D), (DATE'2026-01-01', NULL, double('NaN')), (DATE'2026-01-01', 'a', NULL)"
    definitions = pipeline(lake.folder, lake.spark_folder, once, ips.iceberg_asset("some", table="media.some"))
    for delivery in (f"{keys}, {keys}", keys.replace("0D", "-0D"), f"{keys}, (NULL, 'b', NULL)"):
        lake.sql(f"INSERT INTO lake.media.some VALUES {delivery}")
        materialize(definitions, instance, "once")
        (found,) = lake.sql("SELECT count(*), count(DISTINCT struct(day, id, ratio)) FROM lake.media.once").collect()
        assert tuple(found) == ((5, 5) if "'b'" in delivery else (4, 4))
    materialize(definitions, instance, "once", tags={"dagster_ips/mode": "full"})
    assert sum(lake.rows("media.once").values()) == 5


def test_a_merge_with_latest_by_never_goes_back_to_an_older_row(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.merge(on=["account"], latest_by="event_id") | ips.table("media.latest"),
    )
    def latest(playback: ips.IcdcView) -> DataFrame:
        return playback.changes

    definitions = pipeline(lake.folder, lake.spark_folder, latest)
    lake.create_playback(events([10, 11, 12, 13]))
    materialize(definitions, instance, "latest")
    lake.append(events([2, 3, 14]))
    materialize(definitions, instance, "latest")
    assert lake.rows("media.latest") == Counter(events([12, 13, 14]))


def test_an_overwritten_key_with_a_null_is_a_key_like_any_other(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    nameless = [(i, date, None, seconds) for i, date, _, seconds in events(range(4))]
    lake.create_playback(nameless)  # type: ignore[arg-type]
    materialize(definitions, instance, "daily", "agg")
    lake.append([(i, date, None, seconds) for i, date, _, seconds in events(range(4, 6))])  # type: ignore[misc]
    materialize(definitions, instance, "daily", "agg")
    assert [row[1:3] for row in lake.rows("media.agg")] == [(None, 6)]


def test_the_change_is_passed_as_a_frame_or_a_table_name_as_the_parameter_is_annotated(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.by_frame"))
    def by_frame(playback: DataFrame) -> DataFrame:
        return playback

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.by_name"))
    def by_name(playback: str) -> DataFrame:
        return lake.session.sql(f"SELECT * FROM {playback}")

    definitions = pipeline(lake.folder, lake.spark_folder, by_frame)
    rows = events(range(4))
    lake.create_playback(rows)
    materialize(definitions, instance, "by_frame")
    assert lake.rows("media.by_frame") == Counter(rows)
    assert by_name.op.ins["playback"].dagster_type.typing_type is str


@pytest.mark.slow
def test_the_pipeline_works_in_a_spark_of_the_runs_own_process(lake: Lake, instance: dg.DagsterInstance) -> None:
    rows = events(range(8))
    lake.create_playback(rows)
    home = Path(instance.root_directory)
    # This process's Spark Connect client has put its own settings into the environment.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    for new in ([], events(range(8, 12), day=1)):
        if new:
            lake.append(new)
        rows = rows + new
        command = [sys.executable, "-m", "tests.support.classic_session", str(home), str(lake.folder)]
        subprocess.run(command, check=True, env=clean, stdout=subprocess.DEVNULL)
    assert lake.rows("media.daily") == expected_daily(rows)
    assert lake.rows("media.agg") == expected_agg(rows)


def _same(lake: Lake, one: str, other: str) -> None:
    assert lake.rows(one) == lake.rows(other)
