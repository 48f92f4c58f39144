"""A consumer and its inputs before a capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.code_of_rows import UNDECLARED, Maker
from dagster_ips.core.mode_decision import ModeDecision
from dagster_ips.core.ownership import Consent
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.partitioned_input import PartitionedInput
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.target_table.target_ownership import Accepted
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.cursor import Cursor
from dagster_ips.progress.table_progress import TableProgress


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What to capture: the ``inputs`` of ``consumer``, whose table is ``target``, for the run's ``partitions`` if any.

    Without ``asked_for``, the states decide the mode. If ``maker`` can't continue from the target's rows, everything is
    recomputed, and also if there is another reason, ``because``.
    """

    consumer: str
    inputs: Sequence[TrackedInput]
    target: str
    asked_for: Mode | None = None
    partitions: RunPartitions | None = None
    consent: Consent = field(default_factory=Consent)
    maker: Maker = UNDECLARED
    because: str | None = None


@dataclass(frozen=True, slots=True)
class InputToCapture:
    """An input before a capture: its table, and the state of its edge, or of one for each partition of the run.

    ``looked`` is what is known about all partitions; None if the consumer isn't partitioned.
    """

    tracked: TrackedInput
    source: TableMetadata
    states: tuple[EdgeState, ...]
    looked: PartitionedInput | None


@dataclass(frozen=True, slots=True)
class ReadyToCapture:
    """A consumer before it captures what was requested, and the mode in which it captures.

    ``known`` is what its table contains. ``accepted`` is what others wrote to the table and a person accepts.
    ``began_late`` says that some of its rows were made from a ``start`` on.
    """

    request: CaptureRequest
    inputs: tuple[InputToCapture, ...]
    decision: ModeDecision
    accepted: Accepted
    began_late: bool
    known: TableProgress | None
    cursor: Cursor
