"""Looks at an upstream for all partitions of a consumer: which keys have changed since the last look."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import EdgeState, TargetMark
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.division import divided, with_losses
from dagster_ips.core.edge import Edge
from dagster_ips.core.interval import Interval
from dagster_ips.core.partition_keys import Slicing, taken_by_any
from dagster_ips.core.policy import OnRemoved
from dagster_ips.core.target import is_older
from dagster_ips.core.touched import FoundKeys, LineState, Stray, reaches
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.file_keys import FileKeys
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput, files_in, readable_interval
from dagster_ips.iceberg.change_reader import live_files
from dagster_ips.iceberg.file_spans import column_kinds
from dagster_ips.iceberg.file_values import NOT_YET
from dagster_ips.iceberg.lasting_facts import head_mark
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import last_divided_otherwise
from dagster_ips.iceberg.storage import Storage
from dagster_ips.state.store import EdgeStore

_MOST_COMMITS = 1000
"""Of how many commits ``keys_changed`` finds out which keys each of them changed: it has to read each by itself."""


def known_line(store: EdgeStore, consumer: str, tracked: TrackedInput, target: TableMetadata | None) -> LineState:
    """What the ``store`` has of the line of all partitions of ``consumer``: see ``known_of``."""
    return known_of(store.get_line(Edge(consumer, tracked.upstream)), tracked, target)


def known_of(line: LineState, tracked: TrackedInput, target: TableMetadata | None) -> LineState:
    """What is known from ``line``, as it is stored, about a consumer whose table is ``target``, before the next look.

    Nothing, if the line was recorded for another table, or when the keys had another meaning. In any case, it knows
    which of the upstream's partitions were deleted by now.
    """
    slicing = tracked.known_slicing
    division = f"{slicing.division} in {target.uuid}" if target else slicing.division
    is_same = line.division in (None, slicing.division, division)
    known = line if is_same else LineState(line.edge, landmarks=line.landmarks, losses=line.losses)
    return _with_losses(replace(known, division=division), tracked, target)


def _with_losses(line: LineState, tracked: TrackedInput, target: TableMetadata | None) -> LineState:
    """``line`` with what was deleted since the last look.

    If no look is known, although something may have been consumed before, any dynamic partition may have been deleted
    since. If rows that were removed upstream are meant to stay, so are those of deleted partitions: nothing is
    recomputed then.
    """
    slicing, keeps = tracked.known_slicing, tracked.policies.on_removed is OnRemoved.IGNORE
    if not slicing.sharing:
        return line
    if line.landmarks is None:
        may_lack = slicing.upstream_keys.is_dynamic and line.scanned is None and not keeps
        head = target.head_snapshot_id() if target and may_lack else None
        return replace(line, losses=with_losses("", [str(head)])) if head is not None else line
    deleted = slicing.upstream_keys.deleted(line.landmarks)
    if not deleted:
        return line
    losses = line.losses if keeps or not slicing.took_any(deleted) else with_losses(line.losses, deleted)
    return replace(line, landmarks=line.landmarks - deleted, losses=losses, awaits_lost=True)


def with_names(line: LineState, captured: LineState, slicing: Slicing) -> LineState:
    """``line`` as it is stored, with the upstream's partitions that a capture, which knows ``captured``, may take.

    Otherwise the next look wouldn't miss one that is added before the capture and deleted after it.
    """
    if not slicing.upstream_keys.is_dynamic or not slicing.sharing:
        return line
    if line.landmarks is None and line.scanned is None:
        line = replace(line, losses=captured.losses)
    there = slicing.upstream_keys.landmarks()
    if line.landmarks is not None and there <= line.landmarks:
        return line
    return replace(line, landmarks=there.union(line.landmarks or ()))


def as_divided_now(
    states: Iterable[EdgeState], target: TableMetadata | None, line: LineState, slicing: Slicing
) -> dict[Edge, EdgeState]:
    """``states`` of partitions; those in another table, or whose keys had another meaning, have consumed nothing.

    Nor have those that were computed before the losses that ``line`` knows. Their rows in ``target`` are then
    recomputed and replaced, whatever they are.
    """
    other = last_divided_otherwise(target, line.edge, slicing.division) if target else None
    now = head_mark(target) if target else None

    def is_other(state: EdgeState) -> bool:
        is_before = (state.division or slicing.division) != divided(slicing.division, line.losses)
        return is_before or _is_elsewhere(state, target) or _is_divided_otherwise(state, other)

    return {
        state.edge: replace(state, committed=None, left_out=frozenset(), target=now)
        if state.committed and is_other(state)
        else state
        for state in states
    }


def _is_elsewhere(state: EdgeState, target: TableMetadata | None) -> bool:
    """Whether what was consumed went to another table than ``target``, which is gone or no longer the asset's."""
    return state.target is not None and (target is None or state.target.table_uuid != target.uuid)


