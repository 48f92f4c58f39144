"""The business logic, on a handful of rows."""

from __future__ import annotations

import datetime as dt
from typing import Any

from pyspark.sql import DataFrame

from example_project.transforms import enriched_plays, plays_per_account, totals_per_day
from tests.lake import Lake

NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)
EVENTS = "event_id long, account_id long, title_id int, device string, country string, play_seconds int, event_ts timestamp, event_date date, ingested_at timestamp"  # noqa: E501  # one table's columns
TITLES = [(1, "One", "drama", 1_000), (2, "Two", "kids", 3_000)]


def events(lake: Lake, *rows: tuple[int, int, int, str, int]) -> DataFrame:
    """Event id, account, title, device and seconds; event ``i`` happens ``i`` seconds after noon."""
    whole = [
        (i, account, title, device, "SE", seconds, NOON + dt.timedelta(seconds=i), NOON.date(), NOON)
        for i, account, title, device, seconds in rows
    ]
    return lake.session.createDataFrame(whole, EVENTS)


def titles(lake: Lake) -> DataFrame:
    return lake.session.createDataFrame(TITLES, "title_id int, title_name string, genre string, runtime_seconds int")


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_every_event_gives_one_row_also_when_its_title_is_unknown(lake: Lake) -> None:
    plays = enriched_plays(events(lake, (1, 7, 1, "tv", 999), (2, 7, 9, "phone", 10)), titles(lake))
    assert rows(plays, "event_id", "genre", "watched_percent") == [(1, "drama", 99), (2, None, None)]


def test_watched_percent_is_rounded_down_and_never_above_100(lake: Lake) -> None:
    plays = enriched_plays(events(lake, *[(i, 7, 1, "tv", i) for i in (0, 9, 10, 1_000, 7_000)]), titles(lake))
    assert rows(plays, "event_id", "watched_percent") == [(0, 0), (9, 0), (10, 1), (1_000, 100), (7_000, 100)]


def test_posture_and_qualification(lake: Lake) -> None:
    plays = enriched_plays(events(lake, (1, 7, 1, "console", 119), (2, 7, 1, "web", 120)), titles(lake))
    expected = [(1, "lean back", False), (2, "lean forward", True)]
    assert rows(plays, "event_id", "posture", "is_qualified") == expected


def test_plays_per_account_and_totals_per_day(lake: Lake) -> None:
    some = events(lake, (1, 7, 1, "tv", 100), (2, 8, 2, "tv", 300), (3, 7, 9, "web", 500))
    accounts = plays_per_account(enriched_plays(some, titles(lake)))
    assert rows(accounts, "account_id", "plays", "play_seconds", "qualified_plays") == [(7, 2, 600, 1), (8, 1, 300, 1)]
    ((first, last),) = rows(accounts.where("account_id = 7"), "first_event_ts", "last_event_ts")
    assert (last - first).total_seconds() == 2
    day = rows(totals_per_day(accounts), "event_date", "active_accounts", "plays", "play_seconds", "qualified_plays")
    assert day == [(NOON.date(), 2, 3, 900, 2)]
