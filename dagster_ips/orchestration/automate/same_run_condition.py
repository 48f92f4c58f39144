"""The condition that makes a cascade one run: the consumers of a requested asset are requested together with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import dagster as dg
from dagster import AutomationContext, AutomationResult

from dagster_ips.errors import IpsError
from dagster_ips.orchestration.automate.bound_condition import BoundCondition
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs


class SameRunCondition(BoundCondition):
    """True while an incremental input's asset is requested in this tick and one run can compute both.

    Each step captures when it begins, after the step before it has published. If that published nothing, it finds no
    change. An asset that can't be in one run with all its requested upstreams waits until they are done, because
    otherwise it would have to run twice. An asset also waits for an input whose table doesn't exist yet, unless this
    run creates it.
    """

    name = "dagster_ips_same_run"
    description = "An incremental input is requested in this tick and can be computed in the same run"
    requires_cursor = False  # it decides only by what this tick requests

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """The partitions whose upstream partitions are requested; for an asset without partitions, all of it."""
        watched, found = self.watched_by(context), cast("Any", context.get_empty_subset())
        if watched is None:
            return AutomationResult(context, found)
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
    """Whether a run of ``upstream`` can also compute ``key``: both have the same partitions, mapped 1:1, or none."""
    own, other = graph.get(key), graph.get(upstream)
    if not other.is_materializable or own.partitions_def != other.partitions_def:
        return False
    if own.partitions_def is None:
        return True
    # For assets with different policies, Dagster creates a run for each partition.
    return own.backfill_policy == other.backfill_policy and _is_identity(graph.get_partition_mapping(key, upstream))


def _is_identity(mapping: dg.PartitionMapping) -> bool:
    """Whether the mapping, between two assets with the same partitions, is one to one."""
    if isinstance(mapping, dg.TimeWindowPartitionMapping):
        return mapping.start_offset == 0 and mapping.end_offset == 0
    return isinstance(mapping, dg.IdentityPartitionMapping)


def _are_there(inputs: Sequence[str], watched: WatchedInputs, context: AutomationContext[dg.AssetKey]) -> bool:
    try:
        tables = watched.tables(tick=context.evaluation_time)
    except IpsError:  # It is unknown, and the run would only fail with the same error.
        return False
    return tables.keys() >= set(inputs)
