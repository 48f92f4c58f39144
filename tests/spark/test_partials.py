"""The parts of groups that random changes append fold to the groups of Spark's own GROUP BY over all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from dagster_ips.core.write_mode import Combine
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.writes.group_parts import Change
from dagster_ips.spark.writes.partials import append_partials, folded
from tests.spark.test_combine import (
    APPROXIMATE,
    DECLARED,
    Row,
    Table,
    combine,
    each_alone,
    equal,
    examples,
    frame,
    full,
    grouped,
    merged,
    rows,
    without,
)
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

ADDED_UP = {name: text for name, text in DECLARED.items() if not text.startswith(("min", "max"))}

History: TypeAlias = tuple[list[Row], list[tuple[list[Row], list[Row]]]]
"""The first rows, and changes: which of the rows at that time are removed, and which rows are added."""


class Partials(Table):
    """A table of partials, and branches of it."""

    def combine(self, branch: Branch, gone: Sequence[Row], come: Sequence[Row], live: Sequence[Row]) -> None:
        change = frame(self.lake, come, 1).unionAll(frame(self.lake, gone, -1)).unionAll(frame(self.lake, live, 0))
        append_partials(
            Change(change, "_weight"),
            self.aggregates,
            branch,
            may_remove_rows=bool(gone),
            partition_columns=["day"],
            within="k IS NOT NULL OR TRUE",
        )

    def groups(self, branch: Branch) -> Counter[Row]:
        stored = self.lake.session.table(branch.sql_name)
        return Counter(equal(tuple(row)) for row in folded(stored, self.declared).collect())


def of_sql(lake: Lake, some: Sequence[Row], declared: Combine) -> Counter[Row]:
    return grouped(lake, some, replace(declared, keeps_partials=False), with_hidden=False)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Random ones, with three changes."""
    there = draw(st.lists(rows, max_size=6))
    steps, live = [], list(there)
    for _ in range(3):
        gone = [row for row in live if draw(st.integers(0, 3)) == 0]
        come = draw(st.lists(rows, max_size=3))
        steps.append((gone, come))
        live = without(live, gone) + come
    return there, steps


HISTORIES: list[History] = [
    ([full(), full(x=None, d=None)], [([full()], []), ([full(x=None, d=None)], []), ([], [full()])]),
    ([full(), full(k="b")], [([full()], [full(k="c")]), ([], [full(d=None)]), ([full(k="c")], [])]),
]
OF_PARTIALS = {"extremes": DECLARED, "added_up": ADDED_UP, "floats": APPROXIMATE}


def partials(lake: Lake, declared: str) -> Partials:
    approximate = declared == "floats"
    return Partials(lake, replace(combine(approximate=approximate, **OF_PARTIALS[declared]), keeps_partials=True))


def follows(lake: Lake, table: Partials, history: History) -> None:
    live, steps = history
    branch = table.holding(live)
    for gone, come in steps:
        live = without(live, gone) + come
        table.combine(branch, gone, come, live)
        assert table.groups(branch) == of_sql(lake, live, table.declared)


@pytest.mark.everywhere
@pytest.mark.parametrize("declared", mostly_slow(OF_PARTIALS))
def test_a_history_of_changes_folds_to_the_groups_that_sql_makes_of_all_rows(lake: Lake, declared: str) -> None:
    there, changes = zip(*HISTORIES, strict=True)
    at_once = [
        (merged(gone for gone, _ in step), merged(come for _, come in step)) for step in zip(*changes, strict=True)
    ]
    follows(lake, partials(lake, declared), (merged(there), at_once))


@pytest.mark.slow
@pytest.mark.everywhere
@pytest.mark.parametrize("declared", OF_PARTIALS)
def test_a_random_history_folds_to_the_groups_that_sql_makes_of_all_rows(lake: Lake, declared: str) -> None:
    table = partials(lake, declared)

    @given(history=histories())
    @each_alone(HISTORIES)
    @examples(2)
    def whatever(history: History) -> None:
        follows(lake, table, history)

    whatever()


def test_a_group_that_lost_more_rows_than_it_had_is_an_error_to_its_reader(lake: Lake) -> None:
    mode = replace(combine(approximate=False, **ADDED_UP), keeps_partials=True)
    table = Partials(lake, mode)
    branch = table.holding([full()])
    table.combine(branch, [full(), full()], [], [])
    with pytest.raises(PySparkException, match="more rows of a group were removed"):
        table.groups(branch)


def test_columns_of_partials_have_no_declared_names_so_that_no_part_is_taken_for_the_whole(lake: Lake) -> None:
    mode = replace(combine(approximate=False, **DECLARED), keeps_partials=True)
    found = Partials(lake, mode).aggregates.columns
    assert found[:2] == ["k", "day"]
    assert all(column.startswith("_ips_") for column in found[2:])
