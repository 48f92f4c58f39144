"""Conditions that run exactly what is pending."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import dagster as dg
from dagster import AutomationCondition, AutomationContext, AutomationResult, DagsterRunStatus

from dagster_ips.core.edge import Edge
from dagster_ips.core.pending import is_pending
from dagster_ips.core.retry import RetryState
from dagster_ips.errors import DeclarationError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.consumers import Consumer
from dagster_ips.orchestration.cursor_store import CursorStore
from dagster_ips.orchestration.resources import IcebergCatalog
from dagster_ips.tracking.following import TrackedInput
from dagster_ips.tracking.pending_partitions import PartitionWatch

_FAILED = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)


@dataclass(frozen=True)
class WatchedInputs:
    """A consumer's incremental inputs and the catalog their tables are in."""

    catalog: IcebergCatalog
    consumer: Consumer

    @property
    def inputs(self) -> Sequence[TrackedInput]:
        """The inputs, without how partitions are made of them."""
        return tuple(self.consumer.inputs.values())

    def tables(self) -> Mapping[str, TableMetadata]:
        """The metadata of the inputs' tables by name, without those that don't exist."""
        lake = self.catalog.open()
        located = lake.metadata_locations([tracked.table for tracked in self.inputs])
        return {table: _metadata(lake, table, location) for table, location in located.items()}


@lru_cache(maxsize=512)
def _metadata(lake: LakeCatalog, table: str, location: str) -> TableMetadata:
    """A metadata file never changes, so a tick that finds the same pointer reads nothing."""
    return TableMetadata.parse(table, location, lake.storage.read(location, table=table))


class PendingCondition(AutomationCondition[dg.AssetKey]):
    """True while a capture of any of the asset's incremental inputs would find something.

    Not before every input's table is there: one capture is taken of all of them.
    """

    def __init__(self, watched: WatchedInputs | None = None) -> None:
        self._watched = watched

    @property
    def name(self) -> str:
        """The name in the UI, and how ``bind`` finds the condition."""
        return "dagster_ips_pending"

    @property
    def description(self) -> str:
        """What the UI shows."""
        return "An incremental input has changes that are not consumed"

    @property
    def requires_cursor(self) -> bool:
        """It decides from the tables and the cursors alone."""
        return False

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """All of an asset without partitions, or nothing of it; else the partitions that are pending."""
        watched = _require_watched(self._watched, context.key)
        store = CursorStore(context.asset_graph_view.instance)
        tables = watched.tables()
        if not all(tracked.table in tables for tracked in watched.inputs):
            return AutomationResult(context, context.get_empty_subset())
        if watched.consumer.is_partitioned:
            return AutomationResult(context, self._pending_partitions(context, watched, tables))
        pending = any(
            is_pending(
                store.get(Edge(watched.consumer.name, tracked.upstream)),
                table_uuid=tables[tracked.table].uuid,
                ancestry=tables[tracked.table].ancestry(tracked.ref),
            )
            for tracked in watched.inputs
        )
        return AutomationResult(context, context.candidate_subset if pending else context.get_empty_subset())

    def _pending_partitions(
        self, context: AutomationContext[dg.AssetKey], watched: WatchedInputs, tables: Mapping[str, TableMetadata]
    ) -> Any:  # noqa: ANN401  # Dagster's subset has no public type
        view, lake = context.asset_graph_view, watched.catalog.open()
        target = lake.find(watched.consumer.table)
        watch = PartitionWatch(lake.storage, CursorStore(view.instance), watched.consumer.name, target)
        inputs = watched.consumer.tracked(context.asset_graph, view.instance).values()
        pending = [watch.pending(tracked, tables[tracked.table]) for tracked in inputs]
        keys = set(frozenset[str]().union(*pending))
        assert context.partitions_def is not None  # noqa: S101  # the consumer is partitioned
        found = view.get_subset_from_partition_keys(context.key, context.partitions_def, keys)
        return context.candidate_subset.compute_intersection(found)


