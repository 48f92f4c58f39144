"""Which asset owns a target, and what others wrote to the target since all of its contents were known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dagster_ips.core.ancestry import Ancestry, Snapshot

ATTEMPT = "dagster-ips.attempt"
ASSET = "dagster-ips.asset"
"""The asset that wrote a snapshot; as a property of the table, which never expires, the asset that owns the table."""
ACCEPTED = "dagster-ips.accepted"
"""The snapshot up to which a run accepted the table as it was, because a person said so."""


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person permits a run to do that would otherwise be refused.

    ``accept`` is the target's snapshot up to which the writes of others are accepted. ``take_over`` is the asset that
    owned the table until now. ``any_writes`` says that the table is written by jobs of which only the reports are
    known.
    """

    accept: int | None = None
    take_over: str | None = None
    any_writes: bool = False


@dataclass(frozen=True, slots=True)
class ForeignWrites:
    """The snapshots of a target by which someone else may have changed its rows, newest first.

    ``places`` maps each retained snapshot to the number of newer ones. ``accepted`` is the place from which on all
    snapshots are accepted; it is the number of snapshots if none was accepted.
    """

    found: tuple[Snapshot, ...]
    places: Mapping[int, int]
    accepted: int

    @classmethod
    def of(cls, ancestry: Ancestry, asset: str, *, accept: int | None = None) -> ForeignWrites:
        """The snapshots that ``asset`` didn't write. Compactions and empty commits are nobody's.

        What came before it took the table over from another asset doesn't count: that run replaced every row.
        """
        places = ancestry.places()
        ids = [int(s.summary[ACCEPTED]) for s in ancestry.snapshots if ACCEPTED in s.summary]
        accepted = [places[number] for number in (*ids, accept) if number in places]
        found = tuple(s for s in ancestry.snapshots if not (s.keeps_rows or _is_by(s, asset)))
        writers = {places[s.snapshot_id]: writer_of(s) for s in ancestry.snapshots if ATTEMPT in s.summary}
        own = [place for place, writer in writers.items() if writer == asset]
        before = [
            place
            for place, writer in writers.items()
            if writer not in (None, asset) and place > min(own, default=place)
        ]
        if before:
            accepted.append(max(place for place in own if place < min(before)) + 1)
        return cls(found, places, min(accepted, default=len(places)))

    def after(self, known: Iterable[int]) -> tuple[Snapshot, ...]:
        """The foreign writes that are newer than all snapshots ``known`` and than what is accepted.

        All retained snapshots are newer than a known one that isn't retained: what came before them is unknown.
        """
        end = min((self.places.get(number, len(self.places)) for number in known), default=len(self.places))
        return tuple(each for each in self.found if self.places[each.snapshot_id] < min(end, self.accepted))


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a table has, as far as summaries say.

    All position deletes are counted, also those of rows in files that a compaction has dropped since, which no longer
    hide anything.
    """

    least: int
    most: int

    def minus(self, other: RowCount) -> int:
        """By how many rows this is certainly more than ``other`` (negative: fewer); 0 if both may be equal."""
        return max(0, self.least - other.most) or min(0, self.most - other.least)


@dataclass(frozen=True, slots=True)
class Published:
    """The last publication, and how many rows the table had then."""

    snapshot_id: int
    rows: RowCount


def hidden_change(ancestry: Ancestry, last: Published) -> int | None:
    """The least number of rows by which others changed a table in expired commits since ``last``; None if none is seen.

    Compactions keep the count, and whatever the asset itself publishes becomes ``last``.
    """
    if ancestry.find(last.snapshot_id) or not ancestry.snapshots:
        return None
    oldest = ancestry.snapshots[-1]
    # PyIceberg removes the id of an expired parent, so none isn't a sign that nothing came before.
    is_first = oldest.parent_id == last.snapshot_id or (oldest.parent_id is None and oldest.begins_history)
    before = None if is_first else rows_before(oldest)
    return None if before is None else before.minus(last.rows) or None


def live_rows(snapshot: Snapshot) -> RowCount | None:
    """How many rows a table has; None if its summary doesn't say."""
    return _rows(snapshot, "total-records", "total-position-deletes", "total-equality-deletes")


def rows_before(snapshot: Snapshot) -> RowCount | None:
    """How many rows a table had before the snapshot; None if its summary doesn't say.

    >>> counts = {"total-records": "9", "total-position-deletes": "1", "total-equality-deletes": "0"}
    >>> rows_before(Snapshot(7, 6, 7, 70, "append", "", counts | {"added-records": "2"}))
    RowCount(least=6, most=7)
    """
    now = live_rows(snapshot)
    added = _rows(snapshot, "added-records", "added-position-deletes", "added-equality-deletes", missing="0")
    gone = _rows(snapshot, "deleted-records", "removed-position-deletes", "removed-equality-deletes", missing="0")
    if now is None or added is None or gone is None:
        return None
    return RowCount(now.least - added.least + gone.least, now.most - added.most + gone.most)


def _rows(snapshot: Snapshot, records: str, hidden: str, unknown: str, missing: str = "") -> RowCount | None:
    """Records, less those that position deletes may hide; None with equality deletes, which may hide any number."""
    found = [snapshot.summary.get(count, missing) for count in (records, hidden, unknown)]
    if not all(map(str.isdecimal, found)) or found[2] != "0":
        return None
    return RowCount(int(found[0]) - int(found[1]), int(found[0]))


def writer_of(snapshot: Snapshot) -> str | None:
    """The asset that wrote a snapshot; None if it doesn't say."""
    return snapshot.summary.get(ASSET)


def owner_of(ancestry: Ancestry, properties: Mapping[str, str]) -> str | None:
    """The asset that last wrote to a table, or for which the table was created; None if unknown."""
    writers = (writer_of(snapshot) for snapshot in ancestry.snapshots)
    return next((writer for writer in writers if writer is not None), None) or properties.get(ASSET)


def may_hold_rows(ancestry: Ancestry) -> bool:
    """Whether the table isn't known to be empty."""
    return ancestry.head is not None and ancestry.head.summary.get("total-records") != "0"


def told(snapshot: Snapshot) -> str:
    """What a commit did, in a few words.

    Example:
        >>> told(Snapshot(7, 6, 7, 70, "overwrite", "", {"added-records": "1", "deleted-records": "2"}))
        'snapshot 7 (`overwrite`, 1 row added, 2 deleted)'
    """
    added = snapshot.summary.get("added-records")
    counts = {
        "row added" if added == "1" else "rows added": added,
        "deleted": snapshot.summary.get("deleted-records") or snapshot.summary.get("added-position-deletes"),
    }
    said = [f"{count} {what}" for what, count in counts.items() if count]
    return f"snapshot {snapshot.snapshot_id} ({', '.join([f'`{snapshot.operation}`', *said])})"


def _is_by(snapshot: Snapshot, asset: str) -> bool:
    # A statement of a block records only the attempt; the block's last commit names that, and the asset.
    return ATTEMPT in snapshot.summary and writer_of(snapshot) in (None, asset)
