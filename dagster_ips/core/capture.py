"""Numbered captures, the stamps that prove them published, and the state of an edge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite, FileSet, consumed_after
from dagster_ips.core.intervention import Intervention, InterventionKind
from dagster_ips.core.watermark import Watermark, is_certainly_before

_KEPT_INTERVENTIONS = 5
_KEPT_REPLACED = 20


class Mode(StrEnum):
    """``FULL`` recomputes the target from every live row; ``INCREMENTAL`` continues from the watermark."""

    FULL = "full"
    INCREMENTAL = "incremental"


@dataclass(frozen=True, slots=True)
class Capture:
    """One frozen change set of an edge: ``(from_exclusive, to_inclusive]`` under the edge's next number.

    ``to_inclusive`` is None when the source has no snapshot yet.
    """

    edge: Edge
    number: int
    mode: Mode
    reason: str
    from_exclusive: Watermark | None
    to_inclusive: Watermark | None
    icdc_table: str
    run_id: str
    after_stamp: int | None
    """The snapshot of the target that carried this edge's newest stamp when the capture began; None: there was none.

    A newer stamp means that another run has published, so this capture must not be published.
    """
    bite: Bite | None = None
    """The part of the interval's files that it holds; None if it holds all."""
    target: TargetMark | None = None
    """The target mark in the edge's state when the capture began."""
    left_out: frozenset[str] | None = frozenset()
    """The upstream's keys whose rows the target still lacks once the capture is published; None if unknown.

    Dagster had no partition for them yet.
    """
    division: str | None = None
    """What the edge's partition key means."""

    @property
    def is_of_job(self) -> bool:
        """Whether it was taken for a job that Dagster doesn't run, whose state is unknown until it reports."""
        return ":" in self.run_id

    @property
    def is_of_new_partition(self) -> bool:
        """Whether it computes a partition for the first time, in a run that continues others."""
        is_first = self.edge.partition is not None and self.from_exclusive is None
        return is_first and self.mode is Mode.INCREMENTAL


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a snapshot of the target records about its origin, for one edge.

    ``from_exclusive`` is set only with a ``bite``: the files outside the bite are still to be consumed. ``takes_back``
    says that the snapshot restored the target to its state at ``to_inclusive``: changes that were consumed beyond that
    must be consumed again. ``left_out`` are the keys whose rows the target lacks up to there, as in the capture; None
    if they were too many to list. In that case, the capture in flight has them, if it belongs to the run ``run_id``,
    which published the stamp. ``division`` is that of the capture.
    """

    number: int
    mode: Mode
    to_inclusive: Watermark
    target: TargetMark
    from_exclusive: Watermark | None = None
    bite: Bite | None = None
    takes_back: bool = False
    left_out: frozenset[str] | None = frozenset()
    run_id: str | None = None
    division: str | None = None


@dataclass(frozen=True, slots=True)
class TargetMark:
    """The target's snapshot up to which all of its contents are known; its position stays comparable after its expiry.

    The snapshot carries an edge's newest stamp, or was the target's state when a person or a job confirmed it.
    ``schema_id`` is the target's schema at that time; None if unknown.
    """

    table_uuid: str
    snapshot_id: int
    sequence_number: int
    timestamp_ms: int
    schema_id: str | None = None

    @property
    def position(self) -> tuple[int, int]:
        """The same as its snapshot's position."""
        return (self.sequence_number, self.timestamp_ms)

    @classmethod
    def at(cls, snapshot: Snapshot, table_uuid: str) -> TargetMark:
        """The mark by which the snapshot can be found again."""
        placed = (snapshot.snapshot_id, *snapshot.position)
        return cls(table_uuid, *placed, schema_id=snapshot.schema_id)


