"""What a table's snapshots say of the tables that its rows were looked up in.

Each says it of all rows, and not of its own alone: what was said before may be expired.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dagster_ips.iceberg.metadata import TableMetadata

LOOKUPS = "dagster-ips.lookups"


def properties(
    target: TableMetadata | None, read: Mapping[str, TableMetadata], *, replaces_all: bool
) -> dict[str, str]:
    """Summary properties of a write that looks rows up in the tables ``read``.

    ``replaces_all`` says that every row of the table is computed anew.
    """
    is_new = replaces_all or target is None or target.head_snapshot_id() is None
    before = {} if is_new or target is None else _said(target)
    same = unchanged(target, read)
    said = {name: _state_of(at) if is_new else before[name] if name in same else None for name, at in read.items()}
    return {LOOKUPS: json.dumps(before | said, separators=(",", ":"), ensure_ascii=False)} if before or said else {}


def restored(before: TableMetadata) -> dict[str, str]:
    """Summary properties of a write that brings all rows back as ``before`` has them."""
    said = _said(before)
    return {LOOKUPS: json.dumps(said, separators=(",", ":"), ensure_ascii=False)} if said else {}


def unchanged(target: TableMetadata | None, read: Mapping[str, TableMetadata]) -> frozenset[str]:
    """Those of ``read`` in which every row of ``target`` was looked up as they are now."""
    before = _said(target) if target else {}
    return frozenset(name for name, table in read.items() if _stays_as(before.get(name), table))


def _state_of(table: TableMetadata) -> str | None:
    """What stays the same as long as no row of the table may have changed, and its schema; None if it can't be told."""
    change = table.ancestry().newest_change
    return f"{table.uuid}@{change.snapshot_id}@{table.current_schema_id}" if change else None


def _stays_as(said: str | None, table: TableMetadata) -> bool:
    """Whether no row may have changed, and no name has come to stand for another column, which no snapshot shows."""
    now = _state_of(table)
    if said is None or now is None:
        return False
    uuid, snapshot, *schema = said.split("@")
    is_of_same_rows = now.startswith(f"{uuid}@{snapshot}@")
    return is_of_same_rows and table.columns_of_other_meaning(int(schema[0]) if schema else None) == ()


def _said(target: TableMetadata) -> dict[str, str | None]:
    said = (snapshot.summary.get(LOOKUPS) for snapshot in target.ancestry().snapshots)
    return dict(json.loads(next((each for each in said if each), "{}")))
