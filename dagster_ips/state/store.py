"""Where edge states are kept."""

from __future__ import annotations

from typing import Protocol

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.state.codec import decode, encode


class EdgeStore(Protocol):
    """Keeps the state of each edge; a ``set`` that returned is durable."""

    def get(self, edge: Edge) -> EdgeState:
        """The stored state, or a fresh one if nothing was ever stored."""

    def set(self, state: EdgeState) -> None:
        """Store ``state`` as its edge's."""


class MemoryEdgeStore:
    """An EdgeStore that lives as long as the process; holds text, so that the codec is used as in real life."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, edge: Edge) -> EdgeState:
        """As in EdgeStore."""
        text = self._values.get(edge.id)
        return decode(text, edge) if text else EdgeState(edge)

    def set(self, state: EdgeState) -> None:
        """As in EdgeStore."""
        self._values[state.edge.id] = encode(state)