@dataclass(frozen=True, slots=True)
class EdgeState:
    """What the cursor remembers of an edge.

    Example:
        >>> EdgeState(Edge("playback_daily", "playback")).next_number
        1
    """

    edge: Edge
    committed: Watermark | None = None
    number: int = 0
    """The number of the last committed capture, 0 before the first."""
    in_flight: Capture | None = None
    target: TargetMark | None = None
    file_set: FileSet | None = None
    """What is consumed beyond ``committed`` of a change that is taken in bites; None if there is none."""
    voided: int = 0
    """Captures up to this number are no longer valid, even if a run still works on them.

    A person has changed what is consumed.
    """
    interventions: tuple[Intervention, ...] = ()
    """The latest such changes by a person, oldest first."""
    is_beginning: bool = False
    """Whether ``committed`` is only the starting point, and nothing was consumed yet.

    ``committed`` is None then before the first snapshot.
    """
    reread_to: Watermark | None = None
    """After a rewind, the watermark up to which the target's rows were computed: the next capture ends there.

    Otherwise, rows that came before it and went after it would stay in the target unnoticed.
    """
    left_out: frozenset[str] = frozenset()
    """Keys of which nothing was consumed, even up to ``committed``, because they had no partition."""
    division: str | None = None
    """What the edge's partition key meant at that time; None without partitions, or if unknown."""
    began_late: bool = False
    """Whether nothing before a starting point was consumed."""
    replaced: tuple[Watermark, ...] = ()
    """The ends of captures whose place ``in_flight`` took: their runs may still be at work."""

    @property
    def has_begun(self) -> bool:
        """Whether a capture was committed since a person last changed what is consumed, or at all if nobody did."""
        return self.number > self.voided

    @property
    def was_changed_by_person(self) -> bool:
        """Whether the next capture is the first since a person changed what is consumed, and is due to that."""
        return bool(self.interventions) and not self.has_begun

    @property
    def consumed_nothing(self) -> bool:
        """Whether everything was consumed when the table had no snapshot yet, so that all that it has now is new."""
        is_read = self.committed is not None or self.file_set is not None
        return not is_read and self.has_begun and self.edge.partition is None

    @property
    def holds_up_to(self) -> Watermark | None:
        """The watermark up to which the target was computed; None if nothing was consumed for it."""
        return None if self.is_beginning else self.reread_to or self.committed

    @property
    def next_number(self) -> int:
        """The number of the next capture."""
        return self.number + 1

    def goes_on_as(self, capture: Capture) -> bool:
        """Whether nothing was consumed, published or changed by a person since ``capture`` was taken.

        Numbers alone don't show it: a run that had nothing to write uses one up, and another run, whose capture has a
        different end, may publish under the same number. The capture of a partition begins where the table changed for
        it, which may be later than ``committed``.
        """
        if capture.number != self.next_number or capture.target != self.target:
            return False
        anywhere = capture.mode is Mode.FULL or self.edge.partition is not None
        return anywhere or capture.from_exclusive == self.committed

    def is_beyond(self, capture: Capture) -> bool:
        """Whether a run that had nothing to write used up the number of ``capture`` and consumed later changes.

        It left no stamp. In a table without sequence numbers, that may also be a run that consumed earlier changes. Or
        the partition, to which ``capture`` adds a change, is to be computed anew since.
        """
        own, end = self.committed, capture.to_inclusive
        if end is None or self.number < capture.number:
            return False
        if own is None:
            return capture.from_exclusive is not None
        return own.snapshot_id != end.snapshot_id and not is_certainly_before(own.position, end.position)

    def unless_voided_by(self, intervened: EdgeState | None) -> EdgeState:
        """This state, or ``intervened``, the one that a person set, if this one was written without knowledge of it."""
        return intervened if intervened is not None and intervened.voided > self.voided else self

    def with_in_flight(self, capture: Capture, *, beside: EdgeState | None = None) -> EdgeState:
        """The state when a run begins to work on ``capture``; ``beside`` is what others stored in the meantime."""
        ends = {end for end in (beside or self).being_read if end != capture.to_inclusive}
        kept = sorted(ends, key=lambda end: end.position)[-_KEPT_REPLACED:]
        return replace(self, in_flight=capture, replaced=tuple(kept))

    @property
    def being_read(self) -> tuple[Watermark, ...]:
        """Up to where runs may be reading."""
        end = self.in_flight.to_inclusive if self.in_flight else None
        return (*self.replaced, *([end] if end is not None else []))

    def without(self, capture: Capture) -> EdgeState:
        """The state when ``capture`` isn't worked on any more; another capture in flight stays in flight."""
        held = self.in_flight
        is_held = held is not None and (held.number, held.run_id) == (capture.number, capture.run_id)
        return replace(self, in_flight=None) if is_held else self

    def with_committed(self, capture: Capture, target: TargetMark | None) -> EdgeState:
        """The state when ``capture`` is consumed; without a ``target``, it published nothing and the old mark stays."""
        return replace(
            self._having_consumed(capture),
            number=capture.number,
            in_flight=self.without(capture).in_flight,
            target=target or self.target,
        )

    def with_stamp(self, stamp: Stamp) -> EdgeState:
        """The state when exactly what ``stamp`` records is consumed: its run published, but died before it stored this.

        If a person changed what is consumed after that run began, the stamp only says what the target holds.
        """
        if stamp.number <= self.voided and not self.has_begun:
            if self.reread_to is not None:
                return replace(self, reread_to=stamp.to_inclusive, target=stamp.target)
            return replace(self, committed=None, is_beginning=False, target=stamp.target)
        number, own = max(self.number, stamp.number), self.in_flight
        if stamp.left_out is None and own and (own.number, own.run_id) == (stamp.number, stamp.run_id):
            stamp = replace(stamp, left_out=own.left_out)
        return replace(self._having_consumed(stamp), number=number, in_flight=None, target=stamp.target)

    def _having_consumed(self, what: Capture | Stamp) -> EdgeState:
        """The state when ``what`` is consumed; if its left-out keys are unknown, nothing is, and all is recomputed."""
        began_late = what.mode is Mode.INCREMENTAL and (self.began_late or self.is_beginning)
        now = replace(
            self,
            committed=None,
            file_set=None,
            left_out=frozenset(),
            is_beginning=False,
            reread_to=None,
            began_late=began_late,
            replaced=self._replaced_beyond(what.to_inclusive),
        )
        if what.left_out is None:
            return now
        committed, file_set = consumed_after(what.from_exclusive, what.to_inclusive, what.bite)
        return replace(now, committed=committed, file_set=file_set, left_out=what.left_out, division=what.division)

    def _replaced_beyond(self, end: Watermark | None) -> tuple[Watermark, ...]:
        """The ends of replaced captures that aren't certainly before ``end``; others can't be published any more."""
        if end is None:
            return self.replaced
        return tuple(each for each in self.replaced if not is_certainly_before(each.position, end.position))

    def with_intervention(
        self, kind: InterventionKind, after: Watermark | None, *, who: str, why: str, at_ms: int
    ) -> EdgeState:
        """The state when a person sets what is consumed to ``after``. Its number voids all captures begun before."""
        number = self.next_number
        done = Intervention(kind, who, why, at_ms, number, self.holds_up_to, after)
        kept = (*self.interventions, done)[-_KEPT_INTERVENTIONS:]
        return EdgeState(
            self.edge,
            after,
            number,
            target=self.target,
            voided=number,
            interventions=kept,
            reread_to=self.holds_up_to if after is not None else None,
            began_late=self.began_late,
        )
