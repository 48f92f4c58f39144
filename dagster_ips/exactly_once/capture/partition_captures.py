"""Captures of single partitions: which files they contain, and from which snapshot on each partition reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.edge import Edge
from dagster_ips.core.partition_keys import Slicing, taken_by_any
from dagster_ips.core.policy import OnRollback
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.touched import LineState, reaches
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.file_keys import FileKeys
from dagster_ips.exactly_once.capture.tracked_input import (
    StartOver,
    TrackedInput,
    files_in,
    follow,
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
    storage: Storage, source: TableMetadata, tracked: TrackedInput, line: LineState, states: Sequence[EdgeState]
) -> PartitionFiles | StartOver:
    """What changed in the partitions of ``states`` since each consumed; all that is live for one that never did.

    Raises:
        BrokenHistoryError: the history can't be followed from where one of them has consumed.
    """
    slicing, head = tracked.known_slicing, source.ancestry(tracked.ref).head
    partitions = {state: state.edge.key for state in states}
    lacking = frozenset[str]().union(*[state.left_out & slicing.taken_by(key) for state, key in partitions.items()])
    if lacking:
        some = ", ".join(sorted(lacking)[:_SHOWN])
        return StartOver(
            f"{tracked.upstream} had rows of {some} before Dagster had such a partition",
            "To avoid that, let partitions exist before their rows come: use end_offset=1, or add dynamic ones first.",
        )
    ancestry = source.ancestry(tracked.ref)
    starts = {state: _reads_from(line, state, slicing.taken_by(key)) for state, key in partitions.items()}
    starts = _shared(_without_rolled_back(starts, source, tracked), ancestry)
    parts: list[ChangedFiles] = []
    unique = list(dict.fromkeys(starts.values()))
    for start in unique:
        alike = [state for state in states if starts[state] == start]
        interval = follow(storage, replace(alike[0], committed=start), source, tracked) if start else None
        if isinstance(interval, StartOver):
            return interval
        if head is not None:
            keys = [partitions[state] for state in alike]
            if interval is None:
                parts.append(_live_of(storage, source, slicing, keys, head))
            else:
                files = files_in(storage, source, interval, head)
                part = of_partitions(storage, source, slicing, files, keys)
                lost = files.changes.overwritten.intersection(file.path for file in part.changes.removed)
                if over := without_overwritten(lost, alike[0], source, tracked):
                    return over
                parts.append(part)
    taken = [taken_by_any(slicing, [partitions[s] for s in states if starts[s] == each]) for each in unique]
    whole = united(parts) if parts else ChangedFiles.nothing()
    if whole is None or not _are_apart(parts, taken, FileKeys(storage, source, slicing)):
        return StartOver(
            "its partitions were consumed up to different snapshots, so their changes can't be told apart",
            "Or run them one by one, as automation does after a failed run.",
        )
    return PartitionFiles(whole, {state.edge: start for state, start in starts.items()})


def _without_rolled_back(
    starts: Mapping[EdgeState, Watermark | None], source: TableMetadata, tracked: TrackedInput
) -> dict[EdgeState, Watermark | None]:
    """``starts``, but a partition is read from what it has consumed if what was looked at after that was rolled back.

    Otherwise it would be refused because of a snapshot that it hasn't consumed.
    """
    ancestry, continues = source.ancestry(tracked.ref), tracked.policies.on_rollback is OnRollback.CONTINUE
    marks = {each for each in starts.values() if each is not None}
    gone = {each for each in marks if not (continues and each.snapshot_id in source.snapshots)}
    gone = {each for each in gone if ancestry.find(each.snapshot_id) is None}
    return {
        state: committed
        if start in gone and (committed := state.committed) and ancestry.find(committed.snapshot_id)
        else start
        for state, start in starts.items()
    }


def _shared(starts: Mapping[EdgeState, Watermark | None], ancestry: Ancestry) -> dict[EdgeState, Watermark | None]:
    """``starts`` with as few different ones as possible, because everything since each of them is read.

    Between what a partition has consumed and its start, it gained no row that still exists. So it may be read from any
    snapshot in between, unless rows may have gone after that: rows that it never had would then count as removed.
    """
    if len(set(starts.values())) == 1:
        return dict(starts)
    removals: dict[int, int] = {}  # by snapshot: in how many newer ones rows may have gone
    newer = 0
    for snapshot in ancestry.snapshots:
        removals[snapshot.snapshot_id] = newer
        newer += not (snapshot.only_adds or snapshot.keeps_rows)
    found = dict(starts)
    before: dict[object, Watermark] = {}
    in_order = sorted(((start, state) for state, start in starts.items() if start), key=lambda each: each[0].position)
    for start, state in in_order:
        known = before.get(start.schema_id)
        if (
            known is not None
            and state.committed is not None
            and reaches(known, state.committed)
            and reaches(start, known)
            and known.snapshot_id in removals
            and removals[known.snapshot_id] == removals.get(start.snapshot_id)
        ):
            found[state] = known
        else:
            before[start.schema_id] = start
    return found


def _reads_from(line: LineState, state: EdgeState, keys: Collection[str]) -> Watermark | None:
    """From where a partition is read; its rows were computed with the columns of the time when it last consumed."""
    start = line.start_of(state, keys)
    return replace(start, schema_id=state.committed.schema_id) if start and state.committed else start


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
    storage: Storage, source: TableMetadata, slicing: Slicing, files: ChangedFiles, line: LineState
) -> Predicate | None:
    """The rows of captured files that any partition takes, now or later, as far as ``line`` knows.

    None if there is nothing to count: the files' partition values say which keys their rows have; or files can't be
    read, so it is unknown what they hold for future partitions.
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
