"""Conditions that run exactly what is pending."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import dagster as dg
from dagster import AutomationCondition, AutomationContext, AutomationResult, DagsterRunStatus

from dagster_ips.core.backlog import sum_of
from dagster_ips.core.retry import RetryState
from dagster_ips.errors import CatalogUnreachableError, DeclarationError, IpsError
from dagster_ips.orchestration.cursor_store import CursorStore
from dagster_ips.orchestration.watching import WatchedInputs, require_no_limits

_FAILED = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)


class PendingCondition(AutomationCondition[dg.AssetKey]):
    """True while a capture of any of the asset's incremental inputs would find something, and enough of it.

    Not before every input's table is there: one capture is taken of all of them.
    """

    def __init__(
        self,
        watched: WatchedInputs | None = None,
        *,
        min_bytes: int | None = None,
        max_wait: dt.timedelta | None = None,
    ) -> None:
        self._watched = watched
        self._min_bytes = min_bytes
        self._max_wait = max_wait

    def bound(self, watched: WatchedInputs) -> PendingCondition:
        """The same condition, told what to watch.

        Raises:
            DeclarationError: it has limits, and the asset is partitioned.
        """
        require_no_limits(watched, self._min_bytes, self._max_wait)
        return PendingCondition(watched, min_bytes=self._min_bytes, max_wait=self._max_wait)

    @property
    def name(self) -> str:
        """The name in the UI."""
        return "dagster_ips_pending"

    @property
    def description(self) -> str:
        """What the UI shows."""
        limits = [f"at least {self._min_bytes:,} bytes of them"] if self._min_bytes is not None else []
        limits += [f"one that is {self._max_wait} old"] if self._max_wait is not None else []
        return f"An incremental input has changes that are not consumed{': ' if limits else ''}{' or '.join(limits)}"

    @property
    def requires_cursor(self) -> bool:
        """It decides from the tables and the cursors alone."""
        return False

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """All of an asset without partitions, or nothing of it; else the partitions that are pending.

        An upstream that can't be read keeps nobody else waiting. Its own consumer is let run, to say so, unless what
        can't be reached is the catalog, or which partitions should run can't be told.
        """
        watched = _require_watched(self._watched, context.key)
        try:
            return AutomationResult(context, self._due(context, watched))
        except IpsError as error:
            watched.watched.errors[watched.name] = error
            runs = not (watched.consumer.is_partitioned or isinstance(error, CatalogUnreachableError))
            return AutomationResult(context, context.candidate_subset if runs else context.get_empty_subset())

    def _due(self, context: AutomationContext[dg.AssetKey], watched: WatchedInputs) -> Any:  # noqa: ANN401  # Dagster's subset has no public type
        if watched.consumer.is_partitioned:
            return self._pending_partitions(context, watched)
        store = CursorStore(context.asset_graph_view.instance)
        waiting = watched.backlogs(store, tick=context.evaluation_time)
        due = waiting is not None and sum_of(waiting.values()).is_due(
            now_ms=context.evaluation_time.timestamp() * 1000,
            min_bytes=self._min_bytes,
            max_wait_seconds=self._max_wait.total_seconds() if self._max_wait is not None else None,
        )
        return context.candidate_subset if due else context.get_empty_subset()

    def _pending_partitions(self, context: AutomationContext[dg.AssetKey], watched: WatchedInputs) -> Any:  # noqa: ANN401  # as above
        view = context.asset_graph_view
        keys = watched.pending_partitions(context.asset_graph, view.instance, tick=context.evaluation_time)
        if not keys or context.partitions_def is None:
            return context.get_empty_subset()
        found = view.get_subset_from_partition_keys(context.key, context.partitions_def, set(keys))
        return context.candidate_subset.compute_intersection(found)


class BlockedCondition(AutomationCondition[dg.AssetKey]):
    """True while a failed asset waits before it is tried again: longer each time, and for good after five failures.

    New data upstream or a new code version starts the count afresh; so does a person who materialises the asset.
    """

    def __init__(self, watched: WatchedInputs | None = None) -> None:
        self._watched = watched

    def bound(self, watched: WatchedInputs) -> BlockedCondition:
        """The same condition, told what to watch."""
        return BlockedCondition(watched)

    @property
    def name(self) -> str:
        """The name in the UI."""
        return "dagster_ips_blocked"

    @property
    def description(self) -> str:
        """What the UI shows."""
        return "Failed, and waiting for its next try, for new data, new code or a person"

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """All of the asset, or nothing of it."""
        watched = _require_watched(self._watched, context.key)
        if context.candidate_subset.is_empty:  # Nothing to hold back: two queries less for each asset that is idle.
            return AutomationResult(context, context.candidate_subset, cursor=context.cursor)
        instance = context.asset_graph_view.instance
        state = RetryState(**json.loads(context.cursor)) if context.cursor else RetryState()
        planned = instance.event_log_storage.get_latest_planned_materialization_info(context.key)
        record = instance.get_run_record_by_id(planned.run_id) if planned else None
        materialized = instance.get_latest_materialization_event(context.key)
        succeeded = record and materialized and materialized.run_id == record.dagster_run.run_id
        if record is None or succeeded or record.dagster_run.status not in _FAILED:
            done = record is None or record.dagster_run.is_finished
            kept = RetryState() if done else state
            return AutomationResult(context, context.get_empty_subset(), cursor=json.dumps(asdict(kept)))
        state = state.after_failure(self._fingerprint(context, watched), record.dagster_run.run_id)
        waited = context.evaluation_time.timestamp() - (record.end_time or 0.0)
        blocked = state.is_blocked(seconds_since_failure=waited)
        subset = context.candidate_subset if blocked else context.get_empty_subset()
        return AutomationResult(context, subset, cursor=json.dumps(asdict(state)))

    def _fingerprint(self, context: AutomationContext[dg.AssetKey], watched: WatchedInputs) -> str:
        try:
            tables = watched.tables(tick=context.evaluation_time)
        except IpsError:  # Until it can be read again, one more try is as good as another.
            tables = {}
        heads = {
            f"{tracked.table} {tracked.ref}": str(tables[tracked.table].head_snapshot_id(tracked.ref))
            for tracked in watched.inputs
            if tracked.table in tables
        }
        return json.dumps([heads, context.asset_graph.get(context.key).code_version])


def pending(*, min_bytes: int | None = None, max_wait: dt.timedelta | None = None) -> AutomationCondition[dg.AssetKey]:
    """An incremental input has changes that are not consumed. Joins with Dagster's conditions by ``&``, ``|``, ``~``.

    With ``min_bytes`` not before so much was added (data files of all inputs together), with ``max_wait`` not before
    the oldest change is that old; with both, whichever is first. Each must be positive.

    Example:
        >>> (pending() & AutomationCondition.cron_tick_passed("@hourly")).name
        'AND'
    """
    if min_bytes is not None and min_bytes <= 0:
        raise _never_waited_for(min_bytes=min_bytes)
    if max_wait is not None and max_wait <= dt.timedelta(0):
        raise _never_waited_for(max_wait=max_wait)
    return PendingCondition(min_bytes=min_bytes, max_wait=max_wait)


def blocked() -> AutomationCondition[dg.AssetKey]:
    """The asset failed and waits: for its next try, and after five failures for data, code or a person."""
    return BlockedCondition()


def on_change(
    *, min_bytes: int | None = None, max_wait: dt.timedelta | None = None
) -> AutomationCondition[dg.AssetKey]:
    """Run when something is pending, unless the asset or one of its upstreams runs, or the asset is blocked.

    ``min_bytes`` and ``max_wait`` as in ``pending``: they make fewer, larger runs of many small changes.

    Example:
        >>> on_change(min_bytes=50_000_000, max_wait=dt.timedelta(minutes=10)).get_label()
        'dagster_ips_on_change'
    """
    return (
        pending(min_bytes=min_bytes, max_wait=max_wait)
        & ~AutomationCondition.in_progress()
        & ~AutomationCondition.any_deps_in_progress()
        & ~blocked()
    ).with_label("dagster_ips_on_change")


def bind(condition: AutomationCondition[dg.AssetKey], watched: WatchedInputs) -> AutomationCondition[dg.AssetKey]:
    """``condition`` with its parts of ours told what to watch."""
    for part in list(_parts(condition)):
        condition = condition.replace(part, part.bound(watched))
    return condition


def _parts(condition: AutomationCondition[dg.AssetKey]) -> Iterator[PendingCondition | BlockedCondition]:
    if isinstance(condition, PendingCondition | BlockedCondition):
        yield condition
    for child in condition.children:
        yield from _parts(child)


def _never_waited_for(**limit: object) -> DeclarationError:
    ((parameter, value),) = limit.items()
    problem = f"{parameter}={value} is never waited for."
    return DeclarationError(asset="pending()", problem=problem, remedy="Give a positive one, or leave it out.")


def _require_watched(watched: WatchedInputs | None, key: dg.AssetKey) -> WatchedInputs:
    if watched is None:
        raise DeclarationError(
            asset=key.to_user_string(),
            problem="its automation condition asks what is pending, but it has no incremental input that is known.",
            remedy="Pass the definitions through with_incremental(), and declare an input by incremental().",
        )
    return watched
