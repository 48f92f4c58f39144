"""Launches a planned backfill: it tags the tables' states first, then Dagster's own backfill computes the root.

If the backfill is staged, Dagster's backfill computes every stage, on branches created at the tagged states.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ips._compat import backfill_status, knowing_partitions, requested_backfill
from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage
from dagster_ips.errors import BackfillError, InstanceError, StalePlanError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.stamps import REVERTED
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.planning import table_now
from dagster_ips.orchestration.backfill.stageable import require_stageable
from dagster_ips.orchestration.platform.staged_run import STAGED_TAG
from dagster_ips.orchestration.run.cascade_tag import CASCADE_TAG, PLAN_TAG
from dagster_ips.orchestration.run.runs import MODE_TAG
from dagster_ips.spark.branches import Branch, drop_tag, tag_snapshot

_DAY_MS = 86_400_000
_MOST_LOOKS = 5


@dataclass(frozen=True)
class BackfillLauncher:
    """Launches backfills, and keeps the tables' previous states for ``keep_days``."""

    lineage: AssetLineage
    keep_days: int = 30

    def launch(self, plan: BackfillPlan, *, who: str, although_moved: bool, now_ms: int) -> LaunchedBackfill:
        """Tag the state of every table that ``plan`` writes, and let Dagster's daemon compute its root.

        If an earlier launch was killed before Dagster had the backfill, all of it is done again, because no table has
        been changed by then. If Dagster already has the backfill, its record is returned.

        Raises:
            StalePlanError: tables or code have changed since the plan was made.
            BackfillError: the root's table kept changing while its state was tagged, or the backfill is already staged,
                was launched with another plan, or was cancelled or reverted.
            InstanceError: the root is no longer in these definitions, or no longer has these partitions.
        """
        return self._launched(plan, who, although_moved=although_moved, now_ms=now_ms, is_staged=False)

    def stage(self, plan: BackfillPlan, *, who: str, although_moved: bool, now_ms: int) -> LaunchedBackfill:
        """Like ``launch``, but the daemon computes all stages, each on a branch of its table created at that state.

        Raises:
            BackfillError: a stage can't be computed on a branch, or the backfill was already launched live, or its
                branches are gone.
            As for ``launch``.
        """
        require_stageable(self.lineage, plan)
        return self._launched(plan, who, although_moved=although_moved, now_ms=now_ms, is_staged=True)

    def _launched(
        self, plan: BackfillPlan, who: str, *, although_moved: bool, now_ms: int, is_staged: bool
    ) -> LaunchedBackfill:
        instance = self.lineage.instance
        if (known := self._already(plan, is_staged=is_staged)) is not None:
            return known
        with knowing_partitions(instance):
            self._require_true(plan, although_moved=although_moved)
            computed = plan.stages if is_staged else plan.stages[:1]
            subsets = {each.asset: self._subset(plan, each) for each in computed if each.partitions != ()}
            try:
                before = self._before(plan, now_ms, is_staged=is_staged)
                launched = LaunchedBackfill(plan, who, now_ms, before, is_staged)
                if is_staged:
                    self._cut_branches(launched, now_ms)
                else:
                    self.drop_branches(plan)  # Drops the branches of a staging that was killed.
            except BackfillError:  # Nobody could release or cancel what is only planned.
                self.drop_branches(plan)
                self.release(plan)
                raise
            if (known := self._already(plan, is_staged=is_staged)) is not None:
                return known
            with effect(Effect.RECORD_BACKFILL):
                self.lineage.store.set_backfill(launched)
            try:
                with effect(Effect.LAUNCH_BACKFILL):
                    instance.add_backfill(self._requested(launched, subsets))
            except Exception:
                # Another launch of the plan may have come first: Dagster has one backfill of an id.
                if (known := self._already(plan, is_staged=is_staged)) is None:
                    raise
                return known
        return launched

    def _already(self, plan: BackfillPlan, *, is_staged: bool) -> LaunchedBackfill | None:
        """The record of the plan's launch, if Dagster has the backfill."""
        known = self.lineage.store.get_backfill(plan.id)
        dagsters = self.lineage.instance.get_backfill(plan.id)
        if not isinstance(known, LaunchedBackfill) or dagsters is None:
            return None
        if known.plan != plan:
            problem = "it has already been launched, with another plan than this file has. Nothing was launched."
            remedy = f"To compute something else, plan again: dagster-ips backfill plan {shlex.quote(plan.root.asset)}"
            raise BackfillError(backfill=plan.id, problem=problem, remedy=remedy)
        if known.is_staged != is_staged:
            problem = f"it has already been launched, {'staged' if known.is_staged else 'live'}."
            remedy = f"To see how far it is: dagster-ips backfill status {plan.id}"
            raise BackfillError(backfill=plan.id, problem=problem, remedy=remedy)
        if (ended := self._ended(known, backfill_status(dagsters))) is not None:
            raise BackfillError(plan.id, *ended)
        return known

    def _ended(self, known: LaunchedBackfill, status: str) -> tuple[str, str] | None:
        """Why a launched backfill doesn't go on, and what to do; None if it goes on, or has done all of its work."""
        plan_again = f"Plan again: dagster-ips backfill plan {shlex.quote(known.plan.root.asset)}."
        if known.is_staged:
            tables = [self.lineage.metadata(stage.asset) for stage in known.plan.stages]
            if not any(table is not None and known.plan.staged_branch in table.branches for table in tables):
                return "its branches are gone: it was published, cancelled or released.", plan_again
        elif status in ("CANCELING", "CANCELED"):
            again = f"re-execute backfill {known.plan.id} in Dagster's UI"
            return "it was cancelled.", f"{plan_again} To compute only what is left, {again}."
        elif self._is_reverted(known.plan):
            return "it was reverted, at least in part.", plan_again
        return None

    def _is_reverted(self, plan: BackfillPlan) -> bool:
        root = self.lineage.metadata(plan.root.asset)
        return root is not None and any(each.summary.get(REVERTED) == plan.id for each in root.ancestry().snapshots)

    def _cut_branches(self, launched: LaunchedBackfill, now_ms: int) -> None:
        plan = launched.plan
        for stage in plan.stages:
            metadata, session = self.lineage.metadata(stage.asset), self.lineage.session(stage.asset)
            at = launched.before[stage.table]
            cut = metadata.snapshots.get(at) if metadata else None
            if cut is None:
                raise _kept_changing(plan, stage.table)
            branch = Branch(self.lineage.lake(stage.asset).name, stage.table, plan.staged_branch)
            with effect(Effect.CREATE_BRANCH):
                branch.cut_for_days(session, head_snapshot_id=at, days=self._days_since(cut.timestamp_ms, now_ms))

    def drop_branches(self, plan: BackfillPlan) -> list[str]:
        """Drop the plan's branches; returns the tables that had one. ``main`` is unchanged."""
        dropped = []
        for stage in plan.stages:
            metadata = self.lineage.metadata(stage.asset)
            if metadata is not None and plan.staged_branch in metadata.branches:
                session, lake = self.lineage.session(stage.asset), self.lineage.lake(stage.asset)
                with effect(Effect.DROP_BRANCH):
                    Branch(lake.name, stage.table, plan.staged_branch).drop(session)
                dropped.append(stage.table)
        return dropped

    def release(self, plan: BackfillPlan) -> list[str]:
        """Stop keeping the previous states; returns the tables that had one.

        Afterwards, the backfill can't be compared or reverted.
        """
        released = []
        for stage in plan.stages:
            metadata = self.lineage.metadata(stage.asset)
            for tag in (plan.progress_tag, plan.before_tag):
                if metadata is not None and tag in metadata.tags:
                    self._drop_tag(stage.asset, tag)
                    released.append(stage.table)
        return list(dict.fromkeys(released))

    def _drop_tag(self, asset: str, tag: str) -> None:
        with effect(Effect.TAG_BEFORE):
            drop_tag(self.lineage.session(asset), self.lineage.lake(asset).name, self.lineage.table(asset).table, tag)

    def _require_true(self, plan: BackfillPlan, *, although_moved: bool) -> None:
        now = {each.table: table_now(self.lineage, each.asset) for each in plan.tables}
        moved = tuple(plan.moved(now))
        if moved and not although_moved:
            raise StalePlanError(backfill=plan.id, asset=plan.root.asset, moved=moved)

    def _subset(self, plan: BackfillPlan, stage: PlannedStage) -> object | None:
        """The partitions to compute, in Dagster's form; None for an asset without partitions."""
        definition = self.lineage.partitions_def(stage.asset)
        if (definition is None) != (stage.partitions is None):
            problem = f"{stage.asset} is no longer partitioned as in plan {plan.id}."
            raise InstanceError(problem=problem, remedy="Plan again.")
        if definition is None or stage.partitions is None:
            return None
        there = set(definition.get_partition_keys(dynamic_partitions_store=self.lineage.instance))
        if gone := [key for key in stage.partitions if key not in there]:
            problem = f"{stage.asset} no longer has partition {', '.join(gone[:5])}."
            raise InstanceError(problem=problem, remedy="Plan again.")
        return definition.subset_with_partition_keys(stage.partitions)

    def _before(self, plan: BackfillPlan, now_ms: int, *, is_staged: bool) -> dict[str, int]:
        """The tagged state of each table.

        A staged backfill continues from all states together, so all of them must have been the newest at the same time.
        """
        together = plan.stages if is_staged else plan.stages[:1]
        changing: list[str] = []
        for _ in range(_MOST_LOOKS):
            before: dict[str, int] = {}
            for stage in plan.stages:
                before |= self._tagged(plan, stage.asset, now_ms)
            changing = [each.table for each in together if before.get(each.table) != self._head(each.asset)]
            if not changing:
                return before
        raise _kept_changing(plan, ", ".join(changing))

    def _head(self, asset: str) -> int | None:
        metadata = self.lineage.metadata(asset)
        return metadata.head_snapshot_id() if metadata else None

    def _days_since(self, timestamp_ms: int, now_ms: int) -> int:
        """How many days to keep a ref: Iceberg counts from its snapshot's commit, which may be long ago."""
        return max(0, now_ms - timestamp_ms) // _DAY_MS + self.keep_days + 1

    def _tagged(self, plan: BackfillPlan, asset: str, now_ms: int) -> dict[str, int]:
        """Tag the newest snapshot of an asset's table; returns it by the table's name, or nothing if there is none.

        If an earlier snapshot says what the table contains, that is tagged, too, because it would expire.
        """
        table, metadata = self.lineage.table(asset).table, self.lineage.metadata(asset)
        head = metadata.ancestry().head if metadata else None
        if metadata is None or head is None:
            return {}
        self._tag(asset, plan.before_tag, head, now_ms)
        known = self.lineage.known(asset, metadata)
        says = known.snapshot if known is not None else None
        if says is not None and says != head and says.snapshot_id in metadata.snapshots:
            self._tag(asset, plan.progress_tag, says, now_ms)
        elif plan.progress_tag in metadata.tags:  # of a launch that was killed
            self._drop_tag(asset, plan.progress_tag)
        return {table: head.snapshot_id}

    def _tag(self, asset: str, tag: str, snapshot: Snapshot, now_ms: int) -> None:
        with effect(Effect.TAG_BEFORE):
            tag_snapshot(
                self.lineage.session(asset),
                self.lineage.lake(asset).name,
                self.lineage.table(asset).table,
                tag,
                snapshot_id=snapshot.snapshot_id,
                retain_days=self._days_since(snapshot.timestamp_ms, now_ms),
            )

    def _requested(self, launched: LaunchedBackfill, subsets: Mapping[str, object | None]) -> Any:  # noqa: ANN401  # it isn't public
        """Dagster's backfill, as if requested in the UI; a live root without partitions gets the tag for ``full``."""
        plan = launched.plan
        tags = {PLAN_TAG: plan.id}
        if launched.is_staged:
            tags |= {STAGED_TAG: plan.id, CASCADE_TAG: plan.id}
        elif plan.root.partitions is None:
            tags |= {MODE_TAG: "full"}
        return requested_backfill(
            self.lineage.instance,
            plan.id,
            {dg.AssetKey.from_user_string(asset): subset for asset, subset in subsets.items()},
            tags=tags,
            title=f"Recompute {plan.root.asset}, {'staged' if launched.is_staged else 'planned'} by {launched.who}",
            description=f"dagster-ips backfill status {plan.id}",
            at=launched.launched_at_ms / 1000,
        )


def _kept_changing(plan: BackfillPlan, tables: str) -> BackfillError:
    problem = f"{tables} kept changing while its current state was being tagged, so nothing was launched."
    return BackfillError(backfill=plan.id, problem=problem, remedy="Launch it again when fewer runs are writing it.")
