"""Captures of single partitions: which files they contain, and from which snapshot on each partition reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.edge import Edge
from dagster_ips.core.interval import Interval
from dagster_ips.core.partition_keys import Slicing, taken_by_any
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.changed_keys import keys_since
from dagster_ips.exactly_once.capture.file_keys import FileKeys
from dagster_ips.exactly_once.capture.partitioned_input import PartitionedInput
from dagster_ips.exactly_once.capture.tracked_input import (
    StartOver,
    TrackedInput,
    files_in,
    follow,
    interval_of,
    without_overwritten,
)
from dagster_ips.iceberg.change_reader import ChangedFiles, live_files
from dagster_ips.iceberg.file_spans import column_kinds
from dagster_ips.iceberg.files_of_partitions import RowShare, narrowed, united
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_SHOWN = 5


@dataclass(frozen=True)
class RunPartitions:
    """The partitions of the consumer that a run computes; if a person named them, they are recomputed."""

    keys: tuple[str, ...]
    named_by_person: bool = False


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of some partitions' captures, and from where each edge reads; None stands for the beginning."""

    files: ChangedFiles
    starts: Mapping[Edge, Watermark | None]


def changed_in_partitions(
    storage: Storage, source: TableMetadata, looked: PartitionedInput, edges: Sequence[Edge]
) -> PartitionFiles | StartOver:
    """What changed in the partitions of ``edges`` since each consumed; all that is live for one that never did.

    Raises:
        BrokenHistoryError: the history can't be followed from where one of them has consumed.
    """
    tracked = looked.tracked
    slicing, ancestry = tracked.known_slicing, source.ancestry(tracked.ref)
    lacking = frozenset[str]().union(*[looked.lacking(edge.key) for edge in edges])
    if lacking:
        some = ", ".join(sorted(lacking)[:_SHOWN])
        return StartOver(
            f"{tracked.upstream} had rows of {some} before Dagster had such a partition",
            "To avoid that, let partitions exist before their rows come: use end_offset=1, or add dynamic ones first.",
        )
    starts = {edge.key: looked.start_of(edge.key) for edge in edges}
    starts = _shared(storage, source, tracked, _before_rollback(storage, source, tracked, starts))
    parts: list[ChangedFiles] = []
    unique = list(dict.fromkeys(starts.values()))
    for start in unique:
        keys = [key for key, each in starts.items() if each == start]
        state = EdgeState(edges[0].of(keys[0]), committed=start, has_begun=True)
        interval = follow(storage, state, source, tracked) if start else None
        if isinstance(interval, StartOver):
            return interval
        if ancestry.head is not None:
            if interval is None:
                parts.append(_live_of(storage, source, slicing, keys, ancestry.head))
            else:
                files = files_in(storage, source, interval, ancestry.head)
                part = of_partitions(storage, source, slicing, files, keys)
                lost = files.changes.overwritten.intersection(file.path for file in part.changes.removed)
                if over := without_overwritten(lost, state, source, tracked):
                    return over
                parts.append(part)
    taken = [taken_by_any(slicing, [key for key, each in starts.items() if each == start]) for start in unique]
    whole = united(parts) if parts else ChangedFiles.nothing()
    if whole is None or not _are_apart(parts, taken, FileKeys(storage, source, slicing)):
        return StartOver(
            "its partitions were consumed up to different snapshots, so their changes can't be told apart",
            "Or run them one by one, as automation does after a failed run.",
        )
    return PartitionFiles(whole, {edge: starts[edge.key] for edge in edges})


def _before_rollback(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, starts: Mapping[str, Watermark | None]
) -> dict[str, Watermark | None]:
    """``starts``, but a partition without rows in what was rolled back is read from before that.

    Otherwise it would be refused because of snapshots that it has nothing of.
    """
    slicing, ancestry, found = tracked.known_slicing, source.ancestry(tracked.ref), dict(starts)
    for mark in {each for each in starts.values() if each is not None}:
        interval = interval_of(storage, source, mark, ancestry)
        if not isinstance(interval, Interval) or not interval.lost:
            continue
        common = source.snapshots.get(interval.abandoned[-1].parent_id or -1)
        consumed = source.snapshots.get(mark.snapshot_id)
        if common is None or consumed is None:
            continue
        gone = files_in(storage, source, Interval(common, interval.abandoned[::-1]), consumed).changes.touched
        keys = FileKeys(storage, source, slicing).read(gone)
        before = replace(source.watermark_at(common, tracked.ref), schema_id=mark.schema_id)
        for key in [key for key, each in starts.items() if each == mark and not keys.unread]:
            if keys.keys.isdisjoint(slicing.taken_by(key)):
                found[key] = before
    return found


