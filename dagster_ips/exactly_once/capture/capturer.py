"""Capture: freeze what changed, durably and under a number, before any work starts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.code_of_rows import Making, began_at_start, not_made_by
from dagster_ips.core.division import divided
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import Everywhere
from dagster_ips.core.mode_decision import ModeDecision, decide_mode
from dagster_ips.core.partials_property import PARTIALS
from dagster_ips.core.policy import OnRemoved, OnUnmapped
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.target import is_older
from dagster_ips.core.touched import LineState, reaches
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    DeclarationError,
    StateUnreadableError,
    TagFollowedError,
    UnknownRefError,
    UnmappedRowsError,
    UnsupportedTableError,
)
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare, share_of
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.edge_start import StartFinder
from dagster_ips.exactly_once.capture.icdc_making import make_icdc_table
from dagster_ips.exactly_once.capture.input_to_capture import (
    CaptureRequest,
    EdgeToCapture,
    InputToCapture,
    Line,
    ReadyToCapture,
)
from dagster_ips.exactly_once.capture.line_look import (
    as_divided_now,
    has_lost_partitions,
    known_line,
    look,
    may_lack_rows,
    with_names,
    with_rows_read,
    with_taken_back,
)
from dagster_ips.exactly_once.capture.partition_captures import (
    RunPartitions,
    changed_in_partitions,
    live_in_partitions,
    rows_of,
    rows_of_any,
)
from dagster_ips.exactly_once.capture.pending_partitions import PartitionWatch
from dagster_ips.exactly_once.capture.tracked_input import StartOver, TrackedInput, follow, without_overwritten
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.target_table.target_history import (
    histories_of,
    require_known_publications,
    require_unchanged,
    store_settled,
)
from dagster_ips.exactly_once.target_table.target_ownership import (
    Accepted,
    accepted_writes,
    require_no_strange_rows,
    require_own,
)
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.code_stamps import making_of, makings
from dagster_ips.iceberg.column_ranges import change_range, require_plain_column
from dagster_ips.iceberg.event_time import require_time_column
from dagster_ips.iceberg.icdc import icdc_names
from dagster_ips.iceberg.icdc.icdc_dropping import drop_icdc_table
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import last_divided_otherwise
from dagster_ips.state.store import EdgeStore

_MOST_TIMES_BEHIND = 5
"""How often a run captures again because a look has overtaken it. Each look follows a commit, so once is usual."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The share of an input that a capture takes, and where each edge starts to read; at the beginning if missing."""

    share: BacklogShare
    starts: Mapping[Edge, Watermark | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Capturer:
    """Captures the inputs of one consumer. ``icdc_namespace`` is where ICDC tables are registered."""

    catalog: LakeCatalog
    store: EdgeStore
    icdc_namespace: str = "ips"

    def capture(self, request: CaptureRequest, *, run_id: str) -> tuple[CapturedInput, ...]:
        """Take one capture per input and partition, all in one mode, and record them as in flight.

        What an earlier run published but did not live to commit is committed first, so its rows are never read again.

        Raises:
            IpsError: a table is unknown or unreadable, a column is unknown, the history can't be followed, or the
                target differs from what is recorded about it; nothing is recorded then.
        """
        captured = self.take(self.look(request), run_id=run_id)
        for _ in range(_MOST_TIMES_BEHIND if request.partitions else 0):
            if not self._is_behind_a_look(captured):
                break
            self._look_for_all_partitions(request)
            captured = self.take(self.look(request), run_id=run_id)
        return captured

    def _is_behind_a_look(self, captured: Sequence[CapturedInput]) -> bool:
        """Whether a look at a line went beyond what was captured, maybe without knowing that it was being captured.

        The look would have missed rows that were captured and are gone now. Later looks see the capture in flight.
        """
        marks = [(self.store.get_line(each.capture.edge.line).scanned, each.capture.to_inclusive) for each in captured]
        known = [(scanned, to) for scanned, to in marks if scanned is not None and to is not None]
        return any(
            (scanned.table_uuid, scanned.ref) == (to.table_uuid, to.ref) and not reaches(to, scanned)
            for scanned, to in known
        )

    def _look_for_all_partitions(self, request: CaptureRequest) -> None:
        """Look at the inputs as they are now: one may have been rolled back after the last look.

        The next look would otherwise take what is captured now to be older than what the last one saw, and miss it if
        it goes.
        """
        target = self.catalog.find(request.target)
        watch = PartitionWatch(self.catalog.storage, self.store, request.consumer, target)
        for tracked in request.inputs:
            watch.pending(tracked, self.catalog.load(tracked.table, asset=request.consumer))

    def look(self, request: CaptureRequest) -> ReadyToCapture:
        """Decide what to capture from where, and in which mode: the first half of ``capture``.

        Raises:
            IpsError: as in ``capture``.
        """
        self.catalog.require_register()
        metadata = self.catalog.find(request.target)
        taken_from = require_own(metadata, request.consumer, request.consent) if metadata else None
        if taken_from:
            request = replace(request, asked_for=Mode.FULL)
        consumer, asked_for, partitions = request.consumer, request.asked_for, request.partitions
        # First what was deleted, then the states and what is taken: what is deleted in between counts as taken.
        known = [
            None if each.slicing is None else known_line(self.store, consumer, each, metadata)
            for each in request.inputs
        ]
        edges = [_edges_of(request, tracked) for tracked in request.inputs]
        # The states of all inputs at once: between two queries, another run could commit what it consumed of each.
        stored = self._states([edge for of_edge in zip(*edges, strict=True) for edge in of_edge], asked_for)
        if metadata is not None and any(state.target and metadata.predates(state.target) for state in stored.values()):
            metadata = self.catalog.find(request.target)
        settled = [
            self._settled(request, tracked, line, metadata, {edge: stored[edge] for edge in of_input})
            for tracked, line, of_input in zip(request.inputs, known, edges, strict=True)
        ]
        found = [self._input(*each, consumer) for each in zip(request.inputs, known, settled, strict=True)]
        if asked_for is not Mode.FULL and partitions is None:
            finder = StartFinder(self.catalog, self.icdc_namespace, request.target, metadata)
            found = [
                each.with_states(partial(finder.begin, source=each.source, tracked=each.tracked)) for each in found
            ]
        states = [state for each in found for state in each.states]
        decision = decide_mode(
            states,
            asked_for=asked_for,
            target_exists=metadata is not None,
            named_by_person=partitions is not None and partitions.named_by_person,
            taken_from=taken_from,
        )
        made: Mapping[str | None, Making] = {}
        if decision.mode is Mode.INCREMENTAL:
            require_known_publications(
                request.target, [(edge.state, edge.history) for of_input in settled for edge in of_input]
            )
            made = _made(metadata, states)
            decision = decision.or_full(request.because or not_made_by(made, request.maker, made))
            if partitions is None:
                decision = decision.or_full(_made_by_partitions(metadata, states))
        accepted = Accepted()
        if metadata is not None and asked_for is not Mode.FULL:
            require_no_strange_rows(metadata, consumer, states, consent=request.consent, mode=decision.mode)
            if not _computes_named(partitions, decision):
                others = partial(self._states_of_every_partition, request)
                accepted = accepted_writes(metadata, consumer, states, request.consent, others)
                found = [each.with_states(partial(accepted.known_to, target=metadata)) for each in found]
        began_late = any(state.began_late for state in states) or any(
            began_at_start(each.declared) for each in made.values()
        )
        return ReadyToCapture(request, tuple(found), decision, accepted, began_late)

    def take(self, ready: ReadyToCapture, *, run_id: str) -> tuple[CapturedInput, ...]:
        """Capture what changed up to the heads of the inputs' sources: the second half of ``capture``.

        Raises:
            IpsError: as in ``capture``.
        """
        decision, reads = self._read(ready)
        ready = replace(ready, decision=decision)
        captured = self._captured_together(ready, reads, run_id=run_id)
        taken = {capture.edge: capture for each in captured for capture in each.captures}
        states = {state.edge: state for each in ready.inputs for state in each.states}
        for each in ready.inputs:
            self._remember_names(each)
        now = self._states(list(taken), ready.request.asked_for)
        with effect(Effect.RECORD_CAPTURE):
            self.store.set(
                *(_not_undoing(now[edge], states[edge]).with_in_flight(taken[edge], beside=now[edge]) for edge in taken)
            )
        return captured

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
        return tuple(captured)

    def _captured(self, ready: ReadyToCapture, each: InputToCapture, read: _Read, *, run_id: str) -> CapturedInput:
        """Take the captures of one input; write and register their ICDC table."""
        tracked, source, share = each.tracked, each.source, read.share
        decision, partitions = ready.decision, ready.request.partitions
        # Partitions have numbers of their own, and one table for all of them.
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
                after_stamp=history.newest.target.snapshot_id if history and history.newest else None,
                bite=share.bite,
                target=state.target,
                left_out=_left_out(each, state, decision.mode),
                division=_division(each),
            )
            for state, history in ((edge.state, edge.history) for edge in each.edges)
        )
        return CapturedInput(
            tracked=tracked,
            captures=captures,
            source=source,
            share=share,
            tags=make_icdc_table(self.catalog, captures, number, source, share, target=ready.request.target),
            ranges={column: change_range(share.files.changes, source, column) for column in tracked.ranges},
            rows=rows_of(source, tracked.slicing, partitions.keys) if tracked.slicing and partitions else None,
            of_any=self._rows_of_any(tracked, source, share, each.line),
            unmapped=each.line.looked.unmapped if each.line else (),
            accepted=ready.accepted if decision.mode is Mode.INCREMENTAL else Accepted(),
            began_late=ready.began_late or tracked.start is not Everywhere.ALL,
        )

    def _input(
        self, tracked: TrackedInput, known: LineState | None, edges: tuple[EdgeToCapture, ...], consumer: str
    ) -> InputToCapture:
        states = [edge.state for edge in edges]
        source = self._source(tracked, states, consumer)
        return InputToCapture(tracked, source, edges, self._line(tracked, known, source, edges, consumer))

    def _source(self, tracked: TrackedInput, states: Sequence[EdgeState], consumer: str) -> TableMetadata:
        consumed = [state.committed for state in states if state.committed]
        newest = max(consumed, key=lambda watermark: watermark.position, default=None)
        source = self.catalog.load(
            tracked.table, asset=consumer, consumed_snapshot_id=newest.snapshot_id if newest else None
        )
        require_ref_and_columns(tracked, source, consumer)
        return source

    def _settled(
        self,
        request: CaptureRequest,
        tracked: TrackedInput,
        known: LineState | None,
        metadata: TableMetadata | None,
        states: Mapping[Edge, EdgeState],
    ) -> tuple[EdgeToCapture, ...]:
        """One input's edges, with their stored ``states`` brought up to what the target's stamps say."""
        histories = histories_of(self.catalog.storage, metadata, states.values())
        settled = store_settled(self.store, states, histories)
        now = tuple(EdgeToCapture(state, histories.get(edge)) for edge, state in settled.items())
        found = _as_divided_now(now, metadata, tracked, known)
        if request.asked_for is not Mode.FULL:
            require_unchanged(request.target, ((each.state, each.history) for each in found))
        return found

    def _states_of_every_partition(self, request: CaptureRequest) -> list[EdgeState]:
        """The stored states of all existing partitions; none if the consumer isn't partitioned."""
        found: list[EdgeState] = []
        for tracked in request.inputs:
            if tracked.slicing is not None:
                line = Edge(request.consumer, tracked.upstream)
                keys = tracked.slicing.made_of(tracked.slicing.upstream_keys.known())
                found += self.store.get_many(line.of(key) for key in sorted(keys)).values()
        return found

    def _states(self, edges: Sequence[Edge], asked_for: Mode | None) -> dict[Edge, EdgeState]:
        """The stored states; a run that recomputes everything replaces unreadable ones by empty ones."""
        try:
            return self.store.get_many(edges)
        except StateUnreadableError:
            if asked_for is not Mode.FULL:
                raise
            return {edge: self._state(edge) for edge in edges}

    def _state(self, edge: Edge) -> EdgeState:
        try:
            return self.store.get(edge)
        except StateUnreadableError:
            return EdgeState(edge)

    def _line(
        self,
        tracked: TrackedInput,
        known: LineState | None,
        source: TableMetadata,
        edges: Sequence[EdgeToCapture],
        consumer: str,
    ) -> Line | None:
        """What is known about all partitions of an input, up to its head; None if the consumer isn't partitioned.

        Raises:
            UnmappedRowsError: rows belong to no partition, and the input's policy doesn't say to ignore them.
        """
        if tracked.slicing is None or known is None:
            return None
        states = [edge.state for edge in edges]
        line = look(self.catalog.storage, known, source, tracked)
        if known.scanned and has_lost_partitions(known, tracked.slicing):
            # The partitions may be back before the next look, which would then find nothing. It still begins where the
            # last one ended: it also finds rows that went since, and that any other partition has read.
            with effect(Effect.RECORD_LOOK):
                self.store.set_line(replace(line, scanned=known.scanned))
        if known.checked_to and may_lack_rows(line, known.checked_to, source, tracked.ref):
            read = {state.edge.key: state.committed for state in states if state.committed}
            line = with_rows_read(line, known.checked_to, source, tracked, read)
        line = with_taken_back(line, tracked.slicing, _taken_back(edges), states)
        if line.unmapped and tracked.policies.on_unmapped is OnUnmapped.ERROR:
            columns = tracked.slicing.upstream_keys.columns
            raise UnmappedRowsError(consumer=consumer, upstream=tracked.upstream, columns=columns, values=line.unmapped)
        # The first look finds which keys have rows now, but not which keys had rows when they were consumed.
        return Line(line if known.scanned else known, line)

    def _remember_names(self, each: InputToCapture) -> None:
        """Let later looks know which of the upstream's partitions were there, so that they see it if one is deleted."""
        if each.line is None or each.tracked.slicing is None:
            return
        stored = self.store.get_line(each.line.known.edge)
        line = with_names(stored, each.line.known, each.tracked.slicing)
        if line != stored:
            with effect(Effect.RECORD_LOOK):
                self.store.set_names(line)

    def _rows_of_any(
        self, tracked: TrackedInput, source: TableMetadata, share: BacklogShare, line: Line | None
    ) -> Predicate | None:
        if line is None or tracked.slicing is None or tracked.policies.on_unmapped is OnUnmapped.IGNORE:
            return None
        return rows_of_any(self.catalog.storage, source, tracked.slicing, share.files, line.looked)

    def _changed(self, each: InputToCapture) -> _Read | StartOver:
        """What changed in the input since its edges consumed it."""
        storage, tracked, source, line, states = self.catalog.storage, each.tracked, each.source, each.line, each.states
        if line is not None:
            found = changed_in_partitions(storage, source, tracked, line.known, states)
            if isinstance(found, StartOver):
                return found
            return _Read(BacklogShare(source.ancestry(tracked.ref).head, found.files), found.starts)
        (state,) = states
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


