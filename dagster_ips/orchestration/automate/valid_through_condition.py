"""A condition for assets that run once a day, or another period, is complete in an upstream."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import dagster as dg
from dagster import AutomationCondition, AutomationContext, AutomationResult

from dagster_ips.core.valid_through import ALWAYS, period_begin
from dagster_ips.errors import DeclarationError, IpsError
from dagster_ips.orchestration.automate.conditions import with_parts
from dagster_ips.orchestration.watch.asset_completeness import Completeness, Tick


class ValidThroughCondition(AutomationCondition[dg.AssetKey]):
    """True for the periods that are complete in an upstream; see ``valid_through``."""

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
    def name(self) -> str:
        """The name in the UI."""
        return "dagster_ips_valid_through"

    @property
    def description(self) -> str:
        """The description in the UI."""
        what = f"Another period of {self._every}" if self._every else "The partition's time window"
        return f"{what} is complete in {self.upstream.to_user_string()}"

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """The partitions whose windows are complete; with ``every``, all of the asset until it has run since then."""
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
        if self._every is not None:
            return self._of_periods(context, through, self._every)
        if through is None or not isinstance(context.partitions_def, dg.TimeWindowPartitionsDefinition):
            return AutomationResult(context, context.get_empty_subset())
        return AutomationResult(context, _complete(context, context.partitions_def, through))

    def _of_periods(
        self, context: AutomationContext[dg.AssetKey], through: dt.datetime | None, every: dt.timedelta
    ) -> AutomationResult[dg.AssetKey]:
        """The result for an asset without time partitions.

        The cursor holds the end of the newest complete period, and when it was first seen to be complete.
        """
        seen: list[float] | None = json.loads(context.cursor) if context.cursor else None
        if through is not None and through != ALWAYS:
            end = period_begin(through, every).timestamp()
            if seen is None or end > seen[0]:
                seen = [end, context.evaluation_time.timestamp()]
        if seen is None:
            return AutomationResult(context, context.get_empty_subset())
        is_due = _made_since(context) < seen[1]
        found = context.candidate_subset if is_due else context.get_empty_subset()
        return AutomationResult(context, found, cursor=json.dumps(seen))


def valid_through(
    upstream: dg.CoercibleToAssetKey, *, every: dt.timedelta | None = None
) -> AutomationCondition[dg.AssetKey]:
    """``upstream`` is complete for the asset's period: every event up to its end has arrived and is in the table.

    For an asset partitioned by time, it holds for each partition whose window is complete: to run each one once,
    combine it with Dagster's ``missing()``. For other assets, give the period with ``every`` (counted from the epoch,
    in UTC): it holds from when another period is complete until a run launched after that has materialized the asset.
    Late data doesn't make anything incomplete again.

    Example:
        >>> (valid_through("playback_daily") & AutomationCondition.missing()).name
        'AND'
    """
    if every is not None and every <= dt.timedelta(0):
        problem = f"every={every} isn't a valid period."
        raise DeclarationError(asset="valid_through()", problem=problem, remedy="Give a positive one, such as a day.")
    return ValidThroughCondition(dg.AssetKey.from_coercible(upstream), every)


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


def _made_since(context: AutomationContext[dg.AssetKey]) -> float:
    """When the run that materialized the asset last was launched; 0 if the asset was never materialized."""
    instance = context.asset_graph_view.instance
    made = instance.get_latest_materialization_event(context.key)
    if made is None:
        return 0.0
    record = instance.get_run_record_by_id(made.run_id) if made.run_id else None
    return record.create_timestamp.timestamp() if record else made.timestamp
