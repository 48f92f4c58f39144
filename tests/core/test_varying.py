"""What a plan or a query shows of the clock and of chance."""

from __future__ import annotations

import pytest

from dagster_ips.core.varying import IN_PLANS, IN_SQL


@pytest.mark.parametrize(
    "text",
    [
        "filter (day#1 >= current_date(some(utc)))",
        "filter (day#1 >= cast(today as date))",
        "filter (at#1 > cast(now utc as timestamp))",
        "project [to_date(yesterday, none, some(utc), true) as d#3]",
    ],
)
def test_a_plan_shows_strings_that_are_read_as_a_date_or_time_of_the_moment(text: str) -> None:
    assert IN_PLANS.search(text)


@pytest.mark.parametrize("function", ["reflect", "try_reflect", "java_method"])
def test_what_a_method_of_java_gives_is_unknown(function: str) -> None:
    assert IN_PLANS.search(f"filter ({function}(java.util.uuid, randomuuid, true) > a)")
    assert IN_SQL.search(f"max({function.upper()}('java.util.UUID', 'randomUUID'))")
    assert not IN_PLANS.search(f"filter ({function}#3 > a)")


@pytest.mark.parametrize("function", ["spark_partition_id", "input_file_name", "input_file_block_start"])
def test_where_a_row_lies_is_left_to_chance(function: str) -> None:
    """A compaction moves rows to other files, and a removed row is read from another one than it was added from."""
    assert IN_PLANS.search(f"filter contains({function}(), eu)")
    assert IN_SQL.search(f"sum({function.upper()}())")
    assert not IN_PLANS.search(f"filter contains({function}#3, eu)")


@pytest.mark.parametrize(
    "text",
    [
        "filter (state#1 = today)",
        "project [cast(today#1 as date) as day#2]",
        "project [cast(2026-01-01 as date) as today#2, cast(now#7 as timestamp) as at#3]",
        "project [to_date(tomorrow#1, none, some(utc), true) as d#3]",
        "project [cast(nowhere as date) as d#3]",
    ],
)
def test_a_column_or_a_text_named_like_a_moment_is_none(text: str) -> None:
    assert not IN_PLANS.search(text)
