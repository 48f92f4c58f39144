"""Capture: freeze what changed, durably and under a number, before any work starts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.changes import ChangeSet, first_unsupported
from dagster_ips.core.edge import Edge
from dagster_ips.core.mode import decide_mode
from dagster_ips.core.ranges import ChangeRange
from dagster_ips.core.target import TargetHistory, settle, unexpected_change
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    SnapshotNotInAncestryError,
    SourceReplacedError,
    TargetChangedError,
    UnsupportedHistoryError,
)
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.change_reader import CapturedFiles, appended_files, live_files
from dagster_ips.iceberg.column_ranges import change_range, require_column
from dagster_ips.iceberg.icdc_tables import author_icdc_table
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import target_history
from dagster_ips.state.store import EdgeStore
from dagster_ips.tracking.effects import Effect, effect

REF = "main"
_NO_FILES = CapturedFiles(ChangeSet())


@dataclass(frozen=True, slots=True)
class TrackedInput:
    """An upstream that a consumer reads incrementally: its key, its table, and the columns whose ranges it wants."""

    upstream: str
    table: str
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapturedInput:
    """A capture and what it found. ``icdc_table`` is registered and can be read by any engine."""

    capture: Capture
    source: TableMetadata
    files: CapturedFiles
    ranges: Mapping[str, ChangeRange]
    seconds: float

    @property
    def head(self) -> Snapshot | None:
        """The source's snapshot captured up to; None if it has none."""
        to = self.capture.to_inclusive
        return self.source.snapshots.get(to.snapshot_id) if to else None


@dataclass(frozen=True)
class Capturer:
    """Captures the inputs of one consumer. ``icdc_namespace`` is where ICDC tables are registered."""

    catalog: LakeCatalog
    store: EdgeStore
    icdc_namespace: str = "ips"

    def capture(
        self, consumer: str, inputs: Sequence[TrackedInput], *, target: str, asked_for: Mode | None, run_id: str
    ) -> tuple[CapturedInput, ...]:
        """One capture per input, all of one mode, recorded as in flight.

        First what an earlier run published but did not live to commit is committed, so its rows are never read again.

        Raises:
            IpsError: a table is unknown or unreadable, a column is unknown, or the history can't be followed; nothing
                was recorded then.
        """
        metadata = self.catalog.find(target)
        settled = [self._settled(Edge(consumer, i.upstream), metadata, target, asked_for) for i in inputs]
        sources = [self.catalog.load(tracked.table, asset=consumer) for tracked in inputs]
        for tracked, source in zip(inputs, sources, strict=True):
            for column in tracked.ranges:
                require_column(source, column)
        states = [state for state, _ in settled]
        decision = decide_mode(states, asked_for=asked_for, target_exists=metadata is not None)
        found = []
        for (state, history), source, tracked in zip(settled, sources, inputs, strict=True):
            started = time.monotonic()
            files = self._changed_files(state, source, decision.mode)
            head = source.ancestry(REF).head
            ranges = {column: change_range(files.changes, source, column) for column in tracked.ranges}
            capture = Capture(
                edge=state.edge,
                number=state.next_number,
                mode=decision.mode,
                reason=decision.reason,
                from_exclusive=state.committed if decision.mode is Mode.INCREMENTAL else None,
                to_inclusive=Watermark.at(head, table_uuid=source.uuid, ref=REF) if head else None,
                icdc_table=self._icdc_name(state),
                run_id=run_id,
                after_stamp=history.newest.target.snapshot_id if history and history.newest else None,
            )
            self._make_icdc_table(capture, source, files, head)
            found.append((state, CapturedInput(capture, source, files, ranges, time.monotonic() - started)))
        for state, captured in found:
            with effect(Effect.RECORD_CAPTURE):
                self.store.set(state.with_in_flight(captured.capture))
        return tuple(captured for _, captured in found)

    def _settled(
        self, edge: Edge, metadata: TableMetadata | None, target: str, asked_for: Mode | None
    ) -> tuple[EdgeState, TargetHistory | None]:
        history = target_history(metadata, edge) if metadata else None
        state = self.store.get(edge)
        if asked_for is not Mode.FULL and (what := unexpected_change(state, history)):
            raise TargetChangedError(table=target, consumer=edge.consumer, what=what)
        settled = settle(state, history)
        if settled is not state:
            with effect(Effect.COMMIT):
                self.store.set(settled)
        return settled, history

    def _changed_files(self, state: EdgeState, source: TableMetadata, mode: Mode) -> CapturedFiles:
        ancestry = source.ancestry(REF)
        if ancestry.head is None:
            return _nothing_new(state, source, mode)
        if mode is Mode.FULL or state.committed is None:
            return live_files(self.catalog.storage, source, head=ancestry.head)
        snapshots = snapshots_since(state.committed, source, ancestry, consumer=state.edge.consumer)
        return appended_files(self.catalog.storage, source, snapshots, head=ancestry.head)

    def _icdc_name(self, state: EdgeState) -> str:
        """Readable, and unique to this attempt: an abandoned capture of the same number may still be read."""
        short = state.edge.id[:6]
        return f"{self.icdc_namespace}.{state.edge.slug}_{short}__{state.next_number:06d}_{uuid.uuid4().hex[:6]}"

    def _make_icdc_table(
        self, capture: Capture, source: TableMetadata, files: CapturedFiles, head: Snapshot | None
    ) -> None:
        name = capture.icdc_table.rpartition(".")[2]
        authored = author_icdc_table(
            self.catalog.storage,
            source,
            files,
            head=head,
            location=f"{_beside(source.location)}/_{self.icdc_namespace}/{name}",
            properties=_provenance(capture),
        )
        with effect(Effect.REGISTER_ICDC_TABLE):
            self.catalog.register(capture.icdc_table, authored.metadata_location)


