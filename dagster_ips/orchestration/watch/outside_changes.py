"""What is new in an outside table since a sensor last looked at it, as events for Dagster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import dagster as dg
from dagster import DagsterInstance

from dagster_ips._compat import data_versions_of_partitions, knowing_partitions
from dagster_ips.core.ancestry import MAIN, Ancestry, Snapshot
from dagster_ips.core.packed_text import packed, unpacked
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.changed_keys import keys_changed, keys_there
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.declare.declarations import DATA_VERSION_TAG
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import SameKeys
from dagster_ips.orchestration.platform.resources import IcebergCatalog
from dagster_ips.orchestration.platform.table_metadata import ROW_COUNT, row_count, table_metadata

MOST_REPORTED = 200
"""The most snapshots or partitions of one table that one tick reports.

Dagster writes events one by one, each in 5 to 30 ms on SQLite.
"""
_CURSOR_VERSION = 3
_DIMENSION_TAG = "dagster/partition/"

Event: TypeAlias = dg.AssetMaterialization | dg.AssetObservation


@dataclass(frozen=True, kw_only=True)
class OutsideAsset:
    """An asset that an outside job writes.

    ``partition_expression`` names the column or columns that hold the keys of ``partitions_def``.
    """

    key: dg.AssetKey
    partitions_def: dg.PartitionsDefinition[str] | None
    partition_expression: object

    @property
    def name(self) -> str:
        """The asset key as text."""
        return self.key.to_user_string()


@dataclass(frozen=True, kw_only=True)
class OutsideTable(OutsideAsset):
    """The table of an asset that an outside job writes, and the catalog that it is in."""

    table: str
    catalog: IcebergCatalog


@dataclass(frozen=True)
class Seen:
    """Up to where a table has been read, and which of its changes are still to be reported.

    ``upto`` is None before the table's first snapshot. ``location`` is the metadata.json that has been read completely.
    ``waiting`` are keys of changed partitions, each with the snapshot to report: they are more than a tick reports, or
    Dagster doesn't have their partitions yet. ``division`` is what a key meant and ``definition`` which partitions were
    defined then; both are empty without partitions, or if an earlier release read the table.
    """

    upto: Watermark | None = None
    location: str = ""
    waiting: Mapping[str, int] = field(default_factory=dict)
    division: str = ""
    definition: str = ""


def events_since(
    table: OutsideTable, metadata: TableMetadata, seen: Seen, instance: DagsterInstance
) -> tuple[list[Event], Seen]:
    """The events of an asset without partitions, one per snapshot that may have changed rows, oldest first.

    If a table is seen for the first time, was created again or rolled back, or the snapshots since have expired, only
    its current state is reported. What a materialization already reports is left out: in another code location, the
    table may be written by runs of this Dagster.
    """
    ancestry = metadata.ancestry()
    if ancestry.head is None:
        return [], seen
    since = None
    if seen.upto is not None and seen.upto.table_uuid == metadata.uuid:
        since = ancestry.since(seen.upto.snapshot_id)
    as_it_is = [ancestry.newest_change or ancestry.head]
    new = as_it_is if since is None else [snapshot for snapshot in since if not snapshot.keeps_rows]
    made = instance.get_latest_materialization_event(table.key)
    tags = (made.asset_materialization.tags if made and made.asset_materialization else None) or {}
    later = _later_than(tags.get(DATA_VERSION_TAG), ancestry)
    new = [snapshot for snapshot in new if later is None or snapshot.snapshot_id in later]
    reported = new[:MOST_REPORTED]
    events: list[Event] = [
        _materialization(table, each, table_metadata(metadata) if each is new[-1] else row_count(metadata, each))
        for each in reported
    ]
    if len(new) > len(reported):  # Because the location is left out, the next tick continues here.
        return events, Seen(metadata.watermark_at(reported[-1], MAIN))
    return events, Seen(metadata.watermark_at(ancestry.head, MAIN), metadata.metadata_location)


def partition_events_since(
    table: OutsideTable, metadata: TableMetadata, seen: Seen, storage: Storage, instance: DagsterInstance
) -> tuple[list[Event], Seen]:
    """The events of a partitioned asset: one change per partition whose rows changed, in any number of snapshots.

    A partition's data version is the newest snapshot that may have changed its rows. The changes are found from
    metadata alone; files that were only rewritten don't count. The first time, if the changes since the last look can't
    be followed, or if keys have another meaning now, every partition that has rows is reported, and so are all that
    were reported before. If partitions were only added to the definition, those that have rows are reported. A change
    that a partition's materialization already reports is left out, as for ``events_since``.

    Each partition is reported twice, first as an observation and then as a materialization. Conditions rely on
    materializations. But to find out whether a downstream partition is stale, Dagster reads observations if the
    definitions can't materialize the upstream, and would count an observation after a materialization as new.

    Raises:
        IpsError: the changes can't be determined; the next tick looks again.
    """
    is_known = metadata.metadata_location == seen.location and not _is_redefined(table, seen)
    looked = seen if is_known else _looked(table, metadata, seen, storage, instance)
    keys = _oldest_first(looked.waiting, _known_of(looked.waiting, table.partitions_def, instance), metadata)
    keys = keys[:MOST_REPORTED]
    observed = [_partition_observation(table, key, looked.waiting[key]) for key in keys]
    materialized = [
        _partition_materialization(table, metadata, key, looked.waiting[key], is_last=key == keys[-1]) for key in keys
    ]
    left = looked.waiting.keys() - set(keys)
    return [*observed, *materialized], replace(looked, waiting={key: looked.waiting[key] for key in sorted(left)})


def tell_of_changes(
    asset: OutsideAsset, source: TableMetadata, head: Snapshot, storage: Storage, instance: DagsterInstance
) -> int | None:
    """Report the changes of a partitioned asset up to ``head`` that the sensor hasn't reported yet, as observations.

    The sensor later reports the same observations again, which Dagster doesn't count as a change. Returns the storage
    id of the newest event. Returns None if ``head`` isn't the table's newest snapshot or something else was reported in
    the meantime, if there are more changes than a tick reports, or if nothing was ever reported.

    Raises:
        IpsError: the changes can't be determined.
    """
    ancestry = source.ancestry()
    told = _newest_told(asset.key, instance)
    if ancestry.head != head or told is None or (since := ancestry.find(told.snapshot_id)) is None:
        return None
    changed = keys_changed(storage, source, _slicing(asset, instance), since=source.watermark_at(since, MAIN))
    keys = _known_of(changed or (), asset.partitions_def, instance)
    if changed is None or len(keys) > MOST_REPORTED:
        return None
    for key in _oldest_first(changed, keys, source):
        with effect(Effect.REPORT_EVENT):
            instance.report_runless_asset_event(_partition_observation(asset, key, changed[key]))
    told = _newest_told(asset.key, instance)
    return told.storage_id if told and ancestry.find(told.snapshot_id) else None


def is_waiting(table: OutsideTable, seen: Seen, instance: DagsterInstance) -> bool:
    """Whether there is something to report even if the table is unchanged."""
    return _is_redefined(table, seen) or bool(_known_of(seen.waiting, table.partitions_def, instance))


def encode(seen: Mapping[str, Seen]) -> str:
    """What was seen of all tables, as a sensor's cursor."""
    tables = {name: asdict(each) for name, each in seen.items()}
    return packed(json.dumps({"version": _CURSOR_VERSION, "tables": tables}))


