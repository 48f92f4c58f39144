"""What the sensors and conditions look at: the tables that consumers read incrementally, by their catalog pointers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from dagster_ips.core.backlog import Backlog, backlog
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.target import settle
from dagster_ips.errors import DeclarationError, IpsError
from dagster_ips.exactly_once.capture.pending_partitions import PartitionWatch
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.catalog import LakeCatalog, Located
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import taken_back, target_history
from dagster_ips.orchestration.declare.consumers import Consumer
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.platform.resources import IcebergCatalog


@dataclass
class WatchedTables:
    """The tables of one catalog that any consumer watches, and the consumers' edges.

    A tick asks for all pointers by one query and for all cursors by another. ``errors`` say of which consumers it
    couldn't be told what they have to consume, until the sensor has said so: a condition's own log isn't the tick's.
    ``failed`` are the runs in which partitions of a consumer failed last, as its condition saw it.
    """

    catalog: IcebergCatalog
    names: set[str] = field(default_factory=set)
    edges: set[Edge] = field(default_factory=set)
    errors: dict[str, IpsError] = field(default_factory=dict)
    failed: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _located: tuple[dt.datetime, Located] | None = None
    _states: tuple[dt.datetime, Mapping[Edge, EdgeState]] | None = None

    def located(self, *, tick: dt.datetime) -> Located:
        """Where each table has its current metadata.json, as ``tick`` began."""
        last = self._located
        if last is None or last[0] != tick:
            last = self._located = (tick, self.catalog.open_for_ticks().locate(sorted(self.names)))
        return last[1]

    def moved(self, *, tick: dt.datetime) -> bool:
        """Whether any table has changed since ``tick`` looked."""
        return self.located(tick=tick).found != self.pointers()

    def pointers(self) -> Mapping[str, str]:
        """Where each table has its current metadata.json now, without those for which that is unknown."""
        return self.catalog.open_for_ticks().locate(sorted(self.names)).found

    def table(self, name: str, *, tick: dt.datetime) -> TableMetadata | None:
        """A table's metadata as ``tick`` began; None if there is no such table.

        Raises:
            IpsError: it is unknown or can't be read.
        """
        located = self.located(tick=tick)
        if name in located.errors:
            raise located.errors[name]
        location = located.found.get(name)
        return metadata_at(self.catalog.open_for_ticks(), name, location) if location else None

    def states(self, store: CursorStore, *, tick: dt.datetime) -> Mapping[Edge, EdgeState]:
        """What each edge had consumed, as ``tick`` began."""
        last = self._states
        if last is None or last[0] != tick:
            last = self._states = (tick, store.get_many(sorted(self.edges, key=str)))
        return last[1]


@dataclass(frozen=True)
class WatchedInputs:
    """A consumer's incremental inputs, among the tables that are watched in their catalog."""

    watched: WatchedTables
    consumer: Consumer

    def __post_init__(self) -> None:
        self.watched.names.update([self.consumer.table, *(tracked.table for tracked in self.inputs)])
        if not self.consumer.is_partitioned:
            self.watched.edges.update(self.edge(tracked) for tracked in self.inputs)

    @property
    def name(self) -> str:
        """The consumer's asset key as text."""
        return self.consumer.name

    @property
    def inputs(self) -> Sequence[TrackedInput]:
        """The inputs; how partitions are made of them isn't said."""
        return tuple(self.consumer.inputs.values())

    def edge(self, tracked: TrackedInput) -> Edge:
        """What captures of the input are numbered by."""
        return Edge(self.name, tracked.upstream)

    def tables(self, *, tick: dt.datetime) -> Mapping[str, TableMetadata]:
        """The metadata of the inputs' tables and the consumer's own by name, without those that don't exist.

        Raises:
            IpsError: one of them is unknown or can't be read.
        """
        lake, located = self.watched.catalog.open_for_ticks(), self.watched.located(tick=tick)
        names = sorted({*[tracked.table for tracked in self.inputs], self.consumer.table})
        if errors := [located.errors[table] for table in names if table in located.errors]:
            raise errors[0]
        return {table: metadata_at(lake, table, located.found[table]) for table in names if table in located.found}

    def pending_partitions(
        self,
        graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
        instance: DagsterInstance,
        *,
        tick: dt.datetime,
    ) -> frozenset[str] | None:
        """The partitions of a partitioned consumer that have something to consume; None as long as a table isn't there.

        What changed is found by looking at the tables, and remembered.
        """
        tables = self.tables(tick=tick)
        if any(tracked.table not in tables for tracked in self.inputs):
            return None
        storage, target = self.watched.catalog.open_for_ticks().storage, tables.get(self.consumer.table)
        watch = PartitionWatch(storage, CursorStore(instance), self.name, target)
        tracked = self.consumer.tracked(graph, instance).values()
        return frozenset[str]().union(*[watch.pending(each, tables[each.table]) for each in tracked])

    def unread(self, instance: DagsterInstance) -> tuple[str, ...]:
        """What is to be said of files whose partitions aren't known, as it was looked last; nothing where all are."""
        lines = [CursorStore(instance).get_line(self.edge(tracked)) for tracked in self.inputs]
        return tuple(line.unread_text for line in lines if line.unread)

    def changes(self, graph: Any, instance: DagsterInstance, partition: str) -> list[object]:  # noqa: ANN401  # as above
        """What the newest changes are of which the partition of a partitioned consumer is made, as it was looked."""
        found: list[object] = []
        for tracked in self.consumer.tracked(graph, instance).values():
            touched = CursorStore(instance).get_line(self.edge(tracked)).touched
            assert tracked.slicing is not None  # noqa: S101  # the consumer is partitioned
            keys = sorted(tracked.slicing.taken_by(partition) & touched.keys())
            found.append([tracked.upstream, [[key, str(touched[key].last.snapshot_id)] for key in keys]])
        return found

    def backlogs(self, store: CursorStore, *, tick: dt.datetime) -> Mapping[str, Backlog] | None:
        """What waits of each upstream; None as long as a table isn't there, because all are captured together."""
        tables = self.tables(tick=tick)
        if any(tracked.table not in tables for tracked in self.inputs):
            return None
        states = self.watched.states(store, tick=tick)
        target = tables.get(self.consumer.table)
        return {
            tracked.upstream: backlog(
                _unless_taken_back(states[self.edge(tracked)], target),
                table_uuid=tables[tracked.table].uuid,
                ancestry=tables[tracked.table].ancestry(tracked.ref),
            )
            for tracked in self.inputs
        }


