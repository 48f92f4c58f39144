"""The cascades that a table's snapshots belong to."""

from __future__ import annotations

from collections.abc import Iterable

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.cascade import Cascade, together
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import RUN

CASCADE = "dagster-ips.cascade"


def properties(cascade: Cascade) -> dict[str, str]:
    """Summary properties of what follows from ``cascade``; none if there is none."""
    return {CASCADE: str(cascade)} if cascade.ids else {}


def caused_by(consumed: Iterable[tuple[TableMetadata, Capture]]) -> Cascade:
    """What the snapshots that captures consume follow from.

    Of what an outside job committed, the newest snapshot stands for all. In mode ``full`` it is the head's alone.
    """
    snapshots: list[Snapshot] = []
    for metadata, capture in consumed:
        changed = [snapshot for snapshot in _consumed(metadata, capture) if _changes_rows(snapshot)]
        outside = [snapshot for snapshot in changed if RUN not in snapshot.summary]
        snapshots += [s for s in changed if CASCADE in s.summary] + outside[:1]
    newest_first = sorted(snapshots, key=lambda snapshot: snapshot.timestamp_ms, reverse=True)
    return together(_of(snapshot) for snapshot in newest_first)


def cascade_at_head(metadata: TableMetadata) -> Cascade:
    """What the newest commit to ``main`` follows from; nothing where it doesn't say."""
    newest = next((s for s in metadata.ancestry().snapshots if _changes_rows(s)), None)
    return _of(newest) if newest and (CASCADE in newest.summary or RUN not in newest.summary) else Cascade()


def _consumed(metadata: TableMetadata, capture: Capture) -> tuple[Snapshot, ...]:
    """Newest first."""
    to, start = capture.to_inclusive, capture.from_exclusive
    if to is None:
        return ()
    ancestry = metadata.ancestry(to.ref)
    if capture.mode is Mode.INCREMENTAL and start is not None:
        between = ancestry.between(
            from_snapshot_id_exclusive=start.snapshot_id, to_snapshot_id_inclusive=to.snapshot_id
        )
        if between is not None:
            return between[::-1]
    head = ancestry.find(to.snapshot_id)
    return (head,) if head else ()


def _changes_rows(snapshot: Snapshot) -> bool:
    """Whether it may have, as far as its summary says; our own last commit of several statements adds none itself."""
    return CASCADE in snapshot.summary or not (snapshot.only_moves or snapshot.changes_no_file)


def _of(snapshot: Snapshot) -> Cascade:
    return Cascade.from_text(snapshot.summary.get(CASCADE, str(snapshot.snapshot_id)))
