"""The pipeline as its owner writes it: what each table depends on, what is read incrementally, how it is written."""

import dagster as dg
from pyspark.sql import DataFrame

import dagster_ips as ips
from example_project.lake import CATALOG
from example_project.recompute import difference
from example_project.transforms import (
    PLAYS_PER_ACCOUNT,
    PLAYS_PER_GENRE,
    enriched_plays,
    medians_per_title,
    plays_per_account,
    running_totals,
    totals_per_day,
    totals_per_week,
)

OWNERS = ["team:viewing-data"]
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")
WEEKS = dg.WeeklyPartitionsDefinition(start_date="2025-12-28")
# The first week begins before the first day.
DAYS_OF_WEEK = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)

playback = ips.iceberg_asset(
    "playback",
    table="media.playback",
    valid_through="event_date",
    description="Playback events as they arrive, a few percent of them days late. Written by the ingest job.",
    group_name="landing",
    owners=["team:ingest"],
)

account_plan = ips.iceberg_asset(
    "account_plan",
    table="media.account_plan",
    valid_through="always",
    description="The plan of each account from a given day; some rows arrive late. Written by the ingest job.",
    group_name="landing",
    owners=["team:ingest"],
)

title = ips.iceberg_asset(
    "title",
    table="media.title",
    valid_through="always",
    description="The titles that can be played. Written by the catalogue team.",
    group_name="landing",
    owners=["team:catalogue"],
)


@dg.asset(
    partitions_def=DAYS,
    ins={"playback": ips.incremental(ranges=["event_date"])},
    metadata=ips.append(remove_on=["event_date", "event_id"])
    | ips.table("media.playback_daily", partition_by=["event_date"])
    | {"partition_expr": "event_date"},
    group_name="viewing",
    kinds={"iceberg", "pyspark"},
    owners=OWNERS,
)
def playback_daily(playback: ips.IcdcView, title: DataFrame) -> DataFrame:
    """One row per playback event, with its title's genre. Reads only new events; deleted events are removed."""
    return enriched_plays(playback.added, title)


@dg.asset(
    partitions_def=DAYS,
    ins={"playback_daily": ips.incremental()},
    metadata=ips.combine(on=["event_date", "account_id"], aggregates=PLAYS_PER_ACCOUNT)
    | ips.table("media.playback_daily_agg", partition_by=["event_date"])
    | {"partition_expr": "event_date"},
    group_name="viewing",
    kinds={"iceberg", "pyspark"},
    owners=OWNERS,
)
def playback_daily_agg(playback_daily: ips.IcdcView) -> DataFrame:
    """Plays per day and account. Adds new events to the totals and subtracts deleted ones; reads no others."""
    return playback_daily.weighted


@dg.asset(
    partitions_def=WEEKS,
    ins={"playback_daily_agg": ips.incremental(partition_mapping=DAYS_OF_WEEK)},
    metadata=ips.replace() | ips.table("media.playback_weekly", partition_by=["week"]) | {"partition_expr": "week"},
    group_name="viewing",
    kinds={"iceberg", "pyspark"},
    owners=OWNERS,
)
def playback_weekly(playback_daily_agg: ips.IcdcView) -> DataFrame:
    """Totals per week, starting on Sunday. A week with a changed day is recomputed from its own days only."""
    return totals_per_week(playback_daily_agg.source)


@dg.asset(
    ins={
        "playback_daily": ips.incremental(ranges=["event_date"]),
        "account_plan": ips.incremental(ranges=["valid_on"]),
    },
    metadata=ips.table("media.account_running_total", partition_by=["event_date"]),
    group_name="viewing",
    kinds={"iceberg", "pyspark"},
    owners=OWNERS,
)
def account_running_total(playback_daily: ips.IcdcView, account_plan: ips.IcdcView) -> ips.Overwrite:
    """Running total of seconds per account and day, with its plan then. Recomputed from the earliest change on."""
    scope = (playback_daily.range("event_date") | account_plan.range("valid_on")).since("event_date")
    return ips.Overwrite(running_totals(playback_daily.source, account_plan.source).where(scope), where=scope)