def _unless_taken_back(state: EdgeState, target: TableMetadata | None) -> EdgeState:
    """``state``, or what a revert made of it that was killed before it said so there: less is consumed then."""
    is_back = target is not None and bool(taken_back(target, state.edge))
    return settle(state, target_history(target, state.edge)) if target is not None and is_back else state


def require_watched(watched: WatchedInputs | None, key: dg.AssetKey) -> WatchedInputs:
    """What a condition of the asset ``key`` watches.

    Raises:
        DeclarationError: it wasn't told.
    """
    if watched is None:
        raise DeclarationError(
            asset=key.to_user_string(),
            problem="its automation condition checks for pending changes, but it has no known incremental input.",
            remedy="Pass the definitions through with_incremental(), and declare an input with incremental().",
        )
    return watched


def require_no_limits(watched: WatchedInputs, *limits: object) -> None:
    """Fail if there are limits on what waits of a partitioned asset: how much of it waits isn't counted by partition.

    Raises:
        DeclarationError: there are.
    """
    if watched.consumer.is_partitioned and any(limit is not None for limit in limits):
        raise DeclarationError(
            asset=watched.name,
            problem="it is partitioned, but min_bytes and max_wait work only for assets without partitions.",
            remedy="Leave them out; to run less often, add a cron condition: ips.pending() & "
            'AutomationCondition.cron_tick_passed("@hourly").',
        )


@lru_cache(maxsize=1024)
def metadata_at(lake: LakeCatalog, table: str, location: str) -> TableMetadata:
    """A metadata file never changes, so a tick that finds the same pointer reads nothing.

    Raises:
        MetadataUnreadableError, UnsupportedTableError: see ``TableMetadata.parse``.
    """
    return TableMetadata.parse(table, location, lake.storage.read(location, table=table))
