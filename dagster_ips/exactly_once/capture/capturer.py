"""Capture: freeze what changed before any work starts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.code_of_rows import Making, began_at_start, not_made_by
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import consumed_after
from dagster_ips.core.history_place import Everywhere
from dagster_ips.core.interval import Interval
from dagster_ips.core.mode_decision import ModeDecision, decide_mode
from dagster_ips.core.ownership import may_hold_rows
from dagster_ips.core.partials_property import PARTIALS
from dagster_ips.core.policy import OnRemoved, OnUnmapped
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    DeclarationError,
    StateUnreadableError,
    TagFollowedError,
    TargetChangedError,
    UnknownPublicationError,
    UnknownRefError,
    UnmappedRowsError,
    UnsupportedTableError,
)
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare, share_of
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.changed_keys import keys_since
from dagster_ips.exactly_once.capture.edge_start import begun_at_start
from dagster_ips.exactly_once.capture.icdc_making import make_icdc_table
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest, InputToCapture, ReadyToCapture
from dagster_ips.exactly_once.capture.partition_captures import (
    RunPartitions,
    changed_in_partitions,
    live_in_partitions,
    rows_of,
    rows_of_any,
)
from dagster_ips.exactly_once.capture.partitioned_input import input_progress, look_at
from dagster_ips.exactly_once.capture.tracked_input import (
    StartOver,
    TrackedInput,
    follow,
    interval_of,
    without_overwritten,
)
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.target_table.target_ownership import (
    Accepted,
    accepted_writes,
    left_unknown,
    require_no_strange_rows,
    require_own,
)
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.column_ranges import change_range, require_plain_column
from dagster_ips.iceberg.event_time import require_time_column
from dagster_ips.iceberg.icdc import icdc_names
from dagster_ips.iceberg.icdc.icdc_dropping import drop_icdc_table
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.advance import Advance, InputAdvance
from dagster_ips.progress.cursor import Copy, Cursor, Cursors, progress_of, state_of
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.table_progress import TableProgress


@dataclass(frozen=True, slots=True)
class _Read:
    """The share of an input that a capture takes, and where each edge starts to read; at the beginning if missing."""

    share: BacklogShare
    starts: Mapping[Edge, Watermark | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Capturer:
    """Captures the inputs of one consumer. ``icdc_namespace`` is where ICDC tables are registered."""

    catalog: LakeCatalog
    store: Cursors
    icdc_namespace: str = "ips"

    def capture(self, request: CaptureRequest, *, run_id: str) -> tuple[CapturedInput, ...]:
        """Take one capture per input and partition, all in one mode.

        Raises:
            IpsError: a table is unknown or unreadable, a column is unknown, the history can't be followed, or it is
                unknown what the target contains; nothing is recorded then.
        """
        return self.take(self.look(request), run_id=run_id)

    def look(self, request: CaptureRequest) -> ReadyToCapture:
        """Decide what to capture from where, and in which mode: the first half of ``capture``.

        Raises:
            IpsError: as in ``capture``.
        """
        self.catalog.require_register()
        consumer, partitions = request.consumer, request.partitions
        # The cursor first: a run that publishes in between makes its copy count for nothing.
        cursor = self.store.get(consumer)
        target = self.catalog.find(request.target)
        taken_from = require_own(target, consumer, request.consent) if target else None
        if taken_from:
            request = replace(request, asked_for=Mode.FULL)
        known = self._known(request, cursor, target)
        inputs = tuple(self._input(request, tracked, known, cursor, target) for tracked in request.inputs)
        if target is not None and known is not None and left_unknown(target, consumer, known) is not None:
            inputs = self._replacing_new(inputs)
        states = [state for each in inputs for state in each.states]
        decision = decide_mode(
            states,
            asked_for=request.asked_for,
            target_exists=target is not None,
            named_by_person=partitions is not None and partitions.named_by_person,
            taken_from=taken_from,
        )
        made: Mapping[str | None, Making] = {}
        if decision.mode is Mode.INCREMENTAL:
            made = _made(target, known, states)
            decision = decision.or_full(request.because or not_made_by(made, request.maker, made))
        elif decision.mode is Mode.FULL and partitions is None and _was_partitioned(known, request.inputs):
            decision = replace(decision, reason="it was partitioned after it was last computed as a whole")
        accepted = Accepted()
        if target is not None and request.asked_for is not Mode.FULL:
            require_no_strange_rows(target, consumer, known, consent=request.consent, mode=decision.mode)
            if not _computes_named(partitions, decision) and not _are_new(states):
                consent = request.consent
                if consent.accept is None and (accepted_by := cursor.accepts(known)) is not None:
                    consent = replace(consent, accept=accepted_by)
                accepted = accepted_writes(target, consumer, known, consent)
        began_late = any(state.began_late for state in states) or any(
            began_at_start(each.declared) for each in made.values()
        )
        return ReadyToCapture(request, inputs, decision, accepted, began_late, known, cursor)

    def take(self, ready: ReadyToCapture, *, run_id: str) -> tuple[CapturedInput, ...]:
        """Capture what changed up to the heads of the inputs' sources: the second half of ``capture``.

        Raises:
            IpsError: as in ``capture``.
        """
        decision, reads = self._read(ready)
        ready = replace(ready, decision=decision)
        self._remember_beginnings(ready)
        return self._captured_together(ready, reads, run_id=run_id)

    def _known(self, request: CaptureRequest, cursor: Cursor, target: TableMetadata | None) -> TableProgress | None:
        """What the target contains; None if that is unknown to a run that recomputes everything."""
        try:
            return progress_of(target, cursor, asset=request.consumer, storage=self.catalog.storage)
        except (TargetChangedError, UnknownPublicationError, StateUnreadableError):
            if request.asked_for is not Mode.FULL and not cursor.asks_to_reset:
                raise
            return None

    def _input(
        self,
        request: CaptureRequest,
        tracked: TrackedInput,
        known: TableProgress | None,
        cursor: Cursor,
        target: TableMetadata | None,
    ) -> InputToCapture:
        consumer, storage = request.consumer, self.catalog.storage
        edge, progress = Edge(consumer, tracked.upstream), input_progress(known, tracked, consumer)
        source = self._source(tracked, progress, consumer)
        if request.partitions is None:
            state = state_of(edge, known, cursor)
            if progress is None and not state.is_beginning:  # Its rows are another asset's, or of partitions.
                state = EdgeState(edge, number=state.number, target=state.target, request=state.request)
            if request.asked_for is not Mode.FULL:
                state = begun_at_start(state, source, tracked, known, [each.upstream for each in request.inputs])
            return InputToCapture(tracked, source, (state,), None)
        has_unknown_rows = known is None and target is not None and may_hold_rows(target.ancestry())
        looked = look_at(storage, source, tracked, known, consumer, replaces_all=has_unknown_rows)
        if (found := looked.changed.unmapped) and tracked.policies.on_unmapped is OnUnmapped.ERROR:
            columns = tracked.known_slicing.upstream_keys.columns
            raise UnmappedRowsError(consumer=consumer, upstream=tracked.upstream, columns=columns, values=found)
        states = tuple(
            EdgeState(
                edge.of(key),
                looked.start_of(key),
                number=known.progress.number if known else 0,
                target=known.mark if known else None,
                has_begun=looked.start_of(key) is not None,
                began_late=looked.progress.began_late,
            )
            for key in request.partitions.keys
        )
        return InputToCapture(tracked, source, states, looked)

    def _replacing_new(self, inputs: tuple[InputToCapture, ...]) -> tuple[InputToCapture, ...]:
        """``inputs``, but partitions without a row so far are computed anew: that replaces what others wrote there."""
        keys = [state.edge.key for state in inputs[0].states if state.edge.partition is not None]
        new = dict.fromkeys(key for key in keys if self._was_empty(inputs, key))
        return tuple(
            replace(
                each,
                looked=replace(each.looked, pending={**each.looked.pending, **new}),
                states=tuple(
                    replace(state, committed=None, has_begun=False) if state.edge.key in new else state
                    for state in each.states
                ),
            )
            if each.looked is not None
            else each
            for each in inputs
        )

    def _source(self, tracked: TrackedInput, progress: InputProgress | None, consumer: str) -> TableMetadata:
        consumed = progress.at.snapshot_id if progress is not None and progress.at is not None else None
        source = self.catalog.load(tracked.table, asset=consumer, consumed_snapshot_id=consumed)
        require_ref_and_columns(tracked, source, consumer)
        return source

    def _remember_beginnings(self, ready: ReadyToCapture) -> None:
        """Store where upstreams begin of which nothing is published: ``latest`` stays what it is now."""
        begun = {
            state.edge.upstream: state.committed
            for each in ready.inputs
            for state in each.states
            if state.is_beginning and each.tracked.start is Everywhere.LATEST
        }
        if begun.keys() - ready.cursor.begun.keys():
            known = ready.known
            copy = Copy(known.progress, known.mark) if known is not None else Copy(Progress())
            with effect(Effect.COPY_PROGRESS):
                self.store.set_copy(ready.request.consumer, replace(copy, begun={**begun, **ready.cursor.begun}))

    def _read(self, ready: ReadyToCapture) -> tuple[ModeDecision, list[_Read]]:
        """What to read of each input: its changes, or everything if that was decided or an input must start over."""
        decision = ready.decision
        if decision.mode is Mode.INCREMENTAL:
            followed = [self._changed(each) for each in ready.inputs]
            over = [each for each in followed if isinstance(each, StartOver)]
            _require_nothing_kept(ready, over)
            decision = decision.or_full(*(each.reason for each in over))
            if decision.mode is Mode.INCREMENTAL:
                return decision, [each for each in followed if isinstance(each, _Read)]
        return decision, [self._everything(each, ready.request.partitions) for each in ready.inputs]

    def _captured_together(
        self, ready: ReadyToCapture, reads: Sequence[_Read], *, run_id: str
    ) -> tuple[CapturedInput, ...]:
        """The captures of all inputs; if one can't be taken, the ICDC tables of the others are dropped again."""
        captured: list[CapturedInput] = []
        try:
            for each, read in zip(ready.inputs, reads, strict=True):
                captured.append(self._captured(ready, each, read, run_id=run_id))
        except Exception:
            for capture in (each.capture for each in captured):
                with contextlib.suppress(Exception), effect(Effect.DROP_ICDC_TABLE):
                    drop_icdc_table(self.catalog, capture.icdc_table, capture.edge.line)
            raise
        advance = self._advance(ready, captured)
        return tuple(replace(each, advance=advance) for each in captured)

    def _advance(self, ready: ReadyToCapture, captured: Sequence[CapturedInput]) -> Advance:
        """What publishing these captures adds to the target's progress."""
        request, mode = ready.request, ready.decision.mode

        def unchanged(upstream: str, partition: str | None, after: Watermark, to: Watermark) -> bool:
            (tracked,) = (each for each in request.inputs if each.upstream == upstream)
            return self._is_unchanged(tracked, partition, after, to, consumer=request.consumer)

        slicings = [each.tracked.slicing for each in ready.inputs if each.tracked.slicing is not None]
        return Advance(
            base=ready.known,
            inputs=tuple(_input_advance(each, found, mode) for each, found in zip(ready.inputs, captured, strict=True)),
            partitions=request.partitions.keys if request.partitions else (),
            mode=mode,
            obeyed=max((state.request for each in ready.inputs for state in each.states), default=0),
            accepts=ready.cursor.accepts(ready.known),
            rolled_back_from=ready.cursor.rolled_back_from(ready.known),
            unchanged=unchanged,
            every=frozenset().union(*[each.made_of(each.upstream_keys.known()) for each in slicings]),
            was_empty=lambda partition: self._was_empty(ready.inputs, partition),
        )

    def _was_empty(self, inputs: Sequence[InputToCapture], partition: str) -> bool:
        """Whether a partition certainly had no row in any input when the inputs were last read."""
        for each in inputs:
            at = each.looked.progress.at if each.looked is not None else None
            if at is None or at.snapshot_id not in each.source.snapshots:
                return False
            then = each.source.as_of(at.snapshot_id, each.tracked.ref)
            if live_in_partitions(self.catalog.storage, then, each.tracked, [partition]).changes.added:
                return False
        return True

    def _is_unchanged(
        self, tracked: TrackedInput, partition: str | None, after: Watermark, to: Watermark, *, consumer: str
    ) -> bool:
        """Whether no row of an input, or of what a partition takes of it, came or went between two watermarks."""
        source = self.catalog.load(tracked.table, asset=consumer)
        if to.snapshot_id not in source.snapshots or to.table_uuid != source.uuid:
            return False
        then = source.as_of(to.snapshot_id, tracked.ref)
        if partition is None:
            found = interval_of(self.catalog.storage, then, after, then.ancestry(tracked.ref))
            if not isinstance(found, Interval) or found.abandoned:
                return False
            return all(each.keeps_rows for each in found.snapshots)
        keys = keys_since(self.catalog.storage, then, tracked, after)
        return keys is not None and keys.isdisjoint(tracked.known_slicing.taken_by(partition))

    def _captured(self, ready: ReadyToCapture, each: InputToCapture, read: _Read, *, run_id: str) -> CapturedInput:
        """Take the captures of one input; write and register their ICDC table."""
        tracked, source, share = each.tracked, each.source, read.share
        decision, partitions = ready.decision, ready.request.partitions
        # Partitions have one table for all of them.
        number = each.states[0].next_number if partitions is None else time.time_ns() // 1_000_000
        name = icdc_names.new_name(Edge(ready.request.consumer, tracked.upstream), number)
        captures = tuple(
            Capture(
                edge=state.edge,
                number=state.next_number,
                mode=decision.mode,
                reason=decision.reason,
                from_exclusive=read.starts.get(state.edge),
                to_inclusive=source.watermark_at(share.to, tracked.ref) if share.to else None,
                icdc_table=f"{self.icdc_namespace}.{name}",
                run_id=run_id,
                bite=share.bite,
                target=state.target,
            )
            for state in each.states
        )
        return CapturedInput(
            tracked=tracked,
            captures=captures,
            source=source,
            share=share,
            tags=make_icdc_table(self.catalog, captures, number, source, share, target=ready.request.target),
            ranges={column: change_range(share.files.changes, source, column) for column in tracked.ranges},
            rows=rows_of(source, tracked.slicing, partitions.keys) if tracked.slicing and partitions else None,
            of_any=self._rows_of_any(each, share),
            unmapped=each.looked.changed.unmapped if each.looked else (),
            looked=each.looked,
            accepted=ready.accepted if decision.mode is Mode.INCREMENTAL else Accepted(),
            began_late=ready.began_late or tracked.start is not Everywhere.ALL,
        )

    def _rows_of_any(self, each: InputToCapture, share: BacklogShare) -> Predicate | None:
        if each.looked is None or each.tracked.policies.on_unmapped is OnUnmapped.IGNORE:
            return None
        return rows_of_any(self.catalog.storage, each.source, each.looked, share.files)

    def _changed(self, each: InputToCapture) -> _Read | StartOver:
        """What changed in the input since its edges consumed it."""
        storage, tracked, source = self.catalog.storage, each.tracked, each.source
        if each.looked is not None:
            found = changed_in_partitions(storage, source, each.looked, [state.edge for state in each.states])
            if isinstance(found, StartOver):
                return found
            return _Read(BacklogShare(source.ancestry(tracked.ref).head, found.files), found.starts)
        (state,) = each.states
        if state.consumed_nothing:
            return _Read(share_of(storage, source, tracked, state, None))
        interval = follow(storage, state, source, tracked)
        if isinstance(interval, StartOver):
            return interval
        share = share_of(storage, source, tracked, state, interval)
        lost = without_overwritten(share.files.changes.overwritten, state, source, tracked)
        return lost or _Read(share, {state.edge: state.committed})

    def _everything(self, each: InputToCapture, partitions: RunPartitions | None) -> _Read:
        """All that is live in the input, limited to the run's partitions if it has any."""
        storage, tracked, source = self.catalog.storage, each.tracked, each.source
        if partitions is None:
            (state,) = each.states
            return _Read(share_of(storage, source, tracked, state, None))
        files = live_in_partitions(storage, source, tracked, partitions.keys)
        return _Read(BacklogShare(source.ancestry(tracked.ref).head, files))


