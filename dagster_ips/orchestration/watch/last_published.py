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
    store = CursorStore(instance)
    found: dict[str | None, TargetMark | None] = {}
    # A partition has the same mark for all of its inputs, but none for a table that had no snapshot yet.
    for tracked in consumer.tracked(graph, instance).values():
        if consumer.is_partitioned:
            marks = PartitionWatch(storage, store, consumer.name, target).published(tracked)
        else:
            state = store.get(Edge(consumer.name, tracked.upstream))
            marks = {None: state.target} if state.committed is not None else {}
        found |= {key: mark for key, mark in marks.items() if found.get(key) is None}
    return found
