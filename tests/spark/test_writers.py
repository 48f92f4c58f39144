"""Each way to write does to a table what its model does to a list of rows; keys include nulls, NaN and -0.0."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from dagster_ips.errors import DuplicateKeysError, MixedFilesError, RemovedRowsError, UnfitFrameError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import MOST_LITERALS, distinct_keys
from dagster_ips.spark.writes import overwrite
from dagster_ips.spark.writes.append import append_rows
from dagster_ips.spark.writes.merge import merge_rows
from dagster_ips.spark.writes.overwrite import KeysToReplace, replace_partitions, write_errors_explained
from dagster_ips.spark.writes.remove import remove_rows
from dagster_ips.spark.writes.replace_keys import replace_keys
from tests.spark.test_combine import equal, examples
from tests.support.lake import Lake

COLUMNS = ("k", "p", "d", "t", "v")
SCHEMA = "k STRING, p DOUBLE, d DATE, t DOUBLE, v INT"
PARTITION = ("p", "d")
KEYS = [("k",), ("k", "d"), ("k", "p"), ("p", "d"), ("p",)]

Row: TypeAlias = tuple[object, ...]

floats = st.sampled_from([None, 0.0, -0.0, math.nan, 1.5])
rows = st.tuples(
    st.sampled_from([None, "a", "b", ""]),
    floats,
    st.sampled_from([None, dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
    floats,
    st.integers(0, 2),
)
some_rows = st.lists(rows, max_size=6)
keys = st.sampled_from(KEYS)


def key_of(row: Row, on: Sequence[str]) -> Row:
    return equal(tuple(row[COLUMNS.index(column)] for column in on))


@dataclass
class Table:
    """A table, and branches of it that begin empty."""

    lake: Lake
    branches: int = 0

    def frame(self, some: Sequence[Row]) -> DataFrame:
        """A frame whose columns are nullable if they have a null: Spark goes on otherwise with those that aren't."""
        has_null = [any(row[at] is None for row in some) for at in range(len(COLUMNS))]
        columns = zip(SCHEMA.split(", "), has_null, strict=True)
        schema = ", ".join(column if null else f"{column} NOT NULL" for column, null in columns)
        return self.lake.session.createDataFrame(list(some), schema)

    def holding(self, some: Sequence[Row]) -> Branch:
        self.branches += 1
        branch = Branch("lake", "t.some", f"branch{self.branches}")
        branch.create(self.lake.session, head=None)
        # One file per partition, so that a file may contain both rows that are removed and rows that stay.
        self.frame(some).coalesce(1).writeTo(branch.sql_name).append()
        return branch

    def rows(self, branch: Branch) -> Counter[Row]:
        return Counter(equal(tuple(row)) for row in self.lake.session.table(branch.sql_name).collect())


@pytest.fixture
def table(lake: Lake) -> Table:
    lake.catalog.create_namespace("t")
    lake.sql(f"CREATE TABLE lake.t.some ({SCHEMA}) USING iceberg PARTITIONED BY ({', '.join(PARTITION)})")
    return Table(lake)


def check_append(table: Table, earlier: list[Row], new: list[Row], on: Sequence[str]) -> None:
    branch = table.holding(earlier)
    append_rows(table.frame(new), branch, dedup_on=on, partition_columns=PARTITION)
    added = table.rows(branch) - Counter(map(equal, earlier))
    assert table.rows(branch) - added == Counter(map(equal, earlier))
    there = {key_of(row, on) for row in earlier}
    wanted = {key_of(row, on) for row in new} - there
    assert sorted(repr(key_of(row, on)) for row in added.elements()) == sorted(map(repr, wanted))
    assert set(added) <= set(map(equal, new))


