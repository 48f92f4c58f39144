"""Where a table's progress is: in the newest snapshot that its asset published.

``main``'s history has that snapshot until it expires. A tag keeps it beyond that: it moves in the same commit as
``main``, so it is always at the last publication.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.core.ancestry import MAIN, Snapshot
from dagster_ips.core.capture import TargetMark
from dagster_ips.core.ownership import ASSET, writer_of
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import TargetChangedError, UnknownPublicationError
from dagster_ips.iceberg.change_reader import lists_work_of
from dagster_ips.iceberg.expired_snapshots import with_expired_snapshots
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import has_attempt, is_of_same_attempt
from dagster_ips.iceberg.storage import Storage
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.progress_text import progress_from

PROGRESS = "dagster-ips.progress"
"""The property of a snapshot's summary that holds the progress."""
PIN = "ips_progress"
"""The tag at the last publication."""
NO_SNAPSHOT = -1
"""The id in the mark of a table without snapshots."""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """What a table contains, and the mark of the snapshot that says so; ``asset`` published it."""

    progress: Progress
    mark: TargetMark
    snapshot: Snapshot | None = None
    asset: str | None = None

    @property
    def known_to(self) -> TargetMark:
        """The snapshot up to which it is known what others wrote."""
        return self.progress.known_to or self.mark


def mark_of(target: TableMetadata) -> TargetMark:
    """The mark of the head of ``main``, also of a table without snapshots."""
    head = target.ancestry().head
    return TargetMark.at(head, target.uuid) if head is not None else TargetMark(target.uuid, NO_SNAPSHOT, 0, 0)


def table_progress(target: TableMetadata | None, *, asset: str, storage: Storage) -> TableProgress | None:
    """What ``target`` contains; None without a table, and if no publication has ever said it.

    If ``main``'s history has lost the last publication, it must be proved that it descends from it: someone may have
    rolled it back before. Files that it listed, or older metadata files, in ``storage``, show that.

    Raises:
        TargetChangedError: ``main`` was taken back to before what is still known or into a publication, or replaced.
        UnknownPublicationError: the snapshot that said it is gone, or ``main`` may not descend from it.
        StateVersionError, StateUnreadableError: see ``progress_from``.
    """
    if target is None:
        return None
    if (found := _newest(target)) is not None:
        _require_whole(target, found, asset)
        return found
    ancestry, pin = target.ancestry(), _pinned(target)
    if pin is None:
        if ancestry.is_whole or target.properties.get(ASSET) != asset:
            return None
        raise UnknownPublicationError(table=target.table, consumer=asset)
    if ancestry.is_whole:
        what = f"was replaced (CREATE OR REPLACE), or rolled back, after snapshot {pin.snapshot_id}"
        raise TargetChangedError(table=target.table, consumer=asset, what=f"{what}, which held all that was published")
    if ancestry.snapshots[-1].position < pin.position:
        what = f"was rolled back to before snapshot {pin.snapshot_id}, and what it contained then has expired"
        raise TargetChangedError(table=target.table, consumer=asset, what=what)
    if any(lists_work_of(storage, target, snapshot, _watermark(pin, target)) for snapshot in ancestry.snapshots[-1:]):
        return progress_at(target, pin)
    for more in with_expired_snapshots(storage, target):
        if (found := _newest(more)) is not None:
            return found
    raise UnknownPublicationError(table=target.table, consumer=asset)


def _require_whole(target: TableMetadata, found: TableProgress, asset: str) -> None:
    """Fail if ``main`` ends amid the commits of a publication: the progress is that of all of them, or of none.

    Raises:
        TargetChangedError: it does, so it was rolled back.
    """
    pin, newest = _pinned(target), found.mark.snapshot_id
    if pin is not None and newest == pin.snapshot_id == target.head_snapshot_id():
        return
    last = next((each for each in target.ancestry().snapshots if has_attempt(each)), None)
    if last is None:
        return
    later = [each for each in target.snapshots.values() if each.parent_id == last.snapshot_id]
    later += [pin] if pin is not None and pin.position > last.position else []
    is_followed = any(is_of_same_attempt(last, each) for each in later)
    if is_followed or not (last.snapshot_id == newest or last.keeps_rows):
        what = f"was rolled back to snapshot {last.snapshot_id}, which is only a part of what a run published"
        raise TargetChangedError(table=target.table, consumer=asset, what=what)


def _watermark(snapshot: Snapshot, target: TableMetadata) -> Watermark:
    return Watermark.at(snapshot, table_uuid=target.uuid, ref=MAIN, schema_id=target.current_schema_id)


def newest_progress(target: TableMetadata) -> TableProgress | None:
    """As ``table_progress``, to show it: not proved if ``main``'s history has lost the last publication."""
    pin = _pinned(target)
    return _newest(target) or (progress_at(target, pin) if pin is not None else None)


def _newest(target: TableMetadata) -> TableProgress | None:
    found = (snapshot for snapshot in target.ancestry().snapshots if PROGRESS in snapshot.summary)
    newest = next(found, None)
    return progress_at(target, newest) if newest is not None else None


def _pinned(target: TableMetadata) -> Snapshot | None:
    pin = target.snapshots[target.head_snapshot_id(PIN) or 0] if PIN in target.tags else None
    return pin if pin is not None and PROGRESS in pin.summary else None


def progress_at(target: TableMetadata, snapshot: Snapshot) -> TableProgress:
    """The progress in the summary of ``snapshot``, which has one.

    Raises:
        StateVersionError, StateUnreadableError: see ``progress_from``.
    """
    asset, where = writer_of(snapshot), f"{target.table} at snapshot {snapshot.snapshot_id}"
    progress = progress_from(snapshot.summary[PROGRESS], where=where, asset=asset or target.table)
    return TableProgress(progress, TargetMark.at(snapshot, target.uuid), snapshot, asset)


def progress_before(target: TableMetadata, snapshot_id: int) -> TableProgress | None:
    """The progress that ``target`` had at one of its snapshots; None if none of its retained ancestors says it."""
    for snapshot in target.as_of(snapshot_id, MAIN).ancestry().snapshots:
        if PROGRESS in snapshot.summary:
            return progress_at(target, snapshot)
    return None
