"""The condition that keeps what failed from being tried again at once, and for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import dagster as dg
from dagster import (
    AutomationCondition,
    AutomationContext,
    AutomationResult,
    DagsterInstance,
    DagsterRunStatus,
    RunRecord,
)

from dagster_ips.core.retry import RetryState
from dagster_ips.errors import IpsError
from dagster_ips.orchestration.watching import WatchedInputs, require_watched

_FAILED = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
_WHOLE = ""
"""Stands for an asset without partitions where others have keys."""


class BlockedCondition(AutomationCondition[dg.AssetKey]):
    """True while what failed waits before it is tried again: longer each time, and for good after five failures.

    Each partition by itself, so that the others go on. New data upstream or a new code version starts the count afresh;
    so does a person who materialises it.
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
        """All of an asset without partitions, or nothing of it; else the partitions that wait."""
        watched, view = require_watched(self._watched, context.key), context.asset_graph_view
        if context.candidate_subset.is_empty:  # Nothing to hold back: two queries less for each asset that is idle.
            return AutomationResult(context, context.candidate_subset, cursor=context.cursor)
        partitioned = context.partitions_def
        failed = failed_runs(view.instance, context.key, is_partitioned=partitioned is not None)
        watched.watched.failed[watched.name] = {key: record.dagster_run.run_id for key, record in failed.items()}
        states = _states(context.cursor, failed)
        asked = context.candidate_subset.expensively_compute_partition_keys() if partitioned and failed else {_WHOLE}
        blocked = set()
        for key in sorted(asked & failed.keys()):
            record = failed[key]
            states[key] = states.get(key, RetryState()).after_failure(
                self._fingerprint(context, watched, key), record.dagster_run.run_id
            )
            waited = context.evaluation_time.timestamp() - (record.end_time or 0.0)
            if states[key].is_blocked(seconds_since_failure=waited):
                blocked.add(key)
        if partitioned and blocked:
            subset = view.get_subset_from_partition_keys(context.key, partitioned, blocked)
        else:
            subset = context.candidate_subset if blocked else context.get_empty_subset()
        return AutomationResult(context, subset, cursor=_text(states))

    def _fingerprint(self, context: AutomationContext[dg.AssetKey], watched: WatchedInputs, key: str) -> str:
        found: Any
        try:
            if key is _WHOLE:
                tables = watched.tables(tick=context.evaluation_time)
                found = {
                    f"{tracked.table} {tracked.ref}": str(tables[tracked.table].head_snapshot_id(tracked.ref))
                    for tracked in watched.inputs
                    if tracked.table in tables
                }
            else:
                found = watched.changes(context.asset_graph, context.asset_graph_view.instance, key)
        except IpsError:  # Until it can be read again, one more try is as good as another.
            found = {}
        return json.dumps([found, context.asset_graph.get(context.key).code_version])


def failed_runs(instance: DagsterInstance, asset: dg.AssetKey, *, is_partitioned: bool) -> Mapping[str, RunRecord]:
    """By partition the newest run of it, where that failed before it materialised it; by ``""`` without partitions.

    A run in which another asset failed before its turn came says nothing of it.
    """
    found = _failed_partitions(instance, asset) if is_partitioned else _failed_asset(instance, asset)
    runs = {record.dagster_run.run_id: record.dagster_run for record in found.values()}
    skipped = {run_id for run_id, run in runs.items() if _was_skipped(instance, run, asset)}
    return {key: record for key, record in found.items() if record.dagster_run.run_id not in skipped}


def _was_skipped(instance: DagsterInstance, run: dg.DagsterRun, asset: dg.AssetKey) -> bool:
    """Whether another step failed, and the asset's own never began."""
    if len(run.asset_selection or ()) == 1:
        return False
    kind = dg.DagsterEventType
    planned, start, failure = kind.ASSET_MATERIALIZATION_PLANNED, kind.STEP_START, kind.STEP_FAILURE
    logged = instance.all_logs(run.run_id, of_type={planned, start, failure})
    events = [entry.dagster_event for entry in logged if entry.dagster_event]
    steps = {each.step_key for each in events if each.event_type is planned and each.asset_key == asset}
    began = any(each.event_type is start and each.step_key in steps for each in events)
    return not began and any(each.event_type is failure for each in events)


def _failed_asset(instance: DagsterInstance, asset: dg.AssetKey) -> Mapping[str, RunRecord]:
    """The newest run of an asset without partitions, if it failed before it materialised it."""
    planned = instance.event_log_storage.get_latest_planned_materialization_info(asset)
    record = instance.get_run_record_by_id(planned.run_id) if planned else None
    if record is None or record.dagster_run.status not in _FAILED:
        return {}
    materialized = instance.get_latest_materialization_event(asset)
    succeeded = materialized is not None and materialized.run_id == record.dagster_run.run_id
    return {} if succeeded else {_WHOLE: record}


def _failed_partitions(instance: DagsterInstance, asset: dg.AssetKey) -> Mapping[str, RunRecord]:
    storage = instance.event_log_storage
    tried = storage.get_latest_asset_partition_materialization_attempts_without_materializations(asset)
    if not tried:
        return {}
    failed = dg.RunsFilter(run_ids=sorted({run_id for run_id, _ in tried.values()}), statuses=list(_FAILED))
    records = {record.dagster_run.run_id: record for record in instance.get_run_records(failed)}
    return {key: records[run_id] for key, (run_id, _) in tried.items() if run_id in records}


def _states(cursor: str | None, failed: Mapping[str, RunRecord]) -> dict[str, RetryState]:
    """What was counted before of what is still failed."""
    stored = json.loads(cursor) if cursor else {}
    return {key: RetryState(**each) for key, each in stored.items() if key in failed and isinstance(each, dict)}


def _text(states: Mapping[str, RetryState]) -> str:
    return json.dumps({key: asdict(each) for key, each in states.items()})
