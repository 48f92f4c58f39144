"""Looking at an upstream for all partitions of a consumer: which keys changed since it was last looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import EdgeState, TargetMark
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.edge import Edge
from dagster_ips.core.interval import Interval
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.target import is_older
from dagster_ips.core.touched import FoundKeys, LineState, Stray, reaches
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.file_keys import FileKeys
from dagster_ips.exactly_once.capture.tracked_input import (
    TrackedInput,
    files_in,
    interval_of,
    is_readable,
)
from dagster_ips.iceberg.change_reader import live_files
from dagster_ips.iceberg.file_spans import column_kinds
from dagster_ips.iceberg.file_values import NOT_YET
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import last_divided_otherwise, mark
from dagster_ips.iceberg.storage import Storage
from dagster_ips.state.store import EdgeStore


def known_line(store: EdgeStore, consumer: str, tracked: TrackedInput, target: TableMetadata | None) -> LineState:
    """What is known of all partitions of ``consumer``, whose table is ``target``.

    Nothing, if it was looked for another table, or when the keys meant something else.
    """
    slicing = tracked.slicing
    assert slicing is not None  # noqa: S101  # asked for partitioned consumers only
    keys = f"{slicing.division} of {slicing.upstream_keys.division}"
    division = f"{keys} in {target.uuid}" if target else keys
    line = store.get_line(Edge(consumer, tracked.upstream))
    return replace(line if line.division in (None, keys, division) else LineState(line.edge), division=division)


def as_divided_now(
    states: Iterable[EdgeState], target: TableMetadata | None, line: Edge, slicing: Slicing
) -> dict[Edge, EdgeState]:
    """``states`` of partitions. Nothing is consumed of those in another table, or whose keys meant something else.

    Their rows in ``target`` are computed anew then, and replaced, whatever they are.
    """
    other = last_divided_otherwise(target, line, slicing.division) if target else None
    head = target.ancestry().head if target else None
    now = mark(head, target.uuid) if target and head else None
    return {
        state.edge: replace(state, committed=None, left_out=frozenset(), target=now)
        if state.committed and (_is_elsewhere(state, target) or _is_divided_otherwise(state, slicing.division, other))
        else state
        for state in states
    }


def _is_elsewhere(state: EdgeState, target: TableMetadata | None) -> bool:
    """Whether what was consumed is in another table than ``target``, which is gone, or the asset's no more."""
    return state.target is not None and (target is None or state.target.table_uuid != target.uuid)


def _is_divided_otherwise(state: EdgeState, division: str, other: TargetMark | None) -> bool:
    """Whether the key meant something else when it was consumed, or has since, as of the snapshot ``other``."""
    if other is None or state.division not in (None, division):
        return state.division not in (None, division)
    is_known_as_it = state.target is not None and state.target.snapshot_id == other.snapshot_id
    return is_older(state.target, other) or (is_known_as_it and state.division is None)


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
    if line.landmarks is None or not _has_lost_partitions(line, slicing):
        line = replace(line, landmarks=slicing.upstream_keys.landmarks() if slicing.sharing else None)
    is_new = not (line.scanned and _is_at(line.scanned, source, head.snapshot_id))
    waits = any(each.is_live for each in line.unread.values())
    if (
        line.knows_keys_to_come
        and not is_new
        and not waits
        and not _has_lost_partitions(line, slicing)
        and all(_is_stray(path, each, slicing) for path, each in line.strays.items())
    ):
        return line
    column_kinds(source, slicing.upstream_keys.columns)
    looking = _Looking(storage, source, head, FileKeys(storage, source, slicing))
    line = looking.unread_again(looking.with_partitions_lost(looking.with_keys_to_come(line)))
    return looking.further(line, tracked.ref) if is_new else looking.with_strays(line)


def with_newcomers(
    storage: Storage, line: LineState, source: TableMetadata, tracked: TrackedInput, states: Collection[EdgeState]
) -> LineState:
    """``line`` with partitions, in ``states``, that weren't there at the look before, though what they are made of was.

    What others consumed of that is forgotten. So one that was never computed waits for the rows that its keys have now,
    and one that is back for all that may have changed meanwhile.
    """
    slicing, head = tracked.slicing, source.ancestry(tracked.ref).head
    assert slicing is not None  # noqa: S101  # as above
    never = {state.edge.partition or "" for state in states if state.committed is None}
    forgotten = frozenset[str]().union(*map(slicing.taken_by, never)) - line.touched.keys()
    for state in states if line.partitions is not None else ():
        if state.committed is not None:
            line = line.with_back(state, slicing.taken_by(state.edge.partition or ""))
    if head is None or not any(slicing.made_of([key]) - never for key in forgotten):
        return line
    looking = _Looking(storage, source, head, FileKeys(storage, source, slicing))
    return line.with_keys_to_come(forgotten & looking.keys_of_live)


