"""The sensor that watches outside tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import dagster as dg

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.errors import IpsError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.resources import IcebergCatalog
from dagster_ips.orchestration.table_metadata import row_count, table_metadata

OUTSIDE_TABLES_SENSOR = "ips_outside_tables"
_CURSOR_VERSION = 2
MOST_SNAPSHOTS = 100
"""Of one table in one tick; what is left comes with the next ticks. A tick must end within Dagster's 60 seconds."""


class OutsideTable(NamedTuple):
    """An asset that an outside job writes, and where it is."""

    key: dg.AssetKey
    table: str
    catalog: IcebergCatalog


@dataclass(frozen=True)
class _Seen:
    """What was reported last: the table it was and its newest snapshot; and the pointer, once nothing was left."""

    uuid: str
    snapshot_id: int
    location: str


def outside_tables_sensor(tables: Sequence[OutsideTable], *, interval_seconds: int) -> dg.SensorDefinition:
    """Reports a materialisation for each new snapshot of an outside table, with the snapshot's id as data version.

    A tick asks each catalog for all pointers at once and reads metadata only where a pointer moved. A table seen for
    the first time is reported as it is, by its newest snapshot. A snapshot that neither added nor removed a file isn't
    reported: nobody would consume it, and everything downstream would look stale for ever. A catalog or a table that
    can't be read is warned about and asked again; if nothing can be read, the tick fails.
    """
    ordered = sorted(tables, key=lambda each: id(each.catalog))

    @dg.sensor(
        name=OUTSIDE_TABLES_SENSOR,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Watches Iceberg tables that outside jobs write, by their catalog pointers.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        seen = _decode(context.cursor)
        events: list[dg.AssetMaterialization] = []
        errors: list[IpsError] = []
        for _, group in groupby(ordered, key=lambda each: id(each.catalog)):
            together = list(group)
            lake = together[0].catalog.open()
            located = _locations(lake, [each.table for each in together], errors)
            if missing := sorted(table for table, location in located.items() if location is None):
                context.log.warning("catalog %s has no table %s yet", lake.name, ", ".join(missing))
            for key, table, _ in together:
                location, name = located.get(table), key.to_user_string()
                if location is None or (name in seen and seen[name].location == location):
                    continue
                try:
                    metadata = TableMetadata.parse(table, location, lake.storage.read(location, table=table))
                except IpsError as error:
                    errors.append(error)
                    continue
                news = _news(metadata, seen.get(name))
                events += [_materialization(key, metadata, snapshot) for snapshot in news[:MOST_SNAPSHOTS]]
                seen |= _after(name, metadata, news)
        for each in errors:
            context.log.warning("%s", each)
        if errors and len(errors) >= len(tables):
            raise errors[0]
        if not events:
            context.update_cursor(_encode(seen))
            return dg.SkipReason("No outside table has a new snapshot.")
        return dg.SensorResult(asset_events=events, cursor=_encode(seen))

    return watch


def _locations(lake: LakeCatalog, tables: Sequence[str], errors: list[IpsError]) -> dict[str, str | None]:
    """The pointer of each table that can be told, None if there is no such table; what can't be goes to ``errors``."""
    try:
        found = lake.metadata_locations(tables)
        return {table: found.get(table) for table in tables}
    except IpsError as error:
        if len(tables) == 1:
            errors.append(error)
            return {}
    # Together they fail for one: each by itself, so that the others are seen.
    return {table: location for each in tables for table, location in _locations(lake, [each], errors).items()}


def _news(metadata: TableMetadata, seen: _Seen | None) -> list[Snapshot]:
    """The snapshots to report, oldest first."""
    ancestry = metadata.ancestry()
    if ancestry.head is None:
        return []
    since = None
    if seen is not None and seen.uuid == metadata.uuid:
        since = ancestry.between(
            from_snapshot_id_exclusive=seen.snapshot_id, to_snapshot_id_inclusive=ancestry.head.snapshot_id
        )
    if since is None:  # Never seen, created again, rolled back or expired: what there is now is the news.
        return [ancestry.head]
    return [snapshot for snapshot in since if not (snapshot.operation == "append" and snapshot.changes_no_file)]


def _after(name: str, metadata: TableMetadata, news: Sequence[Snapshot]) -> Mapping[str, _Seen]:
    head = metadata.head_snapshot_id()
    if head is None:
        return {}
    if len(news) > MOST_SNAPSHOTS:  # Without the pointer, the next tick goes on here.
        return {name: _Seen(metadata.uuid, news[MOST_SNAPSHOTS - 1].snapshot_id, "")}
    return {name: _Seen(metadata.uuid, head, metadata.metadata_location)}


def _encode(seen: Mapping[str, _Seen]) -> str:
    tables = {key: [each.uuid, str(each.snapshot_id), each.location] for key, each in seen.items()}
    return json.dumps({"version": _CURSOR_VERSION, "tables": tables})


def _decode(cursor: str | None) -> dict[str, _Seen]:
    """What was seen; nothing if another version wrote it down: every table is then reported once more."""
    stored = json.loads(cursor) if cursor else {}
    if stored.get("version") != _CURSOR_VERSION:
        return {}
    return {key: _Seen(uuid, int(snapshot), location) for key, (uuid, snapshot, location) in stored["tables"].items()}


def _materialization(key: dg.AssetKey, metadata: TableMetadata, snapshot: Snapshot) -> dg.AssetMaterialization:
    summary, counts = snapshot.summary, {"rows added": "added-records", "files added": "added-data-files"}
    counts |= {"bytes added": "added-files-size", "total files": "total-data-files"}
    is_head = snapshot.snapshot_id == metadata.head_snapshot_id()
    return dg.AssetMaterialization(
        asset_key=key,
        description=f"{snapshot.operation} by an outside job",
        metadata={
            **{name: int(summary[count]) for name, count in counts.items() if count in summary},
            "operation": snapshot.operation,
            "committed": dg.MetadataValue.timestamp(snapshot.timestamp_ms / 1000),
            # As text: JavaScript would round such a large number.
            "snapshot": dg.MetadataValue.text(str(snapshot.snapshot_id)),
            **(table_metadata(metadata) if is_head else row_count(snapshot)),
        },
        tags={"dagster/data_version": str(snapshot.snapshot_id)},
    )
