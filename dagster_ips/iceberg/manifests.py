"""Reads manifest lists and manifests, and makes every inherited value explicit.

Source: Iceberg table spec, "Manifests", "Manifest Lists", "Sequence Number Inheritance", "First Row ID Inheritance".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import MetadataUnreadableError
from dagster_ips.iceberg.avro import AvroFile, CodecUnknownError, read_avro
from dagster_ips.iceberg.manifest_shape import shaped
from dagster_ips.iceberg.storage import Storage

ManifestRow = dict[str, Any]
"""A row of a manifest list, which describes one manifest: raw Avro values by the spec's field names."""

_UNASSIGNED = -1
"""What Iceberg's implementation in Java has for a number that isn't assigned yet, and others write."""
# Older Iceberg and other writers call them added_data_files_count and so on; the field ids are the same.
_NAMES = {504: "added_files_count", 505: "existing_files_count", 506: "deleted_files_count"}


class Status(IntEnum):
    """``status`` of a manifest entry."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


class Content(IntEnum):
    """``content`` of a manifest."""

    DATA = 0
    DELETES = 1


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """An entry with explicit snapshot id and sequence numbers; ``raw`` is ready to be written again.

    ``manifest`` is the header of the manifest that lists the entry, ``spec_id`` that manifest's partition spec.
    ``is_named`` says that the entry names its snapshot itself and hasn't inherited it from the manifest.
    """

    manifest: Mapping[str, str]
    spec_id: int
    content: Content
    raw: dict[str, Any]
    is_named: bool = True

    @property
    def status(self) -> Status:
        """Whether the file was added, carried over or removed."""
        return Status(self.raw["status"])

    @property
    def snapshot_id(self) -> int:
        """The snapshot that gave the entry its status."""
        return int(self.raw["snapshot_id"])

    @property
    def path(self) -> str:
        """The file's location."""
        return str(self.raw["data_file"]["file_path"])

    @property
    def record_count(self) -> int:
        """The file's number of rows, including those that delete files hide."""
        return int(self.raw["data_file"]["record_count"])

    @property
    def sequence_number(self) -> int:
        """The data sequence number; 0 in a v1 manifest."""
        return int(self.raw.get("sequence_number") or 0)

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two entries that are the same file at the same place in the history.

        A Puffin file holds many deletion vectors, each at its own offset.
        """
        return self.path, self.raw["data_file"].get("content_offset"), self.sequence_number

    @property
    def addition(self) -> tuple[object, ...]:
        """As ``identity``, for live entries; if they have no sequence number, the snapshot that added the file counts.

        In version 1, that is all that tells a file from one that was added again under its path. Of a removed file, the
        entry names the snapshot that removed it.
        """
        return (*self.identity, self.snapshot_id if self.sequence_number == 0 else None)

    def is_from(self, mark: Watermark) -> bool:
        """Whether the watermark's snapshot added the file.

        For a removed file, or one that doesn't name its snapshot, the sequence number says so. Otherwise it isn't used:
        once an older version of the table is registered again, other snapshots take the numbers that came after it.
        """
        if self.status is not Status.DELETED and self.is_named:
            return self.snapshot_id == mark.snapshot_id
        added_at = self.raw.get("file_sequence_number")
        return bool(added_at) and added_at == mark.sequence_number

    def data_file(self) -> DataFile:
        """The file that the entry describes."""
        raw = self.raw["data_file"]
        return DataFile(
            path=raw["file_path"],
            spec_id=self.spec_id,
            record_count=raw["record_count"],
            file_size_bytes=raw["file_size_in_bytes"],
            partition=raw["partition"],
            lower_bounds=_by_field_id(raw.get("lower_bounds")),
            upper_bounds=_by_field_id(raw.get("upper_bounds")),
            null_counts=_by_field_id(raw.get("null_value_counts")),
            file_format=str(raw.get("file_format", "PARQUET")).upper(),
        )


def added_by(snapshots: Iterable[Snapshot]) -> Callable[[ManifestEntry], bool]:
    """Whether the file of a live entry was added by one of ``snapshots``.

    Of a file that was there before, the sequence number tells. The entry's snapshot may be wrong: DuckDB leaves it out
    when it merges manifests, so that the entry inherits the snapshot that merged them, and others copy that.
    """
    kept = tuple(snapshots)
    ids, numbers = {each.snapshot_id for each in kept}, {each.sequence_number for each in kept}

    def is_added(entry: ManifestEntry) -> bool:
        number = entry.raw.get("file_sequence_number")
        return number in numbers if entry.status is Status.EXISTING and number else entry.snapshot_id in ids

    return is_added


def read_manifest_list(storage: Storage, snapshot: Snapshot, *, table: str) -> list[ManifestRow]:
    """The manifests of ``snapshot``.

    Raises:
        MetadataUnreadableError: the list is missing or damaged, or the snapshot has none, as in old tables of v1.
    """
    if not snapshot.manifest_list:
        file_of, cause = f"of snapshot {snapshot.snapshot_id}", "it names no manifest list, which is needed here"
        raise MetadataUnreadableError(table=table, file=file_of, cause=cause)
    file = _read(storage, snapshot.manifest_list, table=table)
    if not file.records and snapshot.summary.get("total-data-files", "0") != "0":
        cause = f"it is empty, but its snapshot counts {snapshot.summary['total-data-files']} data files"
        raise MetadataUnreadableError(table=table, file=snapshot.manifest_list, cause=cause)
    names = {f["name"]: _NAMES.get(f.get("field-id"), f["name"]) for f in json.loads(file.schema)["fields"]}
    rows = [{names[key]: value for key, value in row.items()} for row in file.records]
    _require_known(Content, [row.get("content") or 0 for row in rows], table=table, location=snapshot.manifest_list)
    for row in rows:
        if row.get("added_snapshot_id") is None:  # It is optional in v1, where each entry names its own snapshot.
            row["added_snapshot_id"] = snapshot.snapshot_id
    return rows


def read_live_manifests(storage: Storage, snapshot: Snapshot, *, table: str) -> list[ManifestRow]:
    """As ``read_manifest_list``, without manifests that have only files marked as deleted."""
    return [row for row in read_manifest_list(storage, snapshot, table=table) if may_hold_live_files(row)]


def read_entries(storage: Storage, row: ManifestRow, *, table: str) -> Iterator[ManifestEntry]:
    """The entries of one manifest, DELETED ones included.

    Raises:
        MetadataUnreadableError: the manifest is missing or damaged.
    """
    file = _read(storage, row["manifest_path"], table=table, shaped=shaped)
    counts = [int(row[name]) for name in _NAMES.values() if row.get(name) is not None]
    if len(counts) == len(_NAMES) and sum(counts) != len(file.records):
        cause = f"it has {len(file.records)} entries, but its manifest list counts {sum(counts)}"
        raise MetadataUnreadableError(table=table, file=row["manifest_path"], cause=cause)
    _require_known(Status, [raw["status"] for raw in file.records], table=table, location=row["manifest_path"])
    next_row_id = row.get("first_row_id")
    for raw in file.records:
        is_named = raw.get("snapshot_id") is not None
        if not is_named:
            raw["snapshot_id"] = row["added_snapshot_id"]
        _inherit_sequence_numbers(raw, row)
        next_row_id = _inherit_first_row_id(raw, row, next_row_id)
        yield ManifestEntry(file.header, row["partition_spec_id"], content_of(row), raw, is_named)


def read_live_entries(storage: Storage, row: ManifestRow, *, table: str) -> Iterator[ManifestEntry]:
    """As ``read_entries``, without DELETED ones."""
    return (entry for entry in read_entries(storage, row, table=table) if entry.status is not Status.DELETED)


def own_entries(storage: Storage, snapshot: Snapshot, content: Content, *, table: str) -> Iterator[ManifestEntry]:
    """The entries of the files that ``snapshot`` itself added or deleted."""
    for row in read_manifest_list(storage, snapshot, table=table):
        if content_of(row) is content and row["added_snapshot_id"] == snapshot.snapshot_id:
            for entry in read_entries(storage, row, table=table):
                if entry.snapshot_id == snapshot.snapshot_id and entry.status is not Status.EXISTING:
                    yield entry


def content_of(row: ManifestRow) -> Content:
    """Whether the manifest lists data files or delete files; v1 knows only data files."""
    return Content(row.get("content") or 0)


def may_hold_live_files(row: ManifestRow) -> bool:
    """Whether the manifest has files that aren't marked as deleted; the counts are optional in v1."""
    return live_files_count(row) != 0


