"""Where edge states are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.touched import LineState
from dagster_ips.state.codec import decode


class EdgeStore(Protocol):
    """Keeps the state of each edge; a ``set`` that returned is durable."""

    def get(self, edge: Edge) -> EdgeState:
        """The stored state, or a fresh one if nothing was ever stored."""

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        """Like ``get`` for each of ``edges``, in few requests."""

    def set(self, *states: EdgeState) -> None:
        """Store each of a run's ``states`` for its edge; this undoes no intervention that the run didn't know of.

        If the process dies meanwhile, some of several states may be stored and others not, but the states of all inputs
        of one partition, or of a consumer without partitions, are stored together.
        """

    def intervene(self, state: EdgeState) -> None:
        """Store ``state`` of its edge as a person's intervention left it."""

    def get_line(self, edge: Edge) -> LineState:
        """The state of the line ``edge``, for all of its partitions; a fresh one if nothing was ever stored."""

    def set_line(self, state: LineState) -> None:
        """Store ``state`` of its line."""

    def set_names(self, state: LineState) -> None:
        """Store ``state`` of its line, in which only names of the upstream's partitions are new."""


def stored_state(edge: Edge, of_runs: str | None, of_person: str | None) -> EdgeState:
    """The state of ``edge`` from the texts that runs and a person stored last; a fresh one if there is neither.

    The texts are kept apart because a run reads, decides and writes, and no cursor storage can detect that a person
    wrote in the meantime. What runs overwrite of each other, the target's stamps still say.

    Raises:
        StateVersionError, StateUnreadableError: see ``dagster_ips.state.codec.decode``.
    """
    state = decode(of_runs, edge) if of_runs else EdgeState(edge)
    return state.unless_voided_by(decode(of_person, edge) if of_person else None)


@dataclass(frozen=True)
class UntouchedStore:
    """An EdgeStore that shows what ``store`` has and changes nothing there.

    It is for runs for which only stamps record what they consumed, such as those on the branches of a staged backfill.
    Only the names of the upstream's partitions that they may read are stored: no stamp shows later that one is deleted.
    """

    store: EdgeStore

    def get(self, edge: Edge) -> EdgeState:
        """As ``store`` has it."""
        return self.store.get(edge)

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        """As ``store`` has them."""
        return self.store.get_many(edges)

    def set(self, *states: EdgeState) -> None:
        """Nothing is stored."""

    def intervene(self, state: EdgeState) -> None:
        """Nothing is stored."""

    def get_line(self, edge: Edge) -> LineState:
        """As ``store`` has it."""
        return self.store.get_line(edge)

    def set_line(self, state: LineState) -> None:
        """Nothing is stored."""

    def set_names(self, state: LineState) -> None:
        """They are stored in ``store``."""
        self.store.set_names(state)
