"""A ref's snapshots, from its head back to its root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import overload

MAIN = "main"
"""The branch that readers see who name none."""
_TAKEN = (
    *("deleted-data-files", "deleted-records", "added-delete-files", "removed-delete-files"),
    *("added-position-deletes", "added-equality-deletes"),
)
"""Counts of a summary that aren't 0 if rows may be gone. Not every writer has all of them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed state of a table.

    ``sequence_number`` is 0 in a v1 table; ``schema_id`` is None if the snapshot names no schema.
    Source: Iceberg table spec, "Snapshots".
    """

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    timestamp_ms: int
    operation: str
    manifest_list: str
    summary: Mapping[str, str] = field(default_factory=dict)
    schema_id: str | None = None

    @property
    def position(self) -> tuple[int, int]:
        """The same as a watermark's position."""
        return (self.sequence_number, self.timestamp_ms)

    @property
    def begins_history(self) -> bool:
        """Whether it holds only what it added itself, as far as its summary says, so that it needs no parent.

        A ``replace`` isn't such a snapshot: the rows that it moved were there before, whatever its parent id is. Nor is
        one that removed files, even if it rewrote all of them: PyIceberg removes the id of an expired parent.
        """
        if self.only_moves or self.summary.get("deleted-data-files", "0") != "0":
            return False
        total = self.summary.get("total-data-files")
        return total is None or total == self.summary.get("added-data-files", "0")

    @property
    def only_adds(self) -> bool:
        """Whether it is an append whose summary doesn't say that it nevertheless removed something."""
        taken = ("deleted-data-files", "added-delete-files")
        return self.operation == "append" and all(self.summary.get(count, "0") == "0" for count in taken)

    @property
    def only_moves(self) -> bool:
        """Whether its operation says that it only moved rows to other files and changed none."""
        return self.operation == "replace"

    @property
    def may_remove_rows(self) -> bool:
        """Whether rows may be gone after it: an ``overwrite`` or ``delete`` may also have found nothing to remove."""
        if self.only_adds or self.only_moves:
            return False
        return "total-data-files" not in self.summary or any(self.summary.get(count, "0") != "0" for count in _TAKEN)

    @property
    def changes_no_file(self) -> bool:
        """Whether its summary says that it added and removed no file; False if the summary has no file counts."""
        if "total-data-files" not in self.summary:
            return False
        counts = (f"{what}-{kind}-files" for what in ("added", "deleted", "removed") for kind in ("data", "delete"))
        return all(self.summary.get(count, "0") == "0" for count in (*counts, *_TAKEN))

    @property
    def keeps_rows(self) -> bool:
        """Whether it says that the table has the same rows after it as before it."""
        return self.only_moves or self.changes_no_file


@dataclass(frozen=True, slots=True)
class Ancestry:
    """The snapshots of a ref, newest first, as far back as they are retained.

    They are read lazily, from parent to parent: of a long history, only what a caller looks at.

    Example:
        >>> one = Snapshot(1, None, 1, 10, "append", "m1")
        >>> two = Snapshot(2, 1, 2, 20, "append", "m2")
        >>> ancestry = Ancestry.of({1: one, 2: two}, head_snapshot_id=2)
        >>> [s.snapshot_id for s in ancestry.between(from_snapshot_id_exclusive=1, to_snapshot_id_inclusive=2)]
        [2]
    """

    snapshots: Sequence[Snapshot]

    @classmethod
    def of(cls, by_id: Mapping[int, Snapshot], head_snapshot_id: int | None) -> Ancestry:
        """Walk parent ids from ``head_snapshot_id``; None, a table without snapshots, gives the empty ancestry."""
        return cls(_RetainedAncestors(by_id, head_snapshot_id))

    @property
    def head(self) -> Snapshot | None:
        """The newest snapshot; None in an empty ancestry."""
        return self.snapshots[0] if self.snapshots else None

    @property
    def newest_change(self) -> Snapshot | None:
        """The newest snapshot that may have changed rows; None if no retained snapshot may have.

        Two states of a table with the same newest change hold the same rows.
        """
        return next((snapshot for snapshot in self.snapshots if not snapshot.keeps_rows), None)

    @property
    def is_whole(self) -> bool:
        """Whether none of its snapshots has expired, as far as the oldest one shows; an empty ancestry is whole."""
        return not self.snapshots or (self.snapshots[-1].parent_id is None and self.snapshots[-1].begins_history)

    def find(self, snapshot_id: int) -> Snapshot | None:
        """The snapshot if it is retained in this ancestry, else None."""
        return next((s for s in self.snapshots if s.snapshot_id == snapshot_id), None)

    def places(self) -> dict[int, int]:
        """Each snapshot's number of newer snapshots, by its id."""
        return {snapshot.snapshot_id: place for place, snapshot in enumerate(self.snapshots)}

    def since(self, snapshot_id_exclusive: int) -> tuple[Snapshot, ...] | None:
        """The snapshots after that one up to the head, oldest first; None if it isn't retained in this ancestry."""
        if self.head is None:
            return None
        return self.between(
            from_snapshot_id_exclusive=snapshot_id_exclusive, to_snapshot_id_inclusive=self.head.snapshot_id
        )

    def between(
        self, *, from_snapshot_id_exclusive: int | None, to_snapshot_id_inclusive: int
    ) -> tuple[Snapshot, ...] | None:
        """Snapshots in ``(from, to]``, oldest first; ``from=None`` means from the table's birth.

        None when ``from`` or ``to`` isn't retained in this ancestry: the caller must find out why, never guess.
        """
        found: list[Snapshot] = []
        inside = False
        for snapshot in self.snapshots:
            if snapshot.snapshot_id == from_snapshot_id_exclusive:
                return (
                    tuple(reversed(found)) if inside or from_snapshot_id_exclusive == to_snapshot_id_inclusive else None
                )
            inside = inside or snapshot.snapshot_id == to_snapshot_id_inclusive
            if inside:
                found.append(snapshot)
        return tuple(reversed(found)) if inside and from_snapshot_id_exclusive is None else None


class _RetainedAncestors(Sequence[Snapshot]):
    """The snapshots from one to its oldest retained ancestor, each read when it is reached."""

    def __init__(self, by_id: Mapping[int, Snapshot], newest_id: int | None) -> None:
        self._by_id = by_id
        self._newest_id = newest_id

    def __iter__(self) -> Iterator[Snapshot]:
        snapshot_id = self._newest_id
        while snapshot_id is not None and (snapshot := self._by_id.get(snapshot_id)) is not None:
            yield snapshot
            snapshot_id = snapshot.parent_id

    def __bool__(self) -> bool:
        return self._newest_id is not None and self._newest_id in self._by_id

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, at: int) -> Snapshot: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Snapshot]: ...
    def __getitem__(self, at: int | slice) -> Snapshot | Sequence[Snapshot]:
        if isinstance(at, slice) or at < 0:
            return tuple(self)[at]
        for snapshot in islice(self, at, None):
            return snapshot
        raise IndexError(at)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self._newest_id)
