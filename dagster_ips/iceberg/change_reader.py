"""Finds the files whose rows changed in an interval, by metadata alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import ChangeSet, DataFile
from dagster_ips.core.interval import Interval
from dagster_ips.core.partition_keys import Span
from dagster_ips.core.rewrites import Rewrite, without_change
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.delete_reach import DeleteReach, PartitionKey, applying_to, partition_key
from dagster_ips.iceberg.file_spans import may_hold
from dagster_ips.iceberg.manifests import (
    Content,
    ManifestEntry,
    ManifestRow,
    Status,
    added_by,
    content_of,
    may_hold_live_files,
    own_entries,
    read_entries,
    read_live_entries,
    read_live_manifests,
    read_manifest_list,
)
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_EVERYTHING: Mapping[str, Span] = {}


@dataclass(frozen=True, slots=True)
class FilesWithDeletes:
    """Data files, and the delete files that apply to them, at one snapshot of a table."""

    data: tuple[ManifestEntry, ...] = ()
    deletes: tuple[ManifestEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """The change set, and the manifests and entries that list its files.

    ``whole`` are manifests that are taken as they are. Of the added files, ``fresh`` can't hold a row that existed
    before, and ``rewritten`` may. ``hidden`` are the files for which delete files were added or dropped, as of the
    interval's end; ``before`` is everything that existed at its start and may be gone, as of then. ``restored`` says
    that rows of ``hidden`` may exist again, because what deleted them was rolled back.
    """

    changes: ChangeSet
    whole: tuple[ManifestRow, ...] = ()
    fresh: tuple[ManifestEntry, ...] = ()
    rewritten: tuple[ManifestEntry, ...] = ()
    hidden: tuple[ManifestEntry, ...] = ()
    deletes: tuple[ManifestEntry, ...] = ()
    before: FilesWithDeletes = field(default_factory=FilesWithDeletes)
    restored: bool = False

    @classmethod
    def nothing(cls) -> ChangedFiles:
        """No file at all."""
        return cls(ChangeSet())


def appended_files(
    storage: Storage, metadata: TableMetadata, snapshots: tuple[Snapshot, ...], *, head: Snapshot
) -> ChangedFiles:
    """The files that ``snapshots``, all of them appends up to ``head``, added; no snapshots give no files.

    The head's manifest list is enough: in a series of appends, nothing that was added is gone again, and a manifest
    that was merged in between names each entry's own snapshot. Cost: one manifest list, and the manifests added in the
    interval.
    """
    wanted, is_new = {snapshot.snapshot_id for snapshot in snapshots}, added_by(snapshots)
    whole: list[ManifestRow] = []
    entries: list[ManifestEntry] = []
    files = []
    for row in read_manifest_list(storage, head, table=metadata.table) if wanted else ():
        if content_of(row) is not Content.DATA or row["added_snapshot_id"] not in wanted:
            continue
        live = list(read_live_entries(storage, row, table=metadata.table))
        new = [entry for entry in live if is_new(entry)]
        files += [entry.data_file() for entry in new]
        if len(new) == len(live) and not row.get("deleted_files_count") and _can_be_copied(live, metadata):
            whole.append(row)
        else:
            entries += new
    return ChangedFiles(ChangeSet(tuple(files)), tuple(whole), tuple(entries))


def live_files(
    storage: Storage, metadata: TableMetadata, *, head: Snapshot, extent: Mapping[str, Span] = _EVERYTHING
) -> ChangedFiles:
    """Every file live at ``head``, with the delete files that apply, so that a full read is a change set as well.

    If only rows with values of ``extent``, by column, matter, manifests that hold none of them aren't opened.
    """
    rows = read_live_manifests(storage, head, table=metadata.table)
    whole = [row for row in rows if content_of(row) is Content.DELETES]
    has_deletes = bool(whole)
    entries: list[ManifestEntry] = []
    files: list[DataFile] = []
    for row in rows:
        if content_of(row) is Content.DATA and may_hold(row, metadata, extent):
            live = list(read_live_entries(storage, row, table=metadata.table))
            files += [entry.data_file() for entry in live]
            if _can_be_copied(live, metadata):
                whole.append(row)
            else:
                entries += live
    return ChangedFiles(ChangeSet(tuple(files), has_deletes=has_deletes), tuple(whole), tuple(entries))


def _can_be_copied(entries: Sequence[ManifestEntry], metadata: TableMetadata) -> bool:
    """Whether every engine can read a manifest with these entries as it is.

    Manifests written in format version 1 have no sequence numbers. If the table has been upgraded since, DuckDB takes
    such a manifest to be damaged if it lists a file that was carried over.
    """
    if metadata.format_version == 1:
        return True
    return all(e.status is Status.ADDED or e.manifest.get("format-version") != "1" for e in entries)


def changed_files(storage: Storage, metadata: TableMetadata, interval: Interval, *, head: Snapshot) -> ChangedFiles:
    """The files whose rows differ between the interval's start and ``head``, whatever happened in between.

    If the start has expired, the interval's snapshots may only have added or moved rows, and all of them are needed.

    Manifests that both snapshots list don't contribute to the difference. They aren't opened, except to find the files
    that new delete files apply to, and then only in the partitions of those. Rewrites that moved rows and changed none
    are followed back to the files that they read, so that their rows are neither added nor removed.
    """
    kind = _Difference if interval.start else _DifferenceToExpired
    return kind(storage, metadata, interval, head).files()


def lists_work_of(storage: Storage, metadata: TableMetadata, snapshot: Snapshot, ancestor: Watermark) -> bool:
    """Whether what ``snapshot`` lists proves that the watermark's snapshot was among its ancestors.

    It does if it lists a manifest that was written there, or if a file that was added there is carried over or removed.
    A snapshot that left no such trace isn't found.
    """
    rows = read_manifest_list(storage, snapshot, table=metadata.table)
    if any(row["added_snapshot_id"] == ancestor.snapshot_id for row in rows):
        return True
    own = (row for row in rows if row["added_snapshot_id"] == snapshot.snapshot_id)
    entries = (entry for row in own for entry in read_entries(storage, row, table=metadata.table))
    return any(entry.is_from(ancestor) for entry in entries if entry.status is not Status.ADDED)


def shows_what_moved(storage: Storage, metadata: TableMetadata, interval: Interval) -> bool:
    """Whether it is known of each ``replace`` in the interval, whose start has expired, that it only moved rows.

    Its rows would otherwise have to be compared with those of the files that it read, but which of these were deleted
    before is no longer known.
    """
    if not any(snapshot.only_moves for snapshot in interval.snapshots):
        return True
    return _DifferenceToExpired(storage, metadata, interval, interval.snapshots[-1]).follows_every_rewrite()


@dataclass(frozen=True, slots=True)
class _OneSided:
    """The files that are live only at the end of an interval, and those that are live only at its start."""

    came: Sequence[ManifestEntry]
    went: Sequence[ManifestEntry]


@dataclass(frozen=True)
class _Difference:
    """One comparison of two snapshots. Each property is read once."""

    storage: Storage
    metadata: TableMetadata
    interval: Interval
    head: Snapshot

    def files(self) -> ChangedFiles:
        came, went = _by_path(self._came(Content.DATA)), _by_path(self._went(Content.DATA))
        if went:
            self._follow_rewrites(came, went)
        added, removed = (tuple(chain.from_iterable(files.values())) for files in (came, went))
        dealt_with = came.keys() | went.keys()
        hidden = self._hidden()
        # Such a file is listed several times. Its rows can't be told apart by its path, so all of them are compared.
        again = tuple(entry for entry in hidden if entry.path in dealt_with)
        added, removed = (*added, *again), (*removed, *again)
        hidden = tuple(entry for entry in hidden if entry.path not in dealt_with)
        before = (*removed, *hidden)
        fresh, rewritten = self._by_pairing(added, before)
        deletes = self._deletes_on((*added, *hidden), self._rows_after)
        return ChangedFiles(
            changes=ChangeSet(
                added=tuple(entry.data_file() for entry in added),
                removed=tuple(entry.data_file() for entry in removed),
                hidden=tuple(entry.data_file() for entry in hidden),
                has_deletes=bool(deletes),
            ),
            fresh=fresh,
            rewritten=rewritten,
            hidden=hidden,
            deletes=deletes,
            before=FilesWithDeletes(before, self._deletes_on(before, self._rows_before)),
            restored=bool(self.interval.abandoned),
        )

    def _follow_rewrites(self, added: _ByPath, removed: _ByPath) -> None:
        """Take rewrites that changed no row out of both; files that they read and that are new count as added."""
        rewrites, moved, unsure = self.rewrites()
        if not rewrites:
            return
        disturbed = {path for path, entry in moved.items() if self._was_deleted_from(entry)}
        # A path that was removed and added again between may hold other rows than the file that was there before.
        disturbed |= {
            path for path, (entry, *_) in removed.items() if path in moved and entry.identity != moved[path].identity
        }
        # If a file is listed several times, its path doesn't say how often its rows were moved.
        disturbed |= unsure.union(*[[path for path in files if len(files[path]) > 1] for files in (added, removed)])
        for rewrite in without_change(rewrites, added=added.keys(), removed=removed.keys(), disturbed=disturbed):
            # A new file that was rewritten and then added again counts once for each, so it isn't followed back.
            is_back = any(path in added and path not in removed for path in rewrite.inputs)
            if is_back or not self._keeps_rows(rewrite, moved):
                continue
            for path in rewrite.outputs:
                del added[path]
            for path in rewrite.inputs:
                if removed.pop(path, None) is None:
                    added[path] = [moved[path]]

    def _keeps_rows(self, rewrite: Rewrite, moved: Mapping[str, ManifestEntry]) -> bool:
        """Whether as many rows came out as went in; fewer may come out only if rows were deleted before."""
        rows_in, rows_out = (sum(moved[p].record_count for p in paths) for paths in (rewrite.inputs, rewrite.outputs))
        return rows_in == rows_out or (rows_in > rows_out and self._had_deletes)

    @property
    def _had_deletes(self) -> bool:
        return any(content_of(row) is Content.DELETES for row in self._rows_before)

    @cached_property
    def _rows_before(self) -> list[ManifestRow]:
        assert self.interval.start  # noqa: S101  # the subclass doesn't ask
        return read_manifest_list(self.storage, self.interval.start, table=self.metadata.table)

    @cached_property
    def _rows_after(self) -> list[ManifestRow]:
        return read_manifest_list(self.storage, self.head, table=self.metadata.table)

    def _came(self, content: Content) -> Sequence[ManifestEntry]:
        """The files that are live at the end only."""
        return (self._data if content is Content.DATA else self._deletes).came

    def _went(self, content: Content) -> Sequence[ManifestEntry]:
        """The files that are live at the start only."""
        return (self._data if content is Content.DATA else self._deletes).went

    @cached_property
    def _data(self) -> _OneSided:
        return self._one_sided(Content.DATA)

    @cached_property
    def _deletes(self) -> _OneSided:
        return self._one_sided(Content.DELETES)

    def _one_sided(self, content: Content) -> _OneSided:
        """The files that are live at one end only; each manifest that isn't listed at both ends is read once."""
        shared = {r["manifest_path"] for r in self._rows_before} & {r["manifest_path"] for r in self._rows_after}
        before = list(self._live(content, self._rows_before, leave_out=shared))
        after = list(self._live(content, self._rows_after, leave_out=shared))
        return _OneSided(came=_beyond(after, before), went=_beyond(before, after))

    def _live(
        self, content: Content, rows: Iterable[ManifestRow], *, leave_out: Iterable[str] = ()
    ) -> Iterator[ManifestEntry]:
        left_out = set(leave_out)
        for row in rows:
            if content_of(row) is content and row["manifest_path"] not in left_out and may_hold_live_files(row):
                yield from read_live_entries(self.storage, row, table=self.metadata.table)

    def rewrites(self) -> tuple[list[Rewrite], dict[str, ManifestEntry], set[str]]:
        """What the interval's ``replace`` snapshots did, oldest first, and an entry of each file that they moved.

        The third result is the files of which it is unknown whether their rows only moved: they are listed several
        times, may have been removed before, or changed their spec while rows were deleted.
        """
        rewrites: list[Rewrite] = []
        moved: dict[str, ManifestEntry] = {}
        unsure: set[str] = set()
        counts = Counter[tuple[str, Status]]()
        for snapshot in self.interval.snapshots:
            if not snapshot.only_moves:
                continue
            own = list(self._own(snapshot, Content.DATA))
            moved |= {entry.path: entry for entry in own}
            counts.update((entry.path, entry.status) for entry in own)
            # DuckDB keeps the entries of files that earlier commits removed, and none of them names its snapshot.
            unsure |= {e.path for e in own if e.status is Status.DELETED and not e.is_named}
            one_spec = len({entry.spec_id for entry in own}) == 1
            if not one_spec and self._met_deletes(snapshot, own):
                unsure |= {entry.path for entry in own}
            groups: dict[PartitionKey | None, list[ManifestEntry]] = {}
            for entry in own:
                groups.setdefault(partition_key(entry) if one_spec else None, []).append(entry)
            rewrites += [
                Rewrite(_paths(group, Status.DELETED), _paths(group, Status.ADDED)) for group in groups.values()
            ]
        unsure |= {path for (path, _), count in counts.items() if count > 1}
        return rewrites, moved, unsure

    def _met_deletes(self, snapshot: Snapshot, own: Sequence[ManifestEntry]) -> bool:
        """Whether deletes may have been committed while ``snapshot``'s rewrite was at work.

        Its files then keep an older sequence number, so that these deletes apply to them as well. But deletes by
        equality apply only within their spec.
        """
        written = [entry.sequence_number for entry in own if entry.status is Status.ADDED]
        if not written:
            return False
        oldest = min(written)
        rows = read_manifest_list(self.storage, snapshot, table=self.metadata.table)
        return any(content_of(row) is Content.DELETES and (row.get("sequence_number") or 0) > oldest for row in rows)

    def _own(self, snapshot: Snapshot, content: Content) -> Iterator[ManifestEntry]:
        return own_entries(self.storage, snapshot, content, table=self.metadata.table)

    @cached_property
    def _own_deletes(self) -> list[ManifestEntry]:
        """The delete files that the interval's snapshots added or dropped, except in rewrites."""
        writers = [s for s in self.interval.snapshots if not (s.only_adds or s.only_moves)]
        return [entry for snapshot in writers for entry in self._own(snapshot, Content.DELETES)]

    @cached_property
    def _own_reach(self) -> DeleteReach:
        return DeleteReach.of(self._own_deletes, self.metadata)

    @cached_property
    def _changed(self) -> DeleteReach:
        """What the delete files that are live at only one end may apply to."""
        if not (self.interval.abandoned or self._own_deletes):
            return DeleteReach()
        return DeleteReach.of([*self._came(Content.DELETES), *self._went(Content.DELETES)], self.metadata)

    def _was_deleted_from(self, data: ManifestEntry) -> bool:
        """Whether a row of the file may have been deleted or restored between the interval's ends.

        Delete files that only ``replace`` snapshots added or dropped have the same effect at both ends. What abandoned
        snapshots did isn't looked at, so after a rollback every difference counts.
        """
        return self._own_reach.covers(data) or (bool(self.interval.abandoned) and self._changed.covers(data))

    def _hidden(self) -> tuple[ManifestEntry, ...]:
        """The files live at both ends from which rows were deleted, so that delete files were added or dropped."""
        reach = self._changed
        if reach.is_nowhere:
            return ()
        new = {entry.addition for entry in self._came(Content.DATA)}
        rows = [row for row in self._rows_after if reach.may_cover_files_of(row)]
        candidates = [e for e in self._live(Content.DATA, rows) if e.addition not in new and reach.covers(e)]
        return tuple(entry for entry in candidates if self._was_deleted_from(entry))

    def _deletes_on(self, data: Sequence[ManifestEntry], rows: Sequence[ManifestRow]) -> tuple[ManifestEntry, ...]:
        oldest = min((entry.sequence_number for entry in data), default=None)
        if oldest is None:
            return ()
        # No delete file is newer than the manifest that lists it, and none applies to files newer than itself.
        recent = [row for row in rows if (row.get("sequence_number") or 0) >= oldest]
        return tuple(applying_to(self._live(Content.DELETES, recent), data))

    def _by_pairing(
        self, added: Iterable[ManifestEntry], before: Sequence[ManifestEntry]
    ) -> tuple[tuple[ManifestEntry, ...], tuple[ManifestEntry, ...]]:
        """The added files that can't hold a row that existed before, and those that may.

        Equal rows are in equal partitions if all files have one spec and its source columns can be seen.
        """
        entries = tuple(added)
        if not before:
            return entries, ()
        specs = {entry.spec_id for entry in (*entries, *before)}
        if len(specs) > 1 or not self.metadata.shows_partition_columns(specs.pop()):
            return (), entries
        partitions = {partition_key(entry) for entry in before}
        fresh = tuple(entry for entry in entries if partition_key(entry) not in partitions)
        return fresh, tuple(entry for entry in entries if partition_key(entry) in partitions)


