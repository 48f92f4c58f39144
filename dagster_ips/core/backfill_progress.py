"""How far a backfill is, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dagster_ips.core.backfill_plan import BackfillPlan


class PartState(StrEnum):
    """How far a partition of a stage is, or all of a stage without partitions.

    ``NOT_RUN``: Dagster's backfill ended without running it. ``TO_COME``: an earlier stage isn't finished.
    ``UNCHANGED``: all are finished, and none of its rows had to change.
    """

    DONE = "done"
    RUNNING = "running"
    PENDING = "pending"
    FAILED = "failed"
    NOT_RUN = "not run"
    TO_COME = "to come"
    UNCHANGED = "unchanged"


OPEN = (PartState.RUNNING, PartState.PENDING, PartState.TO_COME)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far the parts of a stage are, by partition (``""`` without partitions), and how much its runs have read."""

    asset: str
    parts: Mapping[str, PartState]
    size_bytes: int = 0
    rows: int = 0
    planned_bytes: int = 0
    planned_rows: int = 0

    @property
    def is_open(self) -> bool:
        """Whether something of it is still to be done, and will be done by itself."""
        return any(state in OPEN for state in self.parts.values())

    def count(self, state: PartState) -> int:
        """How many of its parts are in this state."""
        return sum(each is state for each in self.parts.values())


@dataclass(frozen=True, slots=True)
class StageSeen:
    """What is seen of a stage: how its runs went by part, which parts wait for a run, and how much runs have read.

    ``is_backfilled`` says that runs of Dagster's backfill compute the parts, and not automation. This is so for the
    root, and for every staged stage. ``is_requested`` says that Dagster will still start runs for the parts that have
    none: its backfill goes on.
    """

    ran: Mapping[str, PartState]
    waiting: frozenset[str]
    size_bytes: int
    rows: int
    is_backfilled: bool
    is_requested: bool


def progress(plan: BackfillPlan, seen: Mapping[str, StageSeen]) -> list[StageProgress]:
    """How far each stage of ``plan`` is; ``seen`` has what is seen of each asset's stage."""
    found: dict[str, StageProgress] = {}
    for stage in plan.stages:
        of_stage = seen[stage.asset]
        before_open = any(found[upstream].is_open for upstream in stage.upstreams if upstream in found)
        # Others may have run, too: a plan that was launched although tables moved may lack some.
        every = dict.fromkeys([*stage.parts, *of_stage.ran])
        parts = {part: _state(part, of_stage, before_open=before_open) for part in every}
        found[stage.asset] = StageProgress(
            stage.asset, parts, of_stage.size_bytes, of_stage.rows, stage.size_bytes, stage.rows
        )
    return list(found.values())


def _state(part: str, seen: StageSeen, *, before_open: bool) -> PartState:
    ran = seen.ran.get(part)
    if ran in (PartState.RUNNING, PartState.FAILED):
        return ran
    if part in seen.waiting or (ran is None and seen.is_requested and not before_open):
        return PartState.PENDING
    if before_open:
        return PartState.TO_COME
    return ran or (PartState.NOT_RUN if seen.is_backfilled else PartState.UNCHANGED)
