"""Main moves to another snapshot."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.histories.operations.operation import operation
from tests.histories.table import HistoryTable, NotNow


@operation("move", back=st.integers(1, 3))
def roll_back(table: HistoryTable, *, back: int) -> None:
    ancestry = table.ancestry()
    if len(ancestry) < 2:
        raise NotNow
    to = ancestry[min(back, len(ancestry) - 1)]
    table.sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {to})")


@operation("move", newest=st.integers(0, 6))
def set_current_snapshot(table: HistoryTable, *, newest: int) -> None:
    """Move main back, aside, or forward again: ``newest`` counts back from the newest commit."""
    snapshots = table.snapshots()
    if len(snapshots) < 2:
        raise NotNow
    to = snapshots[-1 - newest % len(snapshots)]
    if to == table.head:
        raise NotNow
    table.sql(f"CALL lake.system.set_current_snapshot('{table.name}', {to})")
