"""A lake in memory: a catalog that swaps pointers, and snapshots written by hand, whose data files are never read.

The code under test reads and writes metadata and manifests as in any lake. What rows a data file has is only known
here, so that a test can tell what a table holds at a snapshot without asking the code.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import fastavro
from pyiceberg.exceptions import CommitFailedException

from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from tests.histories.avro_schemas import LIST_SCHEMA, entry_schema

Json = dict[str, Any]
Row = tuple[str, int, str, int]
"""The upstream that a row comes from, its number there, its key, by which tables are partitioned, and what made it."""
Rows = Counter[Row]
_KEY = {"type": "record", "name": "r102", "fields": [{"name": "key", "type": ["null", "string"], "field-id": 1000}]}
_ENTRIES = fastavro.parse_schema(entry_schema(_KEY))
_LISTS = fastavro.parse_schema(LIST_SCHEMA)
_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "key", "required": False, "type": "string"},
        {"id": 2, "name": "number", "required": False, "type": "long"},
        {"id": 3, "name": "upstream", "required": False, "type": "string"},
    ],
}
_SPEC = {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "key", "transform": "identity"}]}
_EXISTING, _ADDED, _DELETED = 0, 1, 2


class MemoryStorage(Storage):
    """Files in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__({})
        object.__setattr__(self, "files", files)
        self.files: dict[str, bytes]

    def _content(self, location: str, table: str) -> bytes:  # noqa: ARG002  # as in the base class
        if location not in self.files:
            raise FileNotFoundError(location)
        return self.files[location]

    def exists(self, location: str, *, table: str) -> bool:  # noqa: ARG002  # as in the base class
        return location in self.files

    def size(self, location: str, *, table: str) -> int:  # noqa: ARG002  # as in the base class
        return len(self.files[location])

    def write(self, location: str, content: bytes, *, table: str) -> None:  # noqa: ARG002  # as in the base class
        assert location not in self.files, f"{location} is written twice"
        self.files[location] = content

    def delete(self, location: str, *, table: str) -> None:  # noqa: ARG002  # as in the base class
        self.files.pop(location, None)

    def remove_empty_folder(self, location: str, *, table: str) -> None:
        """Files need no folders here."""


@dataclass(frozen=True, eq=False)
class MemoryLake(LakeCatalog):
    """A catalog in memory that commits as a database does; ``on_read`` is called before each read of a table."""

    pointers: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    on_read: Callable[[], None] = lambda: None

    @classmethod
    def new(cls, on_read: Callable[[], None]) -> MemoryLake:
        """An empty one."""
        lake = cls("lake", {"type": "memory"}, on_read=on_read)
        vars(lake).update(storage=MemoryStorage(lake.files))
        return lake

    def on_branch(self, branch: str | None) -> MemoryLake:
        found = replace(self, branch=branch)
        vars(found).update(storage=self.storage)
        return found

    def require_register(self) -> None:
        """It can."""

    def create_namespace(self, namespace: str) -> None:
        """Any name is one."""

    def metadata_locations(self, tables: Sequence[str]) -> dict[str, str]:
        self.on_read()
        return {table: self.pointers[table] for table in tables if table in self.pointers}

    def names_by_prefix(self, namespace: str, start: str) -> list[str]:
        return [name for name in self.pointers if name.startswith(f"{namespace}.{start}")]

    def register(self, table: str, metadata_location: str) -> None:
        assert table not in self.pointers, f"{table} is registered twice"
        self.pointers[table] = metadata_location

    def drop(self, table: str) -> None:
        self.pointers.pop(table, None)

    def commit(
        self,
        table: TableMetadata,
        requirements: Sequence[Mapping[str, Any]],  # noqa: ARG002  # as in the base class
        updates: Sequence[Mapping[str, Any]],  # noqa: ARG002  # as in the base class
        write: Callable[[], str],
    ) -> None:
        location = write()
        if self.pointers[table.table] != table.metadata_location:
            raise CommitFailedException
        self.pointers[table.table] = location


@dataclass(frozen=True)
class _File:
    """A live data file: the snapshot and sequence number that added it, its key, and its rows."""

    snapshot_id: int
    sequence_number: int
    key: str
    rows: Rows


