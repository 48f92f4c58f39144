"""What sensors and conditions watch: the catalog pointers of the tables that consumers read incrementally."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import dagster as dg
from dagster import DagsterInstance

from dagster_ips.core.backlog import Backlog, backlog
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.code_of_rows import OlderRows
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    DeclarationError,
    IpsError,
    StateUnreadableError,
    TargetChangedError,
    UnknownPublicationError,
)
from dagster_ips.exactly_once.capture.changed_keys import keys_changed, keys_there
from dagster_ips.exactly_once.capture.partitioned_input import PartitionedInput, input_progress, look_at
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.target_table.target_ownership import require_known_writes
from dagster_ips.iceberg.catalog import LakeCatalog, Located
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.declare.argument_types import is_whole_number, require_duration
from dagster_ips.orchestration.declare.consumers import Consumer
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import SameKeys, partition_expression
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.platform.resources import IcebergCatalog
from dagster_ips.progress.cursor import Copy, Cursor, progress_of, state_of
from dagster_ips.progress.made_rows import older_rows_of
from dagster_ips.progress.table_progress import TableProgress

_DAY_MS = 86_400_000
_Found = TypeVar("_Found")


@dataclass
class WatchedTables:
    """The tables of one catalog that any consumer watches, and the consumers.

    A tick reads all pointers with one query and all cursors with another. ``errors`` has the consumers for which it is
    unknown what they have to consume, until the sensor has reported them, because a condition can't write to the tick's
    log. ``failed`` has, by consumer, the runs in which its partitions failed last, as its condition found them.
    """

    catalog: IcebergCatalog
    names: set[str] = field(default_factory=set)
    consumers: set[str] = field(default_factory=set)
    errors: dict[str, IpsError] = field(default_factory=dict)
    failed: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _found: dict[str, tuple[object, Any]] = field(default_factory=dict)

    def once(self, name: str, of: object, find: Callable[[], _Found]) -> _Found:
        """What ``find`` finds under this name, found anew only once it is asked for ``of`` something else."""
        known = self._found.get(name)
        if known is None or known[0] != of:
            known = self._found[name] = (of, find())
        found: _Found = known[1]
        return found

    def forget(self, name: str) -> None:
        """Forget what ``once`` has found under this name."""
        self._found.pop(name, None)

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

    def cursors(self, instance: DagsterInstance, *, tick: dt.datetime) -> Mapping[str, Cursor]:
        """The cursor of each consumer at the beginning of ``tick``."""
        return self.once("cursors", tick, lambda: CursorStore(instance).get_many(sorted(self.consumers)))


@dataclass(frozen=True)
class WatchedInputs:
    """A consumer's incremental inputs, and the watched tables of the catalog that they are in."""

    watched: WatchedTables
    consumer: Consumer

    def __post_init__(self) -> None:
        self.watched.names.update([self.consumer.table, *(tracked.table for tracked in self.inputs)])
        self.watched.consumers.add(self.name)

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

    def known(self, instance: DagsterInstance, *, tick: dt.datetime) -> TableProgress | None:
        """What the consumer's table contains; None if nothing says so, and its next run has to find out.

        Raises:
            IpsError: the table can't be read.
        """
        target = self.watched.table(self.consumer.table, tick=tick)
        cursor = self.watched.cursors(instance, tick=tick)[self.name]
        mark = cursor.copy.mark if cursor.copy is not None else None
        if target is not None and mark is not None and target.predates(mark):
            # A run has published since the tick began.
            target = self.watched.catalog.open_for_ticks().find(target.table) or target
        try:
            return progress_of(target, cursor, asset=self.name, storage=self.watched.storage(tick=tick))
        except (TargetChangedError, UnknownPublicationError, StateUnreadableError):
            return None

    def state(self, tracked: TrackedInput, instance: DagsterInstance, *, tick: dt.datetime) -> EdgeState:
        """How far a consumer without partitions has consumed an input."""
        known, edge = self.known(instance, tick=tick), self.edge(tracked)
        cursor = self.watched.cursors(instance, tick=tick)[self.name]
        is_its = input_progress(known, tracked, self.name) is not None
        return state_of(edge, known if is_its else None, cursor)

    def pending_partitions(
        self,
        graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
        instance: DagsterInstance,
        *,
        tick: dt.datetime,
    ) -> frozenset[str] | None:
        """The partitions of a partitioned consumer that have something to consume; None while an input has no table."""
        found = self.looks(graph, instance, tick=tick)
        return None if found is None else frozenset[str]().union(*[look.pending for look in found])

    def looks(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        *,
        tick: dt.datetime,
    ) -> list[PartitionedInput] | None:
        """What is known of each input of a partitioned consumer, and has changed; None while one has no table."""
        looks = [self.looked(each, instance, tick=tick) for each in self.consumer.tracked(graph, instance).values()]
        found = [look for look in looks if look is not None]
        return found if len(found) == len(looks) else None

    def keep_up(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        *,
        tick: dt.datetime,
    ) -> None:
        """Note in the copy of the progress that a partitioned consumer has nothing to do, once that is a day's worth.

        Otherwise the snapshot up to which it has read expires, although nothing came since that it takes.
        """
        looks, known = self.looks(graph, instance, tick=tick), self.known(instance, tick=tick)
        if known is None or not looks or any(look.pending or look.unreached for look in looks):
            return
        marks = [(look.progress.at, look.changed.to) for look in looks]
        if any(at is not None and to is not None and to.timestamp_ms - at.timestamp_ms > _DAY_MS for at, to in marks):
            inputs = {**known.progress.inputs, **{look.tracked.upstream: look.after(()) for look in looks}}
            with effect(Effect.COPY_PROGRESS):
                CursorStore(instance).set_copy(self.name, Copy(replace(known.progress, inputs=inputs), known.mark))

    def looked(self, tracked: TrackedInput, instance: DagsterInstance, *, tick: dt.datetime) -> PartitionedInput | None:
        """As ``looks``, for one of the inputs as ``Consumer.tracked`` gives it."""
        source, known = self.watched.table(tracked.table, tick=tick), self.known(instance, tick=tick)
        if source is None:
            return None
        at = known.progress.inputs.get(tracked.upstream) if known is not None else None
        if at is not None and any(map(source.predates, at.marks)):
            # A run has consumed more since the tick began. To this tick, the table would look rolled back.
            source = self.watched.catalog.open_for_ticks().find(tracked.table) or source
        storage, slicing = self.watched.storage(tick=tick), tracked.known_slicing
        keys = slicing.upstream_keys.known()
        of = (source.metadata_location, known, slicing.division, keys, slicing.sharing, tracked.policies)
        name = f"looked: {self.name}, {tracked.upstream}"
        look = self.watched.once(name, of, lambda: look_at(storage, source, tracked, known, self.name))
        if look.changed.unread:  # The next tick may read more.
            self.watched.forget(name)
        return look

    def partitions(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
    ) -> frozenset[str] | None:
        """The consumer's partitions; None if it isn't partitioned."""
        if not self.consumer.is_partitioned:
            return None
        slicings = [each.known_slicing for each in self.consumer.tracked(graph, instance).values()]
        return frozenset[str]().union(*[each.made_of(each.upstream_keys.known()) for each in slicings])

    def older_rows(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        target: TableMetadata,
        code: str | None,
    ) -> OlderRows | None:
        """As ``older_rows_of``, found anew only once the table, the code or the declaration has changed."""
        declared, partitions = self.consumer.maker.declared, self.partitions(graph, instance)
        lake = self.watched.catalog.open_for_ticks()
        with_rows = partial(partitions_with_rows_in, target, lake.storage, graph, self.consumer.key, instance)
        find = partial(older_rows_of, target, code, partitions, declared=declared, with_rows=with_rows)
        of = (target.metadata_location, code, declared, partitions)
        return self.watched.once(f"older rows: {self.name}", of, find)

    def require_known_writes(self, instance: DagsterInstance, *, tick: dt.datetime) -> None:
        """Fail if someone else changed rows of the consumer's table, as its next run would.

        Raises:
            ForeignWriteError: someone did.
            IpsError: the table can't be read.
        """
        target = self.watched.table(self.consumer.table, tick=tick)
        cursor, known = self.watched.cursors(instance, tick=tick)[self.name], self.known(instance, tick=tick)
        if target is not None and cursor.job is None:
            require_known_writes(target, self.name, known, accept=cursor.accepts(known))

    def unreached(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        *,
        tick: dt.datetime,
    ) -> tuple[str, ...]:
        """Texts on rows that no run will take, because they have unknown partitions or none."""
        return tuple(text for look in self.looks(graph, instance, tick=tick) or () for text in look.unreached)

    def changes(
        self,
        graph: Any,  # noqa: ANN401  # as above
        instance: DagsterInstance,
        partitions: Iterable[str],
        *,
        tick: dt.datetime,
    ) -> dict[str, list[object]]:
        """By partition: for each upstream, the newest changes that affect it and that it hasn't consumed.

        They stay the same when only other partitions are computed.
        """
        found: dict[str, list[object]] = {partition: [] for partition in partitions}
        storage = self.watched.storage(tick=tick)
        for look in self.looks(graph, instance, tick=tick) or ():
            tracked, slicing = look.tracked, look.tracked.known_slicing
            source = self.watched.table(tracked.table, tick=tick)
            snapshots = source.ancestry(tracked.ref).snapshots if source is not None else ()
            if source is None or not snapshots:
                continue
            newest: dict[Watermark, Mapping[str, int]] = {}
            for partition, changes in found.items():
                since = look.progress.position(partition) or source.watermark_at(snapshots[-1], tracked.ref)
                if since not in newest:
                    newest[since] = keys_changed(storage, source, slicing, since=since, ref=tracked.ref) or {}
                keys = sorted(slicing.taken_by(partition) & newest[since].keys())
                changes.append([tracked.upstream, [[key, str(newest[since][key])] for key in keys]])
        return found

    def backlogs(self, instance: DagsterInstance, *, tick: dt.datetime) -> Mapping[str, Backlog] | None:
        """The backlog of each upstream; None while any upstream has no table, because all are captured together."""
        tables = self.tables(tick=tick)
        if any(tracked.table not in tables for tracked in self.inputs):
            return None
        found: dict[str, Backlog] = {}
        for tracked in self.inputs:
            state, source = self.state(tracked, instance, tick=tick), tables[tracked.table]
            if state.committed is not None and source.predates(state.committed):
                # A run has consumed more since the tick began. To this tick, the table would look rolled back.
                source = self.watched.catalog.open_for_ticks().find(tracked.table) or source
            ancestry = source.ancestry(tracked.ref)
            found[tracked.upstream] = backlog(state, table_uuid=source.uuid, ancestry=ancestry)
        return found


def partitions_with_rows_in(
    target: TableMetadata,
    storage: Storage,
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    key: dg.AssetKey,
    instance: DagsterInstance,
) -> frozenset[str]:
    """The partitions of a partitioned asset of which its table has rows now."""
    node = graph.get(key)
    expression = partition_expression(node.metadata)
    if node.partitions_def is None or expression is None:
        return frozenset()
    own = SameKeys(partition_keys(node.partitions_def, expression, instance, asset=key.to_user_string()))
    return keys_there(storage, target, own)


ByAsset: TypeAlias = Mapping[dg.AssetKey, WatchedInputs]
"""What is watched for each consumer."""


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
