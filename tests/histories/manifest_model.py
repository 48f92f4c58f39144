"""A small model of a table: its manifests are real and lie in memory, its rows follow from Iceberg's delete rules.

It can be in any state that the format allows, also in those that no engine at hand writes. Source: Iceberg table spec,
"Scan Planning", "Manifests", "Sequence Number Inheritance", "Delete Formats".
"""

from __future__ import annotations

import itertools
import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from random import Random

from dagster_ips.iceberg.avro import SCHEMA_KEY, write_avro
from dagster_ips.iceberg.manifests import Content, ManifestEntry, Status
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from tests.histories import avro_schemas
from tests.histories.avro_schemas import LIST_SCHEMA, Json, entry_schema, of_version_1

Row = tuple[int | None, int | None]
COLUMNS = {1: "part", 2: "value"}
SPECS: dict[int, tuple[int, ...]] = {0: (1,), 1: (), 2: (2,)}
"""Each partition spec by its id: the columns that it has as they are."""
UUID, NAME = "model", "db.model"
_FILE_PATH = 2147483546  # the field id reserved by the spec
_OPTIONAL = (
    avro_schemas.field(143, "referenced_data_file", "string"),
    avro_schemas.field(144, "content_offset", "long"),
    avro_schemas.field(145, "content_size_in_bytes", "long"),
)


class Kind(IntEnum):
    """``content`` of a file."""

    DATA = 0
    POSITIONS = 1
    EQUALITY = 2


@dataclass(frozen=True, slots=True, eq=False)
class File:
    """A file as it is listed once, with what it holds: rows, or what it deletes.

    ``refers_to`` is the only data file that it deletes from; None if it deletes by partition. A deletion vector has an
    ``offset``.
    """

    kind: Kind
    path: str
    spec_id: int
    partition: tuple[int | None, ...]
    rows: tuple[Row, ...] = ()
    positions: frozenset[tuple[str, int]] = frozenset()
    columns: tuple[int, ...] = ()
    values: frozenset[tuple[int | None, ...]] = frozenset()
    refers_to: str | None = None
    offset: int | None = None
    has_bounds: bool = True
    sequence_number: int = 0
    file_sequence_number: int = 0
    snapshot_id: int = 0

    @property
    def record_count(self) -> int:
        return len(self.rows or self.positions or self.values)

    @property
    def place(self) -> tuple[int, tuple[int | None, ...]]:
        return self.spec_id, self.partition

    def hides(self, data: File, position: int) -> bool:
        """Whether this delete file deletes the row of ``data``."""
        if self.kind is Kind.POSITIONS:
            applies = self.refers_to == data.path if self.refers_to else self.place == data.place
            is_meant = (data.path, position) in self.positions
            return applies and is_meant and self.sequence_number >= data.sequence_number
        applies = self.place == data.place or not SPECS[self.spec_id]
        is_meant = tuple(data.rows[position][column - 1] for column in self.columns) in self.values
        return applies and is_meant and self.sequence_number > data.sequence_number