class _DifferenceToExpired(_Difference):
    """The difference to an expired start: all that is known of it is what was added to it and moved in it since."""

    @cached_property
    def _rows_before(self) -> list[ManifestRow]:
        return []

    @property
    def _had_deletes(self) -> bool:
        return True  # It may have had some.

    def follows_every_rewrite(self) -> bool:
        """Whether every file that was there at the start was moved, row by row.

        DuckDB lists a file that it moved as if the commit that added it had removed it.
        """
        rewrites, moved, unsure = self.rewrites()
        for rewrite in rewrites:
            rows_in = sum(moved[path].record_count for path in rewrite.inputs - unsure)
            if rows_in < sum(moved[path].record_count for path in rewrite.outputs):
                return False
        if self.interval.first_removal is not None:  # Without its start, it can't be read for that reason.
            return True
        came, went = _by_path(self._came(Content.DATA)), _by_path(self._went(Content.DATA))
        self._follow_rewrites(came, went)
        return not went

    def _came(self, content: Content) -> list[ManifestEntry]:
        ids, is_new = {snapshot.snapshot_id for snapshot in self.interval.snapshots}, added_by(self.interval.snapshots)
        # What the interval's snapshots added is in manifests that one of them wrote.
        rows = [row for row in self._rows_after if row["added_snapshot_id"] in ids]
        return [entry for entry in self._live(content, rows) if is_new(entry)]

    def _went(self, content: Content) -> list[ManifestEntry]:
        added: set[str] = set()
        found: list[ManifestEntry] = []
        for snapshot in self.interval.snapshots:
            own = list(self._own(snapshot, content))
            # A file whose path is added only later was there at the start.
            found += [entry for entry in own if entry.status is Status.DELETED and entry.path not in added]
            added |= _paths(own, Status.ADDED)
        return found


def _beyond(entries: Iterable[ManifestEntry], others: Iterable[ManifestEntry]) -> list[ManifestEntry]:
    """Those of ``entries`` that aren't among ``others``; if one is listed more often, as often as the difference."""
    known = Counter(entry.addition for entry in others)
    found = []
    for entry in entries:
        known[entry.addition] -= 1
        if known[entry.addition] < 0:
            found.append(entry)
    return found


def _paths(entries: Iterable[ManifestEntry], status: Status) -> frozenset[str]:
    return frozenset(entry.path for entry in entries if entry.status is status)


_ByPath = dict[str, list[ManifestEntry]]
"""Entries by the path of their file; engines read a file as often as it is listed."""


def _by_path(entries: Iterable[ManifestEntry]) -> _ByPath:
    found: _ByPath = {}
    for entry in entries:
        found.setdefault(entry.path, []).append(entry)
    return found
