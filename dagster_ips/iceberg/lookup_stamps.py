"""What a table's snapshots say of the tables that its rows were looked up in.

Each says it of all rows, and not of its own alone: what was said before may be expired.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dagster_ips.iceberg.metadata import TableMetadata

LOOKUPS = "dagster-ips.lookups"


def state_of(table: TableMetadata) -> str | None:
    """What stays the same as long as no row of the table may have changed; None if that can't be told."""
    change = table.ancestry().newest_change
    return f"{table.uuid}@{change.snapshot_id}" if change else None


def properties(target: TableMetadata | None, read: Mapping[str, str | None], *, replaces_all: bool) -> dict[str, str]:
    """Summary properties of a write that looks rows up in the tables ``read``, which stand as ``state_of`` says.

    ``replaces_all`` says that every row of the table is computed anew.
    """
    is_new = replaces_all or target is None or target.head_snapshot_id() is None
    before = {} if is_new or target is None else _said(target)
    said = dict(read) if is_new else {table: at if before.get(table) == at else None for table, at in read.items()}
    return {LOOKUPS: json.dumps(before | said, separators=(",", ":"), ensure_ascii=False)} if before or said else {}


def restored(before: TableMetadata) -> dict[str, str]:
    """Summary properties of a write that brings all rows back as ``before`` has them."""
    said = _said(before)
    return {LOOKUPS: json.dumps(said, separators=(",", ":"), ensure_ascii=False)} if said else {}


def unchanged(target: TableMetadata | None, read: Mapping[str, str | None]) -> frozenset[str]:
    """Those of ``read`` in which every row of ``target`` was looked up as they are now."""
    before = _said(target) if target else {}
    return frozenset(table for table, at in read.items() if at is not None and before.get(table) == at)


def _said(target: TableMetadata) -> dict[str, str | None]:
    said = (snapshot.summary.get(LOOKUPS) for snapshot in target.ancestry().snapshots)
    return dict(json.loads(next((each for each in said if each), "{}")))
