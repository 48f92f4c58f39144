"""A run writes, replaces and removes only rows of its own partitions, by whichever columns it finds them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.errors import ForeignWriteError, FragmentOverwriteError
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import DAYS, FROM_DAYS, SENSOR, WEEKS, follow, key, run

SUNDAY = "date_sub(event_date, dayofweek(event_date) - 1) AS event_date"


def defined(lake: Lake, asset: dg.AssetsDefinition, *, by_day: bool = True) -> dg.Definitions:
    days = {"partitions_def": DAYS, "metadata": {"partition_expr": "event_date"}}
    playback: Any = ips.iceberg_asset("playback", table="media.playback", **(days if by_day else {}))
    return definitions_on(lake.folder, lake.spark_folder, playback, asset)


def plays_of(rows: DataFrame, date: str) -> DataFrame:
    return rows.selectExpr(date, "account").groupBy("event_date", "account").agg(F.count("*").alias("plays"))


@pytest.mark.parametrize(("partitions", "date"), [(DAYS, "event_date"), (WEEKS, SUNDAY)], ids=["days", "weeks"])
def test_groups_by_a_part_of_the_key_are_merged_without_removing_them_from_other_partitions(
    lake: Lake, instance: dg.DagsterInstance, partitions: dg.PartitionsDefinition[str], date: str
) -> None:
    """Whole weeks can't be named by ``affected``, as the upstream has no such column."""
    mapping = FROM_DAYS if partitions is WEEKS else None

    @dg.asset(
        partitions_def=partitions,
        ins={"playback": ips.incremental(partition_mapping=mapping)},
        metadata=ips.merge(on=["event_date", "account"])
        | ips.table("media.plays", partition_by=["event_date"])
        | {"partition_expr": "event_date"},
    )
    def plays(playback: ips.IcdcView) -> DataFrame:
        return plays_of(playback.affected("account"), date)

    definitions = defined(lake, plays)
    lake.create_playback([*events(range(6)), *events(range(10, 16), day=8)])
    follow(definitions, instance)
    lake.append(events([21], day=8))
    lake.sql("DELETE FROM lake.media.playback WHERE event_date = DATE '2026-01-09' AND account = 'a1'")
    follow(definitions, instance)
    expected = plays_of(lake.session.table("lake.media.playback"), date).collect()
    assert lake.rows("media.plays") == Counter(map(tuple, expected))


def test_partitions_of_the_table_that_other_partitions_of_the_asset_share_are_not_overwritten(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    accounts = dg.StaticPartitionsDefinition(["a0", "a1", "a2"])

    @dg.asset(
        partitions_def=accounts,
        ins={"playback": ips.incremental()},
        metadata=ips.overwrite_partitions()
        | ips.table("media.shared", partition_by=["account", "event_date"])
        | {"partition_expr": "account"},
    )
    def shared(playback: ips.IcdcView) -> DataFrame:
        return playback.scope

    definitions = defined(lake, shared, by_day=False)
    lake.create_playback(events(range(3)))
    with pytest.raises(FragmentOverwriteError, match=r"event_date, which other partitions .* include account"):
        run(definitions, instance, "shared", "a0")


def test_rows_that_others_added_in_commits_that_have_expired_are_noticed_by_a_run_of_any_partition(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | ips.table("media.copy", partition_by=["event_date"]) | {"partition_expr": "event_date"},
    )
    def copy(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    definitions = defined(lake, copy)
    lake.create_playback([*events(range(3)), *events(range(10, 13), day=1)])
    for day in (0, 1):
        run(definitions, instance, "copy", key(day), **SENSOR)
    lake.sql("INSERT INTO lake.media.copy SELECT * FROM lake.media.playback WHERE event_date = DATE '2026-01-02'")
    lake.maintain("media.copy")
    lake.append(events([5]))
    with pytest.raises(ForeignWriteError, match="at least 3 rows more"):
        run(definitions, instance, "copy", key(0), **SENSOR)


def test_partitions_that_were_read_as_a_whole_for_a_while_are_not_added_to(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    declared = ips.table("media.copy", partition_by=["event_date"]) | {"partition_expr": "event_date"}

    @dg.asset(partitions_def=DAYS, ins={"playback": ips.incremental()}, metadata=ips.append() | declared)
    def copy(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    @dg.asset(name="copy", partitions_def=DAYS, metadata=declared)
    def whole(playback: DataFrame) -> DataFrame:
        return playback

    lake.create_playback([*events(range(3)), *events(range(10, 13), day=1)])
    for event, asset in enumerate([copy, whole, copy], start=20):
        lake.append(events([event], day=1))
        run(defined(lake, asset), instance, "copy", key(0), key(1), **SENSOR)
        assert lake.rows("media.copy") == lake.rows("media.playback")
