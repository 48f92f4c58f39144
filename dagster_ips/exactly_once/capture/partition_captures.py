"""Captures of single partitions: which files they are made of, and from which snapshot on each reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, takewhile

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.edge import Edge
from dagster_ips.core.interval import Interval
from dagster_ips.core.partition_keys import KeysFound, PartitionKeys, Slicing, Span
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.touched import FoundKeys, LineState, Stray
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.tracked_input import (
    StartOver,
    TrackedInput,
    files_in,
    follow,
    interval_of,
    is_readable,
)
from dagster_ips.iceberg.change_reader import ChangedFiles, live_files
from dagster_ips.iceberg.file_spans import column_kinds, span
from dagster_ips.iceberg.file_values import NOT_YET, Columns, DistinctRows, Unreadable, known_values, read_values
from dagster_ips.iceberg.files_of_partitions import RowShare, narrowed, united
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_SHOWN = 5
_NO_KEYS = "its values are of a type that has no partition keys"


@dataclass(frozen=True)
class RunPartitions:
    """The partitions of the consumer that a run computes; a person who named them wants them computed anew."""

    keys: tuple[str, ...]
    named_by_person: bool = False


@dataclass(frozen=True, slots=True)
class KeysOfRows:
    """The keys of a file's rows; ``unread`` says why it may have rows of others, if it may."""

    found: KeysFound
    unread: str = ""


@dataclass(frozen=True)
class FileKeys:
    """Which of the upstream's keys the rows of a file have."""

    storage: Storage
    source: TableMetadata
    slicing: Slicing
    _told: dict[tuple[Span, ...], KeysFound] = field(default_factory=dict)
    _read: dict[str, KeysOfRows] = field(default_factory=dict)

    @property
    def keys(self) -> PartitionKeys:
        """How the upstream's rows are divided."""
        return self.slicing.upstream_keys

    def of(self, file: DataFile) -> KeysFound:
        """What the file's partition values and bounds tell, or what was read of it before; nothing is read."""
        if not file.record_count:
            return KeysFound(frozenset())
        spans = self._spans(file)
        if spans not in self._told:
            self._told[spans] = self.keys.of_file(spans)
        told = self._told[spans]
        known = None if told.is_exact else known_values(self.source, file, self._unknown(spans))
        return told if known is None else self._of_values(spans, known)

    def is_by_partition(self, file: DataFile) -> bool:
        """Whether the file's partition values tell its rows' keys."""
        return all(each.is_exact for each in self._spans(file))

    def each(self, files: Iterable[DataFile], *, live: Collection[str] = ()) -> Mapping[str, KeysOfRows]:
        """What is known of each of ``files``, by path, of which the ones are read that metadata doesn't tell enough of.

        ``live`` are the paths that can be read another time.
        """
        unsure: dict[tuple[str, ...], list[DataFile]] = {}
        every = list(files)
        for file in every:
            if file.path not in self._read:
                self._read[file.path] = KeysOfRows(self.of(file))
                if not self._read[file.path].found.is_exact:
                    unsure.setdefault(self._unknown(self._spans(file)).names, []).append(file)
        for of_some in unsure.values():
            # What is gone soon can't be read another time.
            ordered = sorted(of_some, key=lambda file: file.path in live)
            columns = self._unknown(self._spans(of_some[0]))
            values = read_values(self.storage, self.source, ordered, columns, later=live)
            self._read.update({file.path: self._told_by(file, values[file.path]) for file in of_some})
        return {file.path: self._read[file.path] for file in every}

    def read(self, files: Iterable[DataFile], *, live: Collection[str] = ()) -> FoundKeys:
        """What is known of all of ``files``, as in ``each``."""
        told = self.each(files, live=live)
        unread = {path: each.unread for path, each in told.items() if each.unread}
        keys = frozenset[str]().union(*[each.found.keys for each in told.values() if each.found.keys is not None])
        return FoundKeys(keys, unread, frozenset(live) & unread.keys())

    def strays(self, files: Iterable[DataFile], *, live: Collection[str] = ()) -> Mapping[str, Stray]:
        """Those of ``files`` that are known to hold rows of no partition, by path; they are read as in ``each``."""
        told = self.each(files, live=live)
        lost = self.slicing.lost(frozenset[str]().union(*[each.found.keys or () for each in told.values()]))
        found = {
            path: Stray(each.found.unmapped[:_SHOWN], tuple(sorted(lost & (each.found.keys or frozenset()))[:_SHOWN]))
            for path, each in told.items()
        }
        return {path: stray for path, stray in found.items() if stray != Stray()}

    def _told_by(self, file: DataFile, read: DistinctRows | Unreadable) -> KeysOfRows:
        found = self._of_values(self._spans(file), read) if isinstance(read, DistinctRows) else self.of(file)
        cause = read.cause if isinstance(read, Unreadable) else _NO_KEYS
        return KeysOfRows(found, cause if found.keys is None else "")

    def _spans(self, file: DataFile) -> tuple[Span, ...]:
        return tuple(span(file, self.source, column) for column in self.keys.columns)

    def _unknown(self, spans: Sequence[Span]) -> Columns:
        """The columns that don't have one value in a file."""
        names = [c for c, each in zip(self.keys.columns, spans, strict=True) if len(each.values or ()) != 1]
        return Columns(tuple(names), tuple(name for name in names if name in self.keys.by_minute))

    def _of_values(self, spans: Sequence[Span], read: DistinctRows) -> KeysFound:
        read_columns, order = self._unknown(spans).names, self.keys.columns
        fixed = tuple(
            each.values[0] for c, each in zip(order, spans, strict=True) if c not in read_columns and each.values
        )
        names = (*read_columns, *[c for c in order if c not in read_columns])
        places = [names.index(column) for column in order]
        return self.keys.of_values({tuple((*row, *fixed)[place] for place in places) for row in read.rows})


