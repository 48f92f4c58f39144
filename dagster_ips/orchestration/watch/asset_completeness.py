"""Up to which event time assets are complete now, from their tables and cursors, without a run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from dagster_ips.core.ancestry import MAIN
from dagster_ips.core.backlog import is_pending
from dagster_ips.core.valid_through import EventTime, least
from dagster_ips.exactly_once.capture.run_completeness import Completion, time_at
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.declare.consumers import Consumer
from dagster_ips.orchestration.declare.partition_mappings import last_window_end
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs, WatchedTables


@dataclass(frozen=True)
class Tick:
    """A tick: Dagster's asset graph (which has no public type), the instance, and when the tick began.

    ``found`` holds what was found in it, by asset, and ``known`` what of that is certain: many assets may be made of
    the same upstream.
    """

    graph: Any
    instance: DagsterInstance
    began: dt.datetime
    found: dict[dg.AssetKey, dt.datetime | None] = field(default_factory=dict, compare=False, repr=False)
    known: dict[dg.AssetKey, dt.datetime | None] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class OutsideWatch:
    """An outside table among the watched tables, and how it shows up to when it is complete."""

    watched: WatchedTables
    table: str
    event_time: EventTime | None


@dataclass(frozen=True)
class Completeness:
    """Finds up to when assets are complete: consumers by what they have consumed, outside tables by their own data."""

    consumers: Mapping[dg.AssetKey, WatchedInputs]
    outside: Mapping[dg.AssetKey, OutsideWatch]
    _last: list[Tick] = field(default_factory=list, init=False, repr=False, compare=False)

    def knows(self, key: dg.AssetKey) -> bool:
        """Whether the asset is a consumer or an outside table, so that ``of`` can be called for it."""
        return key in self.consumers or key in self.outside

    def watch(self, key: dg.AssetKey) -> None:
        """Have each tick look at the table that ``of`` needs for the asset; a consumer's tables are watched already."""
        if key in self.outside:
            self.outside[key].watched.names.add(self.outside[key].table)

    def of(self, key: dg.AssetKey, tick: Tick) -> dt.datetime | None:
        """Up to when the asset's table is complete; None if that is unknown.

        If an input is fully consumed, what counts is up to when the input is complete now, even if there was nothing to
        write. Otherwise it is up to when the input was complete at the consumed snapshot.

        Raises:
            IpsError: a table can't be read, or doesn't show its completeness though it is declared to.
        """
        tick = self._tick(tick)
        if key not in tick.known:
            found = self._of(key, tick)
            # A run may have published after the tables were read and before the cursors were.
            tick.known[key] = None if self._have_moved(key, tick) else found
        return tick.known[key]

    def _tick(self, tick: Tick) -> Tick:
        """The tick as an asset before has left it, if there was one in it."""
        last = self._last[0] if self._last else None
        if last is not None and (last.began, last.instance) == (tick.began, tick.instance):
            return last
        self._last[:] = [tick]
        return tick

    def _have_moved(self, key: dg.AssetKey, tick: Tick) -> bool:
        """Whether a table that counts for the asset has changed since the tick began.

        Those of upstreams about which that is known already aren't looked up again.
        """
        if key not in self.consumers:
            return self.outside[key].watched.moved([self.outside[key].table], tick=tick.began)
        to_see, seen, tables = [key], set[dg.AssetKey](), dict[int, tuple[WatchedTables, set[str]]]()
        while to_see:
            key = to_see.pop()
            if key in tick.known:
                if tick.known[key] != tick.found[key]:
                    return True
            elif key in self.consumers and key not in seen:
                seen.add(key)
                consumer = self.consumers[key]
                _, names = tables.setdefault(id(consumer.watched), (consumer.watched, set()))
                names.update([consumer.consumer.table, *(tracked.table for tracked in consumer.inputs)])
                to_see += [dg.AssetKey.from_user_string(tracked.upstream) for tracked in consumer.inputs]
        return any(watched.moved(names, tick=tick.began) for watched, names in tables.values())

    def _of(self, key: dg.AssetKey, tick: Tick) -> dt.datetime | None:
        if key not in tick.found:
            tick.found[key] = self._of_table(key, tick)
        return tick.found[key]

    def _of_table(self, key: dg.AssetKey, tick: Tick) -> dt.datetime | None:
        if key in self.consumers:
            return self._of_consumer(self.consumers[key], tick)
        watch = self.outside[key]
        table = watch.watched.table(watch.table, tick=tick.began)
        storage = watch.watched.storage(tick=tick.began)
        return time_at(storage, table, watch.event_time, _head(table, MAIN))

    def _of_consumer(self, consumer: WatchedInputs, tick: Tick) -> dt.datetime | None:
        completion = completion_of(consumer.consumer, tick.graph, consumer.watched.storage(tick=tick.began))
        inputs = consumer.consumer.tracked(tick.graph, tick.instance).values()
        return completion.capped(least(self._of_input(tracked, consumer, completion, tick) for tracked in inputs))

    def _of_input(
        self, tracked: TrackedInput, consumer: WatchedInputs, completion: Completion, tick: Tick
    ) -> dt.datetime | None:
        source = consumer.watched.table(tracked.table, tick=tick.began)
        # The upstream's own completeness is that of its main branch.
        consumed, head = _consumed(tracked, source, consumer, completion, tick), _head(source, MAIN)
        upstream = dg.AssetKey.from_user_string(tracked.upstream)
        if consumed is not None and consumed == head and upstream in self.consumers:
            return self._of(upstream, tick)
        return time_at(completion.storage, source, tracked.event_time, consumed, ref=tracked.ref)


def completion_of(
    consumer: Consumer,
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    storage: Storage,
) -> Completion:
    """What is needed to say up to when ``consumer`` is complete."""
    if not consumer.is_partitioned:
        return Completion(storage)
    return Completion(storage, last_window_end(graph.get(consumer.key).partitions_def))


def _consumed(
    tracked: TrackedInput, source: TableMetadata | None, consumer: WatchedInputs, completion: Completion, tick: Tick
) -> int | None:
    """The snapshot up to which everything is consumed: the head, if no later snapshot changed a row."""
    if source is None:
        return None
    if consumer.consumer.is_partitioned:
        looked = consumer.looked(tracked, tick.instance, tick=tick.began)
        found = looked.consumed_up_to(by_time=completion.last_window_end is not None) if looked is not None else None
        return found.snapshot_id if found else None
    ancestry = source.ancestry(tracked.ref)
    state = consumer.state(tracked, tick.instance, tick=tick.began)
    if state.is_beginning or state.committed is None:
        return None
    if not is_pending(state, table_uuid=source.uuid, ancestry=ancestry):
        return _head(source, tracked.ref)
    return state.committed.snapshot_id


def _head(table: TableMetadata | None, ref: str) -> int | None:
    return table.head_snapshot_id(ref) if table else None
