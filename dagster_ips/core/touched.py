"""Which partitions of an upstream changed since when: what a partitioned consumer remembers of the whole upstream.

A partition that nothing touched for a year is consumed up to a snapshot that expired long ago. That nothing touched it
since is remembered here, so that its next late row is read from where the upstream was last looked at.
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
    """Rows of an upstream's partition changed after ``since`` (None: at any time) and at last up to ``last``."""

    since: Watermark | None
    last: Watermark

    def joined(self, other: Touched) -> Touched:
        """Both changes as one."""
        since = first_of([self.since, other.since])
        if self.last == other.last or _is_told_apart(self.last, other.last):
            return Touched(since, later(self.last, other.last))
        # Which of them was committed last isn't known, so that only what is certainly after both reaches it.
        newest = max(self.last.timestamp_ms, other.last.timestamp_ms)
        return Touched(since, replace(self.last, snapshot_id=-1, timestamp_ms=newest))


@dataclass(frozen=True, slots=True)
class Unread:
    """A data file whose rows came or went, of keys that aren't known: why, and whether another look may tell.

    It may as long as the file is live: one that is gone isn't read any more.
    """

    changed: Touched
    cause: str
    is_live: bool


@dataclass(frozen=True, slots=True)
class Stray:
    """Some of what a data file holds for no partition: values that have no key, and keys that have no partition."""

    values: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """What a look finds of files: the ``keys`` of their rows, whether or not they have a partition.

    ``unread`` are the files that may have rows of other keys, by path, and why; those of ``live`` may be told later.
    """

    keys: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=dict)
    live: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LineState:
    """How far an upstream was looked at for all partitions of a consumer, and which of its keys changed.

    A key without an entry didn't change after what its consumers have consumed, up to ``scanned``, unless it is one of
    an ``unread`` file's, by path, of which nothing is known. ``strays`` are some of the files, by path, that hold rows
    of no partition; no path is of any. ``abandoned`` are the snapshots that a rollback took away. Unless it
    ``knows_keys_to_come``, an earlier release wrote it, which forgot keys that had no partition yet. ``partitions`` are
    those of the consumer that were there, as far as they share keys; None if that isn't known. ``landmarks`` are those
    of the upstream's that were there then. ``division`` says what the keys mean, the upstream's and the consumer's;
    None if an earlier release wrote it.
    """

    edge: Edge
    scanned: Watermark | None = None
    touched: Mapping[str, Touched] = field(default_factory=dict)
    abandoned: frozenset[int] = frozenset()
    unread: Mapping[str, Unread] = field(default_factory=dict)
    strays: Mapping[str, Stray] = field(default_factory=dict)
    knows_keys_to_come: bool = True
    partitions: frozenset[str] | None = None
    landmarks: frozenset[str] | None = None
    division: str | None = None

    @property
    def unmapped(self) -> tuple[str, ...]:
        """Some of the values, or keys, of rows that belong to no partition."""
        found = {each for stray in self.strays.values() for each in (*stray.values, *stray.keys)}
        return tuple(sorted(found)[:_SHOWN])

    @property
    def unread_text(self) -> str:
        """What an unread file means, with an example and its cause; empty if there is none."""
        if not self.unread:
            return ""
        path, example = min(self.unread.items())
        many = f"{len(self.unread):,} files" if len(self.unread) > 1 else "a file"
        return (
            f"the partitions of the rows in {many} of {self.edge.upstream} are unknown, so no run is requested for "
            f"them: {path}, {example.cause}"
        )

    def looked_at(self, scanned: Watermark, found: FoundKeys, *, abandoned: Iterable[int] = ()) -> LineState:
        """What ``found`` says changed after what was looked at before, up to ``scanned``."""
        changed = {key: Touched(self._since(key), scanned) for key in found.keys}
        unread = {
            path: Unread(Touched(self._since_unread(path), scanned), cause, path in found.live)
            for path, cause in found.unread.items()
        }
        return replace(
            self,
            scanned=scanned,
            touched={**self.touched, **changed},
            unread={**self.unread, **unread},
            abandoned=self.abandoned | frozenset(abandoned),
        )

    def with_strays(self, strays: Mapping[str, Stray]) -> LineState:
        """Of the files that are live at ``scanned``, some that hold rows of no partition; no file, none does."""
        return replace(self, strays={path: strays[path] for path in sorted(strays)[:_MOST_STRAYS]})

    def with_read_beyond(self, keys: Iterable[str], before: Watermark, *, abandoned: Iterable[int] = ()) -> LineState:
        """Partitions that are made of ``keys`` have read beyond ``before``, where the look before this one was.

        What they were made of may have come after that look and gone before this one, so that neither shows it: it was
        removed, or it was in a snapshot that a rollback ``abandoned``.
        """
        if self.scanned is None:
            return self
        unseen = Touched(before, self.scanned)
        return replace(
            self,
            touched={**self.touched, **{key: self._joined(key, unseen) for key in keys}},
            abandoned=self.abandoned | frozenset(abandoned),
        )

    def with_keys_to_come(self, keys: Iterable[str]) -> LineState:
        """With ``keys`` that rows have now: those that it forgot are pending where they were never computed."""
        if self.scanned is None:
            return replace(self, knows_keys_to_come=True)
        before_all = replace(self.scanned, snapshot_id=-1, sequence_number=-1, timestamp_ms=-1)
        forgotten = {key: Touched(None, before_all) for key in keys if key not in self.touched}
        return replace(self, touched={**self.touched, **forgotten}, knows_keys_to_come=True)

    def with_back(self, state: EdgeState, keys: Iterable[str]) -> LineState:
        """With a partition, made of ``keys``, that wasn't there for a while: others have consumed what changed then."""
        if self.scanned is None or state.committed is None or _is_same(state.committed, self.scanned):
            return self
        missed = Touched(state.committed, self.scanned)
        return replace(self, touched={**self.touched, **{key: self._joined(key, missed) for key in keys}})

    def told(self, path: str, keys: Iterable[str]) -> LineState:
        """A file that couldn't be read is read by now: those are the keys that it changed."""
        both = {key: self._joined(key, self.unread[path].changed) for key in keys}
        left = {other: each for other, each in self.unread.items() if other != path}
        return replace(self, touched={**self.touched, **both}, unread=left)

    def still_unread(self, path: str, *, cause: str) -> LineState:
        """A file was looked at again, and couldn't be read."""
        return replace(self, unread={**self.unread, path: replace(self.unread[path], cause=cause)})

    def gone_unread(self, path: str, live: FoundKeys) -> LineState:
        """A file that couldn't be read is gone; a rewrite may have left its rows in any of the ``live`` ones."""
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
        """What changed of ``keys`` is consumed by all that are made of them."""
        touched = {key: each for key, each in self.touched.items() if key not in keys}
        is_needed = touched or self.unread
        return replace(self, touched=touched, abandoned=self.abandoned if is_needed else frozenset())

    def without_consumed_unread(self, states: Collection[EdgeState]) -> LineState:
        """Without unread files that are gone and that each partition has consumed, of those computed ever.

        ``states`` are those of every partition there is. One that was never computed reads what is there then, and
        what is there has keys.
        """
        seen = [state.committed for state in states if state.committed is not None]
        # What a run has captured it is about to have consumed.
        reading = [state.in_flight.to_inclusive for state in states if state.in_flight is not None]

        def is_needed(each: Unread) -> bool:
            return each.is_live or any(to is None or self._is_unseen(each.changed, to) for to in (*seen, *reading))

        left = {path: each for path, each in self.unread.items() if is_needed(each)}
        return replace(self, unread=left).without(())

    def start_of(self, state: EdgeState, keys: Iterable[str]) -> Watermark | None:
        """From where a partition that is made of ``keys`` must be read: as late as it can be."""
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
        """Up to where a pending partition that is made of ``keys`` is complete: None if it never was.

        One that was never computed had no row before its keys changed first.
        """
        lacking = keys if state.committed is None else state.left_out.intersection(keys)
        first = [each.since for key in lacking if (each := self.touched.get(key))]
        return first_of(first if state.committed is None else [self.start_of(state, keys), *first])

    def is_pending(self, state: EdgeState, keys: Collection[str]) -> bool:
        """Whether any of ``keys`` is known to have changed after what a partition made of them has consumed."""
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
        # Then it has seen all that any look found, which in version 1 clocks might deny.
        is_up_to_date = self.scanned is not None and _is_same(committed, self.scanned)
        return not is_up_to_date and not reaches(committed, touched.last)

    def _since(self, key: str) -> Watermark | None:
        known = self.touched.get(key)
        return known.since if known else self.scanned

    def _since_unread(self, path: str) -> Watermark | None:
        known = self.unread.get(path)
        return known.changed.since if known else self.scanned


