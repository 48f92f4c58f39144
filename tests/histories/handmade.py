"""Commits that no available engine makes: metadata written by hand, and the catalog's pointer moved to it.

Flink and others write equality deletes; old writers leave position deletes for a whole partition, or several delete
files for the same row. Source: Iceberg table spec, "Delete Formats", "Manifests", "Manifest Lists".
"""

from __future__ import annotations

import copy
import io
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_ips.iceberg.storage import Storage
from tests.histories.avro_schemas import LIST_SCHEMA, Json, entry_schema
from tests.histories.table import Field, HistoryTable, path_of

_FILE_PATH, _POS = 2147483546, 2147483545  # field ids reserved by the spec for position delete files
_EXISTING, _ADDED, _DELETED = 0, 1, 2
_UNPARTITIONED = {"type": "record", "name": "r102", "fields": []}


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the current snapshot: its path and row count, and what a delete file for it must contain."""

    path: str
    rows: int
    spec_id: int
    partition: Json
    partition_schema: Json


def live_files(table: HistoryTable) -> list[LiveFile]:
    """The data files of the current snapshot, by path."""
    head, files = _head(table.raw), table.lake.catalog.storage
    found = []
    for row in _read(files, head["manifest-list"])[1] if head else ():
        if row.get("content"):
            continue
        schema, entries = _read(files, row["manifest_path"])
        partition = _partition_of(schema)
        for entry in entries:
            file = entry["data_file"]
            if entry["status"] != _DELETED:
                count = file["record_count"]
                found.append(LiveFile(file["file_path"], count, row["partition_spec_id"], file["partition"], partition))
    return sorted(found, key=lambda file: file.path)


def manifests_of(files: Storage, manifest_list: str) -> list[Path]:
    """The manifests that a manifest list names."""
    return [path_of(row["manifest_path"]) for row in _read(files, manifest_list)[1]]


def delete_positions(table: HistoryTable, positions: Mapping[str, Sequence[int]], beside: LiveFile) -> None:
    """Add one position delete file for the partition of ``beside``. It hides ``positions`` of each path (v2)."""
    pairs = sorted((path, position) for path, found in positions.items() for position in found)
    schema = pa.schema([_arrow("file_path", pa.string(), _FILE_PATH), _arrow("pos", pa.int64(), _POS)])
    rows = pa.table([[path for path, _ in pairs], [position for _, position in pairs]], schema=schema)
    bounds = {_FILE_PATH: (pairs[0][0].encode(), pairs[-1][0].encode())}
    _commit_deletes(table, beside, rows, content=1, bounds=bounds)


def delete_equal(table: HistoryTable, column: Field, value: pa.Array, beside: LiveFile | None) -> None:
    """Add an equality delete file for rows with ``value`` in ``column``: in the partition of ``beside`` or in all."""
    rows = pa.table([value], schema=pa.schema([_arrow(column.name, value.type, column.id)]))
    bounds = {} if value.null_count else {column.id: (_as_bound(value),) * 2}
    _commit_deletes(table, beside, rows, content=2, bounds=bounds, equality_ids=[column.id])


def set_properties(table: HistoryTable, properties: Mapping[str, str]) -> None:
    """Set properties; nothing is committed if they already have these values."""
    raw = table.raw
    if not properties.items() <= raw["properties"].items():
        raw["properties"] |= properties
        _replace_metadata(table, raw)


def add_column_with_default(table: HistoryTable, name: str, kind: str, default: Any) -> None:  # noqa: ANN401  # of any type
    """Add a column that has a value in older files (v3)."""
    raw = table.raw
    current = next(s for s in raw["schemas"] if s["schema-id"] == raw["current-schema-id"])
    raw["last-column-id"] += 1
    column = {"id": raw["last-column-id"], "name": name, "required": False, "type": kind}
    column |= {"initial-default": default, "write-default": default}
    raw["current-schema-id"] = max(s["schema-id"] for s in raw["schemas"]) + 1
    raw["schemas"].append({**current, "schema-id": raw["current-schema-id"], "fields": [*current["fields"], column]})
    _replace_metadata(table, raw)


def add_field_with_default(table: HistoryTable, column: str, name: str, kind: str, default: Any) -> None:  # noqa: ANN401  # of any type
    """Add a field of a nested column that has a value in older files (v3)."""
    raw = table.raw
    current = next(s for s in raw["schemas"] if s["schema-id"] == raw["current-schema-id"])
    raw["last-column-id"] += 1
    field = {"id": raw["last-column-id"], "name": name, "required": False, "type": kind}
    field |= {"initial-default": default, "write-default": default}
    fields = copy.deepcopy(current["fields"])
    next(each for each in fields if each["name"] == column)["type"]["fields"].append(field)
    raw["current-schema-id"] = max(s["schema-id"] for s in raw["schemas"]) + 1
    raw["schemas"].append({**current, "schema-id": raw["current-schema-id"], "fields": fields})
    _replace_metadata(table, raw)


def _commit_deletes(  # noqa: PLR0913  # the parts of a delete file
    table: HistoryTable,
    beside: LiveFile | None,
    rows: pa.Table,
    *,
    content: int,
    bounds: Mapping[int, tuple[bytes, bytes]],
    equality_ids: Sequence[int] | None = None,
) -> None:
    raw, files = table.raw, table.lake.catalog.storage
    head = _head(raw)
    assert head
    location = f"{raw['location']}/data/{uuid.uuid4()}-deletes.parquet"
    written = io.BytesIO()
    pq.write_table(rows, written)
    files.write(location, written.getvalue(), table=table.name)
    spec_id = beside.spec_id if beside else _unpartitioned_spec(raw)
    partition_schema = beside.partition_schema if beside else _UNPARTITIONED
    file = {
        "content": content,
        "file_path": location,
        "file_format": "PARQUET",
        "partition": beside.partition if beside else {},
        "record_count": rows.num_rows,
        "file_size_in_bytes": files.size(location, table=table.name),
        "lower_bounds": [{"key": key, "value": lower} for key, (lower, _) in bounds.items()] or None,
        "upper_bounds": [{"key": key, "value": upper} for key, (_, upper) in bounds.items()] or None,
        "equality_ids": equality_ids,
    }
    snapshot_id = uuid.uuid4().int >> 65
    sequence_number = raw["last-sequence-number"] + 1
    manifest = f"{raw['location']}/metadata/{uuid.uuid4()}-m0.avro"
    header = {
        "schema": json.dumps(next(s for s in raw["schemas"] if s["schema-id"] == raw["current-schema-id"])),
        "partition-spec": json.dumps(next(s["fields"] for s in raw["partition-specs"] if s["spec-id"] == spec_id)),
        "partition-spec-id": str(spec_id),
        "format-version": str(raw["format-version"]),
        "content": "deletes",
    }
    entry = {"status": _ADDED, "snapshot_id": snapshot_id, "data_file": file}
    _write(table, manifest, entry_schema(partition_schema), [entry], header)
    added = {
        "manifest_path": manifest,
        "manifest_length": files.size(manifest, table=table.name),
        "partition_spec_id": spec_id,
        "content": 1,
        "sequence_number": sequence_number,
        "min_sequence_number": sequence_number,
        "added_snapshot_id": snapshot_id,
        "added_files_count": 1,
        "existing_files_count": 0,
        "deleted_files_count": 0,
        "added_rows_count": rows.num_rows,
        "existing_rows_count": 0,
        "deleted_rows_count": 0,
    }
    manifest_list = f"{raw['location']}/metadata/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
    entries = [*_rows_of(files, head), added]
    _write(table, manifest_list, LIST_SCHEMA, entries, {"format-version": str(raw["format-version"])})
    snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": head["snapshot-id"],
        "sequence-number": sequence_number,
        "timestamp-ms": max(int(time.time() * 1000), raw["last-updated-ms"] + 1),
        "manifest-list": manifest_list,
        "schema-id": raw["current-schema-id"],
        "summary": _summary(head, rows.num_rows, content),
    }
    if raw["format-version"] > 2:
        snapshot |= {"first-row-id": raw["next-row-id"], "added-rows": 0}
    raw["last-sequence-number"] = sequence_number
    raw["snapshots"].append(snapshot)
    raw["current-snapshot-id"] = raw["refs"]["main"]["snapshot-id"] = snapshot_id
    raw["snapshot-log"].append({"snapshot-id": snapshot_id, "timestamp-ms": snapshot["timestamp-ms"]})
    _replace_metadata(table, raw)


def _as_bound(value: pa.Array) -> bytes:
    """The only value of the array as a bound. Source: Iceberg table spec, "Appendix D: Single-value serialization"."""
    if pa.types.is_string(value.type):
        return str(value[0].as_py()).encode()
    number = value.cast(pa.int32()) if pa.types.is_date32(value.type) else value
    return int(number[0].as_py()).to_bytes(value.type.bit_width // 8, "little", signed=True)


def _summary(head: Json, deleted: int, content: int) -> dict[str, str]:
    kind = "position" if content == 1 else "equality"
    before = head.get("summary", {})
    totals = {key: value for key, value in before.items() if key.startswith("total-")}
    added = {"total-delete-files": 1, f"total-{kind}-deletes": deleted}
    totals |= {key: str(int(before.get(key, 0)) + count) for key, count in added.items()}
    return {"operation": "delete", "added-delete-files": "1", f"added-{kind}-deletes": str(deleted), **totals}


def _unpartitioned_spec(raw: Json) -> int:
    """The id of the spec without fields, added to ``raw`` if there is none."""
    specs = raw["partition-specs"]
    for spec in specs:
        if not spec["fields"]:
            return int(spec["spec-id"])
    spec_id = max(spec["spec-id"] for spec in specs) + 1
    specs.append({"spec-id": spec_id, "fields": []})
    return spec_id


def _replace_metadata(table: HistoryTable, raw: Json) -> None:
    """Write ``raw`` as the table's next metadata.json and make it current."""
    location = f"{raw['location']}/metadata/{len(raw['snapshots']):05}-{uuid.uuid4()}.metadata.json"
    raw["last-updated-ms"] = max(int(time.time() * 1000), raw["last-updated-ms"])
    catalog = table.lake.catalog
    catalog.storage.write(location, json.dumps(raw).encode(), table=table.name)
    catalog.drop(table.name)  # The table's files stay.
    catalog.register(table.name, location)


