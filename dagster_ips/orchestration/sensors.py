"""The sensor that watches outside tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import dagster as dg

from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.resources import IcebergCatalog

OUTSIDE_TABLES_SENSOR = "ips_outside_tables"


def outside_tables_sensor(
    catalog: IcebergCatalog, tables: Mapping[dg.AssetKey, str], *, interval_seconds: int
) -> dg.SensorDefinition:
    """Reports a materialisation of each outside table whose head has moved, with the snapshot id as data version.

    A tick asks for all pointers at once and reads metadata only where a pointer moved.
    """

    @dg.sensor(
        name=OUTSIDE_TABLES_SENSOR,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Watches Iceberg tables that outside jobs write, by their catalog pointers.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        lake = catalog.open()
        seen: dict[str, str] = json.loads(context.cursor) if context.cursor else {}
        located = lake.metadata_locations(list(tables.values()))
        missing = sorted(set(tables.values()) - located.keys())
        if missing:
            context.log.warning("catalog %s has no table %s yet", lake.name, ", ".join(missing))
        events = list(_news(lake, tables, located, seen))
        if not events:
            return dg.SkipReason("No outside table has a new snapshot.")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(seen | located))

    return watch


def _news(
    lake: LakeCatalog, tables: Mapping[dg.AssetKey, str], located: Mapping[str, str], seen: Mapping[str, str]
) -> Iterator[dg.AssetMaterialization]:
    for key, table in tables.items():
        location = located.get(table)
        if location is None or location == seen.get(table):
            continue
        metadata = TableMetadata.parse(table, location, lake.storage.read(location, table=table))
        if metadata.head_snapshot_id() is not None:
            yield _materialization(key, metadata)


def _materialization(key: dg.AssetKey, metadata: TableMetadata) -> dg.AssetMaterialization:
    head = metadata.ancestry().snapshots[0]
    counts = {
        "rows added": head.summary.get("added-records"),
        "files added": head.summary.get("added-data-files"),
        "dagster/row_count": head.summary.get("total-records"),
        "total files": head.summary.get("total-data-files"),
    }
    return dg.AssetMaterialization(
        asset_key=key,
        description=f"{head.operation} by an outside job",
        metadata={
            "snapshot": dg.MetadataValue.text(str(head.snapshot_id)),
            "committed": dg.MetadataValue.timestamp(head.timestamp_ms / 1000),
            "operation": head.operation,
            **{name: int(count) for name, count in counts.items() if count is not None},
        },
        tags={"dagster/data_version": str(head.snapshot_id)},
    )
