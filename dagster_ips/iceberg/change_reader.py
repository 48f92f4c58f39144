"""From an interval to the files it added, by metadata alone."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.changes import ChangeSet
from dagster_ips.iceberg.manifests import (
    Content,
    ManifestEntry,
    ManifestRow,
    Status,
    content_of,
    may_hold_live_files,
    read_entries,
    read_manifest_list,
)
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage


@dataclass(frozen=True, slots=True)
class CapturedFiles:
    """The change set, and where its files stand: manifests taken whole, and single entries of others."""

    changes: ChangeSet
    whole: tuple[ManifestRow, ...] = ()
    entries: tuple[ManifestEntry, ...] = ()


def appended_files(
    storage: Storage, metadata: TableMetadata, snapshots: tuple[Snapshot, ...], *, head: Snapshot
) -> CapturedFiles:
    """The files that ``snapshots``, all of them appends up to ``head``, added; none gives no files.

    The head's manifest list suffices: over appends nothing that was added is gone again, and a manifest merged on the
    way names each entry's own snapshot. Cost: one manifest list, and the manifests added in the interval.
    """
    wanted = {snapshot.snapshot_id for snapshot in snapshots}
    whole: list[ManifestRow] = []
    entries: list[ManifestEntry] = []
    files = []
    for row in read_manifest_list(storage, head, table=metadata.table) if wanted else ():
        if content_of(row) is not Content.DATA or row["added_snapshot_id"] not in wanted:
            continue
        live = [e for e in read_entries(storage, row, table=metadata.table) if e.status is not Status.DELETED]
        new = [entry for entry in live if entry.snapshot_id in wanted]
        files += [entry.data_file() for entry in new]
        if len(new) == len(live) and not row.get("deleted_files_count"):
            whole.append(row)
        else:
            entries += new
    return CapturedFiles(ChangeSet(tuple(files)), tuple(whole), tuple(entries))


def live_files(storage: Storage, metadata: TableMetadata, *, head: Snapshot) -> CapturedFiles:
    """Every file live at ``head``, with every delete file that applies: a full read is a change set like any other."""
    rows = [row for row in read_manifest_list(storage, head, table=metadata.table) if may_hold_live_files(row)]
    files = [
        entry.data_file()
        for row in rows
        if content_of(row) is Content.DATA
        for entry in read_entries(storage, row, table=metadata.table)
        if entry.status is not Status.DELETED
    ]
    return CapturedFiles(ChangeSet(tuple(files)), tuple(rows))
