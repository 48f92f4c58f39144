"""Capture: freeze what changed, durably and under a number, before any work starts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.code_of_rows import not_made_by
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import Everywhere, Start
from dagster_ips.core.mode_decision import ModeDecision, decide_mode
from dagster_ips.core.ownership import Consent
from dagster_ips.core.policy import InputPolicies, OnUnmapped
from dagster_ips.core.ranges import ChangeRange, Predicate
from dagster_ips.core.target import TargetHistory, settle, unexpected_change
from dagster_ips.core.touched import LineState, reaches
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    StateUnreadableError,
    TagFollowedError,
    TargetChangedError,
    UnknownRefError,
    UnmappedRowsError,
)
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare, share_of
from dagster_ips.exactly_once.capture.edge_start import Beginner
from dagster_ips.exactly_once.capture.partition_captures import (
    RunPartitions,
    changed_in_partitions,
    live_in_partitions,
    look,
    loses_rows_between,
    rows_of,
    rows_of_any,
)
from dagster_ips.exactly_once.capture.tracked_input import StartOver, TrackedInput, follow
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.target.target_history import histories_of, require_known_publications
from dagster_ips.exactly_once.target.target_ownership import (
    Accepted,
    accepted_writes,
    require_no_strange_rows,
    require_own,
)
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.change_reader import ChangedFiles
from dagster_ips.iceberg.code_stamps import makings
from dagster_ips.iceberg.column_ranges import change_range, require_plain_column
from dagster_ips.iceberg.event_time import require_time_column
from dagster_ips.iceberg.icdc import icdc_names
from dagster_ips.iceberg.icdc.icdc_tables import Tag, author_icdc_table
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.state.store import EdgeStore

_NOTHING = Consent()


@dataclass(frozen=True, slots=True)
class CapturedInput:
    """What a run reads of one input. ``icdc_table`` is registered and can be read by any engine.

    ``captures`` are what is consumed by it: one, or one for each partition that the run computes, whose ``rows`` of the
    source are those that it reads. ``share`` says what of the change it is. ``tags`` are the ICDC table's snapshots of
    what was there before and after, if rows may have been removed. ``unmapped`` are some values that belong to no
    partition. ``of_any`` are the rows of any partition, to be counted by the values of ``columns``; None where there is
    no need to.
    """

    captures: tuple[Capture, ...]
    source: TableMetadata
    share: BacklogShare
    tags: Mapping[Tag, int]
    ranges: Mapping[str, ChangeRange]
    policies: InputPolicies
    seconds: float
    rows: Predicate | None = None
    of_any: Predicate | None = None
    columns: tuple[str, ...] = ()
    unmapped: tuple[str, ...] = ()
    start: Start = Everywhere.ALL
    accepted: Accepted = field(default_factory=Accepted)

    @property
    def capture(self) -> Capture:
        """The run's capture; of several partitions what they have in common, beginning where the first begins."""
        first, *others = self.captures
        if not others:
            return first
        starts = [each.from_exclusive for each in self.captures]
        known = [start for start in starts if start is not None]
        oldest = min(known, key=lambda start: start.position) if len(known) == len(starts) else None
        return replace(first, edge=first.edge.line, from_exclusive=oldest)

    @property
    def new_partitions(self) -> tuple[str, ...]:
        """The partitions that are computed for the first time by a run that goes on with others."""
        new = [each for each in self.captures if each.mode is Mode.INCREMENTAL and each.from_exclusive is None]
        return tuple(each.edge.partition for each in new if each.edge.partition is not None)

    @property
    def files(self) -> ChangedFiles:
        """The files captured."""
        return self.share.files

    @property
    def head(self) -> Snapshot | None:
        """The source's snapshot captured up to; None if it has none."""
        return self.share.to


