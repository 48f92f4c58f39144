"""Numbered captures, and how far an edge has consumed its upstream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite, FileSet
from dagster_ips.core.watermark import Watermark


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
    bite: Bite | None = None
    """The part of the interval's files that it holds; None if it holds all."""
    target: TargetMark | None = None
    """The target's last publication when the capture began."""

    @property
    def is_of_new_partition(self) -> bool:
        """Whether it computes a partition for the first time, in a run that continues others."""
        is_first = self.edge.partition is not None and self.from_exclusive is None
        return is_first and self.mode is Mode.INCREMENTAL


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
    """How far a consumer's table, or one partition of it, contains an upstream, as the next run finds it.

    ``committed`` is None if nothing was consumed, or the upstream had no snapshot then. ``number`` counts the table's
    publications, ``target`` is the mark of the last one. ``has_begun`` says whether anything says what was consumed.
    ``request`` is the person's request that the next run fulfils, 0 if there is none.

    Example:
        >>> EdgeState(Edge("playback_daily", "playback")).next_number
        1
    """

    edge: Edge
    committed: Watermark | None = None
    number: int = 0
    target: TargetMark | None = None
    file_set: FileSet | None = None
    """What is consumed beyond ``committed`` of a change that is taken in bites; None if there is none."""
    has_begun: bool = False
    is_beginning: bool = False
    """Whether ``committed`` is only the starting point, and nothing was consumed yet.

    ``committed`` is None then before the first snapshot.
    """
    reread_to: Watermark | None = None
    """After a rewind, the watermark up to which the target's rows were computed: the next capture ends there.

    Otherwise, rows that came before it and went after it would stay in the target unnoticed.
    """
    began_late: bool = False
    """Whether nothing before a starting point was consumed."""
    request: int = 0

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
