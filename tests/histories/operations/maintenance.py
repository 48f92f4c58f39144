"""Files change, and rows don't."""

from __future__ import annotations

from collections.abc import Mapping

from tests.histories.operations.operation import Where, operation, wheres
from tests.histories.operations.table_statements import where_clause
from tests.histories.table import HistoryTable
from tests.histories.values import sql_value


@operation("maintenance")
def compact_everything(table: HistoryTable) -> None:
    _compact(table, {"rewrite-all": "true"})


@operation("maintenance", where=wheres)
def compact_some_partitions(table: HistoryTable, *, where: Where) -> None:
    _compact(table, {"rewrite-all": "true"}, where=where_clause(table, where))


@operation("maintenance")
def compact_small_files(table: HistoryTable) -> None:
    """Compact, but leave files that are alone in their partition."""
    _compact(table, {"min-input-files": "2"})


@operation("maintenance")
def compact_in_parts(table: HistoryTable) -> None:
    """Compact with one commit for each partition."""
    _compact(table, {"rewrite-all": "true", "partial-progress.enabled": "true", "partial-progress.max-commits": "9"})


@operation("maintenance")
def compact_with_new_sequence_numbers(table: HistoryTable) -> None:
    _compact(table, {"rewrite-all": "true", "use-starting-sequence-number": "false"})


@operation("maintenance", versions=(2, 3))
def compact_what_has_deletes(table: HistoryTable) -> None:
    _compact(table, {"delete-file-threshold": "1", "min-input-files": "99", "remove-dangling-deletes": "true"})


@operation("maintenance")
def compact_sorted(table: HistoryTable) -> None:
    name = table.field("number").name
    _compact(table, {"rewrite-all": "true"}, strategy="sort", sort_order=f"`{name}` DESC NULLS LAST")


@operation("maintenance")
def rewrite_manifests(table: HistoryTable) -> None:
    table.sql(f"CALL lake.system.rewrite_manifests('{table.name}')")


@operation("maintenance", versions=(2, 3))
def rewrite_position_deletes(table: HistoryTable) -> None:
    options = "map('rewrite-all', 'true')"
    table.sql(f"CALL lake.system.rewrite_position_delete_files(table => '{table.name}', options => {options})")


def _compact(table: HistoryTable, options: Mapping[str, str], **more: str) -> None:
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    arguments = {"table": table.name, **more}
    named = ", ".join(f"{key} => {sql_value(value, 'string')}" for key, value in arguments.items())
    table.sql(f"CALL lake.system.rewrite_data_files({named}, options => map({listed}))")