def _is_divided_otherwise(state: EdgeState, other: TargetMark | None) -> bool:
    """Whether the key may have had another meaning since it was consumed, as of the target's snapshot ``other``."""
    if other is None:
        return False
    is_known_as_it = state.target is not None and state.target.snapshot_id == other.snapshot_id
    return is_older(state.target, other) or (is_known_as_it and state.division is None)


def look(storage: Storage, line: LineState, source: TableMetadata, tracked: TrackedInput) -> LineState:
    """``line`` with what has changed since the last look at the upstream, up to its head.

    For the first look, every key that has rows has changed. If the history can't be followed, every existing key counts
    as changed too, so that the runs this causes report what is wrong. A file is read if its metadata doesn't say
    enough; if it can't be read, it is ``unread`` until it can.
    """
    slicing, head = tracked.known_slicing, source.ancestry(tracked.ref).head
    if head is None:
        return line
    if not has_lost_partitions(line, slicing):
        line = replace(line, landmarks=slicing.upstream_keys.landmarks() if slicing.sharing else None)
    elif line.awaits_lost:
        line = replace(line, landmarks=slicing.upstream_keys.landmarks().union(line.landmarks or ()))
    has_moved = line.scanned is not None and _has_other_columns(line.scanned, source, slicing)
    if has_moved:  # What is known of rows without a partition is about other columns.
        line = replace(line, strays={})
    is_new = has_moved or line.scanned is None or not _is_at(line.scanned, source.watermark_at(head, tracked.ref))
    waits = any(each.is_live for each in line.unread.values())
    if (
        line.knows_keys_to_come
        and not is_new
        and not waits
        and not has_lost_partitions(line, slicing)
        and all(_is_stray(path, each, slicing) for path, each in line.strays.items())
    ):
        return line
    column_kinds(source, slicing.upstream_keys.columns)
    looking = _Looking(storage, source, head, FileKeys(storage, source, slicing))
    line = looking.unread_again(looking.with_partitions_lost(looking.with_keys_to_come(line)))
    return looking.further(line, tracked.ref, has_moved=has_moved) if is_new else looking.with_strays(line)


def with_newcomers(
    storage: Storage, line: LineState, source: TableMetadata, tracked: TrackedInput, states: Collection[EdgeState]
) -> LineState:
    """``line`` with the partitions in ``states`` that didn't exist at the last look, although their keys did.

    The line has forgotten what all other partitions consumed of these keys. So a partition that was never computed is
    pending with the rows that its keys have now, and one that is back with all that may have changed in the meantime.
    """
    slicing, head = tracked.known_slicing, source.ancestry(tracked.ref).head
    never = {state.edge.key for state in states if state.committed is None}
    forgotten = taken_by_any(slicing, never) - line.touched.keys()
    for state in states if line.partitions is not None else ():
        if state.committed is not None:
            line = line.with_back(state, slicing.taken_by(state.edge.key))
    if head is None or not slicing.made_of(forgotten) - never:
        return line
    looking = _Looking(storage, source, head, FileKeys(storage, source, slicing))
    return line.with_keys_to_come(forgotten & looking.keys_of_live)


