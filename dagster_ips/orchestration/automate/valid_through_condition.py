"""A condition for assets that run once a day, or another period, is complete in an upstream."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster import AutomationCondition, AutomationContext, AutomationResult

from dagster_ips.core.valid_through import ALWAYS, period_begin
from dagster_ips.errors import DeclarationError, IpsError
from dagster_ips.orchestration.automate.blocked_condition import as_plain, count_failures, retry_states
from dagster_ips.orchestration.automate.conditions import with_parts
from dagster_ips.orchestration.declare.argument_types import require_duration
from dagster_ips.orchestration.declare.asset_keys import AssetName, asset_key_of
from dagster_ips.orchestration.declare.declarations import code_of
from dagster_ips.orchestration.watch.asset_completeness import Completeness, Tick
from dagster_ips.orchestration.watch.failed_runs import failed_among, tried_runs
from dagster_ips.orchestration.watch.run_at_work import UNFINISHED


class ValidThroughCondition(AutomationCondition[dg.AssetKey]):
    """True for the periods that are complete in an upstream; see ``valid_through``."""

    name = "dagster_ips_valid_through"

    def __init__(
        self, upstream: dg.AssetKey, every: dt.timedelta | None, completeness: Completeness | None = None
    ) -> None:
        self.upstream = upstream
        self._every = every
        self._completeness = completeness

    def bound(self, completeness: Completeness, asset: dg.AssetsDefinition) -> ValidThroughCondition:
        """The same condition, bound to what finds the upstream's completeness.

        Raises:
            DeclarationError: the upstream's completeness can't be found, or ``every`` is missing or superfluous.
        """
        name = ", ".join(sorted(key.to_user_string() for key in asset.keys))
        upstream = self.upstream.to_user_string()
        if not completeness.knows(self.upstream):
            problem = f"it waits for {upstream}, which is neither an outside table nor an incremental asset."
            remedy = "Name an iceberg_asset() or an asset with incremental inputs from the same definitions."
            raise DeclarationError(asset=name, problem=problem, remedy=remedy)
        is_by_time = isinstance(asset.partitions_def, dg.TimeWindowPartitionsDefinition)
        if is_by_time is (self._every is not None):
            problem = f"it waits until {upstream} is complete " + (
                f"every {self._every}, but its own partitions already define its periods."
                if is_by_time
                else "for a partition, but it isn't partitioned by time."
            )
            remedy = "Leave out `every`." if is_by_time else "Give the periods: valid_through(..., every=...)."
            raise DeclarationError(asset=name, problem=problem, remedy=remedy)
        completeness.watch(self.upstream)
        return ValidThroughCondition(self.upstream, self._every, completeness)

    @property
    def description(self) -> str:
        """The description in the UI."""
        what = f"Another period of {self._every}" if self._every else "The partition's time window"
        return f"{what} is complete in {self.upstream.to_user_string()}"

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """The partitions whose windows are complete; with ``every``, all of the asset until it has run since then.

        Without what a run is at work on, and what has failed and waits for its next try.
        """
        if self._completeness is None:
            raise DeclarationError(
                asset=context.key.to_user_string(),
                problem="its automation condition checks what is complete, but isn't connected to the tables.",
                remedy="Pass the definitions through with_incremental().",
            )
        view = context.asset_graph_view
        tick = Tick(context.asset_graph, view.instance, context.evaluation_time)
        try:
            through = self._completeness.of(self.upstream, tick)
        except IpsError as error:  # It doesn't hold up other assets.
            context.log.error("can't tell when %s is complete: %s", self.upstream.to_user_string(), error)  # noqa: TRY400  # says it all
            through = None
        # When the newest complete period ends, when it was first seen to be complete, and what has failed since.
        end, since, *failures = json.loads(context.cursor) if context.cursor else (None, 0.0)
        due: Any = context.get_empty_subset()
        if self._every is not None:
            newest = None if through in (None, ALWAYS) else period_begin(through, self._every).timestamp()
            if newest is not None and (end is None or newest > end):
                end, since = newest, context.evaluation_time.timestamp()
            if end is not None:
                due = context.candidate_subset if _made_since(context) < since else _not_made_since(context, since)
        elif through is not None and isinstance(context.partitions_def, dg.TimeWindowPartitionsDefinition):
            due = _complete(context, context.partitions_def, through)
        if due.is_empty:
            return AutomationResult(context, due, cursor=json.dumps([end, since, *failures]))
        found, states = _without_tried(context, due, failures[0] if failures else {}, end)
        return AutomationResult(context, found, cursor=json.dumps([end, since, states]))


def valid_through(upstream: AssetName, *, every: dt.timedelta | None = None) -> AutomationCondition[dg.AssetKey]:
    """``upstream`` is complete for the asset's period: every event up to its end has arrived and is in the table.

    For an asset partitioned by time, it holds for each partition whose window is complete: to run each one once,
    combine it with Dagster's ``missing()``. For other assets, give the period with ``every`` (counted from the epoch,
    in UTC): it holds from when another period is complete until a run launched after that has materialized the asset.
    Late data doesn't make anything incomplete again. It doesn't hold while a run is at work on the asset or partition,
    or while it has failed and waits for a retry, as in ``blocked``.

    Example:
        >>> (valid_through("playback_daily") & AutomationCondition.missing()).name
        'AND'
    """
    if every is not None:
        require_duration(every, "every", of="valid_through()")
        if every <= dt.timedelta(0):
            problem, remedy = f"every={every} isn't a valid period.", "Give a positive one, such as a day."
            raise DeclarationError(asset="valid_through()", problem=problem, remedy=remedy)
    return ValidThroughCondition(asset_key_of(upstream), every)


def bind_valid_through(
    condition: AutomationCondition[dg.AssetKey], completeness: Completeness, asset: dg.AssetsDefinition
) -> AutomationCondition[dg.AssetKey]:
    """``condition`` with its ``valid_through`` conditions bound; raises the same errors as ``bound``."""
    return with_parts(
        condition, lambda part: part.bound(completeness, asset) if isinstance(part, ValidThroughCondition) else part
    )


def _complete(
    context: AutomationContext[dg.AssetKey], partitions: dg.TimeWindowPartitionsDefinition, through: dt.datetime
) -> Any:  # noqa: ANN401  # Dagster's subset has no public type
    candidates = context.candidate_subset.expensively_compute_partition_keys()
    keys = {key for key in candidates if partitions.time_window_for_partition_key(key).end <= through}
    if not keys:
        return context.get_empty_subset()
    return context.asset_graph_view.get_subset_from_partition_keys(context.key, partitions, keys)


def _without_tried(
    context: AutomationContext[dg.AssetKey],
    due: Any,  # noqa: ANN401  # as above
    stored: Mapping[str, Any],
    period: float | None,
) -> tuple[Any, dict[str, dict[str, Any]]]:
    """What of ``due`` no run is at work on or has failed to make just now; and the retry states to store."""
    view, partitions = context.asset_graph_view, context.partitions_def
    tried = tried_runs(view.instance, context.key, is_partitioned=partitions is not None)
    failed = failed_among(tried, view.instance, context.key)
    states, node = retry_states(stored, tried), context.asset_graph.get(context.key)
    fingerprint = json.dumps([period, code_of(node.code_version, node.metadata)])
    held = count_failures(states, failed, dict.fromkeys(failed, fingerprint), context.evaluation_time)
    held |= {key for key, record in tried.items() if record.dagster_run.status in UNFINISHED}
    if partitions is None:
        return (context.get_empty_subset() if held else due), as_plain(states)
    if held := held and held & due.expensively_compute_partition_keys():
        due = due.compute_difference(view.get_subset_from_partition_keys(context.key, partitions, held))
    return due, as_plain(states)


def _not_made_since(context: AutomationContext[dg.AssetKey], since: float) -> Any:  # noqa: ANN401  # as above
    """The partitions that no run has made since then, although one tried to, while other partitions were made."""
    view, partitions = context.asset_graph_view, context.partitions_def
    if partitions is None:
        return context.get_empty_subset()
    tried = tried_runs(view.instance, context.key, is_partitioned=True)
    keys = {key for key, record in tried.items() if record.create_timestamp.timestamp() >= since}
    keys = keys and keys & context.candidate_subset.expensively_compute_partition_keys()
    return view.get_subset_from_partition_keys(context.key, partitions, keys) if keys else context.get_empty_subset()


def _made_since(context: AutomationContext[dg.AssetKey]) -> float:
    """When the run that materialized the asset last was launched; 0 if the asset was never materialized."""
    instance = context.asset_graph_view.instance
    made = instance.get_latest_materialization_event(context.key)
    if made is None:
        return 0.0
    record = instance.get_run_record_by_id(made.run_id) if made.run_id else None
    return record.create_timestamp.timestamp() if record else made.timestamp
