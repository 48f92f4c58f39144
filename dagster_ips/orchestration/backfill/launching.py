"""Launches a planned backfill: the tables' states are tagged first, then Dagster's own backfill computes the root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dagster_ips._compat import knowing_partitions, requested_backfill
from dagster_ips.core.backfill_plan import BackfillPlan, ConsumedBefore, LaunchedBackfill
from dagster_ips.core.edge import Edge
from dagster_ips.core.target import settle
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import BackfillError, InstanceError, StalePlanError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.target_table.target_history import histories_of
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.planning import table_now
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.run.runs import MODE_TAG
from dagster_ips.spark.branches import drop_tag, tag_snapshot

_DAY_MS = 86_400_000
_MOST_LOOKS = 5
PLAN_TAG = "dagster_ips/plan"


@dataclass(frozen=True)
class BackfillLauncher:
    """Launches backfills; the states before them are kept for ``keep_days``."""

    lineage: AssetLineage
    keep_days: int = 30

    def launch(self, plan: BackfillPlan, *, who: str, although_moved: bool, now_ms: int) -> LaunchedBackfill:
        """Tag the state of every table that ``plan`` writes, and let Dagster's daemon compute its root.

        What a launch that was killed has done is done again, as long as Dagster doesn't know of the backfill: nothing
        has changed a table for it until then. Once it does, what was launched is returned.

        Raises:
            StalePlanError: tables or code are others than when the plan was made.
            BackfillError: its root kept moving while its state was tagged.
            InstanceError: the root isn't in these definitions any more, or not with these partitions.
        """
        store, instance = CursorStore(self.lineage.instance), self.lineage.instance
        known = store.get_backfill(plan.id)
        if isinstance(known, LaunchedBackfill) and instance.get_backfill(plan.id) is not None:
            return known
        with knowing_partitions(instance):
            self._require_true(plan, although_moved=although_moved)
            subset = self._root_subset(plan)
            before, consumed = self._root_before(plan, now_ms)
            for stage in plan.stages[1:]:
                before |= self._tagged(plan, stage.asset, now_ms)
            launched = LaunchedBackfill(plan, who, now_ms, before, consumed)
            with effect(Effect.RECORD_BACKFILL):
                store.set_backfill(launched)
            with effect(Effect.LAUNCH_BACKFILL):
                instance.add_backfill(self._requested(plan, subset, who=who, now_ms=now_ms))
        return launched

    def release(self, plan: BackfillPlan) -> list[str]:
        """Let the states before it go: the tables of which one was kept. It can't be compared or taken back after."""
        released = []
        for stage in plan.stages:
            metadata = self.lineage.metadata(stage.asset)
            if metadata is not None and plan.before_tag in metadata.tags:
                session, lake = self.lineage.table(stage.asset).manager.session(), self.lineage.lake(stage.asset)
                with effect(Effect.TAG_BEFORE):
                    drop_tag(session, lake.name, stage.table, plan.before_tag)
                released.append(stage.table)
        return released

    def _require_true(self, plan: BackfillPlan, *, although_moved: bool) -> None:
        now = {each.table: table_now(self.lineage, each.asset) for each in plan.tables}
        moved = tuple(plan.moved(now))
        if moved and not although_moved:
            raise StalePlanError(backfill=plan.id, asset=plan.root.asset, moved=moved)

    def _root_subset(self, plan: BackfillPlan) -> object | None:
        """The partitions to compute as Dagster has them; None of an asset without."""
        root, definition = plan.root, self.lineage.partitions_def(plan.root.asset)
        if (definition is None) != (root.partitions is None):
            problem = f"{root.asset} isn't partitioned any more as plan {plan.id} says."
            raise InstanceError(problem=problem, remedy="Plan again.")
        if definition is None or root.partitions is None:
            return None
        there = set(definition.get_partition_keys(dynamic_partitions_store=self.lineage.instance))
        if gone := [key for key in root.partitions if key not in there]:
            problem = f"{root.asset} has no partition {', '.join(gone[:5])} any more."
            raise InstanceError(problem=problem, remedy="Plan again.")
        return definition.subset_with_partition_keys(root.partitions)

    def _root_before(self, plan: BackfillPlan, now_ms: int) -> tuple[dict[str, int], tuple[ConsumedBefore, ...]]:
        """The root's tagged state, and what it had consumed when that was its newest.

        A run publishes before it commits: what is read while the table stays where it is knows of nothing newer.
        """
        for _ in range(_MOST_LOOKS):
            before = self._tagged(plan, plan.root.asset, now_ms)
            consumed = tuple(self._consumed(plan))
            now = self.lineage.metadata(plan.root.asset)
            if before.get(plan.root.table) == (now.head_snapshot_id() if now else None):
                return before, consumed
        problem = f"{plan.root.table} kept changing while its state was tagged, so nothing was launched."
        raise BackfillError(backfill=plan.id, problem=problem, remedy="Launch it again when fewer runs write it.")

    def _tagged(self, plan: BackfillPlan, asset: str, now_ms: int) -> dict[str, int]:
        """The state of an asset's table, by its name, tagged; nothing of a table without one."""
        known, metadata = self.lineage.table(asset), self.lineage.metadata(asset)
        head = metadata.ancestry().head if metadata else None
        if head is None:
            return {}
        # Iceberg counts a tag's age from when its snapshot was committed, which may be long ago.
        old_days = max(0, now_ms - head.timestamp_ms) // _DAY_MS
        with effect(Effect.TAG_BEFORE):
            tag_snapshot(
                known.manager.session(),
                self.lineage.lake(asset).name,
                known.table,
                plan.before_tag,
                snapshot_id=head.snapshot_id,
                retain_days=old_days + self.keep_days + 1,
            )
        return {known.table: head.snapshot_id}

    def _consumed(self, plan: BackfillPlan) -> Iterator[ConsumedBefore]:
        """Up to where the root's partitions have consumed each input; those that are alike together.

        A partition that nothing touched for a year is consumed up to where the input was last looked at.
        """
        known = self.lineage.consumers.get(plan.root.asset)
        store, target = CursorStore(self.lineage.instance), self.lineage.metadata(plan.root.asset)
        for tracked in known.consumer.tracked(known.graph, self.lineage.instance).values() if known else ():
            line = Edge(plan.root.asset, tracked.upstream)
            keys = plan.root.partitions
            edges = [line] if keys is None else [line.of(key) for key in keys]
            states = store.get_many(edges)
            histories = histories_of(self.lineage.lake(plan.root.asset).storage, target, states.values())
            looked = store.get_line(line)
            alike: dict[Watermark | None, list[str]] = {}
            for edge, state in states.items():
                settled = settle(state, histories.get(edge))
                up_to = settled.holds_up_to
                if up_to is not None and tracked.slicing is not None:
                    start = looked.start_of(settled, tracked.slicing.taken_by(edge.partition or ""))
                    up_to = replace(start or up_to, schema_id=up_to.schema_id)
                alike.setdefault(up_to, []).append(edge.partition or "")
            for up_to, partitions in alike.items():
                yield ConsumedBefore(tracked.upstream, up_to, None if keys is None else tuple(partitions))

    def _requested(self, plan: BackfillPlan, subset: object | None, *, who: str, now_ms: int) -> Any:  # noqa: ANN401  # it isn't public
        """As a person's backfill from the UI; all of an asset without partitions by the tag that asks for it."""
        tags: Mapping[str, str] = {PLAN_TAG: plan.id} | ({MODE_TAG: "full"} if subset is None else {})
        return requested_backfill(
            self.lineage.instance,
            plan.id,
            dg.AssetKey.from_user_string(plan.root.asset),
            subset,
            tags=tags,
            title=f"{plan.root.asset} anew, planned by {who}",
            description=f"dagster-ips backfill status {plan.id}",
            at=now_ms / 1000,
        )