def reaches(committed: Watermark, last: Watermark) -> bool:
    """Whether what was consumed certainly reaches ``last``; of another table it never does."""
    if committed.table_uuid != last.table_uuid or committed.ref != last.ref:
        return False
    return _is_same(committed, last) or is_certainly_before(last.position, committed.position)


def later(one: Watermark, other: Watermark) -> Watermark:
    """The later one; the first where that isn't certain, and of two tables or refs, whose history then is an error."""
    is_comparable = one.table_uuid == other.table_uuid and one.ref == other.ref
    return other if is_comparable and is_certainly_before(one.position, other.position) else one


def first_of(marks: Sequence[Watermark | None]) -> Watermark | None:
    """The one that was committed first; None of none, if one of them isn't known, or if which is the first isn't."""
    known = [each for each in marks if each is not None]
    first = min(known, key=lambda each: each.position, default=None)
    if first is None or len(known) < len(marks):
        return None
    return first if all(each == first or _is_told_apart(first, each) for each in known) else None


def _is_told_apart(one: Watermark, other: Watermark) -> bool:
    return is_certainly_before(one.position, other.position) or is_certainly_before(other.position, one.position)


def _is_same(one: Watermark, other: Watermark) -> bool:
    return (one.table_uuid, one.ref, one.snapshot_id) == (other.table_uuid, other.ref, other.snapshot_id)
