"""The partition that a value belongs to and the condition that selects the partition's rows always agree."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dagster_ips.core.partition_keys import ColumnKind, PartitionKeys, Span
from dagster_ips.orchestration.declare.partition_definitions import partition_keys

ZONES = ["Europe/Berlin", "Asia/Beirut", "America/Havana", "Australia/Lord_Howe", "UTC"]
CRONS = ["*/30 * * * *", "0 * * * *", "30 * * * *", "0 0 * * *", "30 2 * * *", "0 0 * * 0"]
LITERAL = re.compile(r"TIMESTAMP_(?:NTZ|LTZ) '([^']+)'")


@pytest.fixture(scope="module")
def instance() -> dg.DagsterInstance:
    return dg.DagsterInstance.ephemeral()


def windows(cron: str, zone: str) -> dg.TimeWindowPartitionsDefinition:
    fmt = "%Y-%m-%d-%H:%M"
    return dg.TimeWindowPartitionsDefinition(start="2025-01-01-00:00", cron_schedule=cron, fmt=fmt, timezone=zone)


def taken(keys: PartitionKeys, of: Collection[str], kind: ColumnKind, value: dt.datetime) -> int:
    """The number of the windows ``of`` whose conditions match the value."""
    bounds = [map(dt.datetime.fromisoformat, LITERAL.findall(keys.predicate([key], {"at": kind}))) for key in of]
    return sum(start <= value < end for start, end in bounds)


@given(
    zone=st.sampled_from(ZONES),
    cron=st.sampled_from(CRONS),
    wall=st.datetimes(dt.datetime(2025, 2, 1), dt.datetime(2025, 12, 1)),  # noqa: DTZ001  # times without zone
)
@example("America/Havana", "0 0 * * 0", dt.datetime(2025, 11, 2))  # noqa: DTZ001  # as above
@settings(max_examples=150, deadline=None)
def test_each_time_matches_its_own_window_and_none_of_its_neighbors(
    instance: dg.DagsterInstance, zone: str, cron: str, wall: dt.datetime
) -> None:
    definition = windows(cron, zone)
    keys = partition_keys(definition, "at", instance, asset="x")
    for value, kind in [
        (wall, ColumnKind.TIMESTAMP),
        (wall.replace(tzinfo=ZoneInfo(zone)).astimezone(dt.UTC), ColumnKind.TIMESTAMPTZ),
    ]:
        found = keys.of_values([(value,)])
        assert found.keys is not None
        (key,) = found.keys
        window = definition.time_window_for_partition_key(key)
        near = [window.start.timestamp() + hours * 3600 + 1 for hours in range(-4, 5)]
        others = {definition.get_partition_key_for_timestamp(each) for each in near}
        assert taken(keys, [key], kind, value) == 1
        assert taken(keys, others | {key}, kind, value) == 1
        (extent,) = keys.extent([key], {"at": kind})
        assert extent.may_meet(Span(value, value))
        assert not extent.may_meet(Span(value + dt.timedelta(days=8), None))


@pytest.mark.parametrize("at", [dt.datetime(2026, 3, 29, 2, 10), dt.datetime(2026, 10, 25, 2, 10)])  # noqa: DTZ001  # as above
def test_a_time_that_clocks_skip_or_show_twice_is_in_exactly_one_window(
    at: dt.datetime, instance: dg.DagsterInstance
) -> None:
    definition = windows("*/30 * * * *", "Europe/Berlin")
    keys = partition_keys(definition, "at", instance, asset="x")
    every = [definition.get_partition_key_for_timestamp(at.timestamp() + half * 1800) for half in range(-8, 8)]

    assert taken(keys, set(every), ColumnKind.TIMESTAMP, at) == 1


def test_a_condition_of_many_partitions_of_two_dimensions_is_short_and_exact(instance: dg.DagsterInstance) -> None:
    days, regions = dg.StaticPartitionsDefinition(["1", "2", "3"]), dg.StaticPartitionsDefinition(["eu", "us"])
    both = dg.MultiPartitionsDefinition({"day": days, "region": regions})
    keys = partition_keys(both, {"day": "d", "region": "r"}, instance, asset="x")
    kinds = {"d": ColumnKind.STRING, "r": ColumnKind.STRING}

    assert keys.predicate(keys.known(), kinds).count("`r`") == 2
    for some in ({"1|eu", "2|us"}, {"1|eu", "1|us", "2|us", "3|us"}, set[str]()):
        predicate = keys.predicate(some, kinds).replace("`d` = ", "d==").replace("`r` = ", "r==")
        python = predicate.replace(" OR ", " or ").replace(" AND ", " and ").replace("FALSE", "False")
        assert {f"{d}|{r}" for d in "123" for r in ("eu", "us") if eval(python, {"d": d, "r": r})} == some  # noqa: S307  # the test's own text


def test_days_left_out_of_a_definition_have_no_key(instance: dg.DagsterInstance) -> None:
    weekdays = dg.DailyPartitionsDefinition(start_date="2026-01-01", exclusions=["0 0 * * 6,0"])
    keys = partition_keys(weekdays, "day", instance, asset="x")
    saturday, friday = dt.date(2026, 1, 3), dt.date(2026, 1, 2)

    found = keys.of_values([(friday,), (saturday,)])

    assert (found.keys, found.unmapped) == ({"2026-01-02"}, ("2026-01-03",))


def test_keys_from_when_there_were_other_dimensions_are_outside(instance: dg.DagsterInstance) -> None:
    both = dg.MultiPartitionsDefinition(
        {"day": dg.DailyPartitionsDefinition("2026-01-01"), "region": dg.StaticPartitionsDefinition(["eu", "us"])}
    )
    keys = partition_keys(both, {"day": "d", "region": "r"}, instance, asset="x")
    found = keys.of_file([Span(dt.date(2026, 1, 1), dt.date(2026, 1, 9)), Span("eu", "us")])

    assert keys.outside({"2026-01-05", "2026-01-05|eu", "2026-01-05|asia"}) == {"2026-01-05", "2026-01-05|asia"}
    assert keys.possible(found, {"2026-01-05", "2026-01-05|eu"}) == {"2026-01-05|eu"}
    assert keys.to_be_added({"2026-01-05"}) == set()
