"""Looks at an upstream for all partitions of a consumer: which keys have changed since its progress."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from dagster_ips.core.ancestry import MAIN, Snapshot
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.interval import Interval
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.file_keys import FileKeys, FoundKeys
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput, files_in, readable_interval
from dagster_ips.iceberg.change_reader import live_files
from dagster_ips.iceberg.file_spans import column_kinds
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from dagster_ips.progress.progress import ChangedKeys, InputProgress

_MOST_COMMITS = 1000
"""Of how many commits ``keys_changed`` finds out which keys each of them changed: it has to read each by itself."""
_SHOWN = 5


def changed_keys(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, known: InputProgress, *, replaces_all: bool
) -> ChangedKeys:
    """The keys whose rows changed since what is ``known`` of the input, up to its head.

    A file is read if its metadata doesn't say enough. ``replaces_all`` says that the consumer's table has rows that are
    all to be replaced, whatever the upstream has.

    Raises:
        UnknownColumnError: the table lacks a column that the keys are computed from.
        MetadataUnreadableError: a manifest can't be read.
        CatalogUnreachableError: the storage didn't answer.
    """
    head = source.ancestry(tracked.ref).head
    if head is None:
        return ChangedKeys(None, is_followed=known.at is None and not replaces_all)
    column_kinds(source, tracked.known_slicing.upstream_keys.columns)
    looking = _Looking(storage, source, tracked, head)
    if replaces_all or (known.at is None and not known.behind):
        return looking.at_everything(is_followed=not replaces_all)
    return looking.since(known)


@dataclass(frozen=True)
class _Looking:
    """One look at the table of an input, up to its ``head``."""

    storage: Storage
    source: TableMetadata
    tracked: TrackedInput
    head: Snapshot

    @property
    def _to(self) -> Watermark:
        return self.source.watermark_at(self.head, self.tracked.ref)

    @cached_property
    def _files(self) -> FileKeys:
        return FileKeys(self.storage, self.source, self.tracked.known_slicing)

    @cached_property
    def _live(self) -> Mapping[str, DataFile]:
        live = live_files(self.storage, self.source, head=self.head).changes.added
        return {file.path: file for file in live}

    @cached_property
    def _of_live(self) -> FoundKeys:
        return self._files.read(self._live.values(), live=self._live)

    def at_everything(self, *, is_followed: bool) -> ChangedKeys:
        """All keys that rows have now."""
        found = self._of_live
        unmapped = self._unmapped(self._live.values())
        return ChangedKeys(self._to, found.keys, {}, found.keys, found.unread, unmapped, is_followed)

    def since(self, known: InputProgress) -> ChangedKeys:
        """What changed since what is ``known``."""
        if known.at is None:
            return replace(self.at_everything(is_followed=True), ahead=self._ahead(known))
        interval = None if self._has_other_columns(known.at) else self._interval(known.at)
        changes = files_in(self.storage, self.source, interval, self.head).changes if interval else None
        if changes is None or changes.overwritten:
            return self.at_everything(is_followed=False)
        there = {file.path: file for file in (*changes.added, *changes.hidden)}
        found = self._files.read(changes.touched, live=there)
        live, unmapped = None, self._unmapped(there.values())
        if known.needs_live_keys(self.tracked.known_slicing):
            live = self._of_live.keys | (self._files.keys.known() if self._of_live.unread else frozenset())
            unmapped = self._unmapped(self._live.values())  # Of a partition that is gone, rows may have come before.
        return ChangedKeys(self._to, found.keys, self._ahead(known), live, found.unread, unmapped)

    def _interval(self, since: Watermark) -> Interval | None:
        return readable_interval(self.storage, self.source, since, self.source.ancestry(self.tracked.ref))

    def _ahead(self, known: InputProgress) -> dict[Watermark, frozenset[str]]:
        same = [mark for mark in known.ahead if not self._has_other_columns(mark)]
        found = {mark: keys_since(self.storage, self.source, self.tracked, mark) for mark in same}
        return {mark: keys for mark, keys in found.items() if keys is not None}

    def _has_other_columns(self, since: Watermark) -> bool:
        """Whether a name stood for another column then, or may have: every partition's run says so."""
        return self.source.columns_of_other_meaning(since.schema_id) != ()

    def _unmapped(self, files: Iterable[DataFile]) -> tuple[str, ...]:
        """Examples of the values and keys of rows that belong to no partition and that no delete file hides."""
        strays = self._files.strays_left(self._files.strays(files), self.head)
        found = {each for stray in strays.values() for each in (*stray.values, *stray.keys)}
        return tuple(sorted(found)[:_SHOWN])