def _edges_of(request: CaptureRequest, tracked: TrackedInput) -> list[Edge]:
    """The input's edge, or one for each partition of the run."""
    line = Edge(request.consumer, tracked.upstream)
    return [line] if request.partitions is None else [line.of(key) for key in request.partitions.keys]


def _not_undoing(now: EdgeState, captured: EdgeState) -> EdgeState:
    """The state ``captured`` from; or what is stored ``now``, if something was consumed in the meantime.

    The stamps say what was, but not that its partition is to be recomputed (``PartitionWatch.recompute_overtaken``).
    What a person has changed in the meantime is kept by the store, and voids the capture.
    """
    return now if now.number > captured.number and now.voided == captured.voided else captured


def _left_out(each: InputToCapture, state: EdgeState, mode: Mode) -> frozenset[str]:
    """The keys whose rows a partition lacks after its capture, because Dagster has no partition for them yet."""
    if each.line is None or each.tracked.slicing is None:
        return frozenset()
    lacked = state.left_out if mode is Mode.INCREMENTAL else frozenset[str]()
    return lacked | each.tracked.slicing.left_out(state.edge.key, each.line.looked.touched)


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


def _division(each: InputToCapture) -> str | None:
    slicing = each.tracked.slicing
    return divided(slicing.division, each.line.known.losses) if slicing and each.line else None


