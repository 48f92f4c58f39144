"""Rows are added."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tests.histories import handmade
from tests.histories.operations.operation import operation, rows
from tests.histories.table import HistoryTable


@operation("append", rows=rows)
def append_by_spark(table: HistoryTable, *, rows: Sequence[int]) -> None:
    table.sql(f"INSERT INTO {table.sql_name} {table.sql_rows(rows)}")


@operation("append", versions=(1, 2), rows=rows)
def append_by_pyiceberg(table: HistoryTable, *, rows: Sequence[int]) -> None:
    table.by_pyiceberg().append(table.arrow_rows(rows))


@operation("append", rows=rows)
def append_merging_manifests_by_spark(table: HistoryTable, *, rows: Sequence[int]) -> None:
    with _merging(table):
        append_by_spark(table, rows=rows)


@operation("append", versions=(1, 2), rows=rows)
def append_merging_manifests_by_pyiceberg(table: HistoryTable, *, rows: Sequence[int]) -> None:
    table.by_pyiceberg()
    with _merging(table):
        append_by_pyiceberg(table, rows=rows)


@operation("append")
def append_no_row(table: HistoryTable) -> None:
    append_by_spark(table, rows=())


@contextlib.contextmanager
def _merging(table: HistoryTable) -> Iterator[None]:
    name = "commit.manifest-merge.enabled"
    before = table.raw["properties"][name]
    handmade.set_properties(table, {name: "true"})
    try:
        yield
    finally:
        handmade.set_properties(table, {name: before})