def live_files_count(row: ManifestRow) -> int | None:
    """How many of the manifest's files aren't marked as deleted; None if v1 doesn't record it."""
    return _live(row, "files")


def live_rows(row: ManifestRow) -> int | None:
    """How many rows these files hold; None if v1 doesn't record it."""
    return _live(row, "rows")


def _live(row: ManifestRow, what: str) -> int | None:
    counts = (row.get(f"added_{what}_count"), row.get(f"existing_{what}_count"))
    return None if None in counts else sum(int(count or 0) for count in counts)


def _inherit_sequence_numbers(raw: dict[str, Any], row: ManifestRow) -> None:
    if "sequence_number" not in raw:  # a v1 manifest: the field doesn't exist and means 0
        return
    inherited = row.get("sequence_number") or 0
    for name in ("sequence_number", "file_sequence_number"):
        # Iceberg before 1.0 wrote no file_sequence_number.
        if raw.get(name) in (None, _UNASSIGNED) and (inherited == 0 or raw["status"] == Status.ADDED):
            raw[name] = inherited


def _inherit_first_row_id(raw: dict[str, Any], row: ManifestRow, next_row_id: int | None) -> int | None:
    file = raw["data_file"]
    if content_of(row) is not Content.DATA or raw["status"] == Status.DELETED:
        return next_row_id
    if next_row_id is None:
        if "first_row_id" in file:
            file["first_row_id"] = None
        return None
    if file.get("first_row_id") is None:
        file["first_row_id"] = next_row_id
        return next_row_id + int(file["record_count"])
    return next_row_id


def _read(
    storage: Storage, location: str, *, table: str, shaped: Callable[[AvroFile], AvroFile] | None = None
) -> AvroFile:
    content = storage.read(location, table=table)
    try:
        found = read_avro(content)
        return shaped(found) if shaped else found
    except CodecUnknownError as error:
        remedy = "Install the package, here and wherever runs are."
        raise MetadataUnreadableError(table=table, file=location, cause=str(error), remedy=remedy) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        cause = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise MetadataUnreadableError(table=table, file=location, cause=cause) from error


def _require_known(kind: type[IntEnum], values: list[int], *, table: str, location: str) -> None:
    if unknown := set(values) - {member.value for member in kind}:
        cause = f"it holds {kind.__name__.lower()} {unknown.pop()}, which Iceberg doesn't have"
        raise MetadataUnreadableError(table=table, file=location, cause=cause)


def _by_field_id(pairs: list[dict[str, Any]] | None) -> dict[int, Any]:
    return {pair["key"]: pair["value"] for pair in pairs or ()}
