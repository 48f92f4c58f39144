"""ICDC tables: Iceberg tables that reference a change set's files and hold no data of their own.

The table is a fork of the source's metadata: same schemas, field ids, specs and sequence numbers, so every engine reads
each file exactly as it would in the source. It has its own uuid and its own folder. It never references the source's
own manifests, because an engine that purges a table deletes its manifests in any case. And ``gc.enabled`` is false,
because purging the table would otherwise delete the source's files.
"""

from __future__ import annotations

import json
import math
import struct
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import DataFile
from dagster_ips.iceberg.avro import SCHEMA_KEY, write_avro
from dagster_ips.iceberg.change_reader import ChangedFiles
from dagster_ips.iceberg.late import manifest, schema_conversion
from dagster_ips.iceberg.manifests import (
    Content,
    ManifestEntry,
    ManifestRow,
    Status,
    content_of,
    read_live_manifests,
)
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_COPIED = (
    "format-version",
    "last-column-id",
    "schemas",
    "current-schema-id",
    "partition-specs",
    "default-spec-id",
    "last-partition-id",
    "sort-orders",
    "default-sort-order-id",
    "last-sequence-number",
    "next-row-id",
    "schema",
    "partition-spec",
)
_COPIED_PROPERTIES = ("schema.name-mapping.default", "read.")
_READ = {"read.split.open-file-cost": "262144"}
"""How Spark distributes the files over tasks if the source doesn't say.

A change comes in many small files. With Iceberg's default of 4 MB each, most files would be a task of their own, which
costs more than reading them.
"""
_V2 = 2
_V3 = 3
_UUID_BYTES = 16


class Tag(StrEnum):
    """Tags of an ICDC table, each set only if it is needed.

    If the interval may have removed rows, ``AFTER EXCEPT ALL BEFORE`` gives the rows that were added, and ``BEFORE
    EXCEPT ALL AFTER`` those that were removed, in any engine. ``AFTER`` consists of ``FRESH``, files without a row that
    existed before, and ``REWRITTEN``, all others.

    If the schema changed after the snapshot captured up to, ``SOURCE`` is that whole snapshot with the current columns;
    time travel in the source would show those of that time.
    """

    BEFORE = "before"
    AFTER = "after"
    FRESH = "fresh"
    REWRITTEN = "rewritten"
    SOURCE = "source"


@dataclass(frozen=True, slots=True)
class AuthoredTable:
    """A written metadata.json that isn't registered anywhere yet, and the snapshots of its tags, if it has any."""

    metadata_location: str
    tags: Mapping[Tag, int]


def author_icdc_table(  # noqa: PLR0913  # all are independent
    storage: Storage,
    source: TableMetadata,
    captured: ChangedFiles,
    *,
    head: Snapshot | None,
    location: str,
    properties: Mapping[str, str],
) -> AuthoredTable:
    """Write an ICDC table's metadata for ``captured`` under ``location``; an empty capture gives an empty table.

    ``head`` is the source snapshot captured up to; ``properties`` become the table's own.
    """
    author = _Author(storage, source, location, head)
    fresh = [author.copy(row) for row in captured.whole] + author.manifests(captured.fresh)
    rewritten, deletes = author.manifests(captured.rewritten), author.manifests(captured.deletes)
    hidden = author.manifests(captured.hidden)
    restored = captured.restored and bool(hidden)
    files = (*captured.changes.added, *captured.changes.hidden) if restored else captured.changes.added
    # A manifest of deletes that is taken as it is comes with all others: no deletion vector may be listed twice.
    are_listed = any(content_of(row) is Content.DELETES for row in captured.whole)
    others = [] if are_listed else deletes
    main = author.snapshot([*fresh, *rewritten, *(hidden if restored else ()), *others], files)
    tags = {}
    if head and not source.shows_current_schema(head):
        live = read_live_manifests(storage, head, table=source.table)
        tags[Tag.SOURCE] = author.snapshot([author.copy(row) for row in live])
    if captured.changes.may_remove_rows:
        tags |= {
            Tag.BEFORE: author.snapshot(author.manifests((*captured.before.data, *captured.before.deletes))),
            Tag.AFTER: author.snapshot([*fresh, *rewritten, *hidden, *others]),
            Tag.FRESH: author.snapshot([*fresh, *others]),
            Tag.REWRITTEN: author.snapshot([*rewritten, *hidden, *deletes]),
        }
    metadata = author.metadata(main, tags, properties)
    path = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
    storage.write(path, json.dumps(metadata, separators=(",", ":")).encode(), table=source.table)
    return AuthoredTable(path, {tag: snapshot["snapshot-id"] for tag, snapshot in tags.items()})