@dataclass(eq=False)
class Table:
    """A table whose snapshots are written by hand, each in one step, as an engine's commit that retries."""

    lake: MemoryLake
    name: str
    random: Random
    live: dict[int | None, Mapping[str, _File]] = field(default_factory=lambda: {None: {}})
    """The data files of each snapshot, by path, also of those that have expired."""
    parents: dict[int, int | None] = field(default_factory=dict)
    lists: dict[int | None, list[Json]] = field(default_factory=lambda: {None: []})
    rows_of: dict[str, Rows] = field(default_factory=dict)
    """The rows of each data file that ever was, by path."""
    forgets_parents: bool = False
    """Whether an expiry removes the ids of expired parents, as PyIceberg's does and Java's doesn't."""

    def create(self, **properties: str) -> None:
        """Without a snapshot."""
        raw = {
            "format-version": 2,
            "table-uuid": f"uuid-of-{self.name}",
            "location": f"mem://lake/{self.name}",
            "last-sequence-number": 0,
            "last-updated-ms": 1,
            "last-column-id": 3,
            "schemas": [_SCHEMA],
            "current-schema-id": 0,
            "partition-specs": [_SPEC],
            "default-spec-id": 0,
            "last-partition-id": 1000,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": properties,
            "snapshots": [],
            "refs": {},
            "snapshot-log": [],
            "metadata-log": [],
        }
        self.lake.pointers[self.name] = self._written(raw)

    @property
    def raw(self) -> Json:
        """A copy of the current metadata."""
        return dict(json.loads(self.lake.files[self.lake.pointers[self.name]]))

    @property
    def metadata(self) -> TableMetadata:
        """The same as the code under test reads it, without being seen to read."""
        location = self.lake.pointers[self.name]
        return TableMetadata.parse(self.name, location, self.lake.files[location])

    @property
    def head(self) -> int | None:
        """The snapshot of ``main``."""
        return self.metadata.head_snapshot_id()

    def rows(self, snapshot_id: int | None) -> Rows:
        """What the table held at a snapshot."""
        found: Rows = Counter()
        for file in self.live[snapshot_id].values():
            found += file.rows
        return found

    def history(self, snapshot_id: int | None) -> list[int]:
        """A snapshot and its ancestors, newest first, also those that have expired."""
        found = []
        while snapshot_id is not None:
            found.append(snapshot_id)
            snapshot_id = self.parents[snapshot_id]
        return found

    def commit(
        self,
        add: Rows,
        *,
        drop: Collection[str] = (),
        ref: str = "main",
        operation: str | None = None,
        summary: Mapping[str, str] | None = None,
    ) -> int:
        """Add a file for each key of the rows ``add``, and drop files; a ref that is missing begins at ``main``."""
        raw = self.raw
        refs, number = raw["refs"], raw["last-sequence-number"] + 1
        parent = refs.get(ref, refs.get("main", {})).get("snapshot-id")
        snapshot_id = self.random.getrandbits(62) + 1
        before = self.live[parent]
        by_key: dict[str, Rows] = {}
        for row, count in sorted(add.items()):
            by_key.setdefault(row[2], Counter())[row] = count
        added = {
            f"mem://lake/{self.name}/data/{snapshot_id}-{key}.parquet": _File(snapshot_id, number, key, rows)
            for key, rows in by_key.items()
        }
        manifests = self._manifests(parent, before, added, drop, snapshot_id, number)
        after = {path: file for path, file in before.items() if path not in drop} | added
        at_ms = raw["last-updated-ms"] + 1
        told = operation or ("overwrite" if drop and added else "delete" if drop else "append")
        listed = f"mem://lake/{self.name}/metadata/snap-{snapshot_id}.avro"
        self._write_avro(listed, _LISTS, manifests, {"format-version": "2"})
        snapshot = {
            "snapshot-id": snapshot_id,
            **({"parent-snapshot-id": parent} if parent is not None else {}),
            "sequence-number": number,
            "timestamp-ms": at_ms,
            "manifest-list": listed,
            "schema-id": 0,
            "summary": {"operation": told, **_counts(before, added, drop, after), **(summary or {})},
        }
        self.rows_of |= {path: file.rows for path, file in added.items()}
        self.live[snapshot_id], self.parents[snapshot_id], self.lists[snapshot_id] = after, parent, manifests
        refs[ref] = {"type": "branch", **refs.get(ref, {}), "snapshot-id": snapshot_id}
        raw |= {"last-sequence-number": number, "last-updated-ms": at_ms, "snapshots": [*raw["snapshots"], snapshot]}
        self._moved(raw, ref, snapshot_id, at_ms)
        self._swap(raw)
        return snapshot_id

    def set_ref(self, ref: str, snapshot_id: int) -> None:
        """Move a branch, or create it."""
        raw = self.raw
        raw["refs"][ref] = {"type": "branch", **raw["refs"].get(ref, {}), "snapshot-id": snapshot_id}
        self._moved(raw, ref, snapshot_id, raw["last-updated-ms"])
        self._swap(raw)

    def drop_ref(self, ref: str) -> None:
        """Drop a ref, if it exists."""
        raw = self.raw
        if raw["refs"].pop(ref, None):
            self._swap(raw)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties."""
        raw = self.raw
        raw["properties"] |= properties
        self._swap(raw)

    def compact(self, ref: str = "main") -> None:
        """Rewrite the files of each key that has several, if there is one."""
        live = self.live[self.raw["refs"].get(ref, {}).get("snapshot-id")]
        keys = Counter(file.key for file in live.values())
        moved = {path: file for path, file in live.items() if keys[file.key] > 1}
        if moved:
            self.commit(_sum(moved.values()), drop=moved.keys(), ref=ref, operation="replace")

    def rewrite(self, remove: Rows, add: Rows) -> int:
        """Copy-on-write: the files with rows to remove are dropped, and what else they hold is written again."""
        live = self.live[self.head]
        touched = {path: file for path, file in live.items() if file.rows & remove}
        return self.commit(_sum(touched.values()) - remove + add, drop=touched.keys())

    def expire(self) -> None:
        """Drop every snapshot that no ref is at."""
        raw = self.raw
        kept = {ref["snapshot-id"] for ref in raw["refs"].values()}
        raw["snapshots"] = [each for each in raw["snapshots"] if each["snapshot-id"] in kept]
        for each in raw["snapshots"] if self.forgets_parents else ():
            if each.get("parent-snapshot-id") not in kept:
                each.pop("parent-snapshot-id", None)
        raw["snapshot-log"] = [each for each in raw["snapshot-log"] if each["snapshot-id"] in kept]
        self._swap(raw)

    def _manifests(  # noqa: PLR0913, PLR0917  # all are independent
        self,
        parent: int | None,
        before: Mapping[str, _File],
        added: Mapping[str, _File],
        drop: Collection[str],
        snapshot_id: int,
        number: int,
    ) -> list[Json]:
        """The parent's manifests and one of what is added; if files are dropped, one that lists all."""
        new = [_entry(path, file, _ADDED, None, None) for path, file in added.items()]
        if not drop:
            return [*self.lists[parent], *([self._manifest(new, snapshot_id, number, number)] if new else [])]
        old = [
            _entry(path, file, _DELETED, snapshot_id, file.sequence_number)
            if path in drop
            else _entry(path, file, _EXISTING, file.snapshot_id, file.sequence_number)
            for path, file in before.items()
        ]
        least = min(file.sequence_number for file in before.values())
        return [self._manifest([*old, *new], snapshot_id, number, least)]

    def _manifest(self, entries: Sequence[Json], snapshot_id: int, number: int, least: int) -> Json:
        path = f"mem://lake/{self.name}/metadata/{snapshot_id}-m0.avro"
        header = {
            "schema": json.dumps(_SCHEMA),
            "partition-spec": json.dumps(_SPEC["fields"]),
            "partition-spec-id": "0",
            "format-version": "2",
            "content": "data",
        }
        self._write_avro(path, _ENTRIES, entries, header)
        counts = {}
        for status, name in ((_ADDED, "added"), (_EXISTING, "existing"), (_DELETED, "deleted")):
            found = [each["data_file"]["record_count"] for each in entries if each["status"] == status]
            counts |= {f"{name}_files_count": len(found), f"{name}_rows_count": sum(found)}
        return {
            "manifest_path": path,
            "manifest_length": len(self.lake.files[path]),
            "partition_spec_id": 0,
            "content": 0,
            "sequence_number": number,
            "min_sequence_number": least,
            "added_snapshot_id": snapshot_id,
            **counts,
        }

    def _write_avro(self, path: str, schema: Any, records: Sequence[Json], header: Mapping[str, str]) -> None:  # noqa: ANN401  # an Avro schema
        written = io.BytesIO()
        fastavro.writer(written, schema, records, metadata=dict(header))
        self.lake.files[path] = written.getvalue()

    def _moved(self, raw: Json, ref: str, snapshot_id: int, at_ms: int) -> None:
        if ref == "main":
            raw["current-snapshot-id"] = snapshot_id
            raw["snapshot-log"].append({"snapshot-id": snapshot_id, "timestamp-ms": at_ms})

    def _swap(self, raw: Json) -> None:
        raw["metadata-log"].append(
            {"timestamp-ms": raw["last-updated-ms"], "metadata-file": self.lake.pointers[self.name]}
        )
        self.lake.pointers[self.name] = self._written(raw)

    def _written(self, raw: Json) -> str:
        location = f"mem://lake/{self.name}/metadata/00000-by-hand-{len(self.lake.files)}.metadata.json"
        self.lake.files[location] = json.dumps(raw).encode()
        return location


