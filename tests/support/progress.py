"""What an asset has consumed, as Dagster's copy or its table says."""

from __future__ import annotations

import dagster as dg

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import known_progress, state_of
from dagster_ips.progress.table_progress import table_progress


def copied_state(instance: dg.DagsterInstance, edge: Edge) -> EdgeState:
    """How far ``edge`` is by the copy in Dagster's storage; nothing if there is none."""
    copy = CursorStore(instance).get(edge.consumer).copy
    return copy.progress.state(edge, copy.mark) if copy is not None else EdgeState(edge)


def state_in(lake: LakeCatalog, table: str, edge: Edge, instance: dg.DagsterInstance | None = None) -> EdgeState:
    """How far ``edge`` is by its consumer's ``table``, and what persons asked for, as the next run finds it."""
    target, storage = lake.find(table), lake.storage
    found = table_progress(target, asset=edge.consumer, storage=storage)
    if instance is None:
        return found.progress.state(edge, found.mark) if found is not None else EdgeState(edge)
    cursor = CursorStore(instance).get(edge.consumer)
    return state_of(edge, known_progress(found, cursor, target), cursor)
