"""What a person, or a job that reports back, does to an edge's state; each change is one write with a new number."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.capture import Capture, EdgeState, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import consumed_after
from dagster_ips.core.history_place import Place
from dagster_ips.core.intervention import InterventionKind
from dagster_ips.core.target import TargetHistory, settle
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import CaptureNotInFlightError, RewindError, StateUnreadableError
from dagster_ips.exactly_once.capture.edge_start import snapshot_at
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.inspect.edge_status import Inspector, Pending
from dagster_ips.exactly_once.target_table.target_history import (
    histories_of,
    require_known_publications,
    require_unchanged,
)
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.lasting_facts import head_mark
from dagster_ips.state.store import EdgeStore


@dataclass(frozen=True, slots=True)
class Rewind:
    """A planned rewind: the next run reads again what lies between ``after`` and ``before``, which is ``pending``.

    What came after ``before`` is read by the run after that: if one run read both, rows that came and went since then
    would stay in the target.
    """

    edge: Edge
    before: Watermark
    after: Watermark
    pending: Pending


@dataclass(frozen=True)
class Administrator:
    """Changes what counts as consumed by one consumer, whose table is ``target``.

    A run that is at work in the meantime can no longer publish what it captured before. If it has just done so, that
    doesn't count as consumed.
    """

    catalog: LakeCatalog
    store: EdgeStore
    target: str
    icdc_namespace: str = "ips"

    def reset(self, edge: Edge, *, who: str, why: str) -> EdgeState:
        """Forget what was consumed: the next run computes everything, or begins where ``start`` says."""
        try:
            state = self.store.get(edge)
        except StateUnreadableError:
            state = EdgeState(edge)
        return self._intervene(settle(state, self._history(state)), InterventionKind.RESET, None, who, why)

    def plan_rewind(self, consumer: str, tracked: TrackedInput, place: Place, *, may_repeat: bool) -> Rewind:
        """What a rewind of the edge to ``place`` would do; nothing is changed.

        ``may_repeat`` says whether the consumer may write a change twice without duplicating rows.

        Raises:
            RewindError: rows would be duplicated, or would stay although they were removed, or the place isn't older
                than what is consumed.
            TargetChangedError: the table isn't what was published last, which a rewind can't repair.
            UnknownPublicationError: it is unknown what was published last, and so what is to be read again.
            UnknownPlaceError: the place isn't in the history of the upstream's table.
            BrokenHistoryError: the table can't be followed from there.
        """
        edge = Edge(consumer, tracked.upstream)
        state = self.store.get(edge)
        target = self._history(state)
        state = settle(state, target)
        require_unchanged(self.target, [(state, target)])
        require_known_publications(self.target, [(state, target)])
        if not may_repeat:
            problem = f"runs add rows to {self.target}, so rows that are read again could be duplicated"
            raise _cant_rewind(edge, problem)
        if state.file_set is not None:
            # The rows of the parts aren't read again by the run that ends at the watermark before them.
            left = f"{state.file_set.left:,} files are left"
            raise _cant_rewind(edge, f"it is in the middle of a change that it consumes in parts; {left}")
        before = state.holds_up_to
        if before is None:
            raise _cant_rewind(edge, "nothing has been consumed yet")
        source = self.catalog.load(tracked.table, asset=consumer)
        found = snapshot_at(place, source, tracked.ref, asked_by="the rewind")
        if found is None:
            raise _cant_rewind(edge, f"{place} lies before the first snapshot of {tracked.table}")
        history = [snapshot.snapshot_id for snapshot in source.ancestry(tracked.ref).snapshots]
        if before.snapshot_id not in history[: history.index(found.snapshot_id)]:
            problem = (
                f"snapshot {found.snapshot_id} isn't older than {before.snapshot_id}, up to which everything is "
                "consumed"
            )
            raise _cant_rewind(edge, problem)
        # The rows that aren't read again were read with the columns of that time, so the schema id stays.
        after = replace(source.watermark_at(found, tracked.ref), schema_id=before.schema_id)
        rewound = replace(state, committed=after, reread_to=before)
        inspector = Inspector(self.catalog, self.store, self.target, self.icdc_namespace)
        return Rewind(edge, before, after, inspector.pending(rewound, source, tracked))

    def rewind(self, planned: Rewind, *, who: str, why: str) -> EdgeState:
        """Carry out the plan.

        Raises:
            RewindError: something was consumed or changed since the plan was made.
        """
        state = self._settled(planned.edge)
        if state.holds_up_to != planned.before or state.file_set is not None:
            raise _cant_rewind(planned.edge, "the consumed position has changed since the rewind was planned")
        return self._intervene(state, InterventionKind.REWIND, planned.after, who, why)

    def commit(self, consumer: str, upstreams: Sequence[str], run_id: str) -> tuple[EdgeState, ...]:
        """Commit the captures of ``run_id``: the job that took them has published what it made of them.

        If its writes were stamped, that is known already, and nothing is left to do.

        Raises:
            CaptureNotInFlightError: one of them isn't in flight, or no longer. Nothing is changed.
        """
        edges = [Edge(consumer, upstream) for upstream in upstreams]
        stored = [self.store.get(edge) for edge in edges]
        settled = [settle(state, self._history(state)) for state in stored]
        if not any(_is_in_flight(state, run_id) for state in stored):
            raise _not_in_flight(run_id, stored)
        for before, state in zip(stored, settled, strict=True):
            # With several inputs, some may be done: a commit that was interrupted had recorded them.
            is_done = before.in_flight is None and before.has_begun
            if not is_done and not _is_in_flight(before, run_id):
                raise _not_in_flight(run_id, [before])
            if state is not before and before.in_flight and not _has_consumed(state, before.in_flight):
                raise _not_in_flight(run_id, [state])
        target = self._mark()
        done = [_committed(state, run_id, target) for state in settled]
        if changed := [state for before, state in zip(stored, done, strict=True) if state is not before]:
            with effect(Effect.COMMIT):
                self.store.set(*changed)
        return tuple(done)

    def _intervene(
        self, state: EdgeState, kind: InterventionKind, after: Watermark | None, who: str, why: str
    ) -> EdgeState:
        # Whether what others did to the target is right is up to that person: it counts as known from now on.
        known = replace(state, target=self._mark())
        changed = known.with_intervention(kind, after, who=who, why=why, at_ms=time.time_ns() // 1_000_000)
        with effect(Effect.INTERVENE):
            self.store.intervene(changed)
        return changed

    def _mark(self) -> TargetMark | None:
        """The target as it is now."""
        target = self.catalog.find(self.target)
        return head_mark(target) if target else None

    def _settled(self, edge: Edge) -> EdgeState:
        state = self.store.get(edge)
        return settle(state, self._history(state))

    def _history(self, state: EdgeState) -> TargetHistory | None:
        target = self.catalog.find(self.target)
        return histories_of(self.catalog.storage, target, [state]).get(state.edge)


def _is_in_flight(state: EdgeState, run_id: str) -> bool:
    return state.in_flight is not None and state.in_flight.run_id == run_id


def _has_consumed(state: EdgeState, capture: Capture) -> bool:
    """Whether exactly what ``capture`` holds, which may be only some of the files, is what was consumed last."""
    after = consumed_after(capture.from_exclusive, capture.to_inclusive, capture.bite)
    return (state.committed, state.file_set) == after


def _committed(state: EdgeState, run_id: str, target: TargetMark | None) -> EdgeState:
    """``state`` after the job of ``run_id`` has published, which made its table what it is now."""
    held = state.in_flight
    return state.with_committed(held, target) if held is not None and held.run_id == run_id else state


def _cant_rewind(edge: Edge, problem: str) -> RewindError:
    return RewindError(consumer=edge.consumer, upstream=edge.upstream, problem=problem)


def _not_in_flight(run_id: str, states: Sequence[EdgeState]) -> CaptureNotInFlightError:
    state = states[0]
    held = state.in_flight
    if held is not None:
        now = f"capture {held.number}, taken by {held.run_id}, is in flight instead"
    elif state.interventions and not state.has_begun:
        last = state.interventions[-1]
        now = f"{last.who} did a {last.kind} since ({last.why})"
    elif not state.number:
        now = "nothing is in flight, and no capture has been committed yet"
    else:
        at = f", up to snapshot {state.committed.snapshot_id}" if state.committed else ""
        now = f"nothing is in flight; the last committed capture is {state.number}{at}"
    return CaptureNotInFlightError(capture=run_id, consumer=state.edge.consumer, upstream=state.edge.upstream, now=now)
