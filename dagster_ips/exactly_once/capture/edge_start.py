"""Where an edge begins that has consumed nothing: where ``start`` says, but never twice."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import AtTime, Everywhere, Nowhere, Start, find_place
from dagster_ips.errors import LostCursorError, UnknownPlaceError, UpstreamRenamedError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc.icdc_dropping import icdc_origins
from dagster_ips.iceberg.icdc.icdc_memory import RememberedCapture, newest_capture
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import bears_stamp, last_consumed


@dataclass(frozen=True, slots=True)
class StartFinder:
    """Finds where the edges of one consumer begin, whose table is ``table``; ``target`` is None if it doesn't exist."""

    catalog: LakeCatalog
    icdc_namespace: str
    table: str
    target: TableMetadata | None

    def begin(self, state: EdgeState, source: TableMetadata, tracked: TrackedInput) -> EdgeState:
        """``state`` with the watermark that ``tracked.start`` asks for; unchanged if it has one or all is to be read.

        Once a capture of a table without snapshots was committed, everything that comes is new. ``latest`` stays what
        it was at the first capture, even if that was abandoned. A lost cursor is rebuilt from the edge's ICDC tables,
        unless something was published that is no longer visible: starting again would then leave rows out.

        Raises:
            UnknownPlaceError: the start isn't in the history of the upstream's table.
            LostCursorError: something was consumed before, and it is unknown what.
            UpstreamRenamedError: something was consumed before, under another key of the upstream.
        """
        if state.has_begun or (state.committed is not None and not state.is_beginning):
            return state
        if tracked.start is Everywhere.ALL:
            return replace(state, committed=None, is_beginning=False)
        if tracked.start is Everywhere.LATEST and state.is_beginning:
            return state
        if state == EdgeState(state.edge):
            # If the table may have been renamed since it was published to, its name doesn't tell captures apart.
            is_known_by_name = self.target is None or not _may_hold_rows_of(state.edge, self.target)
            known = newest_capture(
                self.catalog,
                state.edge,
                namespace=self.icdc_namespace,
                target=self.table if is_known_by_name else None,
            )
            if known is not None:
                return self._rebuilt(state, known, source, tracked.ref)
            self._require_no_other_key(state.edge, source)
        found = snapshot_at(tracked.start, source, tracked.ref, asked_by=f"start of {state.edge}")
        at = source.watermark_at(found, tracked.ref) if found else None
        # If the table has no snapshot yet, latest is its beginning, and stays that once it has one.
        return replace(state, committed=at, is_beginning=found is not None or tracked.start is Everywhere.LATEST)

    def _require_no_other_key(self, edge: Edge, source: TableMetadata) -> None:
        """Fail if the target has rows of the same source that were consumed under another key.

        Raises:
            UpstreamRenamedError: it has, or may have.
        """
        if self.target is None:
            return
        for origin in icdc_origins(self.catalog, source.uuid, namespace=self.icdc_namespace):
            other = origin.edge
            if other.consumer == edge.consumer and _may_hold_rows_of(other, self.target):
                consumed = last_consumed(self.target, other)
                raise UpstreamRenamedError(edge.consumer, edge.upstream, other.upstream, consumed)

    def _rebuilt(self, state: EdgeState, known: RememberedCapture, source: TableMetadata, ref: str) -> EdgeState:
        """``state`` before the capture ``known``, which was the last one and, like all others, published nothing."""
        # The target is created before the first commit. If there is none, it is gone with all that was published.
        may_have_published = known.number > 1 if self.target is None else _may_hold_rows_of(state.edge, self.target)
        if not may_have_published and known.to_snapshot_id is None:
            return state
        start = source.snapshots.get(known.from_snapshot_id) if known.from_snapshot_id is not None else None
        if may_have_published or start is None or known.source_uuid != source.uuid:
            edge = state.edge
            raise LostCursorError(consumer=edge.consumer, upstream=edge.upstream, icdc_table=known.table)
        watermark = source.watermark_at(start, ref)
        return replace(state, committed=watermark, number=known.number - 1, is_beginning=known.number == 1)


def _may_hold_rows_of(edge: Edge, target: TableMetadata) -> bool:
    """Whether a capture of ``edge`` was published to ``target``, or may have been by a snapshot that has expired."""
    return bears_stamp(target, edge) or not target.ancestry().is_whole


def snapshot_at(place: Start, source: TableMetadata, ref: str, *, asked_by: str) -> Snapshot | None:
    """The snapshot of ``ref`` that ``place`` comes right after; None if ``place`` is before all of them.

    Raises:
        UnknownPlaceError: the place isn't in the table's history, or no longer. ``asked_by`` is who named it.
    """
    ancestry = source.ancestry(ref)
    if isinstance(place, Everywhere):
        return ancestry.head if place is Everywhere.LATEST else None
    found = find_place(place, ancestry, now_ms=time.time_ns() // 1_000_000)
    if found is Nowhere.BEFORE_ALL:
        return None
    if isinstance(found, Nowhere):
        raise UnknownPlaceError(source.table, str(place), found, asked_by, _reach_of(ancestry))
    return found


def _reach_of(ancestry: Ancestry) -> str:
    if not ancestry.snapshots:
        return "no snapshot yet"
    oldest, newest = (
        f"snapshot {each.snapshot_id} of {AtTime(each.timestamp_ms)}"
        for each in (ancestry.snapshots[-1], ancestry.snapshots[0])
    )
    return f"{oldest}, the oldest retained, to {newest}"
