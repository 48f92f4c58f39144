"""What runs that may still be at work have in flight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import dagster as dg

from dagster_ips.core.capture import Capture, EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.state.store import UntouchedStore


@dataclass(frozen=True)
class OfLivingRuns(UntouchedStore):
    """What ``store`` has, without captures in flight that runs left when they failed or were canceled.

    Nothing may ever replace such a capture, for example that of a partition that hasn't changed, in a backfill that was
    canceled.
    """

    instance: dg.DagsterInstance
    _ended: dict[str, bool] = field(default_factory=dict)

    def get(self, edge: Edge) -> EdgeState:
        """As ``store`` has it, without such a capture."""
        return self._living(self.store.get(edge))

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        """As ``store`` has them, without such captures."""
        return {edge: self._living(state) for edge, state in self.store.get_many(edges).items()}

    def _living(self, state: EdgeState) -> EdgeState:
        held = state.in_flight
        return state.without(held) if held is not None and self._has_ended(held) else state

    def _has_ended(self, capture: Capture) -> bool:
        if capture.is_of_job:
            return False
        if capture.run_id not in self._ended:
            run = self.instance.get_run_by_id(capture.run_id)
            self._ended[capture.run_id] = run is None or run.is_finished
        return self._ended[capture.run_id]