def decode(cursor: str | None) -> dict[str, Seen]:
    """What was seen, by table; empty if another version wrote the cursor, so that every table is reported again."""
    stored = json.loads(unpacked(cursor)) if cursor else {}
    if stored.get("version") != _CURSOR_VERSION:
        return {}
    return {
        name: Seen(**{**each, "upto": Watermark(**each["upto"]) if each["upto"] else None})
        for name, each in stored["tables"].items()
    }


def _looked(
    table: OutsideTable, metadata: TableMetadata, seen: Seen, storage: Storage, instance: DagsterInstance
) -> Seen:
    ancestry = metadata.ancestry()
    if ancestry.head is None:
        return seen
    slicing, version = _slicing(table, instance), (ancestry.newest_change or ancestry.head).snapshot_id
    is_followed = seen.upto is not None and seen.division in ("", slicing.division)
    waiting = seen.waiting if is_followed else {}
    changed = keys_changed(storage, metadata, slicing, since=seen.upto) if is_followed and seen.upto else None
    if changed is not None:
        changed, waiting = _unreported({**waiting, **changed}, table.key, ancestry, instance), {}
    if changed is None or _is_redefined(table, seen):
        there, before = keys_there(storage, metadata, slicing), instance.get_materialized_partitions(table.key)
        more = there | before - slicing.lost(before) if changed is None else there - before
        changed = {**dict.fromkeys(more, version), **(changed or {})}
    return Seen(
        metadata.watermark_at(ancestry.head, MAIN),
        metadata.metadata_location,
        {**waiting, **changed},
        slicing.division,
        _definition_of(table),
    )


def _unreported(
    versions: Mapping[str, int], asset: dg.AssetKey, ancestry: Ancestry, instance: DagsterInstance
) -> Mapping[str, int]:
    """The snapshots by partition, without those up to its newest materialization."""
    if not versions:
        return versions
    places = ancestry.places()
    made = data_versions_of_partitions(instance, asset, list(versions))

    def is_reported(key: str) -> bool:
        version, changed = made.get(key, ""), places.get(versions[key])
        made_at = places.get(int(version)) if version.isdecimal() else None
        return made_at is not None and changed is not None and made_at <= changed

    return {key: version for key, version in versions.items() if not is_reported(key)}


def _later_than(version: str | None, ancestry: Ancestry) -> set[int] | None:
    """The snapshots after the one that a data version names; None if it names none of the ancestry."""
    since = ancestry.since(int(version)) if version and version.isdecimal() else None
    return None if since is None else {snapshot.snapshot_id for snapshot in since}


