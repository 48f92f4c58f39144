"""Snapshots are expired."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.histories.operations.operation import operation
from tests.histories.table import HistoryTable, NotNow


@operation("expire")
def expire_what_is_consumed(table: HistoryTable) -> None:
    """Expire every snapshot before the oldest watermark, but not the watermark."""
    ancestry = table.ancestry()
    places = [ancestry.index(found) for found in table.watermarks() if found in ancestry]
    _expire(table, ancestry[max(places) + 1 :] if places else [])


@operation("expire", consumer=st.integers(0, 2))
def expire_a_watermark(table: HistoryTable, *, consumer: int) -> None:
    """Expire only the snapshot up to which a consumer has consumed."""
    watermarks = table.watermarks()
    _expire(table, [watermarks[consumer % len(watermarks)]] if watermarks else [])


@operation("expire", newest=st.integers(1, 4))
def expire_in_the_middle(table: HistoryTable, *, newest: int) -> None:
    """Expire one snapshot of main that is neither its head nor its oldest one."""
    _expire(table, table.ancestry()[1:-1][newest - 1 : newest])


@operation("expire")
def expire_all_but_the_head(table: HistoryTable) -> None:
    _expire(table, table.ancestry()[1:])


@operation("expire", versions=(1, 2))
def expire_by_pyiceberg(table: HistoryTable) -> None:
    """Expire all snapshots except the head, only in the metadata: the files stay."""
    by_pyiceberg, old = table.by_pyiceberg(), table.ancestry()[1:]
    if not old:
        raise NotNow
    by_pyiceberg.maintenance.expire_snapshots().by_ids(old).commit()


def _expire(table: HistoryTable, snapshot_ids: Sequence[int]) -> None:
    retained = table.snapshots()
    doomed = [found for found in snapshot_ids if found in retained and found != table.head]
    if not doomed:
        raise NotNow
    ids = ", ".join(str(found) for found in dict.fromkeys(doomed))
    table.sql(f"CALL lake.system.expire_snapshots(table => '{table.name}', snapshot_ids => array({ids}))")
