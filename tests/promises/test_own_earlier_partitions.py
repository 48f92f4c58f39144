"""An asset whose partitions read its own earlier ones: a change propagates from day to day."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.lake import FIRST_DAY, Event, Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import follow

FIVE_DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-06")
OF_THE_DAY_BEFORE = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)


@dg.asset(
    partitions_def=FIVE_DAYS,
    ins={"playback": ips.incremental(), "balance": ips.incremental(partition_mapping=OF_THE_DAY_BEFORE)},
    metadata=ips.replace() | ips.table("media.balance", partition_by=["event_date"]) | {"partition_expr": "event_date"},
)
def balance(playback: ips.IcdcView, balance: ips.IcdcView) -> DataFrame:
    carried = balance.source.select(F.date_add("event_date", 1).alias("event_date"), "account", "seconds")
    rows = playback.source.select("event_date", "account", "seconds").unionByName(carried)
    return rows.groupBy("event_date", "account").agg(F.sum("seconds").alias("seconds"))


def balances(rows: list[Event]) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for day in (FIRST_DAY + dt.timedelta(days=number) for number in range(5)):
        total: Counter[str] = Counter()
        for _, date, account, seconds in rows:
            total[account] += seconds if date <= day else 0
        known = {account for _, date, account, _ in rows if date <= day}
        found.update((day, account, total[account]) for account in known)
    return found


def test_late_and_removed_rows_change_every_later_day(lake: Lake, instance: dg.DagsterInstance) -> None:
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = definitions_on(lake.folder, lake.spark_folder, playback, balance)
    rows = [*events(range(6)), *events(range(6, 9), day=1)]
    lake.create_playback(rows)
    columns = "event_date DATE, account STRING, seconds BIGINT"
    lake.sql(f"CREATE TABLE lake.media.balance ({columns}) USING iceberg PARTITIONED BY (event_date)")
    follow(definitions, instance)
    assert lake.rows("media.balance") == balances(rows)

    late = events([10, 11])
    lake.append(late)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 7")
    rows = [row for row in rows + late if row[0] != 7]
    follow(definitions, instance)
    assert lake.rows("media.balance") == balances(rows)
    assert follow(definitions, instance) == []