def _input_advance(each: InputToCapture, captured: CapturedInput, mode: Mode) -> InputAdvance:
    first = captured.captures[0]
    upstream, to = each.tracked.upstream, first.to_inclusive
    starts = {capture.edge.partition: capture.from_exclusive for capture in captured.captures}
    if each.looked is not None:
        keys = [capture.edge.key for capture in captured.captures]
        return InputAdvance(upstream, to, starts, each.looked.after(keys))
    (state,) = each.states
    began_late = mode is Mode.INCREMENTAL and (state.began_late or state.is_beginning)
    at, files = consumed_after(first.from_exclusive, to, first.bite)
    return InputAdvance(upstream, to, starts, InputProgress(at, files=files, began_late=began_late), state.file_set)


def _require_nothing_kept(ready: ReadyToCapture, over: Sequence[StartOver]) -> None:
    """Fail if partitions would be recomputed unasked, although results of removed rows are meant to stay.

    Raises:
        DeclarationError: they would.
    """
    keeping = [each.tracked.upstream for each in ready.inputs if each.tracked.policies.on_removed is OnRemoved.IGNORE]
    for each in over if keeping else ():
        if each.otherwise is not None:
            raise DeclarationError(
                asset=ready.request.consumer,
                problem=f"{each.reason}. A recompute would drop the results of rows that were removed from "
                f'{keeping[0]}, which stay by on_removed="ignore". Nothing was captured.',
                remedy=f"To recompute the partitions all the same, launch a backfill of them. {each.otherwise}",
            )


