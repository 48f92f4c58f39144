"""The condition that makes partitions that read the asset's own earlier ones wait for their turn."""

from __future__ import annotations

from typing import Any, cast

import dagster as dg
from dagster import AutomationCondition, AutomationContext, AutomationResult


class OwnEarlierCondition(AutomationCondition[dg.AssetKey]):
    """True for the candidates that read other candidates: earlier partitions of the asset itself.

    If they ran at once, each would be computed again when the ones before it have changed. A chain of pending
    partitions would be computed as often as it is long.
    """

    name = "dagster_ips_own_earlier"
    description = "Reads an earlier partition of the asset itself that is to run, too"
    requires_cursor = False  # it decides only by the candidates

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """The candidates that are made of other candidates."""
        due, found = context.candidate_subset, cast("Any", context.get_empty_subset())
        if not due.is_empty and context.key in context.asset_graph.get(context.key).parent_keys:
            # Dagster only allows an asset to depend on its own earlier partitions, so the first one never waits.
            found = due.compute_intersection(due.compute_mapped_subset(context.key, direction="down"))
        return AutomationResult(context, found)
