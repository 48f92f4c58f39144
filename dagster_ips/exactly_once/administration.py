"""What a person, or a job that reports back, does to what an asset has consumed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.capture import Capture, EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import Place
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    CaptureNotInFlightError,
    RewindError,
    StateUnreadableError,
    TargetChangedError,
    UnknownPublicationError,
)
from dagster_ips.exactly_once.capture.edge_start import snapshot_at
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.inspect.edge_status import Inspector, Pending
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.ref_commits import commit_refs, pinning
from dagster_ips.progress.cursor import Copy, Cursor, Cursors, Request, RequestKind, progress_of, state_of
from dagster_ips.progress.table_progress import PIN, TableProgress, mark_of


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

    A run that is at work in the meantime can no longer publish what it captured before. If it has just done so, the
    next run still does what was asked for.
    """

    catalog: LakeCatalog
    store: Cursors
    target: str
    icdc_namespace: str = "ips"

    def reset(self, edge: Edge, *, who: str, why: str) -> Request:
        """Forget what was consumed: the next run computes everything, or begins where ``start`` says."""
        try:
            before = self._state(edge).holds_up_to
        except (StateUnreadableError, TargetChangedError, UnknownPublicationError):
            before = None
        return self._ask(edge, RequestKind.RESET, before, None, who, why)

    def plan_rewind(self, consumer: str, tracked: TrackedInput, place: Place, *, may_repeat: bool) -> Rewind:
        """What a rewind of the edge to ``place`` would do; nothing is changed.

        ``may_repeat`` says whether the consumer may write a change twice without duplicating rows.

        Raises:
            RewindError: rows would be duplicated, or would stay although they were removed, or the place isn't older
                than what is consumed.
            TargetChangedError, UnknownPublicationError: it is unknown what the table contains.
            UnknownPlaceError: the place isn't in the history of the upstream's table.
            BrokenHistoryError: the table can't be followed from there.
        """
        edge = Edge(consumer, tracked.upstream)
        state = self._state(edge)
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

    def rewind(self, planned: Rewind, *, who: str, why: str) -> Request:
        """Carry out the plan.

        Raises:
            RewindError: something was consumed or changed since the plan was made.
        """
        state = self._state(planned.edge)
        if state.holds_up_to != planned.before or state.file_set is not None:
            raise _cant_rewind(planned.edge, "the consumed position has changed since the rewind was planned")
        return self._ask(planned.edge, RequestKind.REWIND, planned.before, planned.after, who, why)

    def commit(self, consumer: str, upstreams: Sequence[str], run_id: str) -> tuple[EdgeState, ...]:
        """Count the captures of ``run_id`` as consumed: the job that took them has published what it made of them.

        If its writes were stamped, that is known already, and nothing is left to do.

        Raises:
            CaptureNotInFlightError: they aren't in flight, or no longer. Nothing is changed.
        """
        cursor, target = self.store.get(consumer), self.catalog.find(self.target)
        job, known = cursor.job, self._known(consumer)
        held = job is not None and any(capture.run_id == run_id for capture in job.captures)
        if job is None or not held or cursor.open_requests(known):
            raise self._not_in_flight(run_id, consumer, upstreams[0], job.captures[0] if job else None, known)
        is_stamped = known is not None and known.snapshot is not None and known.progress == job.progress
        number = known.progress.number if known is not None else 0
        if not is_stamped and number >= job.progress.number:
            raise self._not_in_flight(run_id, consumer, upstreams[0], None, known)
        mark = mark_of(target) if target is not None else None
        if is_stamped and known is not None:
            with effect(Effect.PUBLISH):
                commit_refs(self.catalog, self.target, pinning(PIN, at=known.mark.snapshot_id), asset=consumer)
        with effect(Effect.COPY_PROGRESS):
            if not is_stamped:
                self.store.set_copy(consumer, Copy(job.progress, mark, is_reported=True))
            self.store.set_job(consumer, None)
        return tuple(job.progress.state(Edge(consumer, upstream), mark) for upstream in upstreams)

    def _ask(  # noqa: PLR0913, PLR0917  # all are independent
        self, edge: Edge, kind: RequestKind, before: Watermark | None, after: Watermark | None, who: str, why: str
    ) -> Request:
        try:
            cursor = self.store.get(edge.consumer)
        except StateUnreadableError:  # Only a reset comes here: it replaces what can't be read.
            cursor = Cursor()
            with effect(Effect.INTERVENE):
                self.store.set_job(edge.consumer, None)
        newest = max((each.id for each in cursor.requests), default=0)
        number = max(time.time_ns() // 1_000_000, newest + 1)
        target = self.catalog.find(self.target)
        head = target.head_snapshot_id() if target is not None else None
        request = Request(number, kind, edge.upstream, who, why, before, after, head)
        with effect(Effect.INTERVENE):
            self.store.set_requests(edge.consumer, cursor.with_request(request).requests)
        return request

    def _known(self, consumer: str) -> TableProgress | None:
        cursor, target = self.store.get(consumer), self.catalog.find(self.target)
        return progress_of(target, cursor, asset=consumer, storage=self.catalog.storage)

    def _state(self, edge: Edge) -> EdgeState:
        return state_of(edge, self._known(edge.consumer), self.store.get(edge.consumer))

    def _not_in_flight(
        self, run_id: str, consumer: str, upstream: str, other: Capture | None, known: TableProgress | None
    ) -> CaptureNotInFlightError:
        asked = self.store.get(consumer).open_requests(known)
        if other is not None and other.run_id != run_id:
            now = f"a capture taken by {other.run_id} is in flight instead"
        elif asked:
            now = f"{asked[-1].who} did a {asked[-1].kind} since ({asked[-1].why})"
        elif known is None:
            now = "nothing is in flight, and no capture has been committed yet"
        else:
            state = known.progress.state(Edge(consumer, upstream), known.mark)
            at = f", up to snapshot {state.committed.snapshot_id}" if state.committed else ""
            now = f"nothing is in flight; the last committed capture is {state.number}{at}"
        return CaptureNotInFlightError(capture=run_id, consumer=consumer, upstream=upstream, now=now)


def _cant_rewind(edge: Edge, problem: str) -> RewindError:
    return RewindError(consumer=edge.consumer, upstream=edge.upstream, problem=problem)
