"""Which partitions of an upstream changed since when: what a partitioned consumer remembers of the whole upstream.

A partition that hasn't changed for a year is consumed up to a snapshot that expired long ago. The state kept here shows
that it hasn't changed since, so that its next late row is read from where the upstream was last scanned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark, is_certainly_before

_SHOWN = 5
_MOST_STRAYS = 20


@dataclass(frozen=True, slots=True)
class Touched:
    """Rows of an upstream's partition changed after ``since`` (None: at any time), the latest of them by ``last``."""

    since: Watermark | None
    last: Watermark

    def joined(self, other: Touched) -> Touched:
        """Both changes as one."""
        since = first_of([self.since, other.since])
        if self.last == other.last or _is_told_apart(self.last, other.last):
            return Touched(since, later(self.last, other.last))
        # Which of them was committed last is unknown, so only a watermark that is certainly after both reaches it.
        newest = max(self.last.timestamp_ms, other.last.timestamp_ms)
        return Touched(since, replace(self.last, snapshot_id=-1, timestamp_ms=newest))

    def for_readers_of(self, scanned: Watermark | None) -> Touched:
        """The change for partitions some of which may have read up to ``scanned``, the last look's snapshot.

        After a rollback, that may be older than ``since``, up to which other partitions have read. So there is no
        ``since`` for all of them then: each must be read from what it has consumed.
        """
        is_ahead = self.since is not None and scanned is not None and later(scanned, self.since) != scanned
        return replace(self, since=None) if is_ahead else self


@dataclass(frozen=True, slots=True)
class Unread:
    """A data file whose rows came or went, but whose keys are unknown: why, and whether another scan may find them.

    Another scan may find them as long as the file is live; a file that is gone isn't read any more.
    """

    changed: Touched
    cause: str
    is_live: bool


