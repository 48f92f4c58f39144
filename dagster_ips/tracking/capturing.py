"""Capture: freeze what changed, durably and under a number, before any work starts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.changes import ChangeSet
from dagster_ips.core.edge import Edge
from dagster_ips.core.interval import Interval
from dagster_ips.core.mode import ModeDecision, decide_mode
from dagster_ips.core.policy import InputPolicies
from dagster_ips.core.ranges import ChangeRange
from dagster_ips.core.target import TargetHistory, settle, unexpected_change
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import TargetChangedError, UnknownRefError
from dagster_ips.iceberg import icdc_names
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.change_reader import CapturedFiles, live_files
from dagster_ips.iceberg.column_ranges import change_range, require_column
from dagster_ips.iceberg.icdc_tables import Tag, author_icdc_table
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import target_history
from dagster_ips.state.store import EdgeStore
from dagster_ips.tracking.effects import Effect, effect
from dagster_ips.tracking.following import StartOver, TrackedInput, files_in, follow

_NO_FILES = CapturedFiles(ChangeSet())


@dataclass(frozen=True, slots=True)
class CapturedInput:
    """A capture and what it found. ``icdc_table`` is registered and can be read by any engine.

    ``tags`` are the ICDC table's snapshots of what was there before and after, if rows may have been removed.
    """

    capture: Capture
    source: TableMetadata
    files: CapturedFiles
    tags: Mapping[Tag, int]
    ranges: Mapping[str, ChangeRange]
    policies: InputPolicies
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
            if tracked.ref not in ("main", *source.refs):
                raise UnknownRefError(table=tracked.table, ref=tracked.ref, known=source.refs, asset=consumer)
            for column in tracked.ranges:
                require_column(source, column)
        states = [state for state, _ in settled]
        decision = decide_mode(states, asked_for=asked_for, target_exists=metadata is not None)
        intervals: list[Interval | None] = [None] * len(states)
        if decision.mode is Mode.INCREMENTAL:
            followed = [follow(*each) for each in zip(states, sources, inputs, strict=True)]
            if restarts := [each.reason for each in followed if isinstance(each, StartOver)]:
                decision = ModeDecision(Mode.FULL, ", ".join(restarts))
            else:
                intervals = [each for each in followed if isinstance(each, Interval)]
        found = []
        for (state, history), source, tracked, interval in zip(settled, sources, inputs, intervals, strict=True):
            started = time.monotonic()
            head = source.ancestry(tracked.ref).head
            capture = Capture(
                edge=state.edge,
                number=state.next_number,
                mode=decision.mode,
                reason=decision.reason,
                from_exclusive=state.committed if decision.mode is Mode.INCREMENTAL else None,
                to_inclusive=Watermark.at(head, table_uuid=source.uuid, ref=tracked.ref) if head else None,
                icdc_table=f"{self.icdc_namespace}.{icdc_names.new_name(state.edge, state.next_number)}",
                run_id=run_id,
                after_stamp=history.newest.target.snapshot_id if history and history.newest else None,
            )
            files = self._files(source, interval, head)
            captured = CapturedInput(
                capture=capture,
                source=source,
                files=files,
                tags=self._make_icdc_table(capture, source, files, head),
                ranges={column: change_range(files.changes, source, column) for column in tracked.ranges},
                policies=tracked.policies,
                seconds=time.monotonic() - started,
            )
            found.append((state, captured))
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

    def _files(self, source: TableMetadata, interval: Interval | None, head: Snapshot | None) -> CapturedFiles:
        """What changed in ``interval``; without one, everything that is live."""
        if head is None:
            return _NO_FILES
        storage = self.catalog.storage
        return files_in(storage, source, interval, head) if interval else live_files(storage, source, head=head)

    def _make_icdc_table(
        self, capture: Capture, source: TableMetadata, files: CapturedFiles, head: Snapshot | None
    ) -> Mapping[Tag, int]:
        with effect(Effect.WRITE_ICDC_FILES):
            authored = author_icdc_table(
                self.catalog.storage,
                source,
                files,
                head=head,
                location=icdc_names.location(source, capture.icdc_table),
                properties=icdc_names.properties(capture),
            )
        with effect(Effect.REGISTER_ICDC_TABLE):
            self.catalog.register(capture.icdc_table, authored.metadata_location)
        return authored.tags