def look(storage: Storage, line: LineState, source: TableMetadata, tracked: TrackedInput) -> LineState:
    """``line`` with what changed since the upstream was last looked at, up to its head.

    The first time every key that has rows did. If the history can't be followed, every key there is did as well, so
    that the runs that this causes say what is the matter. Files that metadata doesn't tell enough of are read; one that
    can't be is ``unread``, until it can.
    """
    slicing, head = tracked.slicing, source.ancestry(tracked.ref).head
    assert slicing is not None  # noqa: S101  # asked for partitioned consumers only
    if head is None:
        return line
    is_new = not (line.scanned and _is_at(line.scanned, source, head.snapshot_id))
    waits = any(each.is_live for each in line.unread.values())
    if (
        line.knows_keys_to_come
        and not is_new
        and not waits
        and all(_is_stray(path, each, slicing) for path, each in line.strays.items())
    ):
        return line
    column_kinds(source, slicing.upstream_keys.columns)
    looking = _Looking(storage, source, head, FileKeys(storage, source, slicing))
    line = looking.unread_again(looking.with_keys_to_come(line))
    return looking.further(line, tracked.ref) if is_new else looking.with_strays(line)


def loses_rows_between(known: LineState, line: LineState, source: TableMetadata, ref: str) -> bool:
    """Whether rows may have come and gone since ``known``, so that the look that made ``line`` of it lacks them."""
    if known.scanned is None or line.scanned == known.scanned:
        return False
    before = known.scanned.snapshot_id
    newer = takewhile(lambda snapshot: snapshot.snapshot_id != before, source.ancestry(ref).snapshots)
    return any(not (snapshot.keeps_rows or snapshot.only_adds) for snapshot in newer)


def _is_stray(path: str, stray: Stray, slicing: Slicing) -> bool:
    """Whether it is known to be one by the definitions as they are now."""
    return bool(path) and bool(stray.values or slicing.lost(stray.keys))


@dataclass(frozen=True)
class _Looking:
    """One look at a table up to its ``head``."""

    storage: Storage
    source: TableMetadata
    head: Snapshot
    files: FileKeys

    def further(self, line: LineState, ref: str) -> LineState:
        """``line`` up to the head."""
        now, ancestry = self.source.watermark_at(self.head, ref), self.source.ancestry(ref)
        if line.scanned is None:
            return self.with_strays(line.looked_at(now, self._of_live), self._live.values())
        found = interval_of(self.storage, self.source, line.scanned, ancestry)
        if not isinstance(found, Interval) or not is_readable(found):
            every = self._of_live.keys | self.files.keys.known()
            return self.with_strays(line.looked_at(now, replace(self._of_live, keys=every)), self._live.values())
        changes = files_in(self.storage, self.source, found, self.head).changes
        live = {file.path for file in (*changes.added, *changes.hidden)}
        changed = self.files.read(changes.touched, live=live)
        abandoned = [snapshot.snapshot_id for snapshot in found.abandoned]
        return self.with_strays(line.looked_at(now, changed, abandoned=abandoned), changes.added)

    def with_keys_to_come(self, line: LineState) -> LineState:
        """``line`` with what an earlier release forgot, once all of it is known."""
        if line.knows_keys_to_come or NOT_YET.cause in self._of_live.unread.values():
            return line
        return line.with_keys_to_come(self._of_live.keys)

    def unread_again(self, line: LineState) -> LineState:
        """``line`` with what can be read by now of its files that couldn't be."""
        waiting = [path for path, each in line.unread.items() if each.is_live]
        if not waiting:
            return line
        there = [self._live[path] for path in waiting if path in self._live]
        for path, told in self.files.each(there, live=self._live).items():
            is_told = not told.unread
            line = line.told(path, told.found.keys or ()) if is_told else line.still_unread(path, cause=told.unread)
        for path in set(waiting) - self._live.keys():
            line = line.gone_unread(path, self._of_live)
        return line.with_strays({**line.strays, **self.files.strays(there)})

    def with_strays(self, line: LineState, added: Iterable[DataFile] = ()) -> LineState:
        """``line`` with files that hold rows of no partition: of ``added``, and of those that it knows."""
        found = dict(self.files.strays(added))
        known = {path: each for path, each in line.strays.items() if _is_stray(path, each, self.files.slicing)}
        found |= {path: each for path, each in known.items() if path in self._live}
        if found or not line.strays:
            return line.with_strays(found)
        # Those that were known are gone, or have partitions by now. There may be others.
        found |= self.files.strays(self._live.values(), live=self._live)
        if not found and NOT_YET.cause in self._of_live.unread.values():
            return line.with_strays({"": Stray(line.unmapped)})
        return line.with_strays(found)

    @cached_property
    def _live(self) -> Mapping[str, DataFile]:
        live = live_files(self.storage, self.source, head=self.head).changes.added
        return {file.path: file for file in live}

    @cached_property
    def _of_live(self) -> FoundKeys:
        return self.files.read(self._live.values(), live=self._live)


