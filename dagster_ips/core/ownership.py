"""Whose table a target is, and what others than its asset wrote to it since all of it was known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dagster_ips.core.ancestry import Ancestry, Snapshot

ATTEMPT = "dagster-ips.attempt"
EDGE = "dagster-ips.edge."
ASSET = "dagster-ips.asset"
"""The asset that wrote a snapshot; as a property of the table, which no expiry takes, the one whose table it is."""
ACCEPTED = "dagster-ips.accepted"
"""The snapshot up to which a run took the table as it was, because a person said so."""


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person allows a run that would be refused otherwise.

    ``accept`` is the target's snapshot up to which what others wrote is taken as it is; ``take_over`` the asset whose
    table it was until now. ``any_writes``: jobs write the table of which nothing is known but what they report.
    """

    accept: int | None = None
    take_over: str | None = None
    any_writes: bool = False


@dataclass(frozen=True, slots=True)
class ForeignWrites:
    """The snapshots of a target by which someone else may have changed its rows, newest first.

    ``places`` says how many snapshots are newer than each that is retained. ``accepted`` is the place from which on all
    is taken as it is; as many as there are snapshots if nothing was accepted.
    """

    found: tuple[Snapshot, ...]
    places: Mapping[int, int]
    accepted: int

    @classmethod
    def of(cls, ancestry: Ancestry, asset: str, *, accept: int | None = None) -> ForeignWrites:
        """Those that ``asset`` didn't write. Compactions and commits of nothing are nobody's."""
        places = {snapshot.snapshot_id: place for place, snapshot in enumerate(ancestry.snapshots)}
        ids = [int(s.summary[ACCEPTED]) for s in ancestry.snapshots if ACCEPTED in s.summary]
        accepted = [places[number] for number in (*ids, accept) if number in places]
        found = tuple(s for s in ancestry.snapshots if not (s.keeps_rows or _is_by(s, asset)))
        return cls(found, places, min(accepted, default=len(places)))

    def after(self, known: Iterable[int]) -> tuple[Snapshot, ...]:
        """Those that are newer than each of the snapshots ``known`` and than what is accepted.

        Of one that isn't retained everything that is retained is newer: what came before that is unknown.
        """
        end = min((self.places.get(number, len(self.places)) for number in known), default=len(self.places))
        return tuple(each for each in self.found if self.places[each.snapshot_id] < min(end, self.accepted))


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a table has, as far as summaries tell.

    Deletes by position count for all that they name: also rows of files that a compaction has dropped since, which hide
    nothing any more.
    """

    least: int
    most: int

    def minus(self, other: RowCount) -> int:
        """By how many more this certainly is, or fewer if negative; 0 if both may be the same number."""
        return max(0, self.least - other.most) or min(0, self.most - other.least)


@dataclass(frozen=True, slots=True)
class Published:
    """What a run said of the table before it published a snapshot, where no expiry takes it: how many rows it has."""

    snapshot_id: int
    rows: RowCount

    @classmethod
    def parse(cls, text: str | None) -> Published | None:
        """What ``str`` of it is; None of nothing, or of what another version wrote."""
        parts = (text or "").split()
        if len(parts) != 3 or not parts[0].isdecimal() or not all(each.lstrip("-").isdecimal() for each in parts):  # noqa: PLR2004  # as below
            return None
        snapshot_id, least, most = map(int, parts)
        return cls(snapshot_id, RowCount(least, most))

    def __str__(self) -> str:
        return f"{self.snapshot_id} {self.rows.least} {self.rows.most}"


def hidden_change(ancestry: Ancestry, last: Published | None, known: Iterable[int]) -> int | None:
    """By how many rows at least others changed a table in commits since ``last`` that are expired; None if none tells.

    Compactions keep the count, and whatever the asset itself publishes is ``last``. ``known`` are the snapshots that
    its cursors know of: what isn't among them was never published.
    """
    if last is None or last.snapshot_id not in set(known) or ancestry.find(last.snapshot_id) or not ancestry.snapshots:
        return None
    oldest = ancestry.snapshots[-1]
    before = rows_before(oldest)
    if oldest.parent_id in (None, last.snapshot_id) or before is None:
        return None
    return before.minus(last.rows) or None


def live_rows(snapshot: Snapshot) -> RowCount | None:
    """How many rows a table has; None if its summary doesn't tell."""
    return _rows(snapshot, "total-records", "total-position-deletes", "total-equality-deletes")


def rows_before(snapshot: Snapshot) -> RowCount | None:
    """How many rows a table had before the snapshot; None if its summary doesn't tell.

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
    """Records less those that deletes by position may hide; how many deletes by equality do isn't known."""
    found = [snapshot.summary.get(count, missing) for count in (records, hidden, unknown)]
    if not all(map(str.isdecimal, found)) or found[2] != "0":
        return None
    return RowCount(int(found[0]) - int(found[1]), int(found[0]))


def writer_of(snapshot: Snapshot) -> str | None:
    """The asset that wrote it, as it says itself or by its stamps; None if it doesn't tell."""
    stamps = [value for key, value in snapshot.summary.items() if key.startswith(EDGE)]
    if ASSET in snapshot.summary or not stamps:
        return snapshot.summary.get(ASSET)
    return str(json.loads(stamps[0])["edge"]).rpartition(" ← ")[0]


def owner_of(ancestry: Ancestry, properties: Mapping[str, str]) -> str | None:
    """The asset that wrote to a table last, or that it was made for; None if nothing tells."""
    writers = (writer_of(snapshot) for snapshot in ancestry.snapshots)
    return next((writer for writer in writers if writer is not None), None) or properties.get(ASSET)


def may_hold_rows(ancestry: Ancestry) -> bool:
    """Whether the table isn't known to be empty."""
    return ancestry.head is not None and ancestry.head.summary.get("total-records") != "0"


def told(snapshot: Snapshot) -> str:
    """What a commit did, in a few words.

    Example:
        >>> told(Snapshot(7, 6, 7, 70, "overwrite", "", {"added-records": "1", "deleted-records": "2"}))
        'snapshot 7 (`overwrite`, 1 rows added, 2 deleted)'
    """
    counts = {
        "added": snapshot.summary.get("added-records"),
        "deleted": snapshot.summary.get("deleted-records") or snapshot.summary.get("added-position-deletes"),
    }
    said = [f"{count} rows {what}" if what == "added" else f"{count} {what}" for what, count in counts.items() if count]
    return f"snapshot {snapshot.snapshot_id} ({', '.join([f'`{snapshot.operation}`', *said])})"


def _is_by(snapshot: Snapshot, asset: str) -> bool:
    # A statement of a block says whose it is only by the attempt that a last commit of the block names.
    return ATTEMPT in snapshot.summary and writer_of(snapshot) in (None, asset)