def keys_there(storage: Storage, source: TableMetadata, slicing: Slicing, *, ref: str = MAIN) -> frozenset[str]:
    """The keys that rows of ``ref`` have now, whether or not they have a partition yet.

    If a file can't be read, every key with a partition is included.

    Raises:
        As ``changed_keys``.
    """
    column_kinds(source, slicing.upstream_keys.columns)
    head = source.ancestry(ref).head
    live = live_files(storage, source, head=head).changes.added if head else ()
    # Files of a whole table are read only as far as time allows.
    return _keys_of(FileKeys(storage, source, slicing), live, live={file.path for file in live})


def keys_since(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, since: Watermark
) -> frozenset[str] | None:
    """The keys of the input's rows that came or went after ``since``; None if the history can't be followed from there.

    Raises:
        As ``changed_keys``.
    """
    slicing, ancestry = tracked.known_slicing, source.ancestry(tracked.ref)
    column_kinds(source, slicing.upstream_keys.columns)
    found = readable_interval(storage, source, since, ancestry)
    if ancestry.head is None or found is None:
        return None
    files = FileKeys(storage, source, slicing)
    return _keys_of(files, files_in(storage, source, found, ancestry.head).changes.touched)


def keys_changed(
    storage: Storage, source: TableMetadata, slicing: Slicing, *, since: Watermark, ref: str = "main"
) -> Mapping[str, int] | None:
    """The keys of rows of ``ref`` that came or went after ``since``, with the newest snapshot that changed each key.

    None if the history can't be followed from there. The snapshot doesn't depend on ``since``, except after a rollback,
    an expiry or very many commits: then it is the table's newest change for every key.

    Raises:
        As ``changed_keys``.
    """
    column_kinds(source, slicing.upstream_keys.columns)
    ancestry, files = source.ancestry(ref), FileKeys(storage, source, slicing)
    found = readable_interval(storage, source, since, ancestry)
    if ancestry.head is None or found is None:
        return None
    keys = _keys_of(files, files_in(storage, source, found, ancestry.head).changes.touched)
    newest = dict.fromkeys(keys, (ancestry.newest_change or ancestry.head).snapshot_id)
    changes = [snapshot for snapshot in found.snapshots if not snapshot.keeps_rows]
    if found.start is None or found.abandoned or len(changes) == 1 or len(changes) > _MOST_COMMITS:
        return newest
    by_snapshot: dict[str, int] = {}
    for start, snapshot in reversed(list(pairwise((found.start, *found.snapshots)))):
        left = keys - by_snapshot.keys()
        if left and not snapshot.keeps_rows:
            touched = files_in(storage, source, Interval(start, (snapshot,)), snapshot).changes.touched
            by_snapshot |= dict.fromkeys(_keys_of(files, touched) & left, snapshot.snapshot_id)
    return newest | by_snapshot


def _keys_of(files: FileKeys, some: Iterable[DataFile], *, live: Collection[str] = ()) -> frozenset[str]:
    """The keys of the files' rows, without those that never get a partition.

    If a file can't be read, every key with a partition is included: callers get too many keys rather than too few, and
    compute nothing from them.
    """
    found = files.read(some, live=live)
    keys = found.keys | files.keys.known() if found.unread else found.keys
    return keys - files.keys.outside(keys)
