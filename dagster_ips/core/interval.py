"""What happened to a source since it was consumed: an interval that can be followed, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.watermark import Watermark, is_certainly_before


class Break(StrEnum):
    """Why a history can't be followed from a watermark.

    ``RECREATED``: another table has the name. ``REPLACED``: CREATE OR REPLACE, which keeps the uuid and cuts the
    ancestry. ``ROLLED_BACK``: the ref moved back behind the watermark, and their common ancestors have expired since.
    ``EXPIRED``: snapshots on the way from the watermark have expired, so that it is unknown what happened there,
    possibly a rollback.
    """

    RECREATED = "recreated"
    REPLACED = "replaced"
    ROLLED_BACK = "rolled back"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Interval:
    """The snapshots in ``(start, to]``, oldest first; none if nothing was committed.

    ``start`` is the consumed snapshot; None if it has expired and only its child shows that it existed. After a
    rollback, ``abandoned`` are the consumed snapshots that are no longer in the ancestry, newest first, and
    ``snapshots`` continue from the nearest common ancestor.
    """

    start: Snapshot | None
    snapshots: tuple[Snapshot, ...]
    abandoned: tuple[Snapshot, ...] = ()

    @property
    def lost(self) -> tuple[Snapshot, ...]:
        """The abandoned snapshots, without the oldest ones if these changed no row: all rows up to them are there."""
        lost = list(self.abandoned)
        while lost and lost[-1].keeps_rows:
            lost.pop()
        return tuple(lost)

    @property
    def is_append_only(self) -> bool:
        """Whether every file that was consumed is still there."""
        return not self.abandoned and all(snapshot.only_adds for snapshot in self.snapshots)

    def oldest(self, count: int) -> Interval:
        """The part of it with the ``count`` oldest snapshots, and all abandoned ones."""
        return replace(self, snapshots=self.snapshots[:count])

    @property
    def first_removal(self) -> Snapshot | None:
        """The oldest snapshot that may have removed rows; None if none may."""
        return next((snapshot for snapshot in self.snapshots if snapshot.may_remove_rows), None)


def interval_since(
    committed: Watermark,
    *,
    table_uuid: str,
    retained: Mapping[int, Snapshot],
    ancestry: Ancestry,
    descends: Callable[[Snapshot], bool],
) -> Interval | Break:
    """The interval from ``committed``, exclusive, to the head of ``ancestry``, inclusive.

    ``retained`` are all snapshots of the table, also those of other refs and of none. ``descends`` says whether the
    manifests and files that a snapshot lists prove that it descends from the watermark's snapshot; it is called if
    expiry has removed parent ids.
    """
    if committed.table_uuid != table_uuid:
        return Break.RECREATED
    if ancestry.head is None:
        return Break.REPLACED
    consumed = retained.get(committed.snapshot_id)
    followed = _followed(consumed, retained, ancestry) if consumed else None
    return followed or _beyond_a_hole(committed, consumed, ancestry.snapshots, descends)


def _followed(consumed: Snapshot, retained: Mapping[int, Snapshot], ancestry: Ancestry) -> Interval | None:
    """The interval from the nearest common ancestor: ``consumed``, unless rolled back. None if none is retained."""
    newer: list[Snapshot] = []
    for snapshot in ancestry.snapshots:
        if snapshot.snapshot_id == consumed.snapshot_id:  # older snapshots, however many there are, needn't be read
            return Interval(consumed, tuple(reversed(newer)))
        newer.append(snapshot)
    places = ancestry.places()
    behind = Ancestry.of(retained, consumed.snapshot_id).snapshots
    abandoned = tuple(takewhile(lambda snapshot: snapshot.snapshot_id not in places, behind))
    if len(abandoned) == len(behind):
        return None
    common = places[behind[len(abandoned)].snapshot_id]
    return Interval(consumed, tuple(ancestry.snapshots[:common][::-1]), abandoned)


def _beyond_a_hole(
    committed: Watermark, consumed: Snapshot | None, snapshots: Sequence[Snapshot], descends: Callable[[Snapshot], bool]
) -> Interval | Break:
    """What ``snapshots``, newest first, show if the retained ones don't lead back to the watermark's snapshot."""
    oldest = snapshots[-1]
    if is_certainly_before(oldest.position, committed.position):
        return Break.ROLLED_BACK
    if oldest.parent_id is not None:
        is_child = oldest.parent_id == committed.snapshot_id
    elif oldest.begins_history:
        return Break.REPLACED
    else:
        # PyIceberg removes the id of an expired parent. Sequence numbers count every commit, so the next one is the
        # child's, unless main was rolled back in between.
        is_child = 0 < committed.sequence_number == oldest.sequence_number - 1 and descends(oldest)
    return Interval(consumed, tuple(snapshots[::-1])) if is_child else Break.EXPIRED