class BlockedCondition(AutomationCondition[dg.AssetKey]):
    """True while a failed asset waits before it is tried again: longer each time, and for good after five failures.

    New data upstream or a new code version starts the count afresh; so does a person who materialises the asset.
    """

    def __init__(self, watched: WatchedInputs | None = None) -> None:
        self._watched = watched

    @property
    def name(self) -> str:
        """The name in the UI, and how ``bind`` finds the condition."""
        return "dagster_ips_blocked"

    @property
    def description(self) -> str:
        """What the UI shows."""
        return "Failed, and waiting for its next try, for new data, new code or a person"

    def evaluate(self, context: AutomationContext[dg.AssetKey]) -> AutomationResult[dg.AssetKey]:
        """All of the asset, or nothing of it."""
        watched = _require_watched(self._watched, context.key)
        instance = context.asset_graph_view.instance
        state = RetryState(**json.loads(context.cursor)) if context.cursor else RetryState()
        planned = instance.event_log_storage.get_latest_planned_materialization_info(context.key)
        record = instance.get_run_record_by_id(planned.run_id) if planned else None
        materialized = instance.get_latest_materialization_event(context.key)
        succeeded = record and materialized and materialized.run_id == record.dagster_run.run_id
        if record is None or succeeded or record.dagster_run.status not in _FAILED:
            done = record is None or record.dagster_run.is_finished
            kept = RetryState() if done else state
            return AutomationResult(context, context.get_empty_subset(), cursor=json.dumps(asdict(kept)))
        state = state.after_failure(self._fingerprint(context, watched), record.dagster_run.run_id)
        waited = context.evaluation_time.timestamp() - (record.end_time or 0.0)
        blocked = state.is_blocked(seconds_since_failure=waited)
        subset = context.candidate_subset if blocked else context.get_empty_subset()
        return AutomationResult(context, subset, cursor=json.dumps(asdict(state)))

    def _fingerprint(self, context: AutomationContext[dg.AssetKey], watched: WatchedInputs) -> str:
        tables = watched.tables()
        heads = {
            f"{tracked.table} {tracked.ref}": str(tables[tracked.table].head_snapshot_id(tracked.ref))
            for tracked in watched.inputs
            if tracked.table in tables
        }
        return json.dumps([heads, context.asset_graph.get(context.key).code_version])


def pending() -> AutomationCondition[dg.AssetKey]:
    """An incremental input has changes that are not consumed. Joins with Dagster's conditions by ``&``, ``|``, ``~``.

    Example:
        >>> (pending() & AutomationCondition.cron_tick_passed("@hourly")).name
        'AND'
    """
    return PendingCondition()


def blocked() -> AutomationCondition[dg.AssetKey]:
    """The asset failed and waits: for its next try, and after five failures for data, code or a person."""
    return BlockedCondition()


def on_change() -> AutomationCondition[dg.AssetKey]:
    """Run when something is pending, unless the asset or one of its upstreams runs, or the asset is blocked."""
    return (
        pending() & ~AutomationCondition.in_progress() & ~AutomationCondition.any_deps_in_progress() & ~blocked()
    ).with_label("dagster_ips_on_change")


def bind(condition: AutomationCondition[dg.AssetKey], watched: WatchedInputs) -> AutomationCondition[dg.AssetKey]:
    """``condition`` with its parts of ours told what to watch."""
    for unbound in (PendingCondition(), BlockedCondition()):
        condition = condition.replace(unbound.name, type(unbound)(watched))
    return condition


def _require_watched(watched: WatchedInputs | None, key: dg.AssetKey) -> WatchedInputs:
    if watched is None:
        raise DeclarationError(
            asset=key.to_user_string(),
            problem="its automation condition asks what is pending, but it has no incremental input that is known.",
            remedy="Pass the definitions through with_incremental(), and declare an input by incremental().",
        )
    return watched
