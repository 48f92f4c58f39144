"""Rows are deleted, updated and merged."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.histories import handmade
from tests.histories.operations.operation import Where, copy_or_merge, operation, rows, updates, wheres
from tests.histories.operations.table_statements import pyiceberg_condition, where_clause
from tests.histories.table import HistoryTable
from tests.histories.values import sql_value


@operation("delete", versions=(1, 2), where=wheres)
def delete_by_pyiceberg(table: HistoryTable, *, where: Where) -> None:
    table.by_pyiceberg().delete(pyiceberg_condition(table, where))


@operation("delete", where=wheres)
def delete_copy_on_write(table: HistoryTable, *, where: Where) -> None:
    _set_mode(table, "copy-on-write")
    table.sql(f"DELETE FROM {table.sql_name} WHERE {where_clause(table, where)}")


@operation("delete", versions=(2, 3), where=wheres)
def delete_merge_on_read(table: HistoryTable, *, where: Where) -> None:
    """Delete with position delete files for each data file in v2, and with deletion vectors in v3."""
    _set_mode(table, "merge-on-read", granularity="file")
    table.sql(f"DELETE FROM {table.sql_name} WHERE {where_clause(table, where)}")


@operation("delete", versions=(2,), where=wheres)
def delete_merge_on_read_by_partition(table: HistoryTable, *, where: Where) -> None:
    _set_mode(table, "merge-on-read", granularity="partition")
    table.sql(f"DELETE FROM {table.sql_name} WHERE {where_clause(table, where)}")


@operation("delete")
def delete_everything(table: HistoryTable) -> None:
    table.sql(f"DELETE FROM {table.sql_name}")


@operation("update", where=wheres, to=updates)
def update_copy_on_write(table: HistoryTable, *, where: Where, to: tuple[str, int]) -> None:
    _set_mode(table, "copy-on-write")
    table.sql(f"UPDATE {table.sql_name} SET {_assignment(table, to)} WHERE {where_clause(table, where)}")


@operation("update", versions=(2, 3), where=wheres, to=updates)
def update_merge_on_read(table: HistoryTable, *, where: Where, to: tuple[str, int]) -> None:
    _set_mode(table, "merge-on-read", granularity="file")
    table.sql(f"UPDATE {table.sql_name} SET {_assignment(table, to)} WHERE {where_clause(table, where)}")


@operation("update", where=wheres, mode=copy_or_merge)
def update_to_the_same(table: HistoryTable, *, where: Where, mode: str) -> None:
    """Files may be rewritten, and no row changes."""
    _set_mode(table, mode if table.version > 1 else "copy-on-write")
    name = f"`{table.field('title').name}`"
    table.sql(f"UPDATE {table.sql_name} SET {name} = {name} WHERE {where_clause(table, where)}")


keys = st.sampled_from(["number", "title", "day"])


@operation("merge", rows=rows, on=keys)
def merge_copy_on_write(table: HistoryTable, *, rows: Sequence[int], on: str) -> None:
    _set_mode(table, "copy-on-write")
    _merge(table, rows, on, "MATCHED THEN UPDATE SET *", "NOT MATCHED THEN INSERT *")


@operation("merge", versions=(2, 3), rows=rows, on=keys)
def merge_merge_on_read(table: HistoryTable, *, rows: Sequence[int], on: str) -> None:
    _set_mode(table, "merge-on-read", granularity="file")
    _merge(table, rows, on, "MATCHED THEN UPDATE SET *", "NOT MATCHED THEN INSERT *")


@operation("merge", rows=rows, on=keys, mode=copy_or_merge)
def merge_deleting(table: HistoryTable, *, rows: Sequence[int], on: str, mode: str) -> None:
    """Delete the rows that match, insert the others."""
    _set_mode(table, mode if table.version > 1 else "copy-on-write")
    _merge(table, rows, on, "MATCHED THEN DELETE", "NOT MATCHED THEN INSERT *")


@operation("merge", rows=rows, on=keys)
def merge_inserting(table: HistoryTable, *, rows: Sequence[int], on: str) -> None:
    """A merge that commits an append."""
    _merge(table, rows, on, "NOT MATCHED THEN INSERT *")


@operation("merge", rows=rows, on=keys, mode=copy_or_merge)
def merge_changing_nothing(table: HistoryTable, *, rows: Sequence[int], on: str, mode: str) -> None:
    _set_mode(table, mode if table.version > 1 else "copy-on-write")
    title = table.field("title").name
    _merge(table, rows, on, f"MATCHED THEN UPDATE SET `{title}` = t.`{title}`")


def _merge(table: HistoryTable, rows: Sequence[int], on: str, *clauses: str) -> None:
    key = table.field(on)
    of_each_key = {table.value(key, row): row for row in rows}
    when = " ".join(f"WHEN {clause}" for clause in clauses)
    source = table.sql_rows(tuple(of_each_key.values()))
    table.sql(f"MERGE INTO {table.sql_name} t USING ({source}) s ON t.`{key.name}` <=> s.`{key.name}` {when}")


def _assignment(table: HistoryTable, to: tuple[str, int]) -> str:
    column = table.field(to[0])
    return f"`{column.name}` = {sql_value(table.value(column, to[1]), column.type)}"


def _set_mode(table: HistoryTable, mode: str, granularity: str = "file") -> None:
    """Set how Spark deletes, updates and merges from now on."""
    modes = {f"write.{change}.mode": mode for change in ("delete", "update", "merge")}
    handmade.set_properties(table, {**modes, "write.delete.granularity": granularity})
