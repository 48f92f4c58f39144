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
    return attempt_properties(attempt, run_id) | stamps


def attempt_properties(attempt: str, run_id: str) -> dict[str, str]:
    """Summary properties for a write that vouches for no capture yet."""
    return {ATTEMPT: attempt, RUN: run_id}


def target_history(metadata: TableMetadata, edge: Edge) -> TargetHistory:
    """``main``'s ancestry and the newest stamp of ``edge`` in it."""
    ancestry = metadata.ancestry()
    newest = next((_stamp(s, metadata.uuid, edge) for s in ancestry.snapshots if _EDGE + edge.id in s.summary), None)
    return TargetHistory(metadata.uuid, ancestry, newest)


def has_attempt(snapshot: Snapshot) -> bool:
    """Whether the snapshot says which attempt wrote it; what only drops whole files can't."""
    return ATTEMPT in snapshot.summary


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
