"""Reduces changed files to those that some partitions are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from itertools import chain

from dagster_ips.core.change_set import ChangeSet, DataFile
from dagster_ips.iceberg.change_reader import ChangedFiles, FilesWithDeletes
from dagster_ips.iceberg.manifests import Content, ManifestEntry, content_of, read_live_entries
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage


class RowShare(Enum):
    """How many of a file's rows are wanted."""

    NONE = 0
    SOME = 1
    ALL = 2


def narrowed(
    storage: Storage, metadata: TableMetadata, captured: ChangedFiles, share: Callable[[DataFile], RowShare]
) -> ChangedFiles:
    """``captured`` with only those data files of which some row is wanted, and with every delete file.

    A manifest that was taken as it is stays so if all rows of its files are wanted.
    """

    def wanted(file: DataFile) -> bool:
        return share(file) is not RowShare.NONE

    def kept(entries: Iterable[ManifestEntry]) -> tuple[ManifestEntry, ...]:
        return tuple(entry for entry in entries if wanted(entry.data_file()))

    whole = [row for row in captured.whole if content_of(row) is Content.DELETES]
    opened: list[ManifestEntry] = []
    for row in captured.whole:
        if content_of(row) is Content.DATA:
            live = list(read_live_entries(storage, row, table=metadata.table))
            if live and all(share(entry.data_file()) is RowShare.ALL for entry in live):
                whole.append(row)
            else:
                opened += kept(live)
    changes = captured.changes
    return replace(
        captured,
        changes=ChangeSet(
            added=tuple(filter(wanted, changes.added)),
            removed=tuple(filter(wanted, changes.removed)),
            hidden=tuple(filter(wanted, changes.hidden)),
            # If only some of a file's rows are wanted, its bounds don't fit them, as after deletes.
            has_deletes=changes.has_deletes or any(share(file) is RowShare.SOME for file in changes.touched),
        ),
        whole=tuple(whole),
        fresh=(*opened, *kept(captured.fresh)),
        rewritten=kept(captured.rewritten),
        hidden=kept(captured.hidden),
        before=FilesWithDeletes(kept(captured.before.data), captured.before.deletes),
    )


def united(parts: Sequence[ChangedFiles]) -> ChangedFiles | None:
    """Narrowed captures of intervals with different starts and the same end, combined into one.

    No file may be in two of them. None if rows were removed in two: those are found by what existed at each start.
    """
    if len(parts) == 1:
        return parts[0]
    removing = [part for part in parts if part.changes.may_remove_rows]
    if len(removing) > 1:
        return None
    base = removing[0] if removing else ChangedFiles.nothing()
    deletes = {entry.identity: entry for part in parts for entry in part.deletes}
    return replace(
        base,
        changes=replace(
            base.changes,
            added=tuple(chain(*[part.changes.added for part in parts])),
            has_deletes=any(part.changes.has_deletes for part in parts),
        ),
        whole=tuple({row["manifest_path"]: row for part in parts for row in part.whole}.values()),
        fresh=tuple(chain(*[part.fresh for part in parts])),
        rewritten=tuple(chain(*[part.rewritten for part in parts])),
        deletes=tuple(deletes.values()),
    )