@dataclass(frozen=True, slots=True)
class Stray:
    """Examples from a data file of what belongs to no partition: values without a key, and keys without a partition."""

    values: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """What a scan finds in files: the ``keys`` of their rows, whether or not they have a partition.

    ``unread`` maps the path of each file that may have rows of other keys to the reason. For files in ``live``, a later
    scan may find the keys.
    """

    keys: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    live: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LineState:
    """How far an upstream was scanned for all partitions of a consumer, and which of its keys changed.

    A key without an entry in ``touched`` didn't change between what its consumers have consumed and ``scanned``, unless
    it is one of the unknown keys of an ``unread`` file.
    """

    edge: Edge
    scanned: Watermark | None = None
    touched: Mapping[str, Touched] = field(default_factory=dict)
    abandoned: frozenset[int] = frozenset()
    """The snapshots that a rollback removed."""
    unread: Mapping[str, Unread] = field(default_factory=dict)
    """The files, by path, whose keys are unknown."""
    strays: Mapping[str, Stray] = field(default_factory=dict)
    """Some of the files, by path, with rows that belong to no partition; an empty path stands for any file."""
    knows_keys_to_come: bool = True
    """False if an earlier release wrote the state, which dropped keys that had no partition yet."""
    partitions: frozenset[str] | None = None
    """The consumer's partitions when it was scanned, as far as they share keys; None if unknown."""
    landmarks: frozenset[str] | None = None
    """The landmarks of the upstream's partitions at that time; None if none are kept."""
    division: str | None = None
    """What the keys of the upstream and of the consumer mean; None if an earlier release wrote the state."""
    dynamic: frozenset[str] = frozenset()
    """The consumer's partitions that there ever were, as far as they take their own keys and can be deleted.

    A partition that comes back still has its rows.
    """
    losses: str = ""
    """Stands for all of the upstream's partitions that were deleted although partitions of the consumer took them.

    What was computed before must be recomputed.
    """
    awaits_lost: bool = False
    """Whether the keys of some deleted partitions aren't all known yet."""
    unchecked: Watermark | None = None
    """Where a scan began that hasn't asked yet which runs began to read meanwhile; None if it has."""

    @property
    def checked_to(self) -> Watermark | None:
        """Up to where it is known what runs have read that no scan has seen; None before the first scan."""
        return self.unchecked or self.scanned

    @property
    def unmapped(self) -> tuple[str, ...]:
        """Some of the values and keys of rows that belong to no partition."""
        found = {each for stray in self.strays.values() for each in (*stray.values, *stray.keys)}
        return tuple(sorted(found)[:_SHOWN])

    @property
    def unread_causes(self) -> dict[str, str]:
        """Why each unread file couldn't be read, by path."""
        return {path: each.cause for path, each in sorted(self.unread.items())}

    @property
    def unread_text(self) -> str:
        """What the unread files mean, with one as an example and its cause; empty if there are none."""
        if not self.unread:
            return ""
        path, example = min(self.unread.items())
        many = f"{len(self.unread):,} files" if len(self.unread) > 1 else "a file"
        return (
            f"the partitions of the rows in {many} of {self.edge.upstream} are unknown, so no run is requested for "
            f"them: {path}, {example.cause}"
        )

    def looked_at(
        self, scanned: Watermark, found: FoundKeys, *, abandoned: Iterable[int] = (), is_followed: bool = True
    ) -> LineState:
        """The state after a scan from the previous one up to ``scanned``, with the changes that it ``found``.

        If the history couldn't be followed, the head may have gone back: what was consumed up to the previous scan may
        be later than ``scanned``, and isn't up to date either.
        """
        last = scanned if is_followed or self.scanned is None else _at_or_after(self.scanned, scanned)
        touched = {key: each.for_readers_of(self.scanned) for key, each in self.touched.items()}
        unread = {
            path: replace(each, changed=each.changed.for_readers_of(self.scanned)) for path, each in self.unread.items()
        }
        for key in found.keys:
            touched[key] = Touched(touched[key].since if key in touched else self.scanned, last)
        for path, cause in found.unread.items():
            since = unread[path].changed.since if path in unread else self.scanned
            unread[path] = Unread(Touched(since, last), cause, path in found.live)
        return replace(
            self,
            scanned=scanned,
            touched=touched,
            unread=unread,
            abandoned=self.abandoned | frozenset(abandoned),
        )

    def with_strays(self, strays: Mapping[str, Stray]) -> LineState:
        """With some of the files, live at ``scanned``, that hold rows of no partition; without any, no file does."""
        return replace(self, strays={path: strays[path] for path in sorted(strays)[:_MOST_STRAYS]})

    def with_read_beyond(
        self, keys: Iterable[str], before: Watermark, *, to: Watermark | None = None, abandoned: Iterable[int] = ()
    ) -> LineState:
        """The state if partitions computed from ``keys`` have read beyond ``before``, where the previous scan ended.

        The rows that they read may have come after that scan and gone before this one, so that neither scan shows them:
        they were removed, or they were in a snapshot that a rollback ``abandoned``. If they have read up to ``to``,
        which is later than this scan, the next scan shows whether that still exists.
        """
        if self.scanned is None:
            return self
        unseen = Touched(before, self.scanned if to is None else _at_or_after(to, self.scanned))
        return replace(
            self,
            touched={**self.touched, **{key: self._joined(key, unseen) for key in keys}},
            abandoned=self.abandoned | frozenset(abandoned),
        )

    def with_keys_to_come(self, keys: Iterable[str]) -> LineState:
        """With ``keys`` that rows have now: those that were dropped are pending where they were never computed."""
        if self.scanned is None:
            return replace(self, knows_keys_to_come=True)
        forgotten = {key: Touched(None, before_all(self.scanned)) for key in keys if key not in self.touched}
        return replace(self, touched={**self.touched, **forgotten}, knows_keys_to_come=True)

    def with_back(self, state: EdgeState, keys: Iterable[str]) -> LineState:
        """The state if a partition computed from ``keys`` is back: others have consumed what changed meanwhile."""
        if self.scanned is None or state.committed is None or _is_same(state.committed, self.scanned):
            return self
        missed = Touched(state.committed, self.scanned)
        return replace(self, touched={**self.touched, **{key: self._joined(key, missed) for key in keys}})

    def told(self, path: str, keys: Iterable[str]) -> LineState:
        """The state if a file that couldn't be read has now been read: it changed ``keys``."""
        both = {key: self._joined(key, self.unread[path].changed) for key in keys}
        left = {other: each for other, each in self.unread.items() if other != path}
        return replace(self, touched={**self.touched, **both}, unread=left)

    def still_unread(self, path: str, *, cause: str) -> LineState:
        """The state if a file was scanned again and still couldn't be read."""
        return replace(self, unread={**self.unread, path: replace(self.unread[path], cause=cause)})

    def gone_unread(self, path: str, live: FoundKeys) -> LineState:
        """The state if a file that couldn't be read is gone; a rewrite may have moved its rows to any ``live`` file."""
        known = self.unread[path]
        found = {key: self._joined(key, known.changed) for key in live.keys}
        others = {
            other: Unread(self._with_unread(other, known.changed), cause, is_live=True)
            for other, cause in live.unread.items()
        }
        unread = {**self.unread, **others, path: replace(known, is_live=False)}
        return replace(self, touched={**self.touched, **found}, unread=unread)

    def _with_unread(self, path: str, changed: Touched) -> Touched:
        return changed.joined(self.unread[path].changed) if path in self.unread else changed

    def _joined(self, key: str, changed: Touched) -> Touched:
        return changed.joined(self.touched[key]) if key in self.touched else changed

    def without(self, keys: Collection[str]) -> LineState:
        """The state if all partitions computed from ``keys`` have consumed their changes."""
        touched = {key: each for key, each in self.touched.items() if key not in keys}
        is_needed = touched or self.unread
        return replace(self, touched=touched, abandoned=self.abandoned if is_needed else frozenset())

    def without_consumed_unread(self, states: Collection[EdgeState]) -> LineState:
        """Without the unread files that are gone and that every partition computed so far has consumed.

        ``states`` are the states of all partitions. A partition that was never computed will read the files that are
        live then, and those have keys.
        """
        seen = [state.committed for state in states if state.committed is not None]
        # A run in flight will soon have consumed what it captured.
        reading = [
            *(state.in_flight.to_inclusive for state in states if state.in_flight is not None),
            *(end for state in states for end in state.replaced),
        ]

        def is_needed(each: Unread) -> bool:
            return each.is_live or any(to is None or self._is_unseen(each.changed, to) for to in (*seen, *reading))

        left = {path: each for path, each in self.unread.items() if is_needed(each)}
        return replace(self, unread=left).without(())

    def start_of(self, state: EdgeState, keys: Iterable[str]) -> Watermark | None:
        """The latest watermark from which a partition computed from ``keys`` can be read without missing a change."""
        committed = state.committed
        if committed is None or self.scanned is None:
            return committed
        maybe = [*[each for key in keys if (each := self.touched.get(key))], *self._unread_changes]
        pending = [each for each in maybe if self._is_unseen(each, committed)]
        if not pending:
            return later(committed, self.scanned)
        oldest = first_of([each.since for each in pending])
        return later(committed, oldest) if oldest else committed

    def consumed_up_to(self, state: EdgeState, keys: Collection[str]) -> Watermark | None:
        """Up to where a pending partition computed from ``keys`` is complete; None if it never was.

        A partition that was never computed had no row before its keys first changed.
        """
        lacking = keys if state.committed is None else state.left_out.intersection(keys)
        first = [each.since for key in lacking if (each := self.touched.get(key))]
        return first_of(first if state.committed is None else [self.start_of(state, keys), *first])

    def is_pending(self, state: EdgeState, keys: Collection[str]) -> bool:
        """Whether any of ``keys`` is known to have changed after what a partition computed from them has consumed."""
        committed, found = state.committed, self.touched.keys() & keys
        if committed is None or not state.left_out.isdisjoint(found):
            return bool(found)
        return any(self._is_unseen(self.touched[key], committed) for key in found)

    @property
    def _unread_changes(self) -> list[Touched]:
        return [each.changed for each in self.unread.values()]

    def _is_unseen(self, touched: Touched, committed: Watermark) -> bool:
        if committed.snapshot_id in self.abandoned:
            return True
        # Then it has seen all that any scan found, even if the clocks of a v1 table say otherwise.
        is_up_to_date = self.scanned is not None and _is_same(committed, self.scanned)
        return not is_up_to_date and not reaches(committed, touched.last)


