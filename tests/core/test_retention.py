"""As many ICDC tables are kept as promised, and never fewer than a run needs."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.retention import IcdcTable, Retention, expired
from dagster_ips.errors import RetentionError

NOW_MS = 1_000
NAMES = st.sampled_from(["ips.t__{:06d}_aaaaaa", "ips.t__{:06d}_bbbbbb", "ips.t__{:06d}_cccccc"])


@st.composite
def tables(draw: st.DrawFn) -> list[IcdcTable]:
    """A few captures in any order, each with one to three tables, created any time before or (clocks!) after now.

    Captures of several runs may have the same number.
    """
    numbers = draw(st.lists(st.integers(1, 9)))
    times = draw(st.lists(st.integers(0, NOW_MS + 50), min_size=len(numbers), max_size=len(numbers), unique=True))
    runs = st.sampled_from(["one", "two"])
    made = [IcdcTable(draw(NAMES).format(n), n, ms, run_id=draw(runs)) for n, ms in zip(numbers, times, strict=True)]
    return list({table.name: table for table in made}.values())


retentions = st.builds(
    Retention, keep_last=st.integers(1, 10), max_age=st.integers(1, NOW_MS).map(lambda ms: timedelta(milliseconds=ms))
)
some_names = st.sets(st.builds(str.format, NAMES, st.integers(1, 9)), max_size=3)


def of_same_capture(table: IcdcTable, made: Sequence[IcdcTable]) -> list[IcdcTable]:
    return [each for each in made if (each.number, each.run_id) == (table.number, table.run_id)]


def place(table: IcdcTable, made: Sequence[IcdcTable]) -> tuple[int, int]:
    """Newer captures have greater ones."""
    return table.number, max(each.created_ms for each in of_same_capture(table, made))


def names(found: Sequence[IcdcTable]) -> set[str]:
    assert len({table.name for table in found}) == len(found)
    return {table.name for table in found}


@given(tables(), retentions, some_names)
def test_a_table_is_dropped_if_enough_captures_are_newer_or_all_tables_of_its_capture_are_too_old(
    made: list[IcdcTable], retention: Retention, spared: set[str]
) -> None:
    def goes(table: IcdcTable) -> bool:
        newer = {place(each, made) for each in made if place(each, made) > place(table, made)}
        siblings = of_same_capture(table, made)
        is_old = all(timedelta(milliseconds=NOW_MS - each.created_ms) > retention.max_age for each in siblings)
        is_spared = not spared.isdisjoint(names(siblings))
        return bool(newer) and not is_spared and (len(newer) >= retention.keep_last or is_old)

    found = expired(made, retention, spared=spared, now_ms=NOW_MS)
    assert names(found) == {table.name for table in made if goes(table)}


@given(tables(), retentions, some_names, some_names)
def test_the_newest_capture_and_captures_in_flight_are_kept_whatever_their_age(
    made: list[IcdcTable], retention: Retention, spared: set[str], more: set[str]
) -> None:
    gone = expired(made, retention, spared=spared, now_ms=10**12)
    newest = max((place(table, made) for table in made), default=None)
    assert not any(place(table, made) == newest or table.name in spared for table in gone)
    fewer = expired(made, retention, spared=spared | more, now_ms=10**12)
    assert names(fewer) == {each.name for each in gone if more.isdisjoint(names(of_same_capture(each, made)))}


@given(tables(), retentions, some_names)
def test_tables_that_are_kept_once_are_kept_the_next_time(
    made: list[IcdcTable], retention: Retention, spared: set[str]
) -> None:
    gone = expired(made, retention, spared=spared, now_ms=NOW_MS)
    left = [table for table in made if table not in gone]
    assert expired(left, retention, spared=spared, now_ms=NOW_MS) == ()


@given(tables(), retentions)
def test_the_tables_of_a_capture_are_dropped_together(made: list[IcdcTable], retention: Retention) -> None:
    gone = expired(made, retention, spared=set(), now_ms=NOW_MS)
    assert all(each in gone for table in gone for each in of_same_capture(table, made))


def test_without_tables_nothing_is_dropped() -> None:
    assert expired([], Retention(), spared=set(), now_ms=NOW_MS) == ()


@pytest.mark.parametrize("keep_last", [0, -1])
def test_keeping_no_capture_is_refused(keep_last: int) -> None:
    with pytest.raises(RetentionError, match="at least 1") as raised:
        Retention(keep_last=keep_last)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert f"keep_last = {keep_last}" in str(raised.value)


@pytest.mark.parametrize("max_age", [timedelta(), timedelta(days=-1)])
def test_an_age_of_zero_or_less_is_refused(max_age: timedelta) -> None:
    with pytest.raises(RetentionError, match="above 0"):
        Retention(max_age=max_age)


@pytest.mark.parametrize("days", [0, -0.5, math.nan, math.inf, -math.inf, 1e10])
def test_days_that_form_no_valid_age_are_refused(days: float) -> None:
    with pytest.raises(RetentionError):
        Retention.of_days(3, days)


def test_days_may_be_fractions() -> None:
    assert Retention.of_days(3, 0.5) == Retention(3, timedelta(hours=12))
