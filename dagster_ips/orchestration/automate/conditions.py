"""Automation conditions that run exactly what is pending."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import dagster as dg
from dagster import AutomationCondition, AutomationContext, AutomationResult

from dagster_ips.core.backlog import sum_of
from dagster_ips.errors import CatalogUnreachableError, DeclarationError, IpsError
from dagster_ips.orchestration.automate.blocked_condition import BlockedCondition
from dagster_ips.orchestration.automate.bound_condition import BoundCondition
from dagster_ips.orchestration.automate.own_earlier_condition import OwnEarlierCondition
from dagster_ips.orchestration.automate.same_run_condition import SameRunCondition
from dagster_ips.orchestration.watch.watched_tables import ByAsset, WatchedInputs, require_limits, require_no_limits


class PendingCondition(BoundCondition):
    """True while a capture of any of the asset's incremental inputs would find changes, and enough of them.

    It isn't true before every input's table exists, because all inputs are captured together.
    """

    name = "dagster_ips_pending"
    requires_cursor = False  # it decides only by the tables and the library's own cursors

    def __init__(self, *, min_bytes: int | None = None, max_wait: dt.timedelta | None = None) -> None:
        self._min_bytes = min_bytes
        self._max_wait = max_wait

    def require_fit(self, watched: WatchedInputs) -> None:
        """Fail if the condition can't be evaluated for that consumer.

        Raises:
            DeclarationError: it has limits, and the asset is partitioned.
        """
        require_no_limits(watched, self._min_bytes, self._max_wait)

    @property
    def description(self) -> str:
        """The description in the UI."""
        limits = [f"at least {self._min_bytes:,} bytes"] if self._min_bytes is not None else []
        limits += [f"the oldest has waited for {self._max_wait}"] if self._max_wait is not None else []
        return f"An incremental input has unconsumed changes{': ' if limits else ''}{' or '.join(limits)}"

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """The partitions that are pending; for an asset without partitions, all of it or nothing.

        An upstream that can't be read doesn't hold up the others. Its own consumer runs, so that the run reports the
        error, unless the catalog can't be reached or it is unknown which partitions should run.
        """
        watched = self.watched_by(context)
        if watched is None:
            return AutomationResult(context, context.get_empty_subset())
        try:
            return AutomationResult(context, self._due(context, watched))
        except IpsError as error:
            watched.watched.errors[watched.name] = error
            runs = not (watched.consumer.is_partitioned or isinstance(error, CatalogUnreachableError))
            return AutomationResult(context, context.candidate_subset if runs else context.get_empty_subset())

    def _due(self, context: AutomationContext[dg.AssetKey], watched: WatchedInputs) -> Any:  # noqa: ANN401  # Dagster's subset has no public type
        self.require_fit(watched)
        if watched.consumer.is_partitioned:
            return self._pending_partitions(context, watched)
        waiting = watched.backlogs(context.asset_graph_view.instance, tick=context.evaluation_time)
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

    It stays true while a run is in progress and after one has failed, so use ``on_change`` to request runs of the asset
    itself.

    Example:
        >>> (on_change() & ~AutomationCondition.any_deps_match(pending())).name
        'AND'
    """
    require_limits(min_bytes, max_wait, of="pending()")
    return PendingCondition(min_bytes=min_bytes, max_wait=max_wait)


def blocked() -> AutomationCondition[dg.AssetKey]:
    """The asset has failed and waits for a retry or, after five failures, for new data, new code or a manual run.

    In a partitioned asset, each partition waits separately and the others run. A failed run of several partitions is
    retried in four parts, until the failing partition is isolated. A run in which an asset with
    ``output_required=False`` yielded nothing counts like a failed one.
    """
    return BlockedCondition()


