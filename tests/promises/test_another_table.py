"""A partitioned asset whose table was exchanged for another or dropped gets every partition recomputed."""

from __future__ import annotations

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.partitioned import DAYS, follow, partitioned


def kept_in(lake: Lake, table: str) -> dg.Definitions:
    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | ips.table(table, partition_by=["event_date"]) | {"partition_expr": "event_date"},
    )
    def kept(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    return partitioned(lake.folder, lake.spark_folder, kept)


def follow_kept(lake: Lake, instance: dg.DagsterInstance, table: str) -> set[int]:
    """The days of January for which runs were requested; after these runs the table must have every row."""
    runs = [each for each in follow(kept_in(lake, table), instance) if "kept" in each[0]]
    assert lake.rows(table) == lake.rows("media.playback")
    return {day for _, first, last in runs for day in range(int(first[-2:]), int(last[-2:]) + 1)}


@pytest.mark.slow
def test_a_new_table_name_recomputes_every_partition_and_going_back_to_the_old_one_those_that_changed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback([*events([1, 2]), *events([3], day=1), *events([4], day=2)])
    assert follow_kept(lake, instance, "media.one") == {1, 2, 3}
    lake.append(events([5], day=1))
    assert follow_kept(lake, instance, "media.other") == {1, 2, 3}
    lake.append(events([6], day=2))
    assert follow_kept(lake, instance, "media.other") == {3}
    assert follow_kept(lake, instance, "media.one") == {2, 3}


def test_a_dropped_table_gets_every_partition_again_though_nothing_changed_upstream(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback([*events([1, 2]), *events([3], day=1), *events([4], day=2)])
    follow_kept(lake, instance, "media.one")
    lake.sql("DROP TABLE lake.media.one")
    assert follow_kept(lake, instance, "media.one") == {1, 2, 3}
    assert follow_kept(lake, instance, "media.one") == set()