def rows_of(data: Iterable[File], deletes: Sequence[File]) -> Counter[Row]:
    """The rows of ``data`` that none of ``deletes`` hides."""
    rows = ((file, position, row) for file in data for position, row in enumerate(file.rows))
    return Counter(row for file, position, row in rows if not any(each.hides(file, position) for each in deletes))


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A manifest, its row in a manifest list, and its entries."""

    row: Json
    entries: Sequence[tuple[File, Status]]

    @property
    def key(self) -> tuple[int, Content]:
        """What must be the same for all entries of a manifest."""
        return self.row["partition_spec_id"], Content(self.row["content"])

    @property
    def live(self) -> list[File]:
        return [file for file, status in self.entries if status is not Status.DELETED]


@dataclass
class ModelTable:
    """A table in format ``version``. ``random`` decides what a writer is free to do, such as to merge manifests."""

    version: int
    random: Random = field(default_factory=Random)
    spec_id: int = 0
    head: int | None = None
    sequence_number: int = 0
    snapshots: list[Json] = field(default_factory=list)
    written: dict[tuple[str, int | None], File] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _contents: dict[str, bytes] = field(default_factory=dict)
    _manifests: dict[int | None, list[_Manifest]] = field(default_factory=lambda: {None: []})

    @property
    def storage(self) -> Storage:
        """Where its manifests are. Nothing else can be read there."""
        return Storage({}, manifests=self._contents)

    def live(self, snapshot_id: int | None) -> tuple[list[File], list[File]]:
        """The data files of a snapshot, and its delete files."""
        files = [file for manifest in self._manifests[snapshot_id] for file in manifest.live]
        return [f for f in files if f.kind is Kind.DATA], [f for f in files if f.kind is not Kind.DATA]

    @property
    def data(self) -> list[File]:
        return self.live(self.head)[0]

    @property
    def deletes(self) -> list[File]:
        return self.live(self.head)[1]

    def rows_at(self, snapshot_id: int | None) -> Counter[Row]:
        """What time travel shows."""
        return rows_of(*self.live(snapshot_id))

    def listed(self, entry: ManifestEntry) -> File:
        """The file of an entry that was read. A path may be listed several times, so the entry says how it is here."""
        raw = entry.raw["data_file"]
        file, partition = self.written[entry.path, raw["content_offset"]], tuple(raw["partition"].values())
        return replace(file, spec_id=entry.spec_id, partition=partition, sequence_number=entry.sequence_number)

    def ancestors(self) -> Iterator[int]:
        """The ids of the head and of what came before it."""
        parents = {each["snapshot-id"]: each["parent-snapshot-id"] for each in self.snapshots}
        current = self.head
        while current is not None:
            yield current
            current = parents[current]

    def metadata(self) -> Json:
        """The content of its metadata.json."""
        fields = [{"id": key, "name": name, "required": False, "type": "int"} for key, name in COLUMNS.items()]
        return {
            "format-version": self.version,
            "table-uuid": UUID,
            "location": "memory",
            "last-sequence-number": self.sequence_number,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": spec_id, "fields": _spec(spec_id)} for spec_id in SPECS],
            "default-spec-id": self.spec_id,
            "properties": {},
            "snapshots": list(self.snapshots),
            "current-snapshot-id": self.head,
            "refs": {"main": {"snapshot-id": self.head, "type": "branch"}},
        }

    def new_path(self, what: str) -> str:
        return f"{what}-{next(self._numbers)}"

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def commit(
        self,
        operation: str,
        added: Iterable[File] = (),
        removed: Iterable[File] = (),
        *,
        sequence_number: int | None = None,
    ) -> None:
        """Add a snapshot. The data sequence number of its files is its own unless one is given."""
        snapshot_id = 1001 + len(self.snapshots)
        self.sequence_number += 1 if self.version > 1 else 0
        own, gone = self.sequence_number, set(removed)
        number = own if sequence_number is None else sequence_number
        new = [
            replace(file, file_sequence_number=own, sequence_number=number, snapshot_id=snapshot_id) for file in added
        ]
        self.written |= {(file.path, file.offset): file for file in new}
        manifests = self._arranged(new, gone, snapshot_id)
        snapshot = {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": self.head,
            "timestamp-ms": snapshot_id,
            "manifest-list": self._write_list([manifest.row for manifest in manifests]),
            "summary": {"operation": operation, **(_counts(new, gone, manifests) if self.chance(0.9) else {})},
            "schema-id": 0,
        }
        self.snapshots.append(snapshot | ({"sequence-number": self.sequence_number} if self.version > 1 else {}))
        what = [*(f"+{_shown(file)}" for file in new), *sorted(f"-{file.path}" for file in gone)]
        self.log.append(f"{snapshot_id} after {self.head}, {operation}: {', '.join(what)}")
        self._manifests[snapshot_id] = manifests
        self.head = snapshot_id

    def _arranged(self, new: Sequence[File], gone: set[File], snapshot_id: int) -> list[_Manifest]:
        """The snapshot's manifests: some of the parent's as they are, and others in their place."""
        groups: dict[tuple[int, Content], list[tuple[File, Status]]] = {}
        for file in new:
            groups.setdefault((file.spec_id, Content(min(file.kind, 1))), []).append((file, Status.ADDED))
        kept, merges = [], self.chance(0.3)
        for manifest in self._manifests[self.head]:
            entries = [(f, Status.DELETED if f in gone else Status.EXISTING) for f in manifest.live]
            is_changed = not gone.isdisjoint(manifest.live)
            if not is_changed and not (merges and self.chance(0.7)):
                kept.append(manifest)
            elif is_changed and self.chance(0.7):
                kept.append(self._write(*manifest.key, entries, snapshot_id))
            elif entries:
                groups.setdefault(manifest.key, []).extend(entries)
        return [*kept, *(self._write(*key, entries, snapshot_id) for key, entries in groups.items())]

    def _write(
        self, spec_id: int, content: Content, entries: Sequence[tuple[File, Status]], snapshot_id: int
    ) -> _Manifest:
        columns = [avro_schemas.field(1000 + column, COLUMNS[column], "int") for column in SPECS[spec_id]]
        header = {
            SCHEMA_KEY: self._schema(entry_schema({"type": "record", "name": "r102", "fields": columns}, *_OPTIONAL)),
            "format-version": str(self.version),
            "partition-spec": json.dumps(_spec(spec_id)),
            "partition-spec-id": str(spec_id),
            "content": content.name.lower(),
        }
        inherits = self.version > 1 and self.chance(0.5)
        records = [_record(file, status, snapshot_id, inherits=inherits) for file, status in entries]
        path = self.new_path("manifest") + ".avro"
        self._contents[path] = write_avro(header, records)
        row: Json = {
            "manifest_path": path,
            "manifest_length": 1,
            "partition_spec_id": spec_id,
            "content": content.value,
            "sequence_number": self.sequence_number,
            "min_sequence_number": min(file.sequence_number for file, _ in entries),
            "added_snapshot_id": snapshot_id,
            "partitions": [_summary(values) for values in zip(*[file.partition for file, _ in entries], strict=True)],
        }
        for status in Status:
            files = [file for file, found in entries if found is status]
            row[f"{status.name.lower()}_files_count"] = len(files)
            row[f"{status.name.lower()}_rows_count"] = sum(file.record_count for file in files)
        return _Manifest(row, entries)

    def _write_list(self, rows: Sequence[Json]) -> str:
        path = self.new_path("list") + ".avro"
        header = {SCHEMA_KEY: self._schema(LIST_SCHEMA), "format-version": str(self.version)}
        self._contents[path] = write_avro(header, rows)
        return path

    def _schema(self, schema: Json) -> str:
        return json.dumps(of_version_1(schema) if self.version == 1 else schema)


def parsed(metadata: Json) -> TableMetadata:
    return TableMetadata.parse(NAME, "memory/metadata.json", json.dumps(metadata).encode())


def _spec(spec_id: int) -> list[Json]:
    return [
        {"name": COLUMNS[column], "transform": "identity", "source-id": column, "field-id": 1000 + column}
        for column in SPECS[spec_id]
    ]


def _record(file: File, status: Status, snapshot_id: int, *, inherits: bool) -> Json:
    """The entry of a file. What is inherited isn't written: a snapshot, and numbers that are the snapshot's own."""
    is_implied = inherits and status is Status.ADDED
    is_numbered = not is_implied or file.sequence_number != file.file_sequence_number
    bounds = _bounds(file)
    return {
        "status": status.value,
        "snapshot_id": None if is_implied else snapshot_id if status is Status.DELETED else file.snapshot_id,
        "sequence_number": file.sequence_number if is_numbered else None,
        "file_sequence_number": file.file_sequence_number if is_numbered else None,
        "data_file": {
            "content": file.kind.value,
            "file_path": file.path,
            "file_format": "PARQUET" if file.offset is None else "PUFFIN",
            "partition": dict(zip([COLUMNS[column] for column in SPECS[file.spec_id]], file.partition, strict=True)),
            "record_count": file.record_count,
            "file_size_in_bytes": 100,
            "lower_bounds": [{"key": key, "value": lower} for key, (lower, _) in bounds.items()] or None,
            "upper_bounds": [{"key": key, "value": upper} for key, (_, upper) in bounds.items()] or None,
            "equality_ids": list(file.columns) or None,
            "referenced_data_file": None if file.offset is None else file.refers_to,
            "content_offset": file.offset,
            "content_size_in_bytes": None if file.offset is None else 1,
        },
    }


def _bounds(file: File) -> dict[int, tuple[bytes, bytes]]:
    """The lowest and the highest value by column. Equal paths say that a file deletes from one data file only."""
    if not file.has_bounds or file.offset is not None:
        return {}
    if file.kind is Kind.POSITIONS:
        paths = sorted(path for path, _ in file.positions)
        return {_FILE_PATH: (paths[0].encode(), paths[-1].encode())}
    columns = zip(file.columns or COLUMNS, zip(*(file.rows or file.values), strict=True), strict=True)
    known = {column: [value for value in values if value is not None] for column, values in columns}
    return {key: (_as_bound(min(values)), _as_bound(max(values))) for key, values in known.items() if values}


def _as_bound(value: int) -> bytes:
    return struct.pack("<i", value)


def _summary(values: Sequence[int | None]) -> Json:
    known = [value for value in values if value is not None]
    lower, upper = (_as_bound(min(known)), _as_bound(max(known))) if known else (None, None)
    return {"contains_null": None in values, "contains_nan": False, "lower_bound": lower, "upper_bound": upper}


def _counts(new: Iterable[File], gone: Iterable[File], manifests: Iterable[_Manifest]) -> dict[str, str]:
    """What a snapshot's summary counts."""

    def count(files: Iterable[File], *, data: bool) -> int:
        return sum((file.kind is Kind.DATA) is data for file in files)

    counts = {
        "added-data-files": count(new, data=True),
        "added-delete-files": count(new, data=False),
        "deleted-data-files": count(gone, data=True),
        "removed-delete-files": count(gone, data=False),
    }
    total = sum(count(manifest.live, data=True) for manifest in manifests)
    return {"total-data-files": str(total), **{name: str(found) for name, found in counts.items() if found}}


def _shown(file: File) -> str:
    """A file as a failure shows it."""
    what = list(file.rows or sorted(file.positions)) or f"{file.columns} in {set(file.values)}"
    since = "" if file.sequence_number == file.file_sequence_number else f" as of {file.sequence_number}"
    return f"{file.path} {what} in {file.place}{since}"