def with_taken_back(
    line: LineState, slicing: Slicing, back: Mapping[str, Watermark], states: Iterable[EdgeState]
) -> LineState:
    """``line`` with the partitions that a revert took ``back`` and that have consumed nothing since.

    The line forgot their changes once they had consumed them. They have to consume these changes again, starting where
    the revert took them back to.
    """
    for state in states:
        at = back.get(state.edge.key)
        if at is not None and state.committed == at:
            line = line.with_read_beyond(slicing.taken_by(state.edge.key), at)
    return line


def may_lack_rows(line: LineState, scanned: Watermark, source: TableMetadata, ref: str) -> bool:
    """Whether rows may have come and gone after ``scanned``, so that the look that produced ``line`` missed them."""
    return _loses_rows(line, scanned, source, ref) or _may_have_gone_back(scanned, source, ref)


def with_rows_read(
    line: LineState,
    scanned: Watermark,
    source: TableMetadata,
    tracked: TrackedInput,
    read: Mapping[str, Watermark | None],
) -> LineState:
    """``line`` with the partitions that have read rows after ``scanned`` which no look saw before they were gone.

    ``read`` contains up to where each partition has read, None where that is unknown.
    """
    slicing, ancestry = tracked.known_slicing, source.ancestry(tracked.ref)
    beyond = {key: to for key, to in read.items() if to is None or not reaches(scanned, to)}
    later = {key: to for key, to in beyond.items() if to and source.predates(to)}
    gone = (to.snapshot_id for key, to in beyond.items() if to and key not in later)
    abandoned = {snapshot_id for snapshot_id in gone if _is_lost(snapshot_id, source, ancestry)}
    loses_rows = _loses_rows(line, scanned, source, tracked.ref)
    unseen = [key for key, to in beyond.items() if loses_rows or to is None or to.snapshot_id in abandoned]
    line = line.with_read_beyond(taken_by_any(slicing, unseen), scanned, abandoned=abandoned)
    for key, to in later.items():
        line = line.with_read_beyond(slicing.taken_by(key), scanned, to=to)
    return line


def _is_lost(snapshot_id: int, source: TableMetadata, ancestry: Ancestry) -> bool:
    """Whether a snapshot may have had rows that its closest ancestor in the history lacks."""
    for snapshot in Ancestry.of(source.snapshots, snapshot_id).snapshots:
        if ancestry.find(snapshot.snapshot_id):
            return False
        if not snapshot.keeps_rows:
            return True
    return True


def _loses_rows(line: LineState, scanned: Watermark, source: TableMetadata, ref: str) -> bool:
    if line.scanned == scanned:
        return False
    newer = source.ancestry(ref).since(scanned.snapshot_id)
    # If the history doesn't contain ``scanned``, any of its snapshots may be newer.
    newer = tuple(source.ancestry(ref).snapshots) if newer is None else newer
    return any(not (snapshot.keeps_rows or snapshot.only_adds) for snapshot in newer)


def _may_have_gone_back(scanned: Watermark, source: TableMetadata, ref: str) -> bool:
    """Whether snapshots after ``scanned`` may have been in the history and left it by a rollback.

    Every commit takes the next sequence number. So a number that is missing in the history belongs to a snapshot that
    was rolled back or that is on a branch. Format version 1 has no sequence numbers, so there it is always possible.
    """
    if source.format_version == 1 or scanned.sequence_number == 0:
        return True
    newer = source.ancestry(ref).since(scanned.snapshot_id)
    return newer is None or source.last_sequence_number - scanned.sequence_number != len(newer)


