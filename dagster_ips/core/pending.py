"""Whether a consumer has something to do, from metadata alone."""

from __future__ import annotations

from dagster_ips.core.ancestry import Ancestry
from dagster_ips.core.capture import EdgeState


def is_pending(state: EdgeState, *, table_uuid: str, ancestry: Ancestry) -> bool:
    """Whether a capture of the edge would find anything.

    An append of no file doesn't count. A rewrite that changed no row does, so that the watermark advances before its
    snapshot expires; the run it causes publishes nothing, so no other consumer is triggered. What can't be followed (a
    re-created table, a rollback) counts too: the run it causes reports it, as nothing else would. So does a change of
    which only some files are consumed.
    """
    if ancestry.head is None:
        return False
    if state.committed is None or state.file_set is not None:
        return True
    if state.committed.table_uuid != table_uuid:
        return True
    snapshots = ancestry.between(
        from_snapshot_id_exclusive=state.committed.snapshot_id, to_snapshot_id_inclusive=ancestry.head.snapshot_id
    )
    return snapshots is None or not all(s.operation == "append" and s.changes_no_file for s in snapshots)
