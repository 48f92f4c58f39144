"""A table that another job has filled: its asset recomputes it in parts, or keeps its older partitions."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import UnknownRowsError
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import follow, key, run
from tests.support.pipeline import daily_in_bites, expected_daily, materialize, pipeline

FULL = {"dagster_ips/mode": "full"}


@dg.asset(
    partitions_def=dg.DailyPartitionsDefinition(start_date=key(2), end_date=key(4)),
    ins={"playback": ips.incremental(on_unmapped="ignore")},
    metadata=ips.append(remove_on=["event_date", "event_id"])
    | ips.table("media.adopted", partition_by=["event_date"])
    | {"partition_expr": "event_date"},
)
def adopted(playback: ips.IcdcView) -> DataFrame:
    return playback.added


def definitions_of(lake: Lake) -> dg.Definitions:
    playback = ips.iceberg_asset("playback", table="media.playback")
    return definitions_on(lake.folder, lake.spark_folder, playback, adopted)


def test_a_partitioned_asset_that_begins_later_keeps_the_older_partitions(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    old, upstream = events(range(100, 103)), events(range(6, 9), day=2) + events(range(9, 12), day=3)
    lake.create_playback(events(range(6)) + upstream)
    lake.create_playback(old + events([103], day=2), "media.adopted")
    definitions = definitions_of(lake)
    with pytest.raises(UnknownRowsError, match="dagster_ips/mode=full"):
        run(definitions, instance, "adopted", key(2))
    run(definitions, instance, "adopted", key(2), **FULL)
    assert lake.rows("media.adopted") == Counter(old + upstream[:3])
    assert follow(definitions, instance) == [("adopted", key(3), key(3))]
    assert lake.rows("media.adopted") == Counter(old + upstream)
    late = events([21], day=2)
    lake.append(events([20]) + late)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (1, 7)")
    assert follow(definitions, instance) == [("adopted", key(2), key(2))]
    assert lake.rows("media.adopted") == Counter(old + [row for row in upstream if row[0] != 7] + late)


def test_a_full_run_with_a_limit_replaces_what_is_there_part_by_part(lake: Lake, instance: dg.DagsterInstance) -> None:
    rows = [row for day in range(5) for row in events([day], day=day)]
    lake.create_playback(rows)
    lake.sql(
        "CREATE TABLE lake.media.daily_in_bites USING iceberg PARTITIONED BY (event_date) AS "
        "SELECT event_id + 100 AS event_id, event_date, account, seconds, 0L AS minutes FROM lake.media.playback"
    )
    definitions = pipeline(lake.folder, lake.spark_folder, daily_in_bites)
    with pytest.raises(UnknownRowsError):
        materialize(definitions, instance, "daily_in_bites")
    for tags in (FULL, {}, {}):
        assert materialize(definitions, instance, "daily_in_bites", tags=tags).success
    assert lake.rows("media.daily_in_bites") == expected_daily(rows)