def on_change(
    *, min_bytes: int | None = None, max_wait: dt.timedelta | None = None
) -> AutomationCondition[dg.AssetKey]:
    """Run when something is pending, unless the asset or one of its upstreams is running, or the asset is blocked.

    If a run is requested for an incremental upstream, the asset is computed in the same run, provided that both have
    the same partitions or none: where possible, a cascade is one run. This doesn't apply with limits, because the asset
    may wait for more.

    It doesn't run while a blocking asset check of an upstream fails, just as a run of both would stop there. In an
    asset that depends on its own earlier partitions, a partition waits for those of them that are to run, too.
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
        & ~OwnEarlierCondition()
    ).with_label("dagster_ips_on_change")


def _has_failed_blocking_check() -> AutomationCondition[dg.AssetKey]:
    return AutomationCondition.any_checks_match(AutomationCondition.check_failed(), blocking_only=True).with_label(
        "dagster_ips_blocking_check_failed"
    )


def bind(
    condition: AutomationCondition[dg.AssetKey], key: dg.AssetKey, watched: ByAsset
) -> AutomationCondition[dg.AssetKey]:
    """``condition`` of the asset ``key`` with this library's conditions in it bound to what they watch.

    Raises:
        DeclarationError: it checks the asset for pending changes, but the asset isn't a consumer, or can't have limits;
            or a condition that contains another one can't be rebuilt.
    """
    for part in _of_asset_itself(condition):
        if isinstance(part, BoundCondition) and key not in watched:
            raise DeclarationError(
                asset=key.to_user_string(),
                problem="its automation condition checks it for pending changes, but it reads nothing incrementally.",
                remedy="Declare an input with incremental(), or use a condition of Dagster's. To check its upstreams, "
                "write AutomationCondition.any_deps_match(ips.pending()).",
            )
        if isinstance(part, PendingCondition):
            part.require_fit(watched[key])
    return with_parts(condition, lambda part: part.bound(watched) if isinstance(part, BoundCondition) else part)


def check_conditions_of_checks(items: Iterable[Any]) -> None:
    """Refuse asset checks with conditions of this library, which are evaluated for assets only.

    Raises:
        DeclarationError: there is one.
    """
    for item in items:
        for spec in item.check_specs if isinstance(item, dg.AssetsDefinition) else ():
            condition = spec.automation_condition
            if condition is not None and any(isinstance(part, BoundCondition) for part in _parts(condition)):
                raise DeclarationError(
                    asset=spec.asset_key.to_user_string(),
                    problem=f"the condition of its check {spec.name} checks for pending changes, which only conditions "
                    "of assets can do.",
                    remedy="Use a condition of Dagster's, such as "
                    "AutomationCondition.any_deps_match(AutomationCondition.newly_updated()).",
                )


def with_parts(
    condition: AutomationCondition[dg.AssetKey],
    change: Callable[[AutomationCondition[dg.AssetKey]], AutomationCondition[dg.AssetKey]],
) -> AutomationCondition[dg.AssetKey]:
    """The condition with ``change`` applied to each of its innermost parts; the same object if none has changed.

    Raises:
        DeclarationError: a condition that contains a changed one can't be rebuilt.
    """
    if not condition.children:
        return change(condition)
    for child in condition.children:
        changed = with_parts(child, change)
        if changed is not child:
            condition = _with_child(condition, child, changed)
    return condition


def _with_child(
    condition: AutomationCondition[dg.AssetKey],
    child: AutomationCondition[dg.AssetKey],
    changed: AutomationCondition[dg.AssetKey],
) -> AutomationCondition[dg.AssetKey]:
    replaced: AutomationCondition[dg.AssetKey] = condition.replace(child, changed)
    if all(each is not child for each in replaced.children):
        return replaced
    newly = changed.newly_true()  # Dagster 1.13 doesn't replace what is in it.
    if type(newly) is not type(condition):
        raise DeclarationError(
            asset="with_incremental",
            problem=f"the automation condition {condition.name} contains {child.name}, but its replace() doesn't "
            "replace it, so it can't be connected to the tables.",
            remedy="Implement replace() in its class, as AutomationCondition describes it.",
        )
    label = condition.get_label()
    return newly.with_label(label) if label else newly


_ANY: AutomationCondition[Any] = AutomationCondition.missing()
_OF_OTHERS = tuple(
    type(each)
    for each in (
        AutomationCondition.any_deps_match(_ANY),
        AutomationCondition.all_deps_match(_ANY),
        AutomationCondition.asset_matches("any", _ANY),
    )
)
"""Conditions that Dagster evaluates for other assets than the one that has them."""


def _parts(condition: AutomationCondition[Any]) -> Iterator[AutomationCondition[Any]]:
    yield condition
    for child in condition.children:
        yield from _parts(child)


def _of_asset_itself(condition: AutomationCondition[dg.AssetKey]) -> Iterator[AutomationCondition[dg.AssetKey]]:
    """The condition and its parts that are evaluated for the asset itself."""
    yield condition
    for child in () if isinstance(condition, _OF_OTHERS) else condition.children:
        yield from _of_asset_itself(child)