def before_all(mark: Watermark) -> Watermark:
    """A mark of the same table and ref that is before all of its snapshots."""
    return replace(mark, snapshot_id=-1, sequence_number=-1, timestamp_ms=-1)


def reaches(committed: Watermark, last: Watermark) -> bool:
    """Whether ``committed`` certainly reaches ``last``; it never does if they are of two tables or refs."""
    if not _are_of_one_ref(committed, last):
        return False
    return _is_same(committed, last) or is_certainly_before(last.position, committed.position)


def later(one: Watermark, other: Watermark) -> Watermark:
    """The later mark; ``one`` if that isn't certain, or for two tables or refs, whose history is an error anyway."""
    return other if _are_of_one_ref(one, other) and is_certainly_before(one.position, other.position) else one


def _at_or_after(one: Watermark, other: Watermark) -> Watermark:
    """``other``; but if that isn't certainly after ``one``, a mark that only a watermark after both reaches."""
    if not _are_of_one_ref(one, other) or is_certainly_before(one.position, other.position):
        return other
    number, newest = max(one.sequence_number, other.sequence_number), max(one.timestamp_ms, other.timestamp_ms)
    return replace(other, snapshot_id=-1, sequence_number=number, timestamp_ms=newest)


def first_of(marks: Sequence[Watermark | None]) -> Watermark | None:
    """The mark that was committed first; None without marks, if one is None, or if it is unknown which is the first."""
    known = [each for each in marks if each is not None]
    first = min(known, key=lambda each: each.position, default=None)
    if first is None or len(known) < len(marks):
        return None
    return first if all(each == first or _is_told_apart(first, each) for each in known) else None


def _is_told_apart(one: Watermark, other: Watermark) -> bool:
    return is_certainly_before(one.position, other.position) or is_certainly_before(other.position, one.position)


def _is_same(one: Watermark, other: Watermark) -> bool:
    return _are_of_one_ref(one, other) and one.snapshot_id == other.snapshot_id


def _are_of_one_ref(one: Watermark, other: Watermark) -> bool:
    return (one.table_uuid, one.ref) == (other.table_uuid, other.ref)
