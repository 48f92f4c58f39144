"""The condition that keeps assets that failed or yielded nothing from being tried again immediately, and forever."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg
from dagster import AutomationContext, AutomationResult, DagsterInstance, RunRecord

from dagster_ips._compat import RANGE_END_TAG, RANGE_START_TAG
from dagster_ips.core.packed_text import digest
from dagster_ips.core.retry import RetryState
from dagster_ips.errors import IpsError
from dagster_ips.orchestration.automate.bound_condition import BoundCondition
from dagster_ips.orchestration.declare.declarations import code_of
from dagster_ips.orchestration.watch.failed_runs import WHOLE, failed_among, tried_runs
from dagster_ips.orchestration.watch.outside_changes import definition_text
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs


class BlockedCondition(BoundCondition):
    """True while a failed asset waits for its retry: longer each time, and permanently after five failures.

    A run in which the asset yielded nothing counts like a failure. Each partition waits separately, so that the others
    continue. New data upstream, a new code version or a manual materialization resets the count.
    """

    name = "dagster_ips_blocked"
    description = "Failed or yielded nothing, and waiting for a retry, new data, new code or a manual run"

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """The partitions that wait; for an asset without partitions, all of it or nothing."""
        watched, view = self.watched_by(context), context.asset_graph_view
        # Without candidates there is nothing to hold back; this saves two queries for each idle asset.
        if watched is None or context.candidate_subset.is_empty:
            return AutomationResult(context, context.get_empty_subset(), cursor=context.cursor)
        partitioned = context.partitions_def
        tried = tried_runs(view.instance, context.key, is_partitioned=partitioned is not None)
        failed = failed_among(tried, view.instance, context.key)
        watched.watched.failed[watched.name] = {key: record.dagster_run.run_id for key, record in failed.items()}
        states = retry_states(json.loads(context.cursor) if context.cursor else {}, tried)
        asked = context.candidate_subset.expensively_compute_partition_keys() if partitioned and failed else {WHOLE}
        retried = sorted(asked & failed.keys())
        fingerprints = self._fingerprints(context, watched, retried) if retried else {}
        blocked = count_failures(states, {key: failed[key] for key in retried}, fingerprints, context.evaluation_time)
        if partitioned and blocked:
            subset = view.get_subset_from_partition_keys(context.key, partitioned, blocked)
        else:
            subset = context.candidate_subset if blocked else context.get_empty_subset()
        return AutomationResult(context, subset, cursor=json.dumps(as_plain(states)))

    def _fingerprints(
        self, context: AutomationContext[dg.AssetKey], watched: WatchedInputs, keys: Sequence[str]
    ) -> dict[str, str]:
        """What a retry depends on; empty while that can't be read.

        That is the newest changes of the inputs, what persons asked for, the code and the declaration, with its
        policies and partitions.
        """
        found: dict[str, Any]
        try:
            if keys == [WHOLE]:
                tables = watched.tables(tick=context.evaluation_time)
                heads = {
                    f"{tracked.table} {tracked.ref}": str(tables[tracked.table].head_snapshot_id(tracked.ref))
                    for tracked in watched.inputs
                    if tracked.table in tables
                }
                cursors = watched.watched.cursors(context.asset_graph_view.instance, tick=context.evaluation_time)
                found = {WHOLE: [heads, [each.id for each in cursors[watched.name].requests]]}
            else:
                found = dict(
                    watched.changes(
                        context.asset_graph, context.asset_graph_view.instance, keys, tick=context.evaluation_time
                    )
                )
        except IpsError:
            return {}
        node = context.asset_graph.get(context.key)
        definition = "" if node.partitions_def is None else definition_text(node.partitions_def)
        policies = [repr(tracked.policies) for tracked in watched.inputs]
        code = [code_of(node.code_version, node.metadata), watched.consumer.maker.declared, definition, policies]
        return {key: digest(json.dumps([changes, *code])) for key, changes in found.items()}


def blocked_at_last_tick(instance: DagsterInstance, asset: dg.AssetKey) -> frozenset[str]:
    """The partitions that automation held back in its last evaluation; ``""`` stands for an asset without partitions.

    Empty if nothing is held back, or if the asset was never evaluated.
    """
    storage = instance.schedule_storage
    records = storage.get_auto_materialize_asset_evaluations(asset, limit=1) if storage else ()
    for record in records:
        for node in record.get_evaluation_with_run_ids().evaluation.iter_nodes():
            if node.condition_snapshot.class_name == BlockedCondition.__name__ and not node.true_subset.is_empty:
                subset = node.true_subset
                return frozenset(subset.subset_value.get_partition_keys() if subset.is_partitioned else [WHOLE])
    return frozenset()


def retry_states(stored: Mapping[str, Any], tried: Mapping[str, RunRecord]) -> dict[str, RetryState]:
    """The ``stored`` retry states of what is still failed, or tried again right now."""
    return {key: RetryState(**each) for key, each in stored.items() if key in tried and isinstance(each, dict)}


def count_failures(
    states: dict[str, RetryState], failed: Mapping[str, RunRecord], fingerprints: Mapping[str, str], now: dt.datetime
) -> set[str]:
    """Count the ``failed`` runs in ``states``; returns which of them aren't to be tried again yet."""
    blocked = set()
    for key, record in failed.items():
        run, known = record.dagster_run, states.get(key, RetryState())
        states[key] = known.after_failure(
            fingerprints.get(key, known.fingerprint),
            run.run_id,
            is_alone=run.tags.get(RANGE_START_TAG) == run.tags.get(RANGE_END_TAG),
        )
        if states[key].is_blocked(seconds_since_failure=now.timestamp() - (record.end_time or 0.0)):
            blocked.add(key)
    return blocked


def as_plain(states: Mapping[str, RetryState]) -> dict[str, dict[str, Any]]:
    """``states`` as they are stored."""
    return {key: asdict(each) for key, each in states.items()}
