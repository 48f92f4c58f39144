"""With which snapshots of a consumer's table its partitions were last published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster import DagsterInstance

from dagster_ips.core.capture import TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.exactly_once.capture.pending_partitions import PartitionWatch
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.declare.consumers import Consumer
from dagster_ips.orchestration.platform.cursor_store import CursorStore


def last_published(
    consumer: Consumer,
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    instance: DagsterInstance,
    storage: Storage,
    target: TableMetadata,
) -> Mapping[str | None, TargetMark | None]:
    """The snapshot of ``target`` by partition, the key is None without partitions; only what was ever computed."""
    store, first = CursorStore(instance), next(iter(consumer.tracked(graph, instance).values()))
    if consumer.is_partitioned:
        return PartitionWatch(storage, store, consumer.name, target).published(first)
    state = store.get(Edge(consumer.name, first.upstream))
    return {None: state.target} if state.committed is not None else {}