def with_taken_back(
    line: LineState, slicing: Slicing, back: Mapping[str, Watermark], states: Iterable[EdgeState]
) -> LineState:
    """``line`` with the partitions that a revert took ``back``, and that have consumed nothing since.

    What was forgotten of them once they had consumed it is theirs to consume again, from where they are back at.
    """
    for state in states:
        at = back.get(state.edge.partition or "")
        if at is not None and state.committed == at:
            line = line.with_read_beyond(slicing.taken_by(state.edge.partition or ""), at)
    return line


def may_lack_rows(line: LineState, scanned: Watermark, source: TableMetadata, ref: str) -> bool:
    """Whether rows may have come and gone after ``scanned``, so that the look that made ``line`` lacks them."""
    return _loses_rows(line, scanned, source, ref) or _may_have_gone_back(scanned, source, ref)


def with_rows_read(
    line: LineState,
    scanned: Watermark,
    source: TableMetadata,
    tracked: TrackedInput,
    read: Mapping[str, Watermark | None],
) -> LineState:
    """``line`` with the partitions that ``read`` rows after ``scanned`` which no look has seen, as they are gone.

    ``read`` says up to where each partition has read, None where that isn't known.
    """
    slicing, ancestry = tracked.slicing, source.ancestry(tracked.ref)
    assert slicing is not None  # noqa: S101  # as above
    beyond = {key: to for key, to in read.items() if to is None or not reaches(scanned, to)}
    abandoned = {to.snapshot_id for to in beyond.values() if to and not ancestry.find(to.snapshot_id)}
    loses_rows = _loses_rows(line, scanned, source, tracked.ref)
    unseen = [key for key, to in beyond.items() if loses_rows or to is None or to.snapshot_id in abandoned]
    keys = frozenset[str]().union(*[slicing.taken_by(key) for key in unseen])
    return line.with_read_beyond(keys, scanned, abandoned=abandoned)


def _loses_rows(line: LineState, scanned: Watermark, source: TableMetadata, ref: str) -> bool:
    if line.scanned == scanned:
        return False
    newer = _newer_than(scanned, source, ref)
    # Of a history that it isn't in, any snapshot may be newer.
    newer = list(source.ancestry(ref).snapshots) if newer is None else newer
    return any(not (snapshot.keeps_rows or snapshot.only_adds) for snapshot in newer)


def _may_have_gone_back(scanned: Watermark, source: TableMetadata, ref: str) -> bool:
    """Whether snapshots after ``scanned`` may have been in the history and left it by a rollback.

    Every commit takes the next sequence number: one that is missing in the history was taken by a snapshot that was
    rolled back, or that is on a branch. In version 1 there are none, and it is never certain.
    """
    if source.format_version == 1:
        return True
    newer = _newer_than(scanned, source, ref)
    return newer is None or source.last_sequence_number - scanned.sequence_number != len(newer)


def _newer_than(scanned: Watermark, source: TableMetadata, ref: str) -> list[Snapshot] | None:
    """The snapshots of ``ref`` after ``scanned``; None if it isn't in the history."""
    newer: list[Snapshot] = []
    for snapshot in source.ancestry(ref).snapshots:
        if snapshot.snapshot_id == scanned.snapshot_id:
            return newer
        newer.append(snapshot)
    return None


def _has_lost_partitions(line: LineState, slicing: Slicing) -> bool:
    """Whether the upstream had partitions at the look before that it doesn't have now, and that consumers share."""
    return bool(line.landmarks and slicing.sharing) and slicing.upstream_keys.lacks_any(line.landmarks or ())


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

    def with_partitions_lost(self, line: LineState) -> LineState:
        """``line`` with the keys whose partitions are gone, once all of them are known.

        What is computed meanwhile is made without their rows, and is to be computed again when they are back.
        """
        keys = self.files.keys
        if not _has_lost_partitions(line, self.files.slicing) or NOT_YET.cause in self._of_live.unread.values():
            return line
        line = line.with_keys_to_come(self._of_live.keys - keys.known())
        return self.with_strays(replace(line, landmarks=keys.landmarks()), self._live.values())

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

    @property
    def keys_of_live(self) -> frozenset[str]:
        """The keys that rows may have now: where a file can't be read, any that there is a partition of."""
        return self._of_live.keys | (self.files.keys.known() if self._of_live.unread else frozenset())

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


def _is_at(scanned: Watermark, source: TableMetadata, head_snapshot_id: int) -> bool:
    return scanned.table_uuid == source.uuid and scanned.snapshot_id == head_snapshot_id