def snapshots_since(
    committed: Watermark, source: TableMetadata, ancestry: Ancestry, *, consumer: str
) -> tuple[Snapshot, ...]:
    """The snapshots after ``committed`` up to the head, oldest first, when all of them are appends.

    Raises:
        SourceReplacedError: the source is another table now.
        SnapshotNotInAncestryError: ``committed`` was rolled back or expired, or the table was replaced.
        UnsupportedHistoryError: one of them isn't an append.
    """
    if source.uuid != committed.table_uuid:
        raise SourceReplacedError(
            table=source.table, consumer=consumer, consumed_uuid=committed.table_uuid, current_uuid=source.uuid
        )
    head = ancestry.head.snapshot_id if ancestry.head else None
    snapshots = (
        ancestry.between(from_snapshot_id_exclusive=committed.snapshot_id, to_snapshot_id_inclusive=head)
        if head is not None
        else None
    )
    if snapshots is None:
        raise SnapshotNotInAncestryError(
            table=source.table,
            consumer=consumer,
            ref=committed.ref,
            consumed_snapshot_id=committed.snapshot_id,
            head_snapshot_id=head,
            cause=_why_missing(committed, source, ancestry),
        )
    if (other := first_unsupported(snapshots)) is not None:
        raise UnsupportedHistoryError(
            table=source.table, consumer=consumer, snapshot_id=other.snapshot_id, operation=other.operation
        )
    return snapshots


def _why_missing(committed: Watermark, source: TableMetadata, ancestry: Ancestry) -> str:
    if committed.snapshot_id in source.snapshots:
        return "the table was rolled back behind it"
    root = ancestry.snapshots[-1] if ancestry.snapshots else None
    if root is not None and root.parent_id is None:
        return "the table was replaced (CREATE OR REPLACE), or rolled back and the snapshot expired"
    return "it was expired"


def _nothing_new(state: EdgeState, source: TableMetadata, mode: Mode) -> CapturedFiles:
    """A source without a snapshot holds nothing; if something of it was consumed before, that must not pass unseen."""
    if mode is Mode.INCREMENTAL and state.committed is not None:
        snapshots_since(state.committed, source, Ancestry(()), consumer=state.edge.consumer)
    return _NO_FILES


def _provenance(capture: Capture) -> dict[str, str]:
    start, end = capture.from_exclusive, capture.to_inclusive
    return {
        "dagster-ips.consumer": capture.edge.consumer,
        "dagster-ips.upstream": capture.edge.upstream,
        "dagster-ips.capture": str(capture.number),
        "dagster-ips.mode": capture.mode.value,
        "dagster-ips.run": capture.run_id,
        "dagster-ips.from-snapshot-id-exclusive": str(start.snapshot_id) if start else "",
        "dagster-ips.to-snapshot-id-inclusive": str(end.snapshot_id) if end else "",
        "dagster-ips.source-uuid": end.table_uuid if end else "",
    }


def _beside(location: str) -> str:
    """The folder that a table's folder is in: never under the table's own, which its maintenance cleans."""
    return location.rstrip("/").rpartition("/")[0]
