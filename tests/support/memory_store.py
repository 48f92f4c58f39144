"""A store of edge states without Dagster."""

from __future__ import annotations

from collections.abc import Iterable

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.touched import LineState
from dagster_ips.state.codec import decode_line, encode, encode_line
from dagster_ips.state.store import stored_state


class MemoryEdgeStore:
    """An EdgeStore that lives as long as the process. It holds text, so that the codec is used as in production."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def get(self, edge: Edge) -> EdgeState:
        return stored_state(edge, self._values.get(edge.id), self._values.get(f"voided:{edge.id}"))

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        return {edge: self.get(edge) for edge in edges}

    def set(self, *states: EdgeState) -> None:
        self._values |= {state.edge.id: encode(state) for state in states}

    def intervene(self, state: EdgeState) -> None:
        self._values[f"voided:{state.edge.id}"] = encode(state)
        self.set(state)

    def get_line(self, edge: Edge) -> LineState:
        text = self._values.get(f"line:{edge.id}")
        return decode_line(text, edge) if text else LineState(edge)

    def set_line(self, state: LineState) -> None:
        self._values[f"line:{state.edge.id}"] = encode_line(state)

    def set_names(self, state: LineState) -> None:
        """As in EdgeStore."""
        self.set_line(state)
