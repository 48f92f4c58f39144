"""The condition that lets a cascade be one run: what is made of an asset that is requested is requested with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster import AutomationCondition, AutomationContext, AutomationResult

from dagster_ips.errors import IpsError
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs, require_watched


class SameRunCondition(AutomationCondition[dg.AssetKey]):
    """True while an incremental input's asset is requested in this tick and one run can compute both.

    Each step captures as it begins, which is after the one before it has published; where that published nothing, it
    finds no change. What can't be in the run of all its upstreams that are requested waits until they are done: it
    would have to be run twice. So does what has an input whose table isn't there yet, unless this run makes it.
    """

    def __init__(self, watched: WatchedInputs | None = None) -> None:
        self._watched = watched

    def bound(self, watched: WatchedInputs) -> SameRunCondition:
        """The same condition, told what to watch."""
        return SameRunCondition(watched)

    @property
    def name(self) -> str:
        """The name in the UI."""
        return "dagster_ips_same_run"

    @property
    def description(self) -> str:
        """What the UI shows."""
        return "An incremental input is requested in this tick and can be computed in the same run"

    @property
    def requires_cursor(self) -> bool:
        """It decides from the tick alone."""
        return False

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """What is made of what is requested: by partition, as both have the same."""
        watched = require_watched(self._watched, context.key)
        found: Any = context.get_empty_subset()
        asked = context.request_subsets_by_key
        upstreams = [key for key in context.asset_graph.get(context.key).parent_keys if key in asked]
        requested = {key: asked[key] for key in upstreams if not asked[key].is_empty}
        if requested and all(fits_in_one_run(context.asset_graph, context.key, key) for key in requested):
            for tracked in watched.inputs:
                key = dg.AssetKey.from_user_string(tracked.upstream)
                if key in requested:
                    found = found.compute_union(requested[key].compute_mapped_subset(context.key, direction="down"))
        others = [each for each in watched.inputs if dg.AssetKey.from_user_string(each.upstream) not in requested]
        if not found.is_empty and not _are_there([each.table for each in others], watched, context):
            found = context.get_empty_subset()
        return AutomationResult(context, context.candidate_subset.compute_intersection(found))


def fits_in_one_run(graph: Any, key: dg.AssetKey, upstream: dg.AssetKey) -> bool:  # noqa: ANN401  # Dagster's asset graph has no public type
    """Whether a run of ``upstream`` can compute ``key`` as well: both have the same partitions, if any, one of one."""
    own, other = graph.get(key), graph.get(upstream)
    if not other.is_materializable or own.partitions_def != other.partitions_def:
        return False
    if own.partitions_def is None:
        return True
    # Of assets with different policies Dagster makes a run for each partition.
    return own.backfill_policy == other.backfill_policy and _is_identity(graph.get_partition_mapping(key, upstream))


def _is_identity(mapping: dg.PartitionMapping) -> bool:
    """Between two assets with the same partitions."""
    if isinstance(mapping, dg.TimeWindowPartitionMapping):
        return mapping.start_offset == 0 and mapping.end_offset == 0
    return isinstance(mapping, dg.IdentityPartitionMapping)


def _are_there(inputs: Sequence[str], watched: WatchedInputs, context: AutomationContext[dg.AssetKey]) -> bool:
    try:
        tables = watched.tables(tick=context.evaluation_time)
    except IpsError:  # It isn't known, and the run would only say so.
        return False
    return tables.keys() >= set(inputs)
