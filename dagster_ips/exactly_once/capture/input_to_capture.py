"""A consumer and its inputs before a capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.code_of_rows import UNDECLARED, Maker
from dagster_ips.core.mode_decision import ModeDecision
from dagster_ips.core.ownership import Consent
from dagster_ips.core.target import TargetHistory
from dagster_ips.core.touched import LineState
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.target_table.target_ownership import Accepted
from dagster_ips.iceberg.metadata import TableMetadata


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
class Line:
    """What is known about all partitions of an input: ``known`` decides what is read; ``looked`` is the latest look."""

    known: LineState
    looked: LineState


@dataclass(frozen=True, slots=True)
class EdgeToCapture:
    """An edge before a capture: ``state`` says from where it is read, ``history`` what the target's stamps say."""

    state: EdgeState
    history: TargetHistory | None


@dataclass(frozen=True, slots=True)
class InputToCapture:
    """An input before a capture: its table and its edges, a single edge or one for each partition of the run.

    ``line`` is what is known about all partitions; None if the consumer isn't partitioned.
    """

    tracked: TrackedInput
    source: TableMetadata
    edges: tuple[EdgeToCapture, ...]
    line: Line | None

    @property
    def states(self) -> list[EdgeState]:
        """The state of each edge."""
        return [edge.state for edge in self.edges]

    def with_states(self, change: Callable[[EdgeState], EdgeState]) -> InputToCapture:
        """A copy in which each edge's state is replaced by ``change`` of it."""
        return replace(self, edges=tuple(replace(edge, state=change(edge.state)) for edge in self.edges))


@dataclass(frozen=True, slots=True)
class ReadyToCapture:
    """A consumer before it captures what was requested, and the mode in which it captures.

    ``accepted`` is what others wrote to the target and a person accepts. ``began_late`` says that some of its rows were
    made from a ``start`` on.
    """

    request: CaptureRequest
    inputs: tuple[InputToCapture, ...]
    decision: ModeDecision
    accepted: Accepted
    began_late: bool

    def with_sources(self, sources: Sequence[TableMetadata]) -> ReadyToCapture:
        """A copy that captures up to the heads of ``sources``, one for each input."""
        inputs = (replace(each, source=source) for each, source in zip(self.inputs, sources, strict=True))
        return replace(self, inputs=tuple(inputs))
