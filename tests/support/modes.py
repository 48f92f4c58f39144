"""One asset for each write mode over one outside table, to measure what a run of each costs."""

from __future__ import annotations

import dagster as dg
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.partitioned import DAYS

_BY_DAY = ["event_date"]


def _sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy("event_date", "account").agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


@dg.asset(
    ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.m_append", partition_by=_BY_DAY)
)
def append(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.append(remove_on=["event_date", "event_id"])
    | ips.table("media.m_append_removing", partition_by=_BY_DAY),
)
def append_removing(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.append(dedup_on=["event_date", "event_id"]) | ips.table("media.m_append_once", partition_by=_BY_DAY),
)
def append_once(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.merge(on=["event_date", "account"]) | ips.table("media.m_merge_groups", partition_by=_BY_DAY),
)
def merge_groups(playback: ips.IcdcView) -> DataFrame:
    return _sums(playback.affected("event_date", "account"))


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.merge(on=["event_date", "event_id"]) | ips.table("media.m_merge_rows", partition_by=_BY_DAY),
)
def merge_rows(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(
    ins={"playback": ips.incremental(on_removed="ignore")},
    metadata=ips.merge(on=["event_date", "account"], latest_by="event_id")
    | ips.table("media.m_merge_latest", partition_by=_BY_DAY),
)
def merge_latest(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.combine(on=["event_date", "account"], aggregates={"plays": "count(*)", "seconds": "sum(seconds)"})
    | ips.table("media.m_combine_groups", partition_by=_BY_DAY),
)
def combine_groups(playback: ips.IcdcView) -> DataFrame:
    return playback.weighted


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.overwrite_partitions() | ips.table("media.m_overwrite_partitions", partition_by=_BY_DAY),
)
def overwrite_partitions(playback: ips.IcdcView) -> DataFrame:
    return _sums(playback.scope)


@dg.asset(
    ins={"playback": ips.incremental(ranges=["event_date"])},
    metadata=ips.table("media.m_overwrite_where", partition_by=_BY_DAY),
)
def overwrite_where(playback: ips.IcdcView) -> ips.Overwrite:
    so_far = F.sum("seconds").over(Window.partitionBy("account").orderBy("event_date"))
    scope = playback.range("event_date").since("event_date")
    days = _sums(playback.source).select("event_date", "account", so_far.alias("total"))
    return ips.Overwrite(days.where(scope), where=scope)


@dg.asset(ins={"playback": ips.incremental()}, metadata=ips.replace() | ips.table("media.m_replace"))
def replace(playback: ips.IcdcView) -> DataFrame:
    return _sums(playback.source)


@dg.asset(deps=[ips.incremental_dep("playback")], metadata=ips.table("media.m_own_sql"))
def own_sql(context):  # noqa: ANN001, ANN201  # Dagster reads its annotation at run time, and annotations are strings here
    with ips.capture(context, "playback", columns="account STRING, plays BIGINT") as icdc:
        icdc.sql("""
            MERGE INTO {target} t USING (SELECT account, count(*) AS plays FROM {added} GROUP BY account) c
            ON t.account = c.account
            WHEN MATCHED THEN UPDATE SET plays = t.plays + c.plays WHEN NOT MATCHED THEN INSERT *
        """)


@dg.asset(
    partitions_def=DAYS,
    ins={"playback": ips.incremental()},
    metadata=ips.append(remove_on=["event_date", "event_id"])
    | ips.table("media.m_append_of_days", partition_by=_BY_DAY)
    | {"partition_expr": "event_date"},
)
def append_of_days(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(
    partitions_def=DAYS,
    ins={"playback": ips.incremental()},
    metadata=ips.merge(on=["event_date", "account"])
    | ips.table("media.m_merge_of_days", partition_by=_BY_DAY)
    | {"partition_expr": "event_date"},
)
def merge_of_days(playback: ips.IcdcView) -> DataFrame:
    return _sums(playback.affected("event_date", "account"))


MODES = [
    append,
    append_removing,
    append_once,
    merge_groups,
    merge_rows,
    merge_latest,
    combine_groups,
    overwrite_partitions,
    overwrite_where,
    replace,
    own_sql,
    append_of_days,
    merge_of_days,
]