class _Author:
    """Writes the files of one ICDC table."""

    def __init__(self, storage: Storage, source: TableMetadata, location: str, head: Snapshot | None) -> None:
        self._storage = storage
        self._source = source
        self._location = location
        self._sequence_number = head.sequence_number if head else 0
        self._next_row_id = int(source.raw.get("next-row-id", 0))
        self._snapshot_id = _new_snapshot_id()
        self._written = 0

    def copy(self, row: ManifestRow) -> ManifestRow:
        """Copy a whole manifest to a path of this table; its entries keep inheriting values from the row."""
        content = self._storage.read(row["manifest_path"], table=self._source.table)
        return {**row, "manifest_path": self._write_manifest(content), "manifest_length": len(content)}

    def manifests(self, entries: Iterable[ManifestEntry]) -> list[ManifestRow]:
        """Manifests of the given entries, as EXISTING with explicit ids; without entries there is no manifest."""
        return [self._manifest(group) for group in _groups(entries)]

    def _manifest(self, entries: Sequence[ManifestEntry]) -> ManifestRow:
        has_sequence_numbers = self._source.format_version >= _V2
        # An entry of a v1 manifest has none, which means 0.
        unsaid = {"sequence_number": 0, "file_sequence_number": 0} if has_sequence_numbers else {}
        records = [{**unsaid, **entry.raw, "status": Status.EXISTING.value} for entry in entries]
        has_row_ids = all(record["data_file"].get("first_row_id") is not None for record in records)
        schema = _with_fields(
            entries[0].manifest[SCHEMA_KEY], row_ids=has_row_ids, sequence_numbers=has_sequence_numbers
        )
        content = write_avro({**entries[0].manifest, SCHEMA_KEY: schema}, records)
        sequence_numbers = [entry.sequence_number for entry in entries]
        is_data = entries[0].content is Content.DATA
        return {
            "manifest_path": self._write_manifest(content),
            "manifest_length": len(content),
            "partition_spec_id": entries[0].spec_id,
            "content": entries[0].content.value,
            "sequence_number": self._sequence_number,
            "min_sequence_number": min(sequence_numbers),
            "added_snapshot_id": self._snapshot_id,
            "added_files_count": 0,
            "existing_files_count": len(records),
            "deleted_files_count": 0,
            "added_rows_count": 0,
            "existing_rows_count": sum(record["data_file"]["record_count"] for record in records),
            "deleted_rows_count": 0,
            "partitions": _partition_summaries(entries[0].manifest[SCHEMA_KEY], records),
            "key_metadata": None,
            # Java nulls every entry's first_row_id when the row's own is null.
            "first_row_id": self._next_row_id if is_data and has_row_ids else None,
        }

    def snapshot(self, rows: Sequence[ManifestRow], files: Sequence[DataFile] = ()) -> dict[str, Any]:
        """A snapshot of manifests that are already written; its summary counts ``files``."""
        version, snapshot_id = self._source.format_version, _new_snapshot_id()
        path = f"{self._location}/metadata/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
        header = {SCHEMA_KEY: _manifest_list_schema(version), "format-version": str(version)}
        header |= {"snapshot-id": str(snapshot_id), "parent-snapshot-id": "null"}
        if version >= _V2:
            header["sequence-number"] = str(self._sequence_number)
        if version >= _V3:
            header["first-row-id"] = str(self._next_row_id)
        self._write(path, write_avro(header, [self._complete(row) for row in rows]))
        summary = {"operation": "append"}
        if files:
            count, records = str(len(files)), str(sum(file.record_count for file in files))
            summary |= {"added-data-files": count, "added-records": records}
            summary |= {"total-data-files": count, "total-records": records}
        snapshot: dict[str, Any] = {
            "snapshot-id": snapshot_id,
            "timestamp-ms": time.time_ns() // 1_000_000,
            "manifest-list": path,
            "schema-id": self._source.raw.get("current-schema-id", 0),
            "summary": summary,
        }
        if version >= _V2:
            snapshot["sequence-number"] = self._sequence_number
        if version >= _V3:
            snapshot |= {"first-row-id": self._next_row_id, "added-rows": 0}
        return snapshot

    def _complete(self, row: ManifestRow) -> ManifestRow:
        """``row`` with the values that older format versions leave out.

        A missing partition summary matches every filter. An empty one is only right if there are no partition fields,
        and then it is needed: Spark's ``manifests`` table fails on null.
        """
        is_partitioned = self._source.spec(row["partition_spec_id"])
        defaults: ManifestRow = {"content": 0, "sequence_number": 0, "min_sequence_number": 0, "first_row_id": None}
        defaults |= {"key_metadata": None, "partitions": None if is_partitioned else []}
        # A missing count may be any number; readers skip only manifests whose counts are 0.
        unknown = dict.fromkeys((f"{files}_files_count" for files in ("added", "existing", "deleted")), 1)
        unknown |= dict.fromkeys((f"{rows}_rows_count" for rows in ("added", "existing", "deleted")), 0)
        return {**defaults, **unknown, **{key: value for key, value in row.items() if value is not None}}

    def metadata(
        self, snapshot: dict[str, Any], tags: Mapping[Tag, dict[str, Any]], properties: Mapping[str, str]
    ) -> dict[str, Any]:
        """The table's metadata, with ``snapshot`` as its head."""
        source = self._source
        kept = {key: value for key, value in source.properties.items() if key.startswith(_COPIED_PROPERTIES)}
        return {key: source.raw[key] for key in _COPIED if key in source.raw} | {
            "table-uuid": str(uuid.uuid4()),
            "location": self._location,
            "last-updated-ms": snapshot["timestamp-ms"],
            "properties": {**_READ, **kept, **properties, "gc.enabled": "false"},
            "current-snapshot-id": snapshot["snapshot-id"],
            "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}
            | {tag.value: {"snapshot-id": tagged["snapshot-id"], "type": "tag"} for tag, tagged in tags.items()},
            "snapshots": [*tags.values(), snapshot],
            "snapshot-log": [{"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]}],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
        }

    def _write_manifest(self, content: bytes) -> str:
        path = f"{self._location}/metadata/{uuid.uuid4()}-m{self._written}.avro"
        self._written += 1
        self._write(path, content)
        return path

    def _write(self, path: str, content: bytes) -> None:
        self._storage.write(path, content, table=self._source.table)


def _new_snapshot_id() -> int:
    return uuid.uuid4().int >> 66


def _groups(entries: Iterable[ManifestEntry]) -> list[list[ManifestEntry]]:
    """Entries grouped by what may share a manifest: same content, spec and Avro schema, all or none with row ids.

    Java (1.11) compares the halves of a UUID as signed numbers, other engines its bytes. Partition summaries are right
    for both if those signs are the same, too.
    """
    groups: dict[tuple[object, ...], list[ManifestEntry]] = {}
    for entry in entries:
        schema, file = entry.manifest[SCHEMA_KEY], entry.raw["data_file"]
        has_row_id = file.get("first_row_id") is not None
        signs = _signs(file["partition"].values()) if '"uuid"' in schema else ()
        groups.setdefault((entry.content, entry.spec_id, schema, has_row_id, signs), []).append(entry)
    return list(groups.values())


def _signs(values: Iterable[Any]) -> tuple[object, ...]:
    """The signs of the halves of each value that may be a UUID; None for every other value."""
    return tuple(
        (value[0] >> 7, value[8] >> 7) if isinstance(value, bytes) and len(value) == _UUID_BYTES else None
        for value in values
    )


def _with_fields(schema: str, *, row_ids: bool, sequence_numbers: bool) -> str:
    """A manifest's Avro schema with the fields that one from before an upgrade to v2 or v3 lacks."""
    entry = json.loads(schema)
    file = _type_of("data_file", entry)
    if sequence_numbers:
        _add_field(entry, "sequence_number", 3)
        _add_field(entry, "file_sequence_number", 4)
    if row_ids:
        _add_field(file, "first_row_id", 142)
    return json.dumps(entry)


def _add_field(record: dict[str, Any], name: str, field_id: int) -> None:
    if not any(field["name"] == name for field in record["fields"]):
        record["fields"].append({"name": name, "type": ["null", "long"], "field-id": field_id, "default": None})


def _partition_summaries(schema: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One summary per partition field; they must be complete, or Java skips files that match."""
    partition = _type_of("partition", _type_of("data_file", json.loads(schema)))
    # Avro may define a named type, such as that of a decimal, once and then only name it.
    kinds = [_kind(field["type"]) for field in partition["fields"]]
    named = {kind["name"]: kind for kind in kinds if "name" in kind}
    values = [
        [record["data_file"]["partition"].get(field["name"]) for record in records] for field in partition["fields"]
    ]
    return [_summary(named.get(kind["type"], kind), of_field) for kind, of_field in zip(kinds, values, strict=True)]


def _type_of(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """The type of a record's field that is a record itself."""
    found: dict[str, Any] = next(field for field in record["fields"] if field["name"] == name)["type"]
    return found


def _kind(avro_type: Any) -> dict[str, Any]:  # noqa: ANN401  # an Avro type is a string, a list or a dict
    if isinstance(avro_type, list):
        avro_type = next(option for option in avro_type if option != "null")
    return avro_type if isinstance(avro_type, dict) else {"type": avro_type}


def _summary(kind: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    ordered = [value for value in values if value is not None and value == value]  # noqa: PLR0124  # leaves NaN out
    is_decimal = kind.get("logicalType") == "decimal"

    def order(value: Any) -> Any:  # noqa: ANN401  # values of one partition field are of one ordered type
        if isinstance(value, float):  # In Iceberg's order, -0.0 comes before 0.0.
            return value, math.copysign(1, value)
        return int.from_bytes(value, "big", signed=True) if is_decimal else value

    return {
        "contains_null": any(value is None for value in values),
        "contains_nan": any(value is not None and value != value for value in values),  # noqa: PLR0124  # finds NaN
        "lower_bound": _single_value(kind["type"], min(ordered, key=order)) if ordered else None,
        "upper_bound": _single_value(kind["type"], max(ordered, key=order)) if ordered else None,
    }


def _single_value(avro_type: str, value: Any) -> bytes:  # noqa: ANN401  # a raw Avro value
    match avro_type:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "string":
            return str(value).encode()
        case "int" | "long" | "float" | "double":
            return struct.pack({"int": "<i", "long": "<q", "float": "<f", "double": "<d"}[avro_type], value)
        case _:
            return bytes(value)


@cache
def _manifest_list_schema(version: int) -> str:
    """The manifest list's Avro schema for a format version. Source: Iceberg table spec, "Manifest Lists"."""
    fields = manifest.MANIFEST_LIST_FILE_SCHEMAS[version]
    return json.dumps(schema_conversion.AvroSchemaConversion().iceberg_to_avro(fields, schema_name="manifest_file"))
