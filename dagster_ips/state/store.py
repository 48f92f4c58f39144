"""Where edge states are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.touched import LineState
from dagster_ips.state.codec import decode, encode
from dagster_ips.state.line_codec import decode_line, encode_line


class EdgeStore(Protocol):
    """Keeps the state of each edge; a ``set`` that returned is durable."""

    def get(self, edge: Edge) -> EdgeState:
        """The stored state, or a fresh one if nothing was ever stored."""

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        """As ``get``, of each of ``edges``, in few questions."""

    def set(self, state: EdgeState) -> None:
        """Store ``state`` as its edge's."""

    def get_line(self, edge: Edge) -> LineState:
        """What is known of all partitions of the line ``edge``; a fresh state if nothing was ever stored."""

    def set_line(self, state: LineState) -> None:
        """Store ``state`` as its line's."""


class MemoryEdgeStore:
    """An EdgeStore that lives as long as the process; holds text, so that the codec is used as in real life."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, edge: Edge) -> EdgeState:
        """As in EdgeStore."""
        text = self._values.get(edge.id)
        return decode(text, edge) if text else EdgeState(edge)

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        """As in EdgeStore."""
        return {edge: self.get(edge) for edge in edges}

    def set(self, state: EdgeState) -> None:
        """As in EdgeStore."""
        self._values[state.edge.id] = encode(state)

    def get_line(self, edge: Edge) -> LineState:
        """As in EdgeStore."""
        text = self._values.get(f"line:{edge.id}")
        return decode_line(text, edge) if text else LineState(edge)

    def set_line(self, state: LineState) -> None:
        """As in EdgeStore."""
        self._values[f"line:{state.edge.id}"] = encode_line(state)
