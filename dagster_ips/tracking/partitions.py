"""Captures of single partitions: which files they are made of, and from which snapshot on each reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.changes import DataFile
from dagster_ips.core.edge import Edge
from dagster_ips.core.interval import Interval, interval_since
from dagster_ips.core.partition_keys import KeysFound, Slicing, Span
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.touched import LineState
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.change_reader import CapturedFiles, live_files
from dagster_ips.iceberg.file_spans import column_kinds, span
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.narrowing import Share, narrowed, united
from dagster_ips.iceberg.storage import Storage
from dagster_ips.tracking.following import StartOver, TrackedInput, files_in, follow, is_readable

_SHOWN = 5


@dataclass(frozen=True)
class RunPartitions:
    """The partitions of the consumer that a run computes; a person who named them wants them computed anew."""

    keys: tuple[str, ...]
    named_by_person: bool = False


@dataclass(frozen=True)
class FileKeys:
    """Which of the upstream's keys the rows of a file may have."""

    source: TableMetadata
    slicing: Slicing
    _found: dict[tuple[Span, ...], KeysFound] = field(default_factory=dict)

    def of(self, file: DataFile) -> KeysFound:
        """By the values, or the bounds, of the columns that keys are made of."""
        spans = tuple(span(file, self.source, column) for column in self.slicing.upstream_keys.columns)
        if spans not in self._found:
            self._found[spans] = self.slicing.upstream_keys.of_file(spans)
        return self._found[spans]

    def touched_by(self, files: Iterable[DataFile]) -> frozenset[str]:
        """The keys of any of ``files``; every key there is if one can't be told."""
        found = [self.of(file).keys for file in files]
        known = self.slicing.upstream_keys.known() if any(keys is None for keys in found) else frozenset[str]()
        return known.union(*[keys for keys in found if keys is not None])

    def unmapped(self, files: Iterable[DataFile]) -> tuple[str, ...]:
        """Some of the values that have no key, and keys that no partition of the consumer is made of."""
        of_each = [self.of(file) for file in files]
        values = {value for each in of_each for value in each.unmapped}
        keys = frozenset[str]().union(*[each.keys for each in of_each if each.keys is not None])
        return tuple(sorted(values | self.slicing.lost(keys))[:_SHOWN])


def look(storage: Storage, line: LineState, source: TableMetadata, tracked: TrackedInput) -> LineState:
    """``line`` with what changed since the upstream was last looked at, up to its head.

    The first time every key that has rows did. If the history can't be followed, every key there is did as well, so
    that the runs that this causes say what is the matter.
    """
    slicing, head = tracked.slicing, source.ancestry(tracked.ref).head
    assert slicing is not None  # noqa: S101  # asked for partitioned consumers only
    if head is None or (line.scanned and _is_at(line.scanned, source, head.snapshot_id)):
        return line
    column_kinds(source, slicing.upstream_keys.columns)
    files, now = (
        FileKeys(source, slicing),
        source.watermark_at(head, tracked.ref),
    )
    if line.scanned is None:
        live = live_files(storage, source, head=head).changes.added
        return line.looked_at(now, files.touched_by(live), unmapped=files.unmapped(live))
    found = interval_since(
        line.scanned, table_uuid=source.uuid, retained=source.snapshots, ancestry=source.ancestry(tracked.ref)
    )
    if not isinstance(found, Interval) or not is_readable(found):
        return line.looked_at(now, slicing.upstream_keys.known())
    changes = files_in(storage, source, found, head).changes
    # A value without a key may have gone again; looking at every file is the exception.
    suspects = live_files(storage, source, head=head).changes.added if line.unmapped else changes.added
    return line.looked_at(
        now,
        files.touched_by(changes.touched),
        unmapped=files.unmapped(suspects),
        abandoned=[snapshot.snapshot_id for snapshot in found.abandoned],
    )


