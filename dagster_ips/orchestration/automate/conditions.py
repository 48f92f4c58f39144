"""Automation conditions that run exactly what is pending."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster import AutomationCondition, AutomationContext, AutomationResult

from dagster_ips.core.backlog import sum_of
from dagster_ips.errors import CatalogUnreachableError, DeclarationError, IpsError
from dagster_ips.orchestration.automate.blocked_condition import BlockedCondition
from dagster_ips.orchestration.automate.same_run_condition import SameRunCondition
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs, require_no_limits, require_watched


class PendingCondition(AutomationCondition[dg.AssetKey]):
    """True while a capture of any of the asset's incremental inputs would find changes, and enough of them.

    It isn't true before every input's table exists, because all inputs are captured together.
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
        """The same condition, bound to the inputs that it watches.

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
        """The description in the UI."""
        limits = [f"at least {self._min_bytes:,} bytes"] if self._min_bytes is not None else []
        limits += [f"the oldest has waited for {self._max_wait}"] if self._max_wait is not None else []
        return f"An incremental input has unconsumed changes{': ' if limits else ''}{' or '.join(limits)}"

    @property
    def requires_cursor(self) -> bool:
        """False: it decides only by the tables and the library's own cursors."""
        return False

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """The partitions that are pending; for an asset without partitions, all of it or nothing.

        An upstream that can't be read doesn't hold up the others. Its own consumer runs, so that the run reports the
        error, unless the catalog can't be reached or it is unknown which partitions should run.
        """
        watched = require_watched(self._watched, context.key)
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


def pending(*, min_bytes: int | None = None, max_wait: dt.timedelta | None = None) -> AutomationCondition[dg.AssetKey]:
    """An incremental input has unconsumed changes. Combine it with Dagster's conditions by ``&``, ``|``, ``~``.

    With ``min_bytes``, only once that much was added (data files of all inputs together); with ``max_wait``, only once
    the oldest change is that old; with both, whichever comes first. Each must be positive.

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
    """The asset has failed and waits for a retry or, after five failures, for new data, new code or a manual run.

    In a partitioned asset, each partition waits separately and the others run. A failed run of several partitions is
    retried in four parts, until the failing partition is isolated.
    """
    return BlockedCondition()


def on_change(
    *, min_bytes: int | None = None, max_wait: dt.timedelta | None = None
) -> AutomationCondition[dg.AssetKey]:
    """Run when something is pending, unless the asset or one of its upstreams is running, or the asset is blocked.

    If a run is requested for an incremental upstream, the asset is computed in the same run, provided that both have
    the same partitions or none: where possible, a cascade is one run. This doesn't apply with limits, because the asset
    may wait for more.

    It doesn't run while a blocking asset check of an upstream fails, just as a run of both would stop there.
    ``min_bytes`` and ``max_wait`` are as in ``pending``: they batch many small changes into fewer, larger runs.

    Example:
        >>> on_change(min_bytes=50_000_000, max_wait=dt.timedelta(minutes=10)).get_label()
        'dagster_ips_on_change'
    """
    trigger = pending(min_bytes=min_bytes, max_wait=max_wait)
    if min_bytes is None and max_wait is None:
        trigger |= SameRunCondition()
    return (
        trigger
        & ~AutomationCondition.in_progress()
        & ~AutomationCondition.any_deps_in_progress()
        & ~AutomationCondition.any_deps_match(_has_failed_blocking_check())
        & ~blocked()
    ).with_label("dagster_ips_on_change")


def _has_failed_blocking_check() -> AutomationCondition[dg.AssetKey]:
    return AutomationCondition.any_checks_match(AutomationCondition.check_failed(), blocking_only=True).with_label(
        "dagster_ips_blocking_check_failed"
    )


def bind(condition: AutomationCondition[dg.AssetKey], watched: WatchedInputs) -> AutomationCondition[dg.AssetKey]:
    """``condition`` with this library's conditions in it bound to what they watch."""
    for part in list(parts(condition)):
        if isinstance(part, PendingCondition | BlockedCondition | SameRunCondition):
            condition = condition.replace(part, part.bound(watched))
    return condition


def parts(condition: AutomationCondition[dg.AssetKey]) -> Iterator[AutomationCondition[dg.AssetKey]]:
    """The condition and all conditions that it is composed of."""
    yield condition
    for child in condition.children:
        yield from parts(child)


def _never_waited_for(**limit: object) -> DeclarationError:
    ((parameter, value),) = limit.items()
    problem = f"{parameter}={value} isn't a valid limit."
    return DeclarationError(asset="pending()", problem=problem, remedy="Give a positive one, or leave it out.")