def _taken_back(edges: Sequence[EdgeToCapture]) -> dict[str, Watermark]:
    """The partitions that a revert took back, according to their newest stamps, and up to where."""
    stamps = {edge.state.edge.key: edge.history.newest for edge in edges if edge.history}
    return {key: stamp.to_inclusive for key, stamp in stamps.items() if stamp and stamp.takes_back}


def _computes_named(partitions: RunPartitions | None, decision: ModeDecision) -> bool:
    """Whether a person has partitions recomputed; they are right afterwards, whatever they contained before."""
    return decision.mode is Mode.FULL and partitions is not None and partitions.named_by_person


def _made(target: TableMetadata | None, states: Sequence[EdgeState]) -> dict[str | None, Making]:
    """How the target's rows were made, by partition, of those of ``states`` that have consumed anything."""
    if target is None or target.head_snapshot_id() is None:
        return {}
    known = makings(target)
    begun = [state for state in states if state.committed or state.file_set]
    return {state.edge.partition: making_of(target, known, state.edge.partition, state.target) for state in begun}


def _as_divided_now(
    edges: tuple[EdgeToCapture, ...], target: TableMetadata | None, tracked: TrackedInput, known: LineState | None
) -> tuple[EdgeToCapture, ...]:
    if tracked.slicing is None or known is None:
        return edges
    states = as_divided_now([each.state for each in edges], target, known, tracked.slicing)
    return tuple(replace(each, state=states[each.state.edge]) for each in edges)


def _made_by_partitions(target: TableMetadata | None, states: Sequence[EdgeState]) -> str | None:
    """Why a change can't be added to a table of an asset without partitions; None if it can."""
    for state in states:
        other = last_divided_otherwise(target, state.edge, None) if target else None
        if other and is_older(state.target, other):
            return "it was partitioned after it was last computed as a whole"
    return None


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