def keys_there(storage: Storage, source: TableMetadata, slicing: Slicing) -> frozenset[str]:
    """The keys that rows of ``main`` may have now; they may be keys that no partition has yet.

    Raises:
        UnknownColumnError: the table lacks a column that keys are made of.
        MetadataUnreadableError: a manifest can't be read.
    """
    column_kinds(source, slicing.upstream_keys.columns)
    head = source.ancestry().head
    live = live_files(storage, source, head=head).changes.added if head else ()
    return FileKeys(source, slicing).touched_by(live)


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
    ancestry, files = source.ancestry(), FileKeys(source, slicing)
    found = interval_since(since, table_uuid=source.uuid, retained=source.snapshots, ancestry=ancestry)
    if ancestry.head is None or not isinstance(found, Interval) or not is_readable(found):
        return None
    keys = files.touched_by(files_in(storage, source, found, ancestry.head).changes.touched)
    newest = dict.fromkeys(keys, (ancestry.newest_change or ancestry.head).snapshot_id)
    changes = [snapshot for snapshot in found.snapshots if not snapshot.keeps_rows]
    if found.start is None or found.abandoned or len(changes) == 1:
        return newest
    by_snapshot: dict[str, int] = {}
    for start, snapshot in pairwise((found.start, *found.snapshots)):
        if not snapshot.keeps_rows:
            touched = files_in(storage, source, Interval(start, (snapshot,)), snapshot).changes.touched
            by_snapshot |= dict.fromkeys(files.touched_by(touched) & keys, snapshot.snapshot_id)
    return newest | by_snapshot


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of some partitions' captures, and from where each of them reads; None is from the beginning."""

    files: CapturedFiles
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
    parts: list[CapturedFiles] = []
    unique = list(dict.fromkeys(starts.values()))
    for start in unique:
        alike = [state for state in states if starts[state] == start]
        interval = follow(replace(alike[0], committed=start), source, tracked) if start else None
        if isinstance(interval, StartOver):
            return interval
        if head is not None:
            files = files_in(storage, source, interval, head) if interval else live_files(storage, source, head=head)
            parts.append(of_partitions(storage, source, slicing, files, [partitions[state] for state in alike]))
    taken = [_taken_by(slicing, [partitions[s] for s in states if starts[s] == each]) for each in unique]
    whole = united(parts) if parts else CapturedFiles.nothing()
    if whole is None or not _are_apart(parts, taken, FileKeys(source, slicing)):
        return StartOver(
            "its partitions were consumed up to different snapshots, and their changes can't be told apart"
        )
    return PartitionFiles(whole, {state.edge: start for state, start in starts.items()})


def _reads_from(line: LineState, state: EdgeState, keys: Collection[str]) -> Watermark | None:
    """From where a partition is read; its rows were made by the columns as they were when it was consumed."""
    start = line.start_of(state, keys)
    return replace(start, schema_id=state.committed.schema_id) if start and state.committed else start


def live_in_partitions(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, keys: Collection[str]
) -> CapturedFiles:
    """Every live file that partitions ``keys`` of the consumer are made of."""
    head = source.ancestry(tracked.ref).head
    if head is None or tracked.slicing is None:
        return CapturedFiles.nothing()
    return of_partitions(storage, source, tracked.slicing, live_files(storage, source, head=head), keys)


def _are_apart(parts: Sequence[CapturedFiles], taken: Sequence[frozenset[str]], found: FileKeys) -> bool:
    """Whether no file of a part may hold rows with a key of another, which may have consumed them."""
    for index, part in enumerate(parts):
        others = frozenset[str]().union(*taken[:index], *taken[index + 1 :])
        keys = [found.of(file).keys for file in part.changes.touched] if others else []
        if any(each is None or not each.isdisjoint(others) for each in keys):
            return False
    return True


def of_partitions(
    storage: Storage, source: TableMetadata, slicing: Slicing, files: CapturedFiles, keys: Collection[str]
) -> CapturedFiles:
    """Those of ``files`` that partitions ``keys`` of the consumer are made of."""
    taken, found = _taken_by(slicing, keys), FileKeys(source, slicing)

    def share(file: DataFile) -> Share:
        of_file = found.of(file)
        if of_file.keys is not None and of_file.keys.isdisjoint(taken):
            return Share.NONE
        is_whole = of_file.keys is not None and of_file.keys <= taken and not of_file.unmapped
        return Share.ALL if is_whole else Share.SOME

    return narrowed(storage, source, files, share)


def rows_of(source: TableMetadata, slicing: Slicing, keys: Collection[str]) -> Predicate:
    """The upstream's rows that partitions ``keys`` of the consumer are made of."""
    kinds = column_kinds(source, slicing.upstream_keys.columns)
    return slicing.upstream_keys.predicate(_taken_by(slicing, keys), kinds)


def _taken_by(slicing: Slicing, keys: Collection[str]) -> frozenset[str]:
    return frozenset[str]().union(*[slicing.taken_by(key) for key in keys])


def _is_at(scanned: Watermark, source: TableMetadata, head_snapshot_id: int) -> bool:
    return scanned.table_uuid == source.uuid and scanned.snapshot_id == head_snapshot_id