def has_lost_partitions(line: LineState, slicing: Slicing) -> bool:
    """Whether the upstream lost partitions since the look, and partitions of the consumer may share keys."""
    if not slicing.sharing or line.landmarks is None:
        return False
    return line.awaits_lost or slicing.upstream_keys.lacks_any(line.landmarks)


def _has_other_columns(scanned: Watermark, source: TableMetadata, slicing: Slicing) -> bool:
    """Whether a column that keys are computed from had another name when the line was looked at, or may have had."""
    moved = source.columns_of_other_meaning(scanned.schema_id)
    return moved is None or not set(slicing.upstream_keys.columns).isdisjoint(moved)


def _is_stray(path: str, stray: Stray, slicing: Slicing) -> bool:
    """Whether the file is known to hold rows of no partition, by the current definitions."""
    return bool(path) and bool(stray.values or slicing.lost(stray.keys))


@dataclass(frozen=True)
class _Looking:
    """One look at a table up to its ``head``."""

    storage: Storage
    source: TableMetadata
    head: Snapshot
    files: FileKeys

    def further(self, line: LineState, ref: str, *, has_moved: bool) -> LineState:
        """``line`` brought up to the head; ``has_moved`` says that its keys are of other columns than now."""
        now, ancestry = self.source.watermark_at(self.head, ref), self.source.ancestry(ref)
        if line.abandoned:  # Someone may have taken a rollback back.
            line = replace(line, abandoned=line.abandoned - ancestry.places().keys())
        if line.scanned is None:
            return self.with_strays(line.looked_at(now, self._of_live), self._live.values())
        found = readable_interval(self.storage, self.source, line.scanned, ancestry)
        changes = files_in(self.storage, self.source, found, self.head).changes if found and not has_moved else None
        if found is None or changes is None or changes.overwritten:
            # A partition that was deleted still has its rows if it is added again.
            every = self._of_live.keys | self.files.keys.known() | line.dynamic
            line = line.looked_at(now, replace(self._of_live, keys=every), is_followed=False)
            return self.with_strays(line, self._live.values())
        live = {file.path for file in (*changes.added, *changes.hidden)}
        changed = self.files.read(changes.touched, live=live)
        abandoned = [snapshot.snapshot_id for snapshot in found.lost]
        only_adds = not abandoned and all(snapshot.only_adds for snapshot in found.snapshots)
        line = line.looked_at(now, changed, abandoned=abandoned)
        return self.with_strays(line, (*changes.added, *changes.hidden), are_there=only_adds)

    def with_keys_to_come(self, line: LineState) -> LineState:
        """``line`` with the keys that an earlier release forgot, once all of them are known."""
        if line.knows_keys_to_come or self._is_unfinished:
            return line
        return line.with_keys_to_come(self._of_live.keys)

    def with_partitions_lost(self, line: LineState) -> LineState:
        """``line`` with the keys whose partitions are gone, once all of these keys are known.

        What is computed in the meantime lacks their rows, and must be recomputed when the partitions are back.
        """
        keys = self.files.keys
        if not has_lost_partitions(line, self.files.slicing) or self._is_unfinished:
            return line
        line = line.with_keys_to_come(self._of_live.keys - keys.known())
        return self.with_strays(replace(line, landmarks=keys.landmarks(), awaits_lost=False), self._live.values())

    def unread_again(self, line: LineState) -> LineState:
        """``line`` with what can be read by now of its files that couldn't be read before."""
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

    def with_strays(self, line: LineState, added: Iterable[DataFile] = (), *, are_there: bool = False) -> LineState:
        """``line`` with the files that hold rows of no partition: those of ``added``, and those that it already has.

        ``are_there`` says that no file is gone since the last look, so that the live files needn't be listed. Rows that
        delete files hide don't count.
        """
        found = dict(self.files.strays(added))
        known = {path: each for path, each in line.strays.items() if _is_stray(path, each, self.files.slicing)}
        found |= {path: each for path, each in known.items() if are_there or path in self._live}
        found = dict(self.files.strays_left(found, self.head))
        if found or not line.strays:
            return line.with_strays(found)
        # The known ones are gone, or their rows have partitions by now. There may be others.
        found = dict(self.files.strays_left(self.files.strays(self._live.values(), live=self._live), self.head))
        if not found and self._is_unfinished:
            return line.with_strays({"": Stray(line.unmapped)})
        return line.with_strays(found)

    @property
    def keys_of_live(self) -> frozenset[str]:
        """The keys that rows may have now; if a file can't be read, that includes every key with a partition."""
        return self._of_live.keys | (self.files.keys.known() if self._of_live.unread else frozenset())

    @property
    def _is_unfinished(self) -> bool:
        """Whether only a later look reads some of the live files, because this one took too long."""
        return NOT_YET.cause in self._of_live.unread.values()

    @cached_property
    def _live(self) -> Mapping[str, DataFile]:
        live = live_files(self.storage, self.source, head=self.head).changes.added
        return {file.path: file for file in live}

    @cached_property
    def _of_live(self) -> FoundKeys:
        return self.files.read(self._live.values(), live=self._live)


