"""The cascades that a table's snapshots belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.cascade import Cascade, short, together
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import RUN

CASCADE = "dagster-ips.cascade"


def properties(cascade: Cascade) -> dict[str, str]:
    """Summary properties for what follows from ``cascade``; none if it is empty."""
    return {CASCADE: str(cascade)} if cascade.ids else {}


def caused_by(consumed: Iterable[tuple[TableMetadata, Capture]], read_to: Mapping[str, int]) -> Cascade:
    """The cascade of the snapshots that captures consume; ``read_to`` is how far each upstream was read before.

    Of the commits of outside jobs, the newest one stands for all. If everything is read, of an asset or of partitions
    that were never computed, it is the cascade of what came since the consumer last published.
    """
    snapshots: list[Snapshot] = []
    for metadata, capture in consumed:
        changed = [snapshot for snapshot in _consumed(metadata, capture, read_to) if _changes_rows(snapshot)]
        outside = [snapshot for snapshot in changed if RUN not in snapshot.summary]
        snapshots += [s for s in changed if CASCADE in s.summary] + outside[:1]
    newest_first = sorted(snapshots, key=lambda snapshot: snapshot.timestamp_ms, reverse=True)
    return together(_of(snapshot) for snapshot in newest_first)


def belongs_to(snapshot: Snapshot, cascade: str) -> bool:
    """Whether the commit of ``snapshot`` says that it follows from the cascade."""
    return short(cascade) in Cascade.from_text(snapshot.summary.get(CASCADE, "")).ids


def cascade_at_head(metadata: TableMetadata) -> Cascade:
    """The cascade that the newest commit to ``main`` belongs to; empty if it doesn't say."""
    newest = next((s for s in metadata.ancestry().snapshots if _changes_rows(s)), None)
    return _of(newest) if newest and (CASCADE in newest.summary or RUN not in newest.summary) else Cascade()


def _consumed(metadata: TableMetadata, capture: Capture, read_to: Mapping[str, int]) -> tuple[Snapshot, ...]:
    """The consumed snapshots, newest first; only the newest if the history doesn't reach back, or nothing is new."""
    to, start = capture.to_inclusive, capture.from_exclusive
    if to is None:
        return ()
    ancestry = metadata.ancestry(to.ref)
    known = start.snapshot_id if capture.mode is Mode.INCREMENTAL and start else None
    since = known or read_to.get(capture.edge.upstream)
    between = ancestry.between(from_snapshot_id_exclusive=since, to_snapshot_id_inclusive=to.snapshot_id)
    head = ancestry.find(to.snapshot_id)
    if between is None or (capture.mode is Mode.FULL and not between):
        return (head,) if head else ()
    return between[::-1]


def _changes_rows(snapshot: Snapshot) -> bool:
    """Whether it may have, by its summary; the last commit of a statement block counts too, though it adds none."""
    return CASCADE in snapshot.summary or not snapshot.keeps_rows


def _of(snapshot: Snapshot) -> Cascade:
    return Cascade.from_text(snapshot.summary.get(CASCADE, str(snapshot.snapshot_id)))
