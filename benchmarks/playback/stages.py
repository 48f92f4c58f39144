"""The business logic of both stages: the same for every way to keep the tables up to date.

``WIDE`` rows have text that is costly to compute and to write. ``NARROW`` ones are the example project's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from example_project.transforms import PLAYS_PER_ACCOUNT, enriched_plays


@dataclass(frozen=True)
class Stages:
    """Stage 1 joins events with titles; stage 2 computes ``sums`` of its rows per day and account."""

    name: str
    enriched: Callable[[DataFrame, DataFrame], DataFrame]
    sums: Mapping[str, str]

    def per_account(self, plays: DataFrame) -> DataFrame:
        """Stage 2: totals per day and account."""
        sums = [F.expr(sql).alias(name) for name, sql in self.sums.items()]
        return plays.groupBy("event_date", "account_id").agg(*sums)


def _enriched_wide(events: DataFrame, titles: DataFrame) -> DataFrame:
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


_SUMS = {
    "plays": "count(*)",
    "play_seconds": "sum(play_seconds)",
    "qualified_plays": "sum(is_qualified)",
    "longest": "max(play_seconds)",
}
WIDE = Stages("wide", _enriched_wide, _SUMS)
NARROW = Stages("narrow", enriched_plays, PLAYS_PER_ACCOUNT)
STAGES = {stages.name: stages for stages in (WIDE, NARROW)}
