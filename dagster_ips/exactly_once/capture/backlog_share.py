"""Which part of an input's change one capture takes if its limits don't allow all of it.

A backlog is cut between snapshots, oldest first, so that each capture is what it would have been at that time. Only two
things are cut by files: a single append that is too large, and a first read of everything. The snapshot captured up to
then stays the same until all of its files are consumed. What can't be cut is taken whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.file_set import Bite
from dagster_ips.core.interval import Interval
from dagster_ips.core.limits import Limits, snapshots_within
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput, end_of, files_in
from dagster_ips.iceberg.bites import appended_bite, live_bite
from dagster_ips.iceberg.change_reader import ChangedFiles, live_files
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage


@dataclass(frozen=True, slots=True)
class BacklogShare:
    """What a capture takes, up to snapshot ``to``, which is None if the source has no snapshot.

    ``bite`` is set if only some of the files up to ``to`` are taken. ``snapshots_left`` is how many snapshots follow.
    ``is_beyond`` says that it exceeds the limits, because it can't be cut.
    """

    to: Snapshot | None
    files: ChangedFiles
    bite: Bite | None = None
    snapshots_left: int = 0
    is_beyond: bool = False


def share_of(
    storage: Storage, source: TableMetadata, tracked: TrackedInput, state: EdgeState, interval: Interval | None
) -> BacklogShare:
    """What the next capture takes of ``interval``, or of everything if ``interval`` is None.

    If ``state`` has a file set, the rest of that comes first; ``follow`` has checked that it is readable.
    """
    head, limits = source.ancestry(tracked.ref).head, tracked.limits
    if head is None:
        return BacklogShare(None, ChangedFiles.nothing())
    if interval is None:
        share = _first_read(storage, source, limits, head)
    elif state.file_set is not None:
        share = _rest(storage, source, limits, state, snapshots_left=len(interval.snapshots))
    else:
        end = end_of(state, source, tracked.ref) or head
        # After a rewind, all that was consumed before is read again at once: only then is the target right again.
        share = _oldest(storage, source, limits if state.reread_to is None else Limits(), interval, end)
    return replace(share, is_beyond=not limits.allow_change(share.files.changes))


def _first_read(storage: Storage, source: TableMetadata, limits: Limits, head: Snapshot) -> BacklogShare:
    if limits.is_set and limits.cuts_files:
        files, bite = live_bite(storage, source, head, first=0, limits=limits)
        if not bite.is_last:
            return BacklogShare(head, files, bite)
    return BacklogShare(head, live_files(storage, source, head=head))


def _rest(
    storage: Storage, source: TableMetadata, limits: Limits, state: EdgeState, *, snapshots_left: int
) -> BacklogShare:
    consumed = state.file_set
    assert consumed is not None  # noqa: S101  # share_of asked
    to = source.snapshots[consumed.to_inclusive.snapshot_id]
    # What was begun in bites is finished in bites; in a single one if the write mode no longer allows for bites.
    within = limits if limits.cuts_files else Limits()
    read = live_bite if state.committed is None else appended_bite
    files, bite = read(storage, source, to, first=consumed.taken, limits=within)
    return BacklogShare(to, files, bite, snapshots_left)


def _oldest(
    storage: Storage, source: TableMetadata, limits: Limits, interval: Interval, head: Snapshot
) -> BacklogShare:
    count = snapshots_within(interval.snapshots, limits)
    while True:
        part, left = interval.oldest(count), len(interval.snapshots) - count
        to = part.snapshots[-1] if part.snapshots else head
        files = files_in(storage, source, part, to)
        if count <= 1 or limits.allow_change(files.changes):
            break
        count //= 2  # A rewrite counted as nothing by its summary, but couldn't be followed.
    is_append = limits.cuts_files and part.is_append_only and len(files.changes.added) > 1
    if is_append and not limits.allow_change(files.changes):
        files, bite = appended_bite(storage, source, to, first=0, limits=limits)
        return BacklogShare(to, files, bite, left)
    return BacklogShare(to, files, snapshots_left=left)
