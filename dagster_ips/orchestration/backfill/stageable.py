"""Whether the stages of a plan can be computed on branches."""

from __future__ import annotations

from collections.abc import Iterator

from dagster_ips.core.backfill_plan import BackfillPlan, PlannedStage
from dagster_ips.errors import BackfillError
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage


def require_stageable(lineage: AssetLineage, plan: BackfillPlan) -> None:
    """Fail unless each stage of ``plan`` can be computed on a branch.

    Raises:
        BackfillError: a stage can't.
    """
    if problems := [f"{stage.asset} {why}" for stage in plan.stages for why in _against(lineage, stage)]:
        problem = f"it can't be staged: {'; '.join(problems)}. Nothing was launched."
        remedy = f"Launch it live: dagster-ips backfill launch {plan.id}"
        raise BackfillError(backfill=plan.id, problem=problem, remedy=remedy)


def _against(lineage: AssetLineage, stage: PlannedStage) -> Iterator[str]:
    """Why a stage can't be computed on a branch, as ends of a sentence; empty if it can."""
    metadata, known = lineage.metadata(stage.asset), lineage.consumers.get(stage.asset)
    if metadata is None or metadata.head_snapshot_id() is None:
        yield "has no rows yet to cut a branch from"
    if known is None:
        return
    if len(known.consumer.step) > 1:
        yield f"is computed in the same step as {len(known.consumer.step) - 1} other assets"
    limited = [name for name, each in known.consumer.inputs.items() if each.limits.is_set]
    if limited and stage.partitions is None:
        yield f"has a limit on {', '.join(limited)}, so it takes several runs and its table is incomplete in between"
