"""The business logic: frames in, frames out. It doesn't depend on Dagster, incremental runs or the tables' location.

All values are exact (integers, text, times), so that any two ways to compute a table can be compared row by row.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the usual name

LEAN_BACK = ("tv", "console", "stick", "box")
QUALIFIED_SECONDS = 120
PLAYS_PER_ACCOUNT = {
    "plays": "count(*)",
    "play_seconds": "sum(play_seconds)",
    "qualified_plays": "sum(CAST(is_qualified AS BIGINT))",
    "first_event_ts": "min(event_ts)",
    "last_event_ts": "max(event_ts)",
}
"""The columns of ``playback_daily_agg`` other than its keys, in SQL."""
PLAYS_PER_GENRE = """
    SELECT event_date, t.genre, count(*) AS plays, count_if(play_seconds * 2 >= runtime_seconds) AS half_watched
    FROM playback_daily JOIN title t USING (title_id)
    GROUP BY event_date, t.genre
"""
"""The query of ``plays_per_genre``."""
_WHOLE = 100


def enriched_plays(events: DataFrame, titles: DataFrame) -> DataFrame:
    """One row per event, with its title's genre and how much of the title was watched. An unknown title gives nulls."""
    known = F.broadcast(titles.select("title_id", "genre", "runtime_seconds"))
    watched = F.expr("play_seconds * 100 div runtime_seconds")
    return events.join(known, "title_id", "left").select(
        "event_id",
        "account_id",
        "title_id",
        "genre",
        F.when(F.col("device").isin(*LEAN_BACK), "lean back").otherwise("lean forward").alias("posture"),
        "country",
        "play_seconds",
        F.when(watched > _WHOLE, _WHOLE).otherwise(watched).cast("int").alias("watched_percent"),
        (F.col("play_seconds") >= QUALIFIED_SECONDS).alias("is_qualified"),
        "event_ts",
        "event_date",
        "ingested_at",
    )


def plays_per_account(plays: DataFrame) -> DataFrame:
    """One row per day and account: ``PLAYS_PER_ACCOUNT``."""
    aggregates = [F.expr(text).alias(name) for name, text in PLAYS_PER_ACCOUNT.items()]
    return plays.groupBy("event_date", "account_id").agg(*aggregates)


def running_totals(plays: DataFrame, plans: DataFrame) -> DataFrame:
    """One row per day and account: seconds up to the end of that day, and the plan then; null before the first plan."""
    changes = plans.withColumnRenamed("valid_on", "event_date")
    days = plays.groupBy("event_date", "account_id").agg(F.sum("play_seconds").alias("play_seconds"))
    # A day's row is sorted after the plan changes that take effect on that day, and the last of these comes last.
    in_order = Window.partitionBy("account_id").orderBy("event_date", F.col("change_id").asc_nulls_last())
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    both = days.unionByName(changes, allowMissingColumns=True).select(
        "event_date",
        "account_id",
        F.sum("play_seconds").over(so_far).alias("play_seconds_so_far"),
        F.last("plan", ignorenulls=True).over(so_far).alias("plan"),
        "change_id",
    )
    return both.where("change_id IS NULL").drop("change_id")


def medians_per_title(plays: DataFrame) -> DataFrame:
    """One row per day and title: plays, and the median of their seconds; the lower of two middle values."""
    return plays.groupBy("event_date", "title_id").agg(
        F.count("*").alias("plays"),
        F.expr("percentile_disc(0.5) WITHIN GROUP (ORDER BY play_seconds)").cast("int").alias("median_play_seconds"),
    )


def plays_per_title(plays: DataFrame) -> DataFrame:
    """One row per title: plays and seconds."""
    return plays.groupBy("title_id").agg(F.count("*").alias("plays"), F.sum("play_seconds").alias("play_seconds"))


def totals_per_week(accounts: DataFrame) -> DataFrame:
    """One row per week, named by its Sunday: plays, seconds, and account days with a play."""
    sunday = F.expr("date_sub(event_date, dayofweek(event_date) - 1)")
    return accounts.groupBy(sunday.alias("week")).agg(
        F.sum("plays").alias("plays"),
        F.sum("play_seconds").alias("play_seconds"),
        F.count("*").alias("account_days"),
    )


def totals_per_day(accounts: DataFrame) -> DataFrame:
    """One row per day: active accounts, plays, seconds, qualified plays."""
    return accounts.groupBy("event_date").agg(
        F.count("*").alias("active_accounts"),
        F.sum("plays").alias("plays"),
        F.sum("play_seconds").alias("play_seconds"),
        F.sum("qualified_plays").alias("qualified_plays"),
    )
