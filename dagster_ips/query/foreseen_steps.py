"""How a query's result would be maintained when each of its sources changes, predicted before anything changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dagster_ips.query.affected_keys import SourceChange
from dagster_ips.query.maintenance_plan import MaintenancePlan, MaintenanceStep


class KindOfChange(StrEnum):
    """What may happen to a source."""

    INSERT = "rows are inserted"
    UPDATE_OR_DELETE = "rows are updated or deleted"


_CHANGES = {
    KindOfChange.INSERT: SourceChange(adds=True, removes=False),
    KindOfChange.UPDATE_OR_DELETE: SourceChange(adds=True, removes=True),
}


@dataclass(frozen=True)
class ForeseenStep:
    """The step of a run in which only ``source`` (its number in the query) changed in this way."""

    source: int
    change: KindOfChange
    step: MaintenanceStep


def foreseen_steps(plan: MaintenancePlan, sources: Sequence[int]) -> Iterator[ForeseenStep]:
    """The step for each source of the query and each kind of change, provided that older snapshots can be read."""
    for source in sources:
        for change, found in _CHANGES.items():
            yield ForeseenStep(source, change, plan.step({source: found}, known_before=frozenset(sources)))