def _sum(files: Iterable[_File]) -> Rows:
    found: Rows = Counter()
    for file in files:
        found += file.rows
    return found


def _entry(path: str, file: _File, status: int, snapshot_id: int | None, number: int | None) -> Json:
    described = {
        "content": 0,
        "file_path": path,
        "file_format": "PARQUET",
        "partition": {"key": file.key},
        "record_count": file.rows.total(),
        "file_size_in_bytes": 100 * file.rows.total(),
    }
    return {
        "status": status,
        "snapshot_id": snapshot_id,
        "sequence_number": number,
        "file_sequence_number": number,
        "data_file": described,
    }


def _counts(
    before: Mapping[str, _File], added: Mapping[str, _File], drop: Collection[str], after: Mapping[str, _File]
) -> dict[str, str]:
    counts = {
        "added-data-files": len(added),
        "added-records": _sum(added.values()).total(),
        "added-files-size": 100 * _sum(added.values()).total(),
        "deleted-data-files": len(drop),
        "deleted-records": _sum(before[path] for path in drop).total(),
        "total-data-files": len(after),
        "total-records": _sum(after.values()).total(),
    }
    nothing = ("total-delete-files", "total-position-deletes", "total-equality-deletes")
    return {name: str(count) for name, count in counts.items() if count or name.startswith("total")} | dict.fromkeys(
        nothing, "0"
    )
