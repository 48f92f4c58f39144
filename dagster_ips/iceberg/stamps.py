"""Stamps: snapshot summary properties on the target that say which captures a commit came from.

A stamp is one property per edge, so that looking for an edge's newest stamp is one look-up per snapshot.
"""

from __future__ import annotations

import json

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, Mode, Stamp, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.target import TargetHistory
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.metadata import TableMetadata

ATTEMPT = "dagster-ips.attempt"
RUN = "dagster-ips.run"
_EDGE = "dagster-ips.edge."


def stamp_properties(captures: tuple[Capture, ...], *, attempt: str, run_id: str) -> dict[str, str]:
    """Summary properties for a write of ``captures``: the attempt's name, the run's id, and one value per edge.

    A capture of a table that has no snapshot yet vouches for nothing and leaves no stamp.
    """
    stamps = {_EDGE + c.edge.id: _value(c) for c in captures if c.to_inclusive is not None}
    return {ATTEMPT: attempt, RUN: run_id, **stamps}


def target_history(metadata: TableMetadata, edge: Edge) -> TargetHistory:
    """``main``'s ancestry and the newest stamp of ``edge`` in it."""
    ancestry = metadata.ancestry()
    newest = next((_stamp(s, metadata.uuid, edge) for s in ancestry.snapshots if _EDGE + edge.id in s.summary), None)
    return TargetHistory(metadata.uuid, ancestry, newest)


def bears_stamp(metadata: TableMetadata, edge: Edge) -> bool:
    """Whether any snapshot has a stamp of ``edge``, also one that isn't in ``main``'s history any more."""
    return any(_EDGE + edge.id in snapshot.summary for snapshot in metadata.snapshots.values())


def is_of_attempt(snapshot: Snapshot, attempt: str) -> bool:
    """Whether the snapshot was written by the attempt."""
    return snapshot.summary.get(ATTEMPT) == attempt


def mark(snapshot: Snapshot, table_uuid: str) -> TargetMark:
    """Where to find the snapshot again."""
    return TargetMark(table_uuid, snapshot.snapshot_id, snapshot.sequence_number, snapshot.timestamp_ms)


def _value(capture: Capture) -> str:
    to = capture.to_inclusive
    assert to is not None  # noqa: S101  # stamp_properties leaves such captures out
    value = {
        "n": capture.number,
        "edge": str(capture.edge),
        "mode": capture.mode.value,
        "uuid": to.table_uuid,
        "ref": to.ref,
        "from": capture.from_exclusive.snapshot_id if capture.from_exclusive else None,
        "to": to.snapshot_id,
        "seq": to.sequence_number,
        "ts": to.timestamp_ms,
    }
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _stamp(snapshot: Snapshot, table_uuid: str, edge: Edge) -> Stamp:
    value = json.loads(snapshot.summary[_EDGE + edge.id])
    to = Watermark(value["uuid"], value["ref"], value["to"], value["seq"], value["ts"])
    return Stamp(int(value["n"]), Mode(value["mode"]), to, mark(snapshot, table_uuid))