def keys_there(storage: Storage, source: TableMetadata, slicing: Slicing) -> frozenset[str]:
    """The keys that rows of ``main`` have now; they may be keys that no partition has yet.

    Where a file can't be read, every key there is a partition of.

    Raises:
        UnknownColumnError: the table lacks a column that keys are made of.
        MetadataUnreadableError: a manifest can't be read.
        CatalogUnreachableError: the storage didn't answer.
    """
    column_kinds(source, slicing.upstream_keys.columns)
    head = source.ancestry().head
    live = live_files(storage, source, head=head).changes.added if head else ()
    # Of a whole table no more is read than there is time for.
    return _keys_of(FileKeys(storage, source, slicing), live, live={file.path for file in live})


def keys_changed(
    storage: Storage, source: TableMetadata, slicing: Slicing, *, since: Watermark
) -> Mapping[str, int] | None:
    """The keys of rows of ``main`` that came or went after ``since``, and the newest snapshot that changed each.

    None if the history can't be followed from there. The snapshot doesn't depend on ``since``, except after a rollback
    or an expiry: there it is the newest of all.

    Raises:
        As ``keys_there``.
    """
    column_kinds(source, slicing.upstream_keys.columns)
    ancestry, files = source.ancestry(), FileKeys(storage, source, slicing)
    found = interval_of(storage, source, since, ancestry)
    if ancestry.head is None or not isinstance(found, Interval) or not is_readable(found):
        return None
    keys = _keys_of(files, files_in(storage, source, found, ancestry.head).changes.touched)
    newest = dict.fromkeys(keys, (ancestry.newest_change or ancestry.head).snapshot_id)
    changes = [snapshot for snapshot in found.snapshots if not snapshot.keeps_rows]
    if found.start is None or found.abandoned or len(changes) == 1:
        return newest
    by_snapshot: dict[str, int] = {}
    for start, snapshot in pairwise((found.start, *found.snapshots)):
        if not snapshot.keeps_rows:
            touched = files_in(storage, source, Interval(start, (snapshot,)), snapshot).changes.touched
            by_snapshot |= dict.fromkeys(_keys_of(files, touched) & keys, snapshot.snapshot_id)
    return newest | by_snapshot


def _keys_of(files: FileKeys, some: Iterable[DataFile], *, live: Collection[str] = ()) -> frozenset[str]:
    """Their keys, but those that no partition will have; where one can't be read, all there are partitions of.

    Whoever is told of these is told of too many rather than of too few, and computes nothing from them.
    """
    found = files.read(some, live=live)
    keys = found.keys | files.keys.known() if found.unread else found.keys
    return keys - files.keys.outside(keys)


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of some partitions' captures, and from where each of them reads; None is from the beginning."""

    files: ChangedFiles
    starts: Mapping[Edge, Watermark | None]