def check_merge(table: Table, earlier: list[Row], new: list[Row], on: Sequence[str], latest_by: str | None) -> None:
    unique = list({key_of(row, on): row for row in earlier}.values())
    branch = table.holding(unique)
    expected = {key_of(row, on): equal(row) for row in unique}
    refused = False
    by_key: dict[Row, list[Row]] = {}
    for row in new:
        by_key.setdefault(key_of(row, on), []).append(row)
    for key, found in by_key.items():
        if latest_by is None:
            refused |= len(found) > 1
            expected[key] = equal(found[0])
        else:
            come = {equal(row) for row in found}
            best = _latest(come | ({expected[key]} if key in expected else set()), latest_by)
            refused |= len(best) > 1
            expected[key] = best[0]

    def merge() -> None:
        merge_rows(
            table.frame(new), branch, on=on, latest_by=latest_by, keeps_newer=True, gone=[], partition_columns=PARTITION
        )

    if refused:
        with pytest.raises(DuplicateKeysError):
            merge()
        assert table.rows(branch) == Counter(map(equal, unique))
    else:
        merge()
        assert table.rows(branch) == Counter(expected.values())


def _latest(some: Collection[Row], latest_by: str) -> list[Row]:
    latest = max(_rank(row, latest_by) for row in some)
    return [row for row in some if _rank(row, latest_by) == latest]


def _rank(row: Row, latest_by: str) -> float:
    """The row's place in SQL's order: nulls lowest, NaN highest."""
    (value,) = key_of(row, [latest_by])
    match value:
        case None:
            return -math.inf
        case "NaN":
            return math.inf
        case _:
            assert isinstance(value, float)
            return value


def check_replaced_keys(table: Table, earlier: list[Row], new: list[Row], on: Sequence[str]) -> None:
    branch = table.holding(earlier)
    gone = {key_of(row, on) for row in new}
    left = [row for row in earlier if key_of(row, on) not in gone]
    keys = distinct_keys(table.frame(new), on)
    replace_keys(table.frame(new), branch, keys, on=on, partition_columns=PARTITION)
    assert table.rows(branch) == Counter(map(equal, [*left, *new]))


def check_remove(table: Table, earlier: list[Row], removed: list[Row], on: Sequence[str]) -> None:
    branch = table.holding(earlier)
    there = Counter(key_of(row, on) for row in earlier)
    gone = Counter(key_of(row, on) for row in removed)

    def remove() -> None:
        remove_rows(table.frame(removed), branch, on=on, upstream="u", partition_columns=PARTITION)

    if any(there[key] > gone[key] for key in gone):
        with pytest.raises(RemovedRowsError):
            remove()
    else:
        remove()
        assert table.rows(branch) == Counter(equal(row) for row in earlier if key_of(row, on) not in gone)


def check_partitions(table: Table, earlier: list[Row], new: list[Row], changed: list[Row], *, literals: int) -> None:
    branch = table.holding(earlier)
    keys = KeysToReplace(PARTITION, distinct_keys(table.frame(changed), PARTITION))
    replaced = {key_of(row, PARTITION) for row in changed}

    def replace() -> None:
        with patch.object(overwrite, "MOST_LITERALS", literals):
            replace_partitions(table.frame(new), branch, columns=PARTITION, changed=[keys], upstream="u")

    if {key_of(row, PARTITION) for row in new} <= replaced:
        replace()
        left = [row for row in earlier if key_of(row, PARTITION) not in replaced]
        assert table.rows(branch) == Counter(map(equal, [*left, *new]))
    else:
        with pytest.raises(UnfitFrameError):
            replace()


@examples(4)
@given(earlier=some_rows, new=some_rows, on=keys)
def test_an_append_leaves_out_rows_whose_key_exists_already(
    table: Table, earlier: list[Row], new: list[Row], on: Sequence[str]
) -> None:
    check_append(table, earlier, new, on)


def test_a_key_that_exists_in_another_partition_is_not_appended_again(table: Table) -> None:
    first, second = dt.date(2026, 1, 1), dt.date(2026, 1, 2)
    check_append(table, [("a", 1.5, first, None, 1)], [("a", 1.5, second, None, 2), ("b", 1.5, second, None, 3)], ["k"])


