"""The sensor that watches outside tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import dagster as dg
from dagster import DagsterInstance

from dagster_ips.errors import IpsError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.orchestration.watch.outside_changes import (
    Event,
    OutsideTable,
    Seen,
    decode,
    encode,
    events_since,
    is_waiting,
    partition_events_since,
)
from dagster_ips.orchestration.watch.tick_failures import said_of
from dagster_ips.orchestration.watch.watched_tables import metadata_at

OUTSIDE_TABLES_SENSOR = "ips_outside_tables"


class _TableInTick(NamedTuple):
    """What a tick found for one table; ``error`` says why it found nothing, and then the next tick looks again."""

    name: str
    events: Sequence[Event] = ()
    seen: Seen | None = None
    error: IpsError | None = None


def outside_tables_sensor(tables: Sequence[OutsideTable], *, interval_seconds: int) -> dg.SensorDefinition:
    """A sensor that reports a materialization for each new snapshot of an outside table; its id is the data version.

    For a partitioned asset, it reports one for each partition whose rows changed. A tick reads all pointers of a
    catalog at once, and metadata only where a pointer moved. If a table is seen for the first time, its current state
    is reported. A snapshot that changed no row isn't reported, because nothing would have to be done. What one tick
    doesn't report the next ones do; if a tick is killed, the next one reports the same again. If a catalog or a table
    can't be read, the tick says so and the next one tries again; if nothing can be read, the tick fails.
    """
    ordered = sorted(tables, key=lambda each: id(each.catalog))

    @dg.sensor(
        name=OUTSIDE_TABLES_SENSOR,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Watches the catalog for new snapshots of Iceberg tables that outside jobs write.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        seen = decode(context.cursor)
        looked = [
            each
            for _, group in groupby(ordered, key=lambda each: id(each.catalog))
            for each in _look(list(group), seen, context)
        ]
        errors = {each.name: each.error for each in looked if each.error is not None}
        for name, error in errors.items():
            context.log.warning("%s: %s", name, error)
        if errors and len(errors) == len(tables):
            raise next(iter(errors.values()))
        events = [event for each in looked for event in each.events]
        said = [] if events else ["No outside table has a new snapshot."]
        return dg.SensorResult(
            asset_events=events,
            cursor=encode(seen | {each.name: each.seen for each in looked if each.seen is not None}),
            skip_reason=" ".join([*said, *said_of(errors)]) or None,
        )

    return watch


def _look(
    tables: Sequence[OutsideTable], seen: Mapping[str, Seen], context: dg.SensorEvaluationContext
) -> Iterator[_TableInTick]:
    """Look at tables of one catalog."""
    lake = tables[0].catalog.open_for_ticks()
    located = lake.locate([each.table for each in tables])
    missing = sorted({each.table for each in tables} - located.found.keys() - located.errors.keys())
    if missing:
        context.log.warning("catalog %s doesn't have table %s yet", lake.name, ", ".join(missing))
    for each in tables:
        if each.table in located.errors:
            yield _TableInTick(each.name, error=located.errors[each.table])
        elif each.table in located.found:
            yield _found_of(lake, each, located.found[each.table], seen.get(each.name, Seen()), context.instance)


def _found_of(
    lake: LakeCatalog, table: OutsideTable, location: str, seen: Seen, instance: DagsterInstance
) -> _TableInTick:
    if seen.location == location and not is_waiting(table, seen, instance):
        return _TableInTick(table.name)
    try:
        metadata = metadata_at(lake, table.table, location)
        if table.partitions_def is None:
            events, after = events_since(table, metadata, seen, instance)
        else:
            events, after = partition_events_since(table, metadata, seen, lake.storage, instance)
    except IpsError as error:
        return _TableInTick(table.name, error=error)
    return _TableInTick(table.name, events, after)