@dg.asset(
    ins={"playback_daily": ips.incremental()},
    metadata=ips.overwrite_partitions() | ips.table("media.title_median", partition_by=["event_date"]),
    group_name="viewing",
    kinds={"iceberg", "pyspark"},
    owners=OWNERS,
)
def title_median(playback_daily: ips.IcdcView) -> DataFrame:
    """Median seconds per day and title. A median can't be updated by adding: days with any change are recomputed."""
    return medians_per_title(playback_daily.scope)


@dg.asset(
    deps=[ips.incremental_dep("playback_daily")],
    metadata=ips.table("media.by_title"),
    group_name="viewing",
    kinds={"iceberg", "sql"},
    owners=OWNERS,
)
def by_title(context: dg.AssetExecutionContext) -> None:
    """Plays and seconds per title, in SQL: adds new rows and subtracts removed ones."""
    with ips.capture(context, "playback_daily", columns="title_id INT, plays BIGINT, play_seconds BIGINT") as icdc:
        icdc.sql("""
            MERGE INTO {target} t USING (
                SELECT title_id, sum(n) AS plays, sum(n * play_seconds) AS play_seconds
                FROM (
                    SELECT title_id, play_seconds, 1 AS n FROM {added}
                    UNION ALL
                    SELECT title_id, play_seconds, -1 AS n FROM {removed}
                )
                GROUP BY title_id
            ) c ON t.title_id = c.title_id
            WHEN MATCHED AND t.plays + c.plays = 0 THEN DELETE
            WHEN MATCHED THEN UPDATE SET
                plays = t.plays + c.plays, play_seconds = t.play_seconds + c.play_seconds
            WHEN NOT MATCHED THEN INSERT *
        """)


plays_per_genre = ips.sql_asset(
    "plays_per_genre",
    PLAYS_PER_GENRE,
    table="media.plays_per_genre",
    description="Plays per day and genre, declared by the query of a full refresh. How to apply changes is derived "
    "from it.",
    group_name="viewing",
    owners=OWNERS,
)


@dg.asset(
    metadata=ips.replace() | ips.table("media.daily_report"),
    # Future days are always missing, and the report must not wait for them.
    automation_condition=dg.AutomationCondition.eager().without(~dg.AutomationCondition.any_deps_missing()),
    group_name="reports",
    kinds={"iceberg", "pyspark"},
    owners=OWNERS,
)
def daily_report(playback_daily_agg: DataFrame) -> DataFrame:
    """Totals per day. An ordinary asset: it reads the whole table and is rewritten whenever that changes."""
    return totals_per_day(playback_daily_agg)


@ips.audit(asset="playback_daily")
def every_play_is_of_an_account(plays: DataFrame) -> bool:
    """Checks a run's rows before they are published: if it fails, they aren't, and nothing downstream sees them."""
    return plays.where("account_id IS NULL OR event_date IS NULL").isEmpty()


@dg.asset_check(
    asset=playback_daily_agg,
    automation_condition=dg.AutomationCondition.on_cron("@daily"),
)
def equals_full_recompute(context: dg.AssetCheckExecutionContext, playback_daily_agg: DataFrame) -> dg.AssetCheckResult:
    """Checks row by row that the table equals a full recompute from playback_daily. Reads everything."""
    # playback_daily as of its last consumed snapshot: later rows aren't missing, they are pending.
    newest = context.instance.get_latest_materialization_event(dg.AssetKey("playback_daily_agg"))
    made = newest.asset_materialization if newest else None
    if made is None:
        return dg.AssetCheckResult(passed=False, description="playback_daily_agg was never materialized.")
    consumed = int(str(made.metadata["playback_daily: to snapshot, inclusive"].value))
    reader = playback_daily_agg.sparkSession.read.option("versionAsOf", consumed)
    plays = reader.table(f"{CATALOG}.media.playback_daily")
    found = difference(plays_per_account(plays), playback_daily_agg)
    return dg.AssetCheckResult(
        passed=not found.missing and not found.extra,
        metadata={"rows missing": found.missing, "rows too many": found.extra},
    )