def test_what_a_user_has_cached_stays_cached_until_all_tables_are_written(table: Table) -> None:
    rows = table.frame([("a", 0.0, None, None, 1)]).cache()
    append_rows(rows, table.holding([]), dedup_on=["k"], partition_columns=PARTITION)
    assert rows.storageLevel.useMemory
    rows.unpersist()


@examples(4)
@given(earlier=some_rows, new=some_rows, on=keys, latest_by=st.sampled_from([None, "t"]))
def test_a_merge_leaves_one_row_per_key_the_new_one_or_the_latest(
    table: Table, earlier: list[Row], new: list[Row], on: Sequence[str], latest_by: str | None
) -> None:
    check_merge(table, earlier, new, on, latest_by)


@pytest.mark.parametrize("time", [1.5, None, math.nan])
def test_a_row_as_late_as_another_of_its_key_is_refused_even_if_the_other_is_in_the_table(
    table: Table, time: float | None
) -> None:
    branch = table.holding([("a", None, None, time, 1)])
    with pytest.raises(DuplicateKeysError, match=r"same key, with equal t.*'a'.*different values of t"):
        merge_rows(
            table.frame([("a", None, None, time, 2)]),
            branch,
            on=["k"],
            latest_by="t",
            keeps_newer=True,
            gone=[],
            partition_columns=PARTITION,
        )
    check_merge(table, [("a", None, None, time, 1)], [("a", None, None, time, 1)], ["k"], "t")


@pytest.mark.parametrize("there", [1.5, math.nan, 0.0, -1.5, None])
@pytest.mark.parametrize("come", [[0.0, -0.0], [None, None]])
def test_rows_that_tie_are_refused_unless_the_table_has_a_later_one(
    table: Table, there: float | None, come: list[float | None]
) -> None:
    rows: list[Row] = [("a", None, None, time, value) for value, time in enumerate(come)]
    check_merge(table, [("a", None, None, there, 9)], [*rows, ("b", None, None, 1.0, 3)], ["k"], "t")


@examples(4)
@given(earlier=some_rows, removed=some_rows, on=keys)
def test_rows_are_removed_by_their_key_and_no_other_row_is(
    table: Table, earlier: list[Row], removed: list[Row], on: Sequence[str]
) -> None:
    check_remove(table, earlier, removed, on)


@examples(4)
@given(earlier=some_rows, new=some_rows, on=keys)
def test_rows_of_keys_are_replaced_and_no_other_row_is(
    table: Table, earlier: list[Row], new: list[Row], on: Sequence[str]
) -> None:
    check_replaced_keys(table, earlier, new, on)


@examples(6)
@given(
    earlier=some_rows, changed=some_rows, extra=st.lists(rows, max_size=1), literals=st.sampled_from([MOST_LITERALS, 0])
)
def test_partitions_are_replaced_including_those_of_null_and_nan(
    table: Table, earlier: list[Row], changed: list[Row], extra: list[Row], literals: int
) -> None:
    check_partitions(table, earlier, changed[:2] + extra, changed, literals=literals)


@pytest.mark.slow
@examples(15)
@given(earlier=some_rows, new=some_rows, on=keys, latest_by=st.sampled_from([None, "t"]))
def test_every_way_to_write_equals_its_model_on_a_list(
    table: Table, earlier: list[Row], new: list[Row], on: Sequence[str], latest_by: str | None
) -> None:
    check_append(table, earlier, new, on)
    check_merge(table, earlier, new, on, latest_by)
    check_remove(table, earlier, new, on)
    check_replaced_keys(table, earlier, new, on)
    for literals in (MOST_LITERALS, 0):
        check_partitions(table, earlier, new[:2], new, literals=literals)


def test_the_statement_that_rewrites_mixed_files_names_the_catalog(lake: Lake) -> None:
    said = "Cannot delete file where some, but not all, rows match filter"
    frame, branch = lake.session.range(1), Branch("lake", "media.`my.days`", "b")
    with pytest.raises(MixedFilesError) as raised, write_errors_explained(frame, branch, ()):
        raise PySparkException(message=said)
    assert "CALL `lake`.system.rewrite_data_files(table => '`media`.`my.days`', options" in str(raised.value)
