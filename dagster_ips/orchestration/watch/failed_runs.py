"""The runs in which an asset, or partitions of it, failed last."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunRecord

from dagster_ips.orchestration.platform.staged_run import STAGED_TAG

_FAILED = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
WHOLE = ""
"""The key that stands for an asset without partitions."""


def failed_runs(instance: DagsterInstance, asset: dg.AssetKey, *, is_partitioned: bool) -> Mapping[str, RunRecord]:
    """The newest run of each partition, if it failed before it materialized it; the key is ``""`` without partitions.

    Runs in which another step failed before the asset's own step began don't count. Neither do staged runs, which write
    to branches.
    """
    found = _failed_partitions(instance, asset) if is_partitioned else _failed_asset(instance, asset)
    runs = {record.dagster_run.run_id: record.dagster_run for record in found.values()}
    skipped = {run_id for run_id, run in runs.items() if STAGED_TAG in run.tags or _was_skipped(instance, run, asset)}
    return {key: record for key, record in found.items() if record.dagster_run.run_id not in skipped}


def _was_skipped(instance: DagsterInstance, run: dg.DagsterRun, asset: dg.AssetKey) -> bool:
    """Whether another step failed and the asset's own step never began."""
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
    """The newest run of an asset without partitions, if it failed before it materialized the asset."""
    planned = instance.event_log_storage.get_latest_planned_materialization_info(asset)
    record = instance.get_run_record_by_id(planned.run_id) if planned else None
    if record is None or record.dagster_run.status not in _FAILED:
        return {}
    materialized = instance.get_latest_materialization_event(asset)
    succeeded = materialized is not None and materialized.run_id == record.dagster_run.run_id
    return {} if succeeded else {WHOLE: record}


def _failed_partitions(instance: DagsterInstance, asset: dg.AssetKey) -> Mapping[str, RunRecord]:
    storage = instance.event_log_storage
    tried = storage.get_latest_asset_partition_materialization_attempts_without_materializations(asset)
    if not tried:
        return {}
    failed = dg.RunsFilter(run_ids=sorted({run_id for run_id, _ in tried.values()}), statuses=list(_FAILED))
    records = {record.dagster_run.run_id: record for record in instance.get_run_records(failed)}
    return {key: records[run_id] for key, (run_id, _) in tried.items() if run_id in records}
