"""What sensors and conditions watch: the catalog pointers of the tables that consumers read incrementally."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import dagster as dg
from dagster import DagsterInstance

from dagster_ips.core.backlog import Backlog, backlog
from dagster_ips.core.capture import EdgeState, TargetMark
from dagster_ips.core.code_of_rows import OlderRows
from dagster_ips.core.edge import Edge
from dagster_ips.core.target import TargetHistory, settle, unexpected_change, without_target
from dagster_ips.errors import DeclarationError, ForeignWriteError, IpsError
from dagster_ips.exactly_once.capture.pending_partitions import PartitionWatch
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.target_table.target_ownership import require_known_writes
from dagster_ips.iceberg.catalog import LakeCatalog, Located
from dagster_ips.iceberg.code_stamps import older_rows_of
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import taken_back, target_history
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.declare.argument_types import is_whole_number, require_duration
from dagster_ips.orchestration.declare.consumers import Consumer
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.platform.resources import IcebergCatalog
from dagster_ips.orchestration.watch.last_published import last_published

_Found = TypeVar("_Found")


@dataclass
class WatchedTables:
    """The tables of one catalog that any consumer watches, and the consumers' edges.

    A tick reads all pointers with one query and all cursors with another. ``errors`` has the consumers for which it is
    unknown what they have to consume, until the sensor has reported them, because a condition can't write to the tick's
    log. ``failed`` has, by consumer, the runs in which its partitions failed last, as its condition found them.
    ``intact`` has, by consumer, its table's head when the table last had all partitions as they were published.
    """

    catalog: IcebergCatalog
    names: set[str] = field(default_factory=set)
    edges: set[Edge] = field(default_factory=set)
    errors: dict[str, IpsError] = field(default_factory=dict)
    failed: dict[str, Mapping[str, str]] = field(default_factory=dict)
    intact: dict[str, int | None] = field(default_factory=dict)
    _found: dict[str, tuple[object, Any]] = field(default_factory=dict)

    def once(self, name: str, of: object, find: Callable[[], _Found]) -> _Found:
        """What ``find`` finds under this name, found anew only once it is asked for ``of`` something else."""
        known = self._found.get(name)
        if known is None or known[0] != of:
            known = self._found[name] = (of, find())
        found: _Found = known[1]
        return found

    def located(self, *, tick: dt.datetime) -> Located:
        """Where each table's current metadata.json is, as of the beginning of ``tick``."""
        return self.once("located", tick, lambda: self.catalog.open_for_ticks().locate(sorted(self.names)))

    def storage(self, *, tick: dt.datetime) -> Storage:
        """Reads the tables' files for ``tick``, and each manifest once: many consumers are made of the same changes."""
        return self.once("storage", tick, lambda: self.catalog.open_for_ticks().storage.reading_once())  # noqa: PLW0108  # it may have to connect

    def moved(self, names: Iterable[str], *, tick: dt.datetime) -> bool:
        """Whether any of the tables ``names`` has changed since ``tick`` read the pointers."""
        then, now = self.located(tick=tick).found, self.catalog.open_for_ticks().locate(sorted(names)).found
        return any(then.get(name) != now.get(name) for name in names)

    def pointers(self) -> Mapping[str, str]:
        """Where each table's current metadata.json is now, without tables for which that is unknown."""
        return self.catalog.open_for_ticks().locate(sorted(self.names)).found

    def table(self, name: str, *, tick: dt.datetime) -> TableMetadata | None:
        """A table's metadata as of the beginning of ``tick``; None if there is no such table.

        Raises:
            IpsError: the metadata's location is unknown, or it can't be read.
        """
        located = self.located(tick=tick)
        if name in located.errors:
            raise located.errors[name]
        location = located.found.get(name)
        return metadata_at(self.catalog.open_for_ticks(), name, location) if location else None

    def states(self, store: CursorStore, *, tick: dt.datetime) -> Mapping[Edge, EdgeState]:
        """What each edge had consumed at the beginning of ``tick``."""
        return self.once("states", tick, lambda: store.get_many(sorted(self.edges, key=str)))


