"""The runs in which an asset, or partitions of it, were tried last without being materialized."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus, RunRecord

from dagster_ips.orchestration.platform.staged_run import STAGED_TAG

_OVER = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED, DagsterRunStatus.SUCCESS)
WHOLE = ""
"""The key that stands for an asset without partitions."""


def failed_runs(instance: DagsterInstance, asset: dg.AssetKey, *, is_partitioned: bool) -> Mapping[str, RunRecord]:
    """The newest run of each partition, if it ended without materializing it; the key is ``""`` without partitions.

    A run that succeeded is among them if the asset, which doesn't require an output, yielded none: like a failed one,
    it consumed nothing, and another try may end in the same way.

    Runs in which the asset's own step never began, because another step failed or yielded nothing, don't count. Neither
    do staged runs, which write to branches.
    """
    return failed_among(tried_runs(instance, asset, is_partitioned=is_partitioned), instance, asset)


def tried_runs(instance: DagsterInstance, asset: dg.AssetKey, *, is_partitioned: bool) -> Mapping[str, RunRecord]:
    """The newest run of each partition, if it hasn't materialized it, or not yet: it may be at work."""
    return _tried_partitions(instance, asset) if is_partitioned else _tried_asset(instance, asset)


def failed_among(
    tried: Mapping[str, RunRecord], instance: DagsterInstance, asset: dg.AssetKey
) -> Mapping[str, RunRecord]:
    """Those of ``tried_runs`` that ``failed_runs`` returns."""
    found = {key: record for key, record in tried.items() if record.dagster_run.status in _OVER}
    runs = {record.dagster_run.run_id: record.dagster_run for record in found.values()}
    skipped = {run_id for run_id, run in runs.items() if STAGED_TAG in run.tags or _was_skipped(instance, run, asset)}
    return {key: record for key, record in found.items() if record.dagster_run.run_id not in skipped}


def runs_that_failed(found: Mapping[str, RunRecord]) -> Mapping[str, str]:
    """The ids of those of ``failed_runs`` that failed or were canceled, by partition."""
    return {key: each.dagster_run.run_id for key, each in found.items() if not each.dagster_run.is_success}


def runs_without_output(found: Mapping[str, RunRecord]) -> Mapping[str, str]:
    """The ids of those of ``failed_runs`` that succeeded, although the asset yielded nothing, by partition."""
    return {key: each.dagster_run.run_id for key, each in found.items() if each.dagster_run.is_success}


def _was_skipped(instance: DagsterInstance, run: dg.DagsterRun, asset: dg.AssetKey) -> bool:
    """Whether the asset's own step, or each step of its graph, never began because of another step."""
    if len(run.asset_selection or ()) == 1:
        return False
    kind = dg.DagsterEventType
    planned, start, failure = kind.ASSET_MATERIALIZATION_PLANNED, kind.STEP_START, kind.STEP_FAILURE
    logged = instance.all_logs(run.run_id, of_type={planned, start, failure})
    events = [entry.dagster_event for entry in logged if entry.dagster_event]
    own = {_node(each) for each in events if each.event_type is planned and each.asset_key == asset}
    began = any(each.event_type is start and _node(each) in own for each in events)
    return not began and (run.is_success or any(each.event_type is failure for each in events))


def _node(event: dg.DagsterEvent) -> str:
    """The op or the graph that an event's step belongs to; a step of a graph is called ``graph.op``."""
    return (event.step_key or "").partition(".")[0]


def _tried_asset(instance: DagsterInstance, asset: dg.AssetKey) -> Mapping[str, RunRecord]:
    planned = instance.event_log_storage.get_latest_planned_materialization_info(asset)
    record = instance.get_run_record_by_id(planned.run_id) if planned else None
    if planned is None or record is None:
        return {}
    of_asset = instance.get_asset_records([asset])
    materialized = of_asset[0].asset_entry.last_materialization_storage_id if of_asset else None
    return {} if materialized is not None and materialized > planned.storage_id else {WHOLE: record}


def _tried_partitions(instance: DagsterInstance, asset: dg.AssetKey) -> Mapping[str, RunRecord]:
    storage = instance.event_log_storage
    tried = storage.get_latest_asset_partition_materialization_attempts_without_materializations(asset)
    if not tried:
        return {}
    of_tries = dg.RunsFilter(run_ids=sorted({run_id for run_id, _ in tried.values()}))
    records = {record.dagster_run.run_id: record for record in instance.get_run_records(of_tries)}
    return {key: records[run_id] for key, (run_id, _) in tried.items() if run_id in records}