def _computes_named(partitions: RunPartitions | None, decision: ModeDecision) -> bool:
    """Whether a person has partitions recomputed; they are right afterwards, whatever they contained before."""
    return decision.mode is Mode.FULL and partitions is not None and partitions.named_by_person


def _made(
    target: TableMetadata | None, known: TableProgress | None, states: Sequence[EdgeState]
) -> dict[str | None, Making]:
    """How the target's rows were made, by partition, of those of ``states`` that have consumed anything."""
    if target is None or target.head_snapshot_id() is None:
        return {}
    progress = known.progress if known is not None else Progress()
    begun = [state.edge.partition for state in states if state.committed or state.file_set]
    return {partition: progress.making(partition) or Making() for partition in begun}


def _was_partitioned(known: TableProgress | None, inputs: Sequence[TrackedInput]) -> bool:
    found = [known.progress.inputs.get(each.upstream) for each in inputs] if known is not None else []
    return any(each is not None and each.division is not None for each in found)


def _are_new(states: Sequence[EdgeState]) -> bool:
    """Whether all are of partitions that were never computed, whose rows are replaced whatever they are."""
    return all(state.edge.partition is not None and state.committed is None for state in states)


def require_ref_and_columns(tracked: TrackedInput, source: TableMetadata, consumer: str) -> None:
    """Fail unless the input can be followed as declared: by its ref, its columns and the kind of its table.

    Raises:
        TagFollowedError: its ref is a tag.
        UnknownRefError: there is no such branch.
        UnknownColumnError: there is no such column.
        UnsupportedTableError: the table stores partials.
    """
    if PARTIALS in source.properties:
        raise UnsupportedTableError(
            table=source.table,
            problem="it stores partials: its rows are parts of groups, so a change to them says nothing about the "
            "groups",
            remedy=f"Let {consumer} read the whole table, without incremental(), or write it with combine(..., "
            "storage='merged').",
        )
    if tracked.ref in source.tags:
        at = source.head_snapshot_id(tracked.ref)
        assert at is not None  # noqa: S101  # a ref has a snapshot
        raise TagFollowedError(tracked.table, tracked.ref, at, source.branches, consumer)
    if tracked.ref not in ("main", *source.branches):
        raise UnknownRefError(table=tracked.table, ref=tracked.ref, known=source.branches, asset=consumer)
    for column in tracked.ranges:
        require_plain_column(source, column)
    if tracked.event_time and tracked.event_time.column:
        require_time_column(source, tracked.event_time.column)
