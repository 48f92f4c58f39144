"""Whether an edge has something to consume and how much, from the summaries of its source's snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import EdgeState

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits to be consumed. ``files``, ``rows`` and ``size_bytes`` count what snapshots added, by their summaries.

    ``oldest_ms`` is when the oldest waiting snapshot was committed, in ms since the epoch; None if none is known.
    ``is_known`` is False if the history can't be followed: something waits, and the counts don't say how much.
    """

    snapshots: int = 0
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    is_known: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self.is_known and self.snapshots == 0

    def plus(self, other: Backlog) -> Backlog:
        """Both together."""
        known = [ms for ms in (self.oldest_ms, other.oldest_ms) if ms is not None]
        return Backlog(
            self.snapshots + other.snapshots,
            self.files + other.files,
            self.rows + other.rows,
            self.size_bytes + other.size_bytes,
            min(known, default=None),
            self.is_known and other.is_known,
        )

    def is_due(self, *, now_ms: float, min_bytes: int | None = None, max_wait_seconds: float | None = None) -> bool:
        """Whether to run now: when ``min_bytes`` wait, or something has waited for ``max_wait_seconds``.

        A limit that is None holds nothing back: if both are None, anything that waits is due. A history that can't be
        followed is due at once, because only a run can report that.

        Example:
            >>> small = Backlog(1, 1, 10, 500, oldest_ms=0)
            >>> small.is_due(now_ms=5_000, min_bytes=1000)
            False
            >>> small.is_due(now_ms=5_000, min_bytes=1000, max_wait_seconds=5)
            True
        """
        if self.is_empty:
            return False
        if not self.is_known or (min_bytes is None and max_wait_seconds is None):
            return True
        enough = min_bytes is not None and self.size_bytes >= min_bytes
        waited = 0.0 if self.oldest_ms is None else (now_ms - self.oldest_ms) / 1000
        return enough or (max_wait_seconds is not None and waited >= max_wait_seconds)


def is_pending(state: EdgeState, *, table_uuid: str, ancestry: Ancestry) -> bool:
    """Whether a capture of the edge would find anything.

    An append of no file doesn't count. A rewrite that changed no row does, so that the watermark advances before its
    snapshot expires; the run it causes publishes nothing, so no other consumer is triggered. What can't be followed (a
    re-created table, a rollback) counts too: the run it causes reports it, as nothing else would. So does a change of
    which only some files are consumed.
    """
    if ancestry.head is None:  # With nothing consumed, there is nothing to read; otherwise, what was consumed is gone.
        return state.committed is not None or state.file_set is not None
    if state.committed is None or state.file_set is not None:
        return True
    if state.committed.table_uuid != table_uuid:
        return True
    snapshots = ancestry.since(state.committed.snapshot_id)
    return snapshots is None or not all(_is_empty_append(each) for each in snapshots)


def backlog(state: EdgeState, *, table_uuid: str, ancestry: Ancestry) -> Backlog:
    """What a capture of the edge would find; empty if ``is_pending`` is False, except after a day of empty appends.

    Some writers commit every few minutes even if they have nothing to write. Unless the watermark follows, its snapshot
    expires, and it is then unknown what was committed in between.
    """
    if not is_pending(state, table_uuid=table_uuid, ancestry=ancestry):
        return _empty_appends(state, ancestry)
    head = ancestry.head
    if head is None:
        return Backlog(snapshots=1, is_known=False)
    if state.committed is None:
        oldest = ancestry.snapshots[-1].timestamp_ms
        files, rows, size_bytes = _counts(head, "total-data-files", "total-records", "total-files-size")
        return Backlog(len(ancestry.snapshots), files, rows, size_bytes, oldest)
    waiting = [each for each in ancestry.since(state.committed.snapshot_id) or () if not _is_empty_append(each)]
    if state.committed.table_uuid != table_uuid or not waiting:  # none: what is consumed in part was rolled back
        return Backlog(snapshots=1, is_known=False)
    # The files of a rewrite hold no new rows.
    added = [_counts(s, "added-data-files", "added-records", "added-files-size") for s in waiting if not s.only_moves]
    files, rows, size_bytes = (sum(count) for count in zip(*added, strict=True)) if added else (0, 0, 0)
    return Backlog(len(waiting), files, rows, size_bytes, waiting[0].timestamp_ms)


def _is_empty_append(snapshot: Snapshot) -> bool:
    return snapshot.operation == "append" and snapshot.changes_no_file


def _empty_appends(state: EdgeState, ancestry: Ancestry) -> Backlog:
    """The snapshots that follow the watermark, none of which holds a file, if the newest is more than a day later.

    They wait since that day was over.
    """
    committed, head = state.committed, ancestry.head
    if committed is None or head is None or head.timestamp_ms - committed.timestamp_ms <= _DAY_MS:
        return Backlog()
    return Backlog(len(ancestry.since(committed.snapshot_id) or ()), oldest_ms=committed.timestamp_ms + _DAY_MS)


def sum_of(backlogs: Iterable[Backlog]) -> Backlog:
    """The sum of all backlogs; without any, an empty one."""
    return reduce(Backlog.plus, backlogs, Backlog())


def _counts(snapshot: Snapshot, *names: str) -> tuple[int, int, int]:
    files, rows, size_bytes = (int(snapshot.summary.get(name, 0)) for name in names)
    return files, rows, size_bytes
