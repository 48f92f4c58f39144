"""How a consumer and its inputs stand before a capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.mode_decision import ModeDecision
from dagster_ips.core.target import TargetHistory
from dagster_ips.core.touched import LineState
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.target_table.target_ownership import (
    Accepted,
)
from dagster_ips.iceberg.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class Line:
    """What is known of all partitions of an input: by what each is read, and with what was found just now."""

    known: LineState
    looked: LineState


@dataclass(frozen=True, slots=True)
class EdgeToCapture:
    """An edge before a capture: ``state`` is from where it is read, ``history`` what the target's stamps say of it."""

    state: EdgeState
    history: TargetHistory | None


@dataclass(frozen=True, slots=True)
class InputToCapture:
    """An input before a capture: its table, and its edges, one or one for each partition of the run.

    ``line`` is what is known of all partitions; None if the consumer has none.
    """

    tracked: TrackedInput
    source: TableMetadata
    edges: tuple[EdgeToCapture, ...]
    line: Line | None

    @property
    def states(self) -> list[EdgeState]:
        """From where each edge is read."""
        return [edge.state for edge in self.edges]

    def with_states(self, change: Callable[[EdgeState], EdgeState]) -> InputToCapture:
        """The same with each edge's state changed."""
        return replace(self, edges=tuple(replace(edge, state=change(edge.state)) for edge in self.edges))


@dataclass(frozen=True, slots=True)
class ReadyToCapture:
    """How a consumer stands before it captures, and the mode that it captures in.

    ``accepted`` is what others wrote to the target and a person takes as it is.
    """

    consumer: str
    inputs: tuple[InputToCapture, ...]
    decision: ModeDecision
    partitions: RunPartitions | None = None
    accepted: Accepted = field(default_factory=Accepted)

    def with_sources(self, sources: Sequence[TableMetadata]) -> ReadyToCapture:
        """The same, to capture up to the heads of ``sources``, one for each input."""
        inputs = (replace(each, source=source) for each, source in zip(self.inputs, sources, strict=True))
        return replace(self, inputs=tuple(inputs))
