"""The business logic, on a handful of rows."""

from __future__ import annotations

import datetime as dt
from typing import Any

from pyspark.sql import DataFrame

from example_project.transforms import (
    enriched_plays,
    medians_per_title,
    plays_per_account,
    running_totals,
    totals_per_day,
)
from tests.support.lake import Lake

NOON = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)
EVENTS = "event_id long, account_id long, title_id int, device string, country string, play_seconds int, event_ts timestamp, event_date date, ingested_at timestamp"  # noqa: E501  # one table's columns
TITLES = [(1, "One", "drama", 1_000), (2, "Two", "kids", 3_000)]


def events(lake: Lake, *rows: tuple[int, int, int, str, int]) -> DataFrame:
    """Rows of event id, account, title, device and seconds; event ``i`` happens ``i`` seconds after noon."""
    whole = [
        (i, account, title, device, "SE", seconds, NOON + dt.timedelta(seconds=i), NOON.date(), NOON)
        for i, account, title, device, seconds in rows
    ]
    return lake.session.createDataFrame(whole, EVENTS)


def titles(lake: Lake) -> DataFrame:
    return lake.session.createDataFrame(TITLES, "title_id int, title_name string, genre string, runtime_seconds int")


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def test_every_event_gives_one_row_even_if_its_title_is_unknown(lake: Lake) -> None:
    plays = enriched_plays(events(lake, (1, 7, 1, "tv", 999), (2, 7, 9, "phone", 10)), titles(lake))
    assert rows(plays, "event_id", "genre", "watched_percent") == [(1, "drama", 99), (2, None, None)]


def test_watched_percent_is_rounded_down_and_never_above_100(lake: Lake) -> None:
    plays = enriched_plays(events(lake, *[(i, 7, 1, "tv", i) for i in (0, 9, 10, 1_000, 7_000)]), titles(lake))
    assert rows(plays, "event_id", "watched_percent") == [(0, 0), (9, 0), (10, 1), (1_000, 100), (7_000, 100)]


def test_posture_follows_from_the_device_and_qualification_from_the_seconds(lake: Lake) -> None:
    plays = enriched_plays(events(lake, (1, 7, 1, "console", 119), (2, 7, 1, "web", 120)), titles(lake))
    expected = [(1, "lean back", False), (2, "lean forward", True)]
    assert rows(plays, "event_id", "posture", "is_qualified") == expected


def test_plays_are_summed_per_account_and_per_day(lake: Lake) -> None:
    some = events(lake, (1, 7, 1, "tv", 100), (2, 8, 2, "tv", 300), (3, 7, 9, "web", 500))
    accounts = plays_per_account(enriched_plays(some, titles(lake)))
    assert rows(accounts, "account_id", "plays", "play_seconds", "qualified_plays") == [(7, 2, 600, 1), (8, 1, 300, 1)]
    ((first, last),) = rows(accounts.where("account_id = 7"), "first_event_ts", "last_event_ts")
    assert (last - first).total_seconds() == 2
    day = rows(totals_per_day(accounts), "event_date", "active_accounts", "plays", "play_seconds", "qualified_plays")
    assert day == [(NOON.date(), 2, 3, 900, 2)]


def running(lake: Lake, plays: list[tuple[int, int, int]], plans: list[tuple[int, int, str, int]]) -> list[Any]:
    """Day, account, total and plan of plays (day, account, seconds) and plans (change, account, plan, day)."""
    dated = [(NOON.date() + dt.timedelta(days=day), account, seconds) for day, account, seconds in plays]
    played = lake.session.createDataFrame(dated, "event_date date, account_id long, play_seconds int")
    valid = [(change, account, plan, NOON.date() + dt.timedelta(days=day)) for change, account, plan, day in plans]
    changes = lake.session.createDataFrame(valid, "change_id long, account_id long, plan string, valid_on date")
    totals = rows(running_totals(played, changes), "event_date", "account_id", "play_seconds_so_far", "plan")
    return [((day - NOON.date()).days, account, total, plan) for day, account, total, plan in totals]


def test_a_running_total_grows_by_each_day_of_its_own_account(lake: Lake) -> None:
    plays = [(5, 7, 30), (0, 7, 4), (0, 7, 6), (2, 8, 500), (2, 7, 20)]
    found = running(lake, plays, [(1, 7, "basic", 0), (2, 8, "basic", 0)])
    assert found == [(0, 7, 10, "basic"), (2, 7, 30, "basic"), (2, 8, 500, "basic"), (5, 7, 60, "basic")]


def test_a_plan_is_valid_from_its_day_and_the_last_change_for_a_day_wins(lake: Lake) -> None:
    plays = [(day, 7, 1) for day in range(-1, 5)]
    plans = [(9, 7, "premium", 3), (1, 7, "basic", 0), (3, 7, "standard", 2), (2, 7, "premium", 2), (4, 8, "basic", 1)]
    found = [(day, plan) for day, _, _, plan in running(lake, plays, plans)]
    assert found == [(-1, None), (0, "basic"), (1, "basic"), (2, "standard"), (3, "premium"), (4, "premium")]


def test_a_median_is_the_middle_value_or_the_lower_of_two_middle_values(lake: Lake) -> None:
    plays = [(1, 9), (1, 100), (1, 5), (2, 4), (2, 1), (2, 3), (2, 2), (3, 7)]
    some = events(lake, *[(i, 7, title, "tv", seconds) for i, (title, seconds) in enumerate(plays)])
    medians = medians_per_title(some)
    assert rows(medians, "title_id", "plays", "median_play_seconds") == [(1, 3, 9), (2, 4, 2), (3, 1, 7)]
    assert dict(medians.dtypes)["median_play_seconds"] == "int"