def _shared(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, starts: Mapping[str, Watermark | None]
) -> dict[str, Watermark | None]:
    """``starts`` with as few different ones as possible, because everything since each of them is read.

    A partition without a change between two of them may be read from the earlier one.
    """
    found, marks = dict(starts), sorted({each for each in starts.values() if each}, key=lambda each: each.position)
    for later in marks[1:]:
        first = marks[0]
        if first.schema_id != later.schema_id or later.snapshot_id not in source.snapshots:
            continue
        then = source.as_of(later.snapshot_id, tracked.ref)
        keys = keys_since(storage, then, tracked, first)
        for key in [key for key, each in starts.items() if each == later]:
            if keys is not None and keys.isdisjoint(tracked.known_slicing.taken_by(key)):
                found[key] = first
    return found


def live_in_partitions(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, keys: Collection[str]
) -> ChangedFiles:
    """Every live file that partitions ``keys`` of the consumer are made of."""
    head = source.ancestry(tracked.ref).head
    if head is None or tracked.slicing is None:
        return ChangedFiles.nothing()
    return _live_of(storage, source, tracked.slicing, keys, head)


def _live_of(
    storage: Storage, source: TableMetadata, slicing: Slicing, keys: Collection[str], head: Snapshot
) -> ChangedFiles:
    """As ``live_in_partitions``. The manifests of other partitions are mostly not opened."""
    divided = slicing.upstream_keys
    extent = divided.extent(taken_by_any(slicing, keys), column_kinds(source, divided.columns))
    live = live_files(storage, source, head=head, extent=dict(zip(divided.columns, extent, strict=True)))
    return of_partitions(storage, source, slicing, live, keys)


def _are_apart(parts: Sequence[ChangedFiles], taken: Sequence[frozenset[str]], found: FileKeys) -> bool:
    """Whether no file of one part may hold rows with keys of another part, which may have consumed them already."""
    for index, part in enumerate(parts):
        others = frozenset[str]().union(*taken[:index], *taken[index + 1 :])
        if any(found.keys.possible(found.of(file), others) for file in part.changes.touched if others):
            return False
    return True


def of_partitions(
    storage: Storage, source: TableMetadata, slicing: Slicing, files: ChangedFiles, keys: Collection[str]
) -> ChangedFiles:
    """Those of ``files`` that partitions ``keys`` of the consumer are made of."""
    taken, found = taken_by_any(slicing, keys), FileKeys(storage, source, slicing)

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
    return slicing.upstream_keys.predicate(taken_by_any(slicing, keys), kinds)


def rows_of_any(
    storage: Storage, source: TableMetadata, looked: PartitionedInput, files: ChangedFiles
) -> Predicate | None:
    """The rows of captured files that any partition takes, now or later, as far as it was ``looked``.

    None if there is nothing to count: the files' partition values say which keys their rows have; or files can't be
    read, so it is unknown what they hold for future partitions.
    """
    slicing = looked.tracked.known_slicing
    found = FileKeys(storage, source, slicing)
    told = {found.of(file) for file in files.changes.added if file.record_count and not found.is_by_partition(file)}
    if looked.changed.unread or not told:
        return None
    every = slicing.upstream_keys.known() | looked.changed.keys | looked.progress.untaken.keys()
    possible = frozenset[str]().union(*[slicing.upstream_keys.possible(each, every) for each in told])
    keys = possible.union(*[each.keys for each in told if each.keys is not None])
    kinds = column_kinds(source, slicing.upstream_keys.columns)
    return slicing.upstream_keys.predicate(keys - slicing.lost(keys), kinds)
