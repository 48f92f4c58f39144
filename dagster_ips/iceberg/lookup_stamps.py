"""What a table's snapshots say about the tables that its rows were looked up in.

Each snapshot says it about all rows, and not just about its own: what earlier snapshots said may have expired.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dagster_ips.iceberg.metadata import TableMetadata

LOOKUPS = "dagster-ips.lookups"


def properties(
    target: TableMetadata | None, read: Mapping[str, TableMetadata], *, replaces_all: bool
) -> dict[str, str]:
    """Summary properties for a write that looks rows up in the tables ``read``.

    ``replaces_all`` says that every row of the table is recomputed.
    """
    is_new = replaces_all or target is None or target.head_snapshot_id() is None
    before = {} if is_new or target is None else _said(target)
    same = unchanged(target, read)
    said = {name: _state_of(at) if is_new else before[name] if name in same else None for name, at in read.items()}
    # An entry without tables hides the one of an earlier snapshot, whose rows are gone.
    hides = is_new and target is not None and bool(_said(target))
    return _entry(before | said) if before or said or hides else {}


def restored(before: TableMetadata) -> dict[str, str]:
    """Summary properties for a write that restores all rows as they are in ``before``."""
    return _entry(_said(before))


def unchanged(target: TableMetadata | None, read: Mapping[str, TableMetadata]) -> frozenset[str]:
    """Those of ``read`` that were the same as now when each row of ``target`` was looked up in them."""
    before = _said(target) if target else {}
    return frozenset(name for name, table in read.items() if _stays_as(before.get(name), table))


def _state_of(table: TableMetadata) -> str | None:
    """What stays the same as long as neither the table's rows nor its schema may have changed; None if unknown."""
    change = table.ancestry().newest_change
    return f"{table.uuid}@{change.snapshot_id}@{table.current_schema_id}" if change else None


def _stays_as(said: str | None, table: TableMetadata) -> bool:
    """Whether no row may have changed, and no name stands for another column now; no snapshot shows the latter."""
    now = _state_of(table)
    if said is None or now is None:
        return False
    uuid, snapshot, *schema = said.split("@")
    is_of_same_rows = now.startswith(f"{uuid}@{snapshot}@")
    return is_of_same_rows and table.columns_of_other_meaning(schema[0] if schema else None) == ()


def _entry(said: Mapping[str, str | None]) -> dict[str, str]:
    return {LOOKUPS: json.dumps(said, separators=(",", ":"), ensure_ascii=False)}


def _said(target: TableMetadata) -> dict[str, str | None]:
    said = (snapshot.summary.get(LOOKUPS) for snapshot in target.ancestry().snapshots)
    return dict(json.loads(next((each for each in said if each), "{}")))
