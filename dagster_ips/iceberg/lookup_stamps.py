"""What a table's snapshots say about the tables that its rows were looked up in.

Each snapshot says it about all rows, and not just about its own: what earlier snapshots said may have expired.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dagster_ips.core.packed_text import digest
from dagster_ips.iceberg.metadata import TableMetadata

LOOKUPS = "dagster-ips.lookups"


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A table that rows are looked up in, as it was read; ``rows`` is the condition on those of its rows, if any."""

    table: TableMetadata
    rows: str | None = None


def properties(target: TableMetadata | None, read: Mapping[str, LookedUp], *, replaces_all: bool) -> dict[str, str]:
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


def unchanged(target: TableMetadata | None, read: Mapping[str, LookedUp]) -> frozenset[str]:
    """Those of ``read`` that were the same as now when each row of ``target`` was looked up in them."""
    before = _said(target) if target else {}
    return frozenset(name for name, each in read.items() if _stays_as(before.get(name), each))


def are_news(target: TableMetadata | None, read: Mapping[str, LookedUp]) -> bool:
    """Whether a table of ``read`` has changed since all rows of ``target`` were looked up in it, as ``target`` says.

    It mustn't say so any longer, even if a run writes no row: the table may be rolled back to how it was.
    """
    before = _said(target) if target else {}
    return any(before.get(name) is not None for name in read.keys() - unchanged(target, read))


def _state_of(read: LookedUp) -> str | None:
    """What stays the same while neither the rows that are read nor the schema may have changed; None if unknown."""
    change = read.table.ancestry().newest_change
    if change is None:
        return None
    rows = f"@{digest(read.rows)}" if read.rows is not None else ""
    return f"{read.table.uuid}@{change.snapshot_id}@{read.table.current_schema_id}{rows}"


def _stays_as(said: str | None, read: LookedUp) -> bool:
    """Whether no row may have changed, and no name stands for another column now; no snapshot shows the latter."""
    now = _state_of(read)
    if said is None or now is None:
        return False
    uuid, snapshot, *more = said.split("@")
    is_of_same_rows = now.startswith(f"{uuid}@{snapshot}@") and more[1:] == now.split("@")[3:]
    return is_of_same_rows and read.table.columns_of_other_meaning(more[0] if more else None) == ()


def _entry(said: Mapping[str, str | None]) -> dict[str, str]:
    return {LOOKUPS: json.dumps(said, separators=(",", ":"), ensure_ascii=False)}


def _said(target: TableMetadata) -> dict[str, str | None]:
    said = (snapshot.summary.get(LOOKUPS) for snapshot in target.ancestry().snapshots)
    return dict(json.loads(next((each for each in said if each), "{}")))