@dataclass(frozen=True)
class WatchedInputs:
    """A consumer's incremental inputs, and the watched tables of the catalog that they are in."""

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
        """The inputs, without their slicing."""
        return tuple(self.consumer.inputs.values())

    def edge(self, tracked: TrackedInput) -> Edge:
        """The edge of the input, by which captures are numbered."""
        return Edge(self.name, tracked.upstream)

    def tables(self, *, tick: dt.datetime) -> Mapping[str, TableMetadata]:
        """The metadata of the inputs' tables and the consumer's own table, by name, without those that don't exist.

        Raises:
            IpsError: the location of one of them is unknown, or it can't be read.
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
        """The partitions of a partitioned consumer that have something to consume; None while an input has no table.

        This looks for changes in the tables and stores what it finds.
        """
        tables = self.tables(tick=tick)
        if any(tracked.table not in tables for tracked in self.inputs):
            return None
        storage, target = self.watched.storage(tick=tick), tables.get(self.consumer.table)
        newest = self.watched.catalog.open_for_ticks().find
        watch = PartitionWatch(storage, CursorStore(instance), self.name, target, newest)
        tracked = self.consumer.tracked(graph, instance).values()
        found = frozenset[str]().union(*[watch.pending(each, tables[each.table]) for each in tracked])
        return found | self.taken_away(graph, instance, target) if target is not None else found

    def taken_away(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        target: TableMetadata,
    ) -> frozenset[str]:
        """The partitions that the table no longer has as they were published, because someone took commits back.

        It was rolled back, or an older version of it was registered. Their runs are refused, with the reason. Nothing
        else would show it as long as their inputs don't change.
        """
        intact, there = self.watched.intact, _ids_on_main(target)
        if there.issuperset(target.snapshots) and intact.get(self.name) in there:
            return frozenset()  # No commit was taken back, so no partition's state needs to be read.
        marks = self.published(graph, instance, target)
        if any(mark is not None and target.predates(mark) for mark in marks.values()):
            # A run may have published since the tick began.
            target = self.watched.catalog.open_for_ticks().find(target.table) or target
            there = _ids_on_main(target)
        history, edge = TargetHistory(target.uuid, target.ancestry(), None), self.edge(self.inputs[0])
        absent = {key: mark for key, mark in marks.items() if mark is not None and mark.snapshot_id not in there}
        gone = frozenset(
            key
            for key, mark in absent.items()
            if key is not None and unexpected_change(EdgeState(edge, target=mark), history)
        )
        if not gone:
            intact[self.name] = target.head_snapshot_id()
        return gone

    def published(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        target: TableMetadata,
    ) -> Mapping[str | None, TargetMark | None]:
        """As ``last_published``, read again only once the table has changed."""

        def find() -> Mapping[str | None, TargetMark | None]:
            storage = self.watched.catalog.open_for_ticks().storage
            return last_published(self.consumer, graph, instance, storage, target)

        return self.watched.once(f"published: {self.name}", target.metadata_location, find)

    def older_rows(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        target: TableMetadata,
        code: str | None,
    ) -> OlderRows | None:
        """As ``older_rows_of``, found anew only once the table, the code or the declaration has changed."""
        declared = self.consumer.maker.declared
        published = partial(self.published, graph, instance, target)
        find = partial(older_rows_of, target, code, declared=declared, published=published)
        return self.watched.once(f"older rows: {self.name}", (target.metadata_location, code, declared), find)

    def require_known_writes(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        *,
        tick: dt.datetime,
    ) -> None:
        """Fail if someone else changed rows of the consumer's table, as its next run would.

        Raises:
            ForeignWriteError: someone did.
            IpsError: the table can't be read.
        """
        target = self.watched.table(self.consumer.table, tick=tick)
        if target is None:
            return
        if not self.consumer.is_partitioned:
            stored = self.watched.states(CursorStore(instance), tick=tick)
            require_known_writes(target, self.name, [stored[self.edge(tracked)] for tracked in self.inputs])
            return

        def find() -> ForeignWriteError | None:
            edge, marks = self.edge(self.inputs[0]), self.published(graph, instance, target)
            states = [EdgeState(edge.of(key), target=mark) for key, mark in marks.items() if key is not None]
            try:
                require_known_writes(target, self.name, states)
            except ForeignWriteError as error:
                return error
            return None

        if error := self.watched.once(f"foreign writes: {self.name}", target.metadata_location, find):
            raise error

    def unreached(self, instance: DagsterInstance) -> tuple[str, ...]:
        """Texts on rows that no run will take, because they have unknown partitions or none, as of the last look."""
        store = CursorStore(instance)
        return tuple(text for each in self.inputs for text in each.unreached(store.get_line(self.edge(each))))

    def changes(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        partitions: Iterable[str],
    ) -> dict[str, list[object]]:
        """By partition: for each upstream, the newest changes that affect it and any losses, as of the last look."""
        found: dict[str, list[object]] = {partition: [] for partition in partitions}
        for tracked in self.consumer.tracked(graph, instance).values():
            line = CursorStore(instance).get_line(self.edge(tracked))
            touched, losses = line.touched, [line.losses] if line.losses else []
            for partition, changes in found.items():
                keys = sorted(tracked.known_slicing.taken_by(partition) & touched.keys())
                newest = [[key, str(touched[key].last.snapshot_id)] for key in keys]
                changes.append([tracked.upstream, newest, *losses])
        return found

    def backlogs(self, store: CursorStore, *, tick: dt.datetime) -> Mapping[str, Backlog] | None:
        """The backlog of each upstream; None while any upstream has no table, because all are captured together."""
        tables = self.tables(tick=tick)
        if any(tracked.table not in tables for tracked in self.inputs):
            return None
        states = self.watched.states(store, tick=tick)
        target, found = tables.get(self.consumer.table), dict[str, Backlog]()
        for tracked in self.inputs:
            state, source = self.as_in_target(states[self.edge(tracked)], target), tables[tracked.table]
            if state.committed is not None and source.predates(state.committed):
                # A run has consumed more since the tick began. To this tick, the table would look rolled back.
                source = self.watched.catalog.open_for_ticks().find(tracked.table) or source
            ancestry = source.ancestry(tracked.ref)
            found[tracked.upstream] = backlog(state, table_uuid=source.uuid, ancestry=ancestry)
        return found

    def as_in_target(self, state: EdgeState, target: TableMetadata | None) -> EdgeState:
        """As the function ``as_in_target``, for a ``target`` as of the beginning of the tick."""
        if target is None or state.target is None or not target.predates(state.target):
            return as_in_target(state, target)
        now = self.watched.catalog.open_for_ticks().find(target.table)
        # If no run has published since the tick began, someone has registered an older version of the table.
        is_gone = now is not None and now.predates(state.target)
        return without_target(state) if is_gone else as_in_target(state, now)


ByAsset: TypeAlias = Mapping[dg.AssetKey, WatchedInputs]
"""What is watched for each consumer."""


def as_in_target(state: EdgeState, target: TableMetadata | None) -> EdgeState:
    """``state`` as far as the consumer's table ``target`` holds it: nothing is consumed if that table is gone.

    Neither if the table was created again or rolled back: a run is then refused, with the reason. If a revert was
    killed before it stored the new state, the reverted one, by which less is consumed.
    """
    if target is None or _is_unexpected(state, target):
        return without_target(state)
    return settle(state, target_history(target, state.edge)) if taken_back(target, state.edge) else state


def _ids_on_main(table: TableMetadata) -> set[int]:
    return {snapshot.snapshot_id for snapshot in table.ancestry().snapshots}


def _is_unexpected(state: EdgeState, target: TableMetadata) -> bool:
    mark = state.target
    if mark is None or mark.snapshot_id == target.head_snapshot_id():
        return False
    return not target.predates(mark) and unexpected_change(state, target_history(target, state.edge)) is not None


def require_limits(min_bytes: object, max_wait: dt.timedelta | None, *, of: str) -> None:
    """Fail unless the limits on a backlog can be reached: each is positive, or None.

    Raises:
        DeclarationError: one can't be.
    """
    remedy = "Give a positive one, or leave it out."
    if min_bytes is not None and not (is_whole_number(min_bytes) and min_bytes > 0):
        raise DeclarationError(asset=of, problem=f"min_bytes={min_bytes!r} isn't a valid limit.", remedy=remedy)
    if max_wait is not None:
        require_duration(max_wait, "max_wait", of=of)
        if max_wait <= dt.timedelta(0):
            raise DeclarationError(asset=of, problem=f"max_wait={max_wait} isn't a valid limit.", remedy=remedy)


def require_no_limits(watched: WatchedInputs, *limits: object) -> None:
    """Fail if a partitioned asset has limits on its backlog, because a backlog isn't measured by partition.

    Raises:
        DeclarationError: it has limits.
    """
    if watched.consumer.is_partitioned and any(limit is not None for limit in limits):
        raise DeclarationError(
            asset=watched.name,
            problem="it is partitioned, but min_bytes and max_wait work only for assets without partitions.",
            remedy="Leave them out; to run less often, use ips.on_change() & "
            'AutomationCondition.cron_tick_passed("@hourly"), or interval_seconds of a pending_sensor().',
        )


@lru_cache(maxsize=1024)
def metadata_at(lake: LakeCatalog, table: str, location: str) -> TableMetadata:
    """The metadata at ``location``. Metadata files never change, so a tick that finds the same pointer reads nothing.

    Raises:
        MetadataUnreadableError, UnsupportedTableError: see ``TableMetadata.parse``.
    """
    return TableMetadata.parse(table, location, lake.storage.read(location, table=table))
