"""Commits that become part of main some time after they were written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tests.histories import handmade
from tests.histories.operations.appends import append_by_spark
from tests.histories.operations.operation import OPERATIONS, Where, operation, rows, wheres
from tests.histories.operations.table_statements import session_with, where_clause
from tests.histories.table import HistoryTable, NotNow


@operation("publish", rows=rows, between=rows)
def cherry_pick(table: HistoryTable, *, rows: Sequence[int], between: Sequence[int]) -> None:
    """A staged append that is picked after another commit."""
    staged = _stage(table, "append_by_spark", rows)
    append_by_spark(table, rows=between)
    table.sql(f"CALL lake.system.cherrypick_snapshot('{table.name}', {staged})")


@operation("publish", refused=["Cannot cherry-pick replace partitions with changed partition"], rows=rows)
def cherry_pick_an_overwrite(table: HistoryTable, *, rows: Sequence[int]) -> None:
    staged = _stage(table, "insert_overwrite_partitions", rows)
    table.sql(f"CALL lake.system.cherrypick_snapshot('{table.name}', {staged})")


@operation("publish", rows=rows, between=rows)
def publish_by_wap_id(table: HistoryTable, *, rows: Sequence[int], between: Sequence[int]) -> None:
    staged = _stage(table, "append_by_spark", rows)
    append_by_spark(table, rows=between)
    table.sql(f"CALL lake.system.publish_changes('{table.name}', '{_wap_id(table, staged)}')")


@operation("publish", rows=rows)
def stage_and_forget(table: HistoryTable, *, rows: Sequence[int]) -> None:
    """A snapshot that is in the table but in no ancestry."""
    _stage(table, "append_by_spark", rows)


@operation("publish", rows=rows, where=wheres)
def fast_forward_a_branch(table: HistoryTable, *, rows: Sequence[int], where: Where) -> None:
    """An append and a delete that are published together."""
    condition = where_clause(table, where)
    with _branch(table) as branch:
        table.sql(f"INSERT INTO {branch} {table.sql_rows(rows)}")
        table.sql(f"DELETE FROM {branch} WHERE {condition}")
        table.sql(f"CALL lake.system.fast_forward('{table.name}', 'main', '{branch.rpartition('_')[2]}')")


@operation("publish", rows=rows)
def write_to_a_branch_and_drop_it(table: HistoryTable, *, rows: Sequence[int]) -> None:
    with _branch(table) as branch:
        table.sql(f"INSERT INTO {branch} {table.sql_rows(rows)}")


def _stage(table: HistoryTable, name: str, rows: Sequence[int]) -> int:
    """Write a snapshot without publishing it; returns its id."""
    if table.head is None:
        raise NotNow
    handmade.set_properties(table, {"write.wap.enabled": "true"})
    known = set(table.snapshots())
    try:
        with session_with(table, {"spark.wap.id": f"wap_{len(known)}_{table.raw['last-updated-ms']}"}):
            OPERATIONS[name].apply(table, rows=rows)
    finally:
        handmade.set_properties(table, {"write.wap.enabled": "false"})
    (staged,) = set(table.snapshots()) - known
    return staged


def _wap_id(table: HistoryTable, snapshot_id: int) -> str:
    summary = next(s["summary"] for s in table.raw["snapshots"] if s["snapshot-id"] == snapshot_id)
    return str(summary["wap.id"])


@contextlib.contextmanager
def _branch(table: HistoryTable) -> Iterator[str]:
    if table.head is None:
        raise NotNow
    table.sql(f"ALTER TABLE {table.sql_name} CREATE BRANCH side")
    try:
        yield f"{table.sql_name}.branch_side"
    finally:
        table.sql(f"ALTER TABLE {table.sql_name} DROP BRANCH side")