def keys_there(storage: Storage, source: TableMetadata, slicing: Slicing) -> frozenset[str]:
    """The keys that rows of ``main`` have now, whether or not they have a partition yet.

    If a file can't be read, every key with a partition is included.

    Raises:
        UnknownColumnError: the table lacks a column that the keys are computed from.
        MetadataUnreadableError: a manifest can't be read.
        CatalogUnreachableError: the storage didn't answer.
    """
    column_kinds(source, slicing.upstream_keys.columns)
    head = source.ancestry().head
    live = live_files(storage, source, head=head).changes.added if head else ()
    # Files of a whole table are read only as far as time allows.
    return _keys_of(FileKeys(storage, source, slicing), live, live={file.path for file in live})


def keys_since(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, since: Watermark
) -> frozenset[str] | None:
    """The keys of the input's rows that came or went after ``since``; None if the history can't be followed from there.

    Raises:
        As ``keys_there``.
    """
    slicing, ancestry = tracked.known_slicing, source.ancestry(tracked.ref)
    column_kinds(source, slicing.upstream_keys.columns)
    found = readable_interval(storage, source, since, ancestry)
    if ancestry.head is None or found is None:
        return None
    files = FileKeys(storage, source, slicing)
    return _keys_of(files, files_in(storage, source, found, ancestry.head).changes.touched)


def keys_gone_since(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, since: Watermark
) -> frozenset[str] | None:
    """As ``keys_since``, but only of rows that went; after a rollback, of all."""
    slicing, ancestry = tracked.known_slicing, source.ancestry(tracked.ref)
    found = readable_interval(storage, source, since, ancestry)
    if ancestry.head is None or found is None or found.abandoned:
        return keys_since(storage, source, tracked, since)
    changes = files_in(storage, source, found, ancestry.head).changes
    return _keys_of(FileKeys(storage, source, slicing), (*changes.removed, *changes.hidden))


def keys_changed(
    storage: Storage, source: TableMetadata, slicing: Slicing, *, since: Watermark
) -> Mapping[str, int] | None:
    """The keys of rows of ``main`` that came or went after ``since``, with the newest snapshot that changed each key.

    None if the history can't be followed from there. The snapshot doesn't depend on ``since``, except after a rollback,
    an expiry or very many commits: then it is the table's newest change for every key.

    Raises:
        As ``keys_there``.
    """
    column_kinds(source, slicing.upstream_keys.columns)
    ancestry, files = source.ancestry(), FileKeys(storage, source, slicing)
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


def _is_at(scanned: Watermark, head: Watermark) -> bool:
    """Whether both are the same place; by another ref it isn't, as no run's watermark would reach ``scanned`` then."""
    return (scanned.table_uuid, scanned.ref, scanned.snapshot_id) == (head.table_uuid, head.ref, head.snapshot_id)