def _is_redefined(table: OutsideTable, seen: Seen) -> bool:
    """Whether other partitions were defined when the table was seen."""
    return seen.definition != _definition_of(table)


def _definition_of(table: OutsideTable) -> str:
    """Which partitions are defined, as text, apart from dynamic ones: their changes wait until they are added."""
    if table.partitions_def is None:
        return ""
    return f"{table.partition_expression} {definition_text(table.partitions_def)}"


def definition_text(definition: dg.PartitionsDefinition[str]) -> str:
    """Which partitions a definition has, as text, apart from dynamic ones."""
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return json.dumps({each.name: definition_text(each.partitions_def) for each in definition.partitions_defs})
    if isinstance(definition, dg.DynamicPartitionsDefinition):
        return "dynamic"
    return definition.get_serializable_unique_identifier()


def _slicing(asset: OutsideAsset, instance: DagsterInstance) -> SameKeys:
    assert asset.partitions_def is not None  # noqa: S101  # called for partitioned assets only
    return SameKeys(partition_keys(asset.partitions_def, asset.partition_expression, instance, asset=asset.name))


class _ReportedObservation(NamedTuple):
    """An observation that was reported for a partition."""

    snapshot_id: int
    storage_id: int


def _newest_told(asset: dg.AssetKey, instance: DagsterInstance) -> _ReportedObservation | None:
    """The newest observation; None if there is none, or if its data version isn't a snapshot."""
    for record in instance.fetch_observations(asset, limit=1).records:
        event = record.asset_observation
        version = (event.tags or {}).get(DATA_VERSION_TAG, "") if event else ""
        if version.isdecimal():
            return _ReportedObservation(int(version), record.storage_id)
    return None


def _oldest_first(versions: Mapping[str, int], keys: Iterable[str], source: TableMetadata) -> list[str]:
    """``keys``, sorted so that the newest change is reported last: then no older change is missing before it."""

    def age(key: str) -> tuple[int, str]:
        snapshot = source.snapshots.get(versions[key])
        return (snapshot.sequence_number if snapshot else 0, key)

    return sorted(keys, key=age)


def _known_of(
    keys: Iterable[str], definition: dg.PartitionsDefinition[str] | None, instance: DagsterInstance
) -> list[str]:
    """Those of ``keys`` that are partitions by now, in order: a day once it is over, a dynamic one once it is added."""
    with knowing_partitions(instance):
        return sorted(key for key in keys if definition is not None and definition.has_partition_key(key))


def _materialization(table: OutsideTable, snapshot: Snapshot, more: Mapping[str, Any]) -> dg.AssetMaterialization:
    summary, counts = snapshot.summary, {"rows added": "added-records", "files added": "added-data-files"}
    counts |= {"bytes added": "added-files-size", "total files": "total-data-files"}
    return dg.AssetMaterialization(
        asset_key=table.key,
        description=f"{snapshot.operation} by an outside job",
        metadata={
            **{name: int(summary[count]) for name, count in counts.items() if count in summary},
            "operation": snapshot.operation,
            "committed": dg.MetadataValue.timestamp(snapshot.timestamp_ms / 1000),
            # As text: JavaScript would round such a large number.
            "snapshot": dg.MetadataValue.text(str(snapshot.snapshot_id)),
            **more,
        },
        tags={DATA_VERSION_TAG: str(snapshot.snapshot_id)},
    )


def _partition_materialization(
    table: OutsideTable, metadata: TableMetadata, key: str, snapshot_id: int, *, is_last: bool
) -> dg.AssetMaterialization:
    """One partition's materialization. The UI shows a tick's last event for the asset, so only that has the columns."""
    snapshot = metadata.snapshots.get(snapshot_id)
    committed = {"committed": dg.MetadataValue.timestamp(snapshot.timestamp_ms / 1000)} if snapshot else {}
    columns = {name: value for name, value in table_metadata(metadata).items() if name != ROW_COUNT} if is_last else {}
    return dg.AssetMaterialization(
        asset_key=table.key,
        partition=key,
        description="changed by an outside job",
        metadata={**committed, "snapshot": dg.MetadataValue.text(str(snapshot_id)), **columns},
        tags=_partition_tags(table, key, snapshot_id),
    )


def _partition_observation(asset: OutsideAsset, key: str, snapshot_id: int) -> dg.AssetObservation:
    return dg.AssetObservation(asset.key, partition=key, tags=_partition_tags(asset, key, snapshot_id))


def _partition_tags(asset: OutsideAsset, key: str, snapshot_id: int) -> Mapping[str, str]:
    """The tags with the data version and, for a key of several dimensions, the parts that Dagster needs."""
    tags, definition = {DATA_VERSION_TAG: str(snapshot_id)}, asset.partitions_def
    if isinstance(definition, dg.MultiPartitionsDefinition):
        parts = definition.get_partition_key_from_str(key).keys_by_dimension
        tags |= {f"{_DIMENSION_TAG}{name}": part for name, part in parts.items()}
    return tags