def changed_in_partitions(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, line: LineState, states: Sequence[EdgeState]
) -> PartitionFiles | StartOver:
    """What changed in the partitions of ``states`` since each was consumed; of one that never was, all that is live.

    Raises:
        BrokenHistoryError: the history can't be followed from where one of them was consumed.
    """
    slicing, head = tracked.slicing, source.ancestry(tracked.ref).head
    assert slicing is not None  # noqa: S101  # asked for partitioned consumers only
    partitions = {state: state.edge.partition or "" for state in states}
    starts = {state: _reads_from(line, state, slicing.taken_by(key)) for state, key in partitions.items()}
    parts: list[ChangedFiles] = []
    unique = list(dict.fromkeys(starts.values()))
    for start in unique:
        alike = [state for state in states if starts[state] == start]
        interval = follow(storage, replace(alike[0], committed=start), source, tracked) if start else None
        if isinstance(interval, StartOver):
            return interval
        if head is not None:
            files = files_in(storage, source, interval, head) if interval else live_files(storage, source, head=head)
            parts.append(of_partitions(storage, source, slicing, files, [partitions[state] for state in alike]))
    taken = [_taken_by(slicing, [partitions[s] for s in states if starts[s] == each]) for each in unique]
    whole = united(parts) if parts else ChangedFiles.nothing()
    if whole is None or not _are_apart(parts, taken, FileKeys(storage, source, slicing)):
        return StartOver(
            "its partitions were consumed up to different snapshots, and which changes are whose is unknown"
        )
    return PartitionFiles(whole, {state.edge: start for state, start in starts.items()})


def _reads_from(line: LineState, state: EdgeState, keys: Collection[str]) -> Watermark | None:
    """From where a partition is read; its rows were made by the columns as they were when it was consumed."""
    start = line.start_of(state, keys)
    return replace(start, schema_id=state.committed.schema_id) if start and state.committed else start


def live_in_partitions(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, keys: Collection[str]
) -> ChangedFiles:
    """Every live file that partitions ``keys`` of the consumer are made of."""
    head = source.ancestry(tracked.ref).head
    if head is None or tracked.slicing is None:
        return ChangedFiles.nothing()
    return of_partitions(storage, source, tracked.slicing, live_files(storage, source, head=head), keys)


def _are_apart(parts: Sequence[ChangedFiles], taken: Sequence[frozenset[str]], found: FileKeys) -> bool:
    """Whether no file of a part may hold rows with a key of another, which may have consumed them."""
    for index, part in enumerate(parts):
        others = frozenset[str]().union(*taken[:index], *taken[index + 1 :])
        if any(found.keys.possible(found.of(file), others) for file in part.changes.touched if others):
            return False
    return True


def of_partitions(
    storage: Storage, source: TableMetadata, slicing: Slicing, files: ChangedFiles, keys: Collection[str]
) -> ChangedFiles:
    """Those of ``files`` that partitions ``keys`` of the consumer are made of."""
    taken, found = _taken_by(slicing, keys), FileKeys(storage, source, slicing)

    def share(file: DataFile) -> RowShare:
        of_file = found.of(file)
        if not slicing.upstream_keys.possible(of_file, taken):
            return RowShare.NONE
        is_whole = of_file.keys is not None and of_file.keys <= taken and not of_file.unmapped
        return RowShare.ALL if is_whole else RowShare.SOME

    return narrowed(storage, source, files, share)


def rows_of(source: TableMetadata, slicing: Slicing, keys: Collection[str]) -> Predicate:
    """The upstream's rows that partitions ``keys`` of the consumer are made of."""
    kinds = column_kinds(source, slicing.upstream_keys.columns)
    return slicing.upstream_keys.predicate(_taken_by(slicing, keys), kinds)


def rows_of_any(
    storage: Storage, source: TableMetadata, slicing: Slicing, files: ChangedFiles, line: LineState
) -> Predicate | None:
    """The rows of captured files that any partition takes, now or later, as far as ``line`` knows.

    None if there is nothing to count: the files' partition values tell their rows, or files can't be read, so that what
    they hold for partitions to come isn't known.
    """
    found = FileKeys(storage, source, slicing)
    told = {found.of(file) for file in files.changes.added if file.record_count and not found.is_by_partition(file)}
    if line.unread or not told:
        return None
    every = slicing.upstream_keys.known() | line.touched.keys()
    possible = frozenset[str]().union(*[slicing.upstream_keys.possible(each, every) for each in told])
    keys = possible.union(*[each.keys for each in told if each.keys is not None])
    kinds = column_kinds(source, slicing.upstream_keys.columns)
    return slicing.upstream_keys.predicate(keys - slicing.lost(keys), kinds)


def _taken_by(slicing: Slicing, keys: Collection[str]) -> frozenset[str]:
    return frozenset[str]().union(*[slicing.taken_by(key) for key in keys])


def _is_at(scanned: Watermark, source: TableMetadata, head_snapshot_id: int) -> bool:
    return scanned.table_uuid == source.uuid and scanned.snapshot_id == head_snapshot_id
