"""Deletes that only other writers make."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import strategies as st

from tests.histories import handmade
from tests.histories.operations.operation import Where, one_row, operation
from tests.histories.table import HistoryTable, NotNow


@operation(
    "by hand",
    versions=(2, 3),
    where=st.tuples(st.sampled_from(["number", "title", "day"]), one_row),
    file=st.integers(0, 5),
)
def delete_by_equality(table: HistoryTable, *, where: Where, file: int) -> None:
    """An equality delete in the partition of one of the data files."""
    _delete_by_equality(table, where, _a_live_file(table, file))


@operation("by hand", versions=(2, 3), where=st.tuples(st.sampled_from(["number", "title", "day"]), one_row))
def delete_by_equality_everywhere(table: HistoryTable, *, where: Where) -> None:
    """A global equality delete: because it is unpartitioned, it applies to every partition."""
    _a_live_file(table, 0)
    _delete_by_equality(table, where, None)


def _delete_by_equality(table: HistoryTable, where: Where, beside: handmade.LiveFile | None) -> None:
    assert where
    column = table.field(where[0])
    kind = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "date": pa.date32()}[str(column.type)]
    handmade.delete_equal(table, column, pa.array([table.value(column, where[1])], kind), beside)


@operation(
    "by hand",
    versions=(2,),
    file=st.integers(0, 5),
    positions=st.sets(st.integers(0, 4), min_size=1).map(sorted).map(tuple),
)
def delete_positions_by_hand(table: HistoryTable, *, file: int, positions: Sequence[int]) -> None:
    """One delete file for all of a partition's data files; some of the rows may be deleted already."""
    chosen = _a_live_file(table, file)
    beside = [f for f in handmade.live_files(table) if (f.spec_id, f.partition) == (chosen.spec_id, chosen.partition)]
    found = {f.path: sorted({position % f.rows for position in positions}) for f in beside}
    handmade.delete_positions(table, found, chosen)


def _a_live_file(table: HistoryTable, number: int) -> handmade.LiveFile:
    files = [file for file in handmade.live_files(table) if file.rows]
    if not files:
        raise NotNow
    return files[number % len(files)]
