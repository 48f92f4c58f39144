"""The tables that a table's rows were looked up in, and whether they are still the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_ips.core.packed_text import digest
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.progress import Progress


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A table that rows are looked up in, as it was read; ``rows`` is the condition on those of its rows, if any."""

    table: TableMetadata
    rows: str | None = None


def lookups_after(known: Progress | None, read: Mapping[str, LookedUp], *, replaces_all: bool) -> dict[str, str | None]:
    """The states of the tables that all rows were looked up in, once a run that looks rows up in ``read`` is published.

    ``replaces_all`` says that every row of the table is recomputed.
    """
    if replaces_all or known is None:
        return {name: _state_of(at) for name, at in read.items()}
    same = unchanged(known, read)
    return {**known.lookups, **{name: known.lookups[name] if name in same else None for name in read}}


def unchanged(known: Progress | None, read: Mapping[str, LookedUp]) -> frozenset[str]:
    """Those of ``read`` that were the same as now when each row of the table was looked up in them."""
    before = known.lookups if known is not None else {}
    return frozenset(name for name, each in read.items() if _stays_as(before.get(name), each))


def are_news(known: Progress | None, read: Mapping[str, LookedUp]) -> bool:
    """Whether a table of ``read`` has changed since all rows were looked up in it, as what is ``known`` says.

    It mustn't say so any longer, even if a run writes no row: the table may be rolled back to how it was.
    """
    before = known.lookups if known is not None else {}
    return any(before.get(name) is not None for name in read.keys() - unchanged(known, read))


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
