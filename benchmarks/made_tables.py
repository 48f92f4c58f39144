"""Tables with long histories and very many files, of which only the metadata exists.

PyIceberg creates a table and makes the last commits. Everything before them is written here: manifests, a manifest list
and a metadata.json that names it. The old data files don't exist, because a capture opens none.
"""

import io
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pyarrow as pa
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from dagster_ips.iceberg.catalog import LakeCatalog

FILES_PER_MANIFEST = 1_000
ROWS_PER_FILE = 1_000_000
FILE_SIZE_BYTES = 128 * 1024 * 1024
_MINUTE_MS = 60_000
_EXISTING = 0
Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """The size of a table: its retained snapshots, live data files, and columns."""

    snapshots: int = 10
    files: int = 100
    columns: int = 3


@dataclass(frozen=True)
class MadeTable:
    """A table with a given shape, partitioned by ``p``; each old file is a separate partition.

    ``p`` is the file's number, or the day with that number since 1970.
    """

    lake: LakeCatalog
    name: str
    shape: Shape
    by_day: bool = False

    def create_empty(self) -> None:
        """Create the table without any snapshot or file."""
        names = ["id", "p", *[f"column_{number:04}" for number in range(2, self.shape.columns)]]
        kinds = {1: LongType(), 2: DateType() if self.by_day else LongType()}
        fields = [NestedField(n, name, kinds.get(n, StringType())) for n, name in enumerate(names, start=1)]
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
        self.lake.client.create_table(self.name, Schema(*fields), partition_spec=spec)

    def create(self) -> None:
        """Create the table with its shape; PyIceberg writes the last snapshot, and the earlier ones are its copies."""
        self.create_empty()
        self.append(0)
        raw = json.loads(_local(self.table.metadata_location).read_bytes())
        self._age(raw)
        location = f"{raw['location']}/metadata/90000-{uuid.uuid4()}.metadata.json"
        _local(location).write_text(json.dumps(raw))
        self.lake.client.drop_table(self.name)
        self.lake.client.register_table(self.name, location)

    @property
    def table(self) -> Table:
        """The table as PyIceberg loads it."""
        return self.lake.client.load_table(self.name)

    def append(self, partition: int) -> None:
        """Commit one file with one row; this file exists."""
        self.append_all([partition])

    def append_all(self, partitions: Sequence[int]) -> None:
        """Commit one file with one row for each of the partitions, in one commit."""
        numbers = pa.array(partitions, pa.int64())
        values = numbers.cast(pa.int32()).cast(pa.date32()) if self.by_day else numbers
        rows = {"id": numbers, "p": values}
        rows |= {f.name: ["value"] * len(partitions) for f in self.table.schema().fields if f.name not in rows}
        self.table.append(pa.table(rows))

    def changed_since(self, snapshot_id: int) -> tuple[set[str], set[str]]:
        """The paths added and removed since the snapshot, as PyIceberg reads them from later snapshots' manifests."""
        table, came, went = self.table, set[str](), set[str]()
        at = table.current_snapshot()
        while at is not None and at.snapshot_id != snapshot_id:
            for manifest in at.manifests(table.io):
                if manifest.added_snapshot_id == at.snapshot_id:
                    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                        if entry.snapshot_id == at.snapshot_id:
                            paths = {ManifestEntryStatus.ADDED: came, ManifestEntryStatus.DELETED: went}
                            paths.get(entry.status, set()).add(entry.data_file.file_path)
            at = table.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
        return came - went, went - came

    def _age(self, raw: Json) -> None:
        """Add the snapshots and files of the shape to ``raw``, before its only snapshot and that snapshot's file."""
        (last,) = raw["snapshots"]
        rows, header, schema = _read(last["manifest-list"])
        entries, entry_header, entry_schema = _read(rows[0]["manifest_path"])
        manifests = list(self._manifests(raw["location"], rows[0], entries[0], entry_header, entry_schema))
        summary = {
            **last["summary"],
            "total-data-files": str(self.shape.files + 1),
            "total-records": str(self.shape.files * ROWS_PER_FILE + 1),
            "total-files-size": str(self.shape.files * FILE_SIZE_BYTES),
            # Spark writes these properties, too, and they make up much of metadata.json's size.
            "spark.app.id": "application_1767225600123_004711",
            "engine-name": "spark",
            "engine-version": "4.1.4",
            "app-id": "application_1767225600123_004711",
            "iceberg-version": "Apache Iceberg 1.11.0 (commit 0123456789abcdef0123456789abcdef01234567)",
        }
        _write(last["manifest-list"], [*rows, *manifests], header, schema)
        count = self.shape.snapshots
        ids = [*(uuid.uuid4().int >> 65 for _ in range(count - 1)), last["snapshot-id"]]
        first_ms = last["timestamp-ms"] - count * _MINUTE_MS
        snapshots = [
            {
                **last,
                "snapshot-id": ids[number],
                "sequence-number": number + 1,
                "timestamp-ms": first_ms + number * _MINUTE_MS,
                "summary": {**summary, "operation": "append"},
            }
            | ({"parent-snapshot-id": ids[number - 1]} if number else {})
            for number in range(count)
        ]
        log = [{"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]} for each in snapshots]
        raw |= {"snapshots": snapshots, "snapshot-log": log, "last-sequence-number": count}
        raw |= {"last-updated-ms": int(time.time() * 1000)}

    def _manifests(self, location: str, row: Json, entry: Json, header: Json, schema: Json) -> Iterator[Json]:
        """Write the manifests of the old files; yields their rows for the manifest list."""
        for start in range(0, self.shape.files, FILES_PER_MANIFEST):
            numbers = range(start, min(start + FILES_PER_MANIFEST, self.shape.files))
            path = f"{location}/metadata/{uuid.uuid4()}-m0.avro"
            _write(path, [self._entry(entry, location, number) for number in numbers], header, schema)
            counts = {"added_files_count": 0, "existing_files_count": len(numbers), "deleted_files_count": 0}
            counts |= {"added_rows_count": 0, "existing_rows_count": len(numbers) * ROWS_PER_FILE}
            bounds = [self._bound(number) for number in (numbers[0], numbers[-1])]
            summary = {**row["partitions"][0], "lower_bound": bounds[0], "upper_bound": bounds[1]}
            size = _local(path).stat().st_size
            yield {**row, **counts, "manifest_path": path, "manifest_length": size, "partitions": [summary]}

    def _entry(self, entry: Json, location: str, number: int) -> Json:
        """``entry``, changed to describe the old file ``number``."""
        path = f"{location}/data/p={number}/{number:08}-0000-4000-8000-000000000000-00001.parquet"
        file = {**entry["data_file"], "file_path": path, "partition": {"p": number}}
        bound = [{"key": 2, "value": self._bound(number)}]
        file |= {name: _with_bound(file[name], bound) for name in ("lower_bounds", "upper_bounds")}
        file |= {"record_count": ROWS_PER_FILE, "file_size_in_bytes": FILE_SIZE_BYTES}
        return {**entry, "status": _EXISTING, "sequence_number": 1, "file_sequence_number": 1, "data_file": file}

    def _bound(self, number: int) -> bytes:
        return number.to_bytes(4 if self.by_day else 8, "little", signed=True)


def _with_bound(bounds: list[Json], of_partition: list[Json]) -> list[Json]:
    return [each for each in bounds if each["key"] != of_partition[0]["key"]] + of_partition


def _read(location: str) -> tuple[list[Json], Json, Json]:
    """The records, header and schema of an Avro file."""
    with _local(location).open("rb") as file:
        reader = fastavro.reader(file)
        records: list[Any] = list(reader)
        header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
        return records, header, json.loads(reader.metadata["avro.schema"])


def _write(location: str, records: list[Json], header: Json, schema: Json) -> None:
    buffer = io.BytesIO()
    fastavro.writer(buffer, fastavro.parse_schema(schema), records, codec="deflate", metadata=header)
    _local(location).write_bytes(buffer.getvalue())


def _local(location: str) -> Path:
    return Path(urlsplit(location).path)
