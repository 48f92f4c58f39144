"""Whether a consumer has something to do, from metadata alone."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import EdgeState


def is_pending(state: EdgeState, *, table_uuid: str, ancestry: Ancestry) -> bool:
    """Whether a capture of the edge would find anything.

    A commit that changed no row doesn't count, or cascades would never end. What can't be followed (a re-created
    table, a rollback) does count: the run it causes says so, instead of nobody.
    """
    if ancestry.head is None:
        return False
    if state.committed is None:
        return True
    if state.committed.table_uuid != table_uuid:
        return True
    snapshots = ancestry.between(
        from_snapshot_id_exclusive=state.committed.snapshot_id, to_snapshot_id_inclusive=ancestry.head.snapshot_id
    )
    return snapshots is None or any(map(_may_change_rows, snapshots))


def _may_change_rows(snapshot: Snapshot) -> bool:
    return snapshot.operation != "append" or _count(snapshot.summary, "added-data-files") != 0


def _count(summary: Mapping[str, str], key: str) -> int | None:
    """The count, or None if the summary, whose counts are optional, doesn't say."""
    if key in summary:
        return int(summary[key])
    return 0 if "total-data-files" in summary else None
