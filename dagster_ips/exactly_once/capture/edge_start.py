"""Where an edge begins that has consumed nothing: where ``start`` says, but never twice."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.history_place import AtTime, Everywhere, Nowhere, Start, find_place
from dagster_ips.errors import UnknownPlaceError, UpstreamRenamedError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.table_progress import TableProgress


def begun_at_start(
    state: EdgeState, source: TableMetadata, tracked: TrackedInput, known: TableProgress | None, inputs: Collection[str]
) -> EdgeState:
    """``state`` with the watermark that ``tracked.start`` asks for; unchanged if it has one or all is to be read.

    Once a change of a table without snapshots was consumed, everything that comes is new. ``latest`` stays what it was
    at the first capture, even if that was abandoned. ``inputs`` are the upstreams that the consumer reads.

    Raises:
        UnknownPlaceError: the start isn't in the history of the upstream's table.
        UpstreamRenamedError: the table ``known`` contains the same source under another key of the upstream.
    """
    if state.has_begun:
        return state
    if tracked.start is Everywhere.ALL:
        return replace(state, committed=None, is_beginning=False)
    if tracked.start is Everywhere.LATEST and state.is_beginning:
        return state
    for upstream, other in known.progress.inputs.items() if known is not None and not state.request else ():
        if upstream not in inputs and other.at is not None and other.at.table_uuid == source.uuid:
            raise UpstreamRenamedError(state.edge.consumer, state.edge.upstream, upstream, other.at.snapshot_id)
    found = snapshot_at(tracked.start, source, tracked.ref, asked_by=f"start of {state.edge}")
    at = source.watermark_at(found, tracked.ref) if found else None
    # If the table has no snapshot yet, latest is its beginning, and stays that once it has one.
    return replace(state, committed=at, is_beginning=found is not None or tracked.start is Everywhere.LATEST)


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