def _head(raw: Json) -> Json | None:
    found = raw.get("refs", {}).get("main")
    return next(s for s in raw["snapshots"] if s["snapshot-id"] == found["snapshot-id"]) if found else None


def _rows_of(files: Storage, snapshot: Json) -> Iterator[Json]:
    """The snapshot's manifest list as in v2 and later. v1 has other names, and no content or sequence numbers."""
    for row in _read(files, snapshot["manifest-list"])[1]:
        named = {key.replace("_data_files_", "_files_"): value for key, value in row.items()}
        yield {"content": 0, "sequence_number": 0, "min_sequence_number": 0, **named}


def _partition_of(schema: Json) -> Json:
    """The Avro type of ``partition`` in a manifest's schema."""
    file = next(field["type"] for field in schema["fields"] if field["name"] == "data_file")
    return next(dict(field["type"]) for field in file["fields"] if field["name"] == "partition")


def _read(files: Storage, location: str) -> tuple[Json, list[Json]]:
    reader = fastavro.reader(io.BytesIO(files.read(location, table="by.hand")))
    return json.loads(reader.metadata["avro.schema"]), [row for row in reader if isinstance(row, dict)]


def _write(
    table: HistoryTable, location: str, schema: Json, records: Sequence[Json], header: Mapping[str, str]
) -> None:
    written = io.BytesIO()
    fastavro.writer(written, fastavro.parse_schema(schema), records, metadata=dict(header))
    table.lake.catalog.storage.write(location, written.getvalue(), table=table.name)


def _arrow(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})
