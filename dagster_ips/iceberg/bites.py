"""Some of the files of one snapshot, in the order in which its manifest list and manifests list them.

Both are immutable, so a file's number is its place in that order as long as the snapshot is retained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import ChangeSet
from dagster_ips.core.file_set import Bite
from dagster_ips.core.limits import Limits
from dagster_ips.errors import MetadataUnreadableError
from dagster_ips.iceberg.change_reader import ChangedFiles
from dagster_ips.iceberg.delete_reach import applying_to
from dagster_ips.iceberg.manifests import (
    Content,
    ManifestEntry,
    ManifestRow,
    added_by,
    content_of,
    live_files_count,
    read_live_entries,
    read_live_manifests,
    read_manifest_list,
)
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage


def appended_bite(
    storage: Storage, metadata: TableMetadata, snapshot: Snapshot, *, first: int, limits: Limits
) -> tuple[ChangedFiles, Bite]:
    """Files that ``snapshot``, an append, added, from number ``first`` on: as many as ``limits`` allow, at least one.

    Cost: the manifests that the snapshot wrote.
    """
    rows = [
        row
        for row in read_manifest_list(storage, snapshot, table=metadata.table)
        if content_of(row) is Content.DATA and row["added_snapshot_id"] == snapshot.snapshot_id
    ]
    own = ((None, _reader(storage, row, metadata, of=snapshot)) for row in rows)
    chosen, bite = _cut(own, first, limits)
    return ChangedFiles(ChangeSet(tuple(entry.data_file() for entry in chosen)), fresh=tuple(chosen)), bite


def live_bite(
    storage: Storage, metadata: TableMetadata, snapshot: Snapshot, *, first: int, limits: Limits
) -> tuple[ChangedFiles, Bite]:
    """Files live at ``snapshot``, from number ``first`` on, with the delete files that may apply.

    Cost: the manifests that list the files taken, and those that list delete files.
    """
    rows = read_live_manifests(storage, snapshot, table=metadata.table)
    data = [row for row in rows if content_of(row) is Content.DATA]
    chosen, bite = _cut(((live_files_count(row), _reader(storage, row, metadata)) for row in data), first, limits)
    deletes = [
        entry
        for row in rows
        if content_of(row) is Content.DELETES
        for entry in read_live_entries(storage, row, table=metadata.table)
    ]
    applying = tuple(applying_to(deletes, chosen))
    changes = ChangeSet(tuple(entry.data_file() for entry in chosen), has_deletes=bool(applying))
    return ChangedFiles(changes, fresh=tuple(chosen), deletes=applying), bite


_Read = Callable[[], list[ManifestEntry]]


def _reader(storage: Storage, row: ManifestRow, metadata: TableMetadata, *, of: Snapshot | None = None) -> _Read:
    """A function that reads the manifest's live files, only those ``of`` a snapshot if one is given.

    It fails if the number of files isn't the one that another bite counted without opening the manifest.
    """

    def read() -> list[ManifestEntry]:
        live = list(read_live_entries(storage, row, table=metadata.table))
        counted = live_files_count(row)
        if counted not in (None, len(live)):
            cause = f"it has {len(live)} live files, but its manifest list counts {counted}"
            raise MetadataUnreadableError(table=metadata.table, file=row["manifest_path"], cause=cause)
        return live if of is None else list(filter(added_by([of]), live))

    return read


def _cut(manifests: Iterable[tuple[int | None, _Read]], first: int, limits: Limits) -> tuple[list[ManifestEntry], Bite]:
    """Entries from number ``first`` on, as many as ``limits`` allow, at least one; other manifests aren't opened."""
    chosen: list[ManifestEntry] = []
    position = size_bytes = 0
    is_full = False
    for count, read in manifests:
        if count is not None and (is_full or position + count <= first):
            position += count
            continue
        entries = read()
        for entry in entries[max(first - position, 0) :] if not is_full else ():
            more = size_bytes + int(entry.raw["data_file"]["file_size_in_bytes"])
            is_full = bool(chosen) and not limits.allow(len(chosen) + 1, more)
            if is_full:
                break
            chosen.append(entry)
            size_bytes = more
        position += len(entries)
    return chosen, Bite(first, first + len(chosen), position)
