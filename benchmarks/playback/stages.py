"""The business logic of both stages: the same for every way to keep the tables up to date."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual name

SUMS = {
    "plays": "count(*)",
    "play_seconds": "sum(play_seconds)",
    "qualified_plays": "sum(is_qualified)",
    "longest": "max(play_seconds)",
}


def enriched(events: DataFrame, titles: DataFrame) -> DataFrame:
    """Stage 1: one row per event, with its title's genre and how much of the title was watched."""
    known = F.broadcast(titles)
    return events.join(known, "title_id").selectExpr(
        "event_id",
        "account_id",
        "profile_id",
        "title_id",
        "genre",
        "country",
        "CASE WHEN device IN ('tv', 'console', 'stick', 'box') THEN 'lean back' ELSE 'lean forward' END AS posture",
        "CAST(regexp_extract(app_version, 'v([0-9]+)', 1) AS INT) AS app_major",
        "substring(sha2(session_id, 256), 1, 24) AS session_hash",
        "play_seconds",
        "CAST(play_seconds * 100 DIV runtime_seconds AS INT) AS watched_percent",
        "CAST(play_seconds >= 120 AS INT) AS is_qualified",
        "event_ts",
        "event_date",
    )


def per_account(plays: DataFrame) -> DataFrame:
    """Stage 2: totals per day and account."""
    return plays.groupBy("event_date", "account_id").agg(*[F.expr(sql).alias(name) for name, sql in SUMS.items()])