@dataclass(frozen=True, slots=True)
class _Read:
    """What a capture of an input takes, and from where each of its edges reads it; from the beginning if not said."""

    share: BacklogShare
    starts: Mapping[Edge, Watermark | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Line:
    """What is known of all partitions of an input: by what each is read, and with what was found just now."""

    known: LineState
    looked: LineState


@dataclass(frozen=True, slots=True)
class Looked:
    """How a consumer stands before it captures, and the mode that it captures in.

    ``sources``, ``settled``, ``states`` and ``lines`` have an entry for each of ``inputs``. ``settled`` are the states
    as the target's stamps say, with those; ``states`` where the edges are read from. ``accepted`` is what others wrote
    to the target and a person takes as it is.
    """

    consumer: str
    inputs: Sequence[TrackedInput]
    sources: Sequence[TableMetadata]
    settled: Sequence[Sequence[tuple[EdgeState, TargetHistory | None]]]
    states: Sequence[Sequence[EdgeState]]
    lines: Sequence[_Line | None]
    decision: ModeDecision
    partitions: RunPartitions | None = None
    accepted: Accepted = field(default_factory=Accepted)


@dataclass(frozen=True)
class Capturer:
    """Captures the inputs of one consumer. ``icdc_namespace`` is where ICDC tables are registered."""

    catalog: LakeCatalog
    store: EdgeStore
    icdc_namespace: str = "ips"

    def capture(  # noqa: PLR0913  # each is a thing of its own
        self,
        consumer: str,
        inputs: Sequence[TrackedInput],
        *,
        target: str,
        asked_for: Mode | None,
        run_id: str,
        partitions: RunPartitions | None = None,
        consent: Consent = _NOTHING,
        one_code: str | None = None,
    ) -> tuple[CapturedInput, ...]:
        """One capture per input and partition, all of one mode, recorded as in flight.

        First what an earlier run published but did not live to commit is committed, so its rows are never read again.
        Rows that weren't all made by ``one_code``, if it is given, are computed anew.

        Raises:
            IpsError: a table is unknown or unreadable, a column is unknown, the history can't be followed, or the
                target isn't what is known of it; nothing was recorded then.
        """
        looked = self.look(
            consumer,
            inputs,
            target=target,
            asked_for=asked_for,
            partitions=partitions,
            consent=consent,
            one_code=one_code,
        )
        return self.take(looked, run_id=run_id)

    def look(  # noqa: PLR0913  # as above
        self,
        consumer: str,
        inputs: Sequence[TrackedInput],
        *,
        target: str,
        asked_for: Mode | None,
        partitions: RunPartitions | None = None,
        consent: Consent = _NOTHING,
        one_code: str | None = None,
    ) -> Looked:
        """The first half of ``capture``: what is captured from where, and in which mode.

        Raises:
            IpsError: as in ``capture``.
        """
        metadata = self.catalog.find(target)
        if taken_from := require_own(metadata, consumer, consent) if metadata else None:
            asked_for = Mode.FULL
        settled = [self._settled(_edges(consumer, i, partitions), metadata, target, asked_for) for i in inputs]
        sources = [self._source(tracked, of, consumer) for tracked, of in zip(inputs, settled, strict=True)]
        lines = [self._line(*each, consumer) for each in zip(inputs, sources, settled, strict=True)]
        states = [[state for state, _ in each] for each in settled]
        begin = Beginner(self.catalog, self.icdc_namespace, metadata).begin
        if asked_for is not Mode.FULL and partitions is None:
            states = [[begin(each[0], s, i)] for each, s, i in zip(states, sources, inputs, strict=True)]
        decision = decide_mode(
            [state for each in states for state in each],
            asked_for=asked_for,
            target_exists=metadata is not None,
            named_by_person=partitions is not None and partitions.named_by_person,
        )
        if decision.mode is Mode.INCREMENTAL:
            require_known_publications(target, [each for of_input in settled for each in of_input])
        if decision.mode is Mode.INCREMENTAL and one_code is not None and metadata is not None:
            begun = [state.edge.partition for each in states for state in each if state.committed or state.file_set]
            if metadata.head_snapshot_id() is not None and (why := not_made_by(makings(metadata), one_code, begun)):
                decision = ModeDecision(Mode.FULL, why)
        if taken_from:
            decision = ModeDecision(Mode.FULL, f"takes the table over from {taken_from}")
        accepted = Accepted()
        if metadata is not None and asked_for is not Mode.FULL:
            of_all = [state for each in states for state in each]
            require_no_strange_rows(metadata, consumer, of_all, consent=consent, mode=decision.mode)
            if not _computes_named(partitions, decision):
                accepted = accepted_writes(metadata, consumer, of_all, consent)
                states = [[accepted.known_to(state, metadata) for state in each] for each in states]
        return Looked(consumer, inputs, sources, settled, states, lines, decision, partitions, accepted)

    def take(self, looked: Looked, *, run_id: str) -> tuple[CapturedInput, ...]:
        """The second half of ``capture``: what changed up to the heads of ``looked.sources``.

        Raises:
            IpsError: as in ``capture``.
        """
        consumer, inputs, sources, partitions = looked.consumer, looked.inputs, looked.sources, looked.partitions
        settled, states, lines, decision = looked.settled, looked.states, looked.lines, looked.decision
        started = time.monotonic()
        found: list[_Read] = []
        if decision.mode is Mode.INCREMENTAL:
            followed = [self._changed(*each) for each in zip(states, sources, inputs, lines, strict=True)]
            if restarts := [each.reason for each in followed if isinstance(each, StartOver)]:
                decision = ModeDecision(Mode.FULL, ", ".join(restarts))
            else:
                found = [each for each in followed if isinstance(each, _Read)]
        if decision.mode is Mode.FULL:
            found = [self._everything(*each, partitions) for each in zip(states, sources, inputs, strict=True)]
        captured = []
        for stamps, of, source, tracked, line, each in zip(settled, states, sources, inputs, lines, found, strict=True):
            share = each.share
            number = of[0].next_number if partitions is None else time.time_ns() // 1_000_000
            name = icdc_names.new_name(Edge(consumer, tracked.upstream), number)
            captures = tuple(
                Capture(
                    edge=state.edge,
                    number=state.next_number,
                    mode=decision.mode,
                    reason=decision.reason,
                    from_exclusive=each.starts.get(state.edge),
                    to_inclusive=source.watermark_at(share.to, tracked.ref) if share.to else None,
                    icdc_table=f"{self.icdc_namespace}.{name}",
                    run_id=run_id,
                    after_stamp=history.newest.target.snapshot_id if history and history.newest else None,
                    bite=share.bite,
                    target=state.target,
                )
                for state, (_, history) in zip(of, stamps, strict=True)
            )
            captured.append(
                CapturedInput(
                    captures=captures,
                    source=source,
                    share=share,
                    tags=self._make_icdc_table(captures, number, source, share),
                    ranges={column: change_range(share.files.changes, source, column) for column in tracked.ranges},
                    policies=tracked.policies,
                    seconds=time.monotonic() - started,
                    rows=rows_of(source, tracked.slicing, partitions.keys) if tracked.slicing and partitions else None,
                    columns=tracked.slicing.upstream_keys.columns if tracked.slicing else (),
                    of_any=self._rows_of_any(tracked, source, share, line),
                    unmapped=line.looked.unmapped if line else (),
                    start=tracked.start,
                    accepted=looked.accepted if decision.mode is Mode.INCREMENTAL else Accepted(),
                )
            )
            started = time.monotonic()
        for each_input, of in zip(captured, states, strict=True):
            for capture, state in zip(each_input.captures, of, strict=True):
                with effect(Effect.RECORD_CAPTURE):
                    self.store.set(state.with_in_flight(capture))
        return tuple(captured)

    def _source(
        self, tracked: TrackedInput, settled: Sequence[tuple[EdgeState, object]], consumer: str
    ) -> TableMetadata:
        consumed = [state.committed for state, _ in settled if state.committed]
        newest = max(consumed, key=lambda watermark: watermark.position, default=None)
        source = self.catalog.load(
            tracked.table, asset=consumer, consumed_snapshot_id=newest.snapshot_id if newest else None
        )
        require_ref_and_columns(tracked, source, consumer)
        return source

    def _settled(
        self, edges: Sequence[Edge], metadata: TableMetadata | None, target: str, asked_for: Mode | None
    ) -> list[tuple[EdgeState, TargetHistory | None]]:
        """The states of one input's edges, brought up to what the target's stamps say, and those."""
        states = self._states(edges, asked_for)
        histories = histories_of(self.catalog.storage, metadata, states.values())
        settled: list[tuple[EdgeState, TargetHistory | None]] = []
        for edge, state in states.items():
            history = histories.get(edge)
            now = settle(state, history)
            if asked_for is not Mode.FULL and (what := unexpected_change(now, history)):
                raise TargetChangedError(table=target, consumer=edge.consumer, what=what)
            if now is not state:
                with effect(Effect.COMMIT):
                    self.store.set(now)
            settled.append((now, history))
        return settled

    def _states(self, edges: Sequence[Edge], asked_for: Mode | None) -> dict[Edge, EdgeState]:
        """What is stored; a run that computes everything anew also makes anew what can't be read of it."""
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
        source: TableMetadata,
        settled: Sequence[tuple[EdgeState, object]],
        consumer: str,
    ) -> _Line | None:
        """What is known of all partitions of an input, up to its head; None if the consumer has none.

        Raises:
            UnmappedRowsError: rows belong to no partition, and the input's policy doesn't say to ignore them.
        """
        if tracked.slicing is None:
            return None
        known = self.store.get_line(Edge(consumer, tracked.upstream))
        line = look(self.catalog.storage, known, source, tracked)
        if known.scanned and loses_rows_between(known, line, source, tracked.ref):
            read = [
                s.edge.partition or "" for s, _ in settled if s.committed and not reaches(known.scanned, s.committed)
            ]
            keys = frozenset[str]().union(*[tracked.slicing.taken_by(key) for key in read])
            line = line.with_read_beyond(keys, known.scanned)
        if line.unmapped and tracked.policies.on_unmapped is OnUnmapped.ERROR:
            columns = tracked.slicing.upstream_keys.columns
            raise UnmappedRowsError(consumer=consumer, upstream=tracked.upstream, columns=columns, values=line.unmapped)
        # The first look finds what has rows now, and not what had some when it was consumed.
        return _Line(line if known.scanned else known, line)

    def _rows_of_any(
        self, tracked: TrackedInput, source: TableMetadata, share: BacklogShare, line: _Line | None
    ) -> Predicate | None:
        if line is None or tracked.slicing is None or tracked.policies.on_unmapped is OnUnmapped.IGNORE:
            return None
        return rows_of_any(self.catalog.storage, source, tracked.slicing, share.files, line.looked)

    def _changed(
        self, states: Sequence[EdgeState], source: TableMetadata, tracked: TrackedInput, line: _Line | None
    ) -> _Read | StartOver:
        """What changed in each of ``states``' edges since it was consumed."""
        storage = self.catalog.storage
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
        return _Read(share_of(storage, source, tracked, state, interval), {state.edge: state.committed})

    def _everything(
        self,
        states: Sequence[EdgeState],
        source: TableMetadata,
        tracked: TrackedInput,
        partitions: RunPartitions | None,
    ) -> _Read:
        """All that is live, of the run's partitions."""
        storage = self.catalog.storage
        if partitions is None:
            (state,) = states
            return _Read(share_of(storage, source, tracked, state, None))
        files = live_in_partitions(storage, source, tracked, partitions.keys)
        return _Read(BacklogShare(source.ancestry(tracked.ref).head, files))

    def _make_icdc_table(
        self, captures: Sequence[Capture], number: int, source: TableMetadata, share: BacklogShare
    ) -> Mapping[Tag, int]:
        name = captures[0].icdc_table
        with effect(Effect.WRITE_ICDC_FILES):
            authored = author_icdc_table(
                self.catalog.storage,
                source,
                share.files,
                head=share.to,
                location=icdc_names.location(source, name),
                properties=icdc_names.properties(captures, number),
            )
        with effect(Effect.REGISTER_ICDC_TABLE):
            self.catalog.register(name, authored.metadata_location)
        return authored.tags


def _computes_named(partitions: RunPartitions | None, decision: ModeDecision) -> bool:
    """Whether a person has partitions computed anew, which are right then, whatever was made of them."""
    return decision.mode is Mode.FULL and partitions is not None and partitions.named_by_person


def _edges(consumer: str, tracked: TrackedInput, partitions: RunPartitions | None) -> list[Edge]:
    line = Edge(consumer, tracked.upstream)
    return [line] if partitions is None else [line.of(key) for key in partitions.keys]


def require_ref_and_columns(tracked: TrackedInput, source: TableMetadata, consumer: str) -> None:
    """Refuse what is declared of the input if its table can't have it.

    Raises:
        TagFollowedError: its ref is a tag.
        UnknownRefError: there is no such branch.
        UnknownColumnError: there is no such column.
    """
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
