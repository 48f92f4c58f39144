"""Shows how far each stage of a launched backfill is, and cancels the backfill with all of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ips._compat import (
    RANGE_END_TAG,
    RANGE_START_TAG,
    backfill_status,
    backfills_with_tag,
    cancelling,
    knowing_partitions,
)
from dagster_ips.core.backfill_plan import BackfillPlan, PlannedStage
from dagster_ips.core.backfill_progress import PartState, StageProgress, StageSeen, progress
from dagster_ips.exactly_once.capture.partitioned_input import look_at
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.inspect.edge_status import Inspector
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.past_runs import captured_by
from dagster_ips.orchestration.run.cascade_runs import commits_of, runs_of
from dagster_ips.orchestration.run.cascade_tag import PLAN_TAG
from dagster_ips.orchestration.run.known_consumers import KnownConsumer
from dagster_ips.orchestration.watch.run_at_work import UNFINISHED

_PARTITION_TAG = "dagster/partition"
_STARTS_NO_RUN = frozenset(
    ("COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILING", "FAILED", "CANCELING", "CANCELED")
)
_STATES = {
    dg.DagsterRunStatus.SUCCESS: PartState.DONE,
    dg.DagsterRunStatus.FAILURE: PartState.FAILED,
    dg.DagsterRunStatus.CANCELED: PartState.FAILED,
    dg.DagsterRunStatus.QUEUED: PartState.PENDING,
    dg.DagsterRunStatus.NOT_STARTED: PartState.PENDING,
}
_CANCELABLE = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
)


@dataclass(frozen=True)
class BackfillFollower:
    """Follows a backfill that was launched.

    If it ``is_staged``, Dagster's backfill runs all stages, so pending changes on ``main`` don't count.
    """

    lineage: AssetLineage
    plan: BackfillPlan
    is_staged: bool

    def dagsters(self) -> Any:  # noqa: ANN401  # it isn't public
        """Dagster's own backfill; None if there is none."""
        return self.lineage.instance.get_backfill(self.plan.id)

    def status(self) -> str:
        """The status of Dagster's backfill."""
        found = self.dagsters()
        return "not launched" if found is None else backfill_status(found)

    def is_at_work(self) -> bool:
        """Whether Dagster still starts runs of the backfill or of a re-execution of it."""
        return any(backfill_status(each) not in _STARTS_NO_RUN for each in self._backfills())

    def unfinished_run(self) -> str | None:
        """The id of a run of the backfill that may still compute the root; None if there is none."""
        root = dg.AssetKey.from_user_string(self.plan.root.asset)
        runs = [each.dagster_run for each in self.runs() if root in (each.dagster_run.asset_selection or ())]
        return next((run.run_id for run in runs if run.status in UNFINISHED), None)

    def progress(self) -> list[StageProgress]:
        """How far each stage is.

        Raises:
            IpsError: a table or a cursor can't be read.
        """
        with knowing_partitions(self.lineage.instance):
            records = self.runs()
            return progress(self.plan, {each.asset: self._seen(each, records) for each in self.plan.stages})

    def unfinished(self) -> list[str]:
        """Sentences on the stages that aren't fully computed yet; empty if all are.

        Raises:
            IpsError: as for ``progress``.
        """
        found = []
        for stage in self.progress():
            open_parts = {state: stage.count(state) for state in PartState if state is not PartState.DONE}
            counts = ", ".join(f"{count} {state}" for state, count in open_parts.items() if count)
            found += [f"{stage.asset} isn't finished: of {len(stage.parts)} parts, {counts}"] if counts else []
        return found

    def runs(self) -> list[dg.RunRecord]:
        """Every run that the backfill caused, oldest first."""
        tables = [found for stage in self.plan.stages if (found := self.lineage.metadata(stage.asset)) is not None]
        return runs_of(self.lineage.instance, self.plan.id, commits_of(tables, self.plan.id))

    def cancel(self) -> list[str]:
        """Cancel Dagster's backfill and all runs that it caused; returns the ids of the runs that were told to end.

        Published results stay, and downstream assets still follow them; a revert undoes them.
        """
        instance = self.lineage.instance
        for found in self._backfills():
            if (ending := cancelling(found)) is not None:
                with effect(Effect.END_BACKFILL):
                    instance.update_backfill(ending)
        ended = []
        for record in self.runs():
            run = record.dagster_run
            if run.status in _CANCELABLE:
                with effect(Effect.END_BACKFILL):
                    instance.run_coordinator.cancel_run(run.run_id)
                ended.append(run.run_id)
        return ended

    def _seen(self, stage: PlannedStage, records: Sequence[dg.RunRecord]) -> StageSeen:
        key, is_root = dg.AssetKey.from_user_string(stage.asset), stage is self.plan.root
        runs = [each.dagster_run for each in records if key in (each.dagster_run.asset_selection or ())]
        ran: dict[str, PartState] = {}
        for run in runs:
            state = _STATES.get(run.status, PartState.RUNNING)
            ran |= dict.fromkeys(self._parts(run, stage), state)
            if state is PartState.FAILED:  # A later stage may have failed, after this one was published.
                ran |= dict.fromkeys(self._materialized_by(run, key), PartState.DONE)
        size, rows = captured_by(self.lineage.instance, stage.asset, {r.run_id for r in runs if r.is_success})
        is_backfilled = is_root or self.is_staged
        return StageSeen(
            ran,
            self._waiting(stage) - {part for part, state in ran.items() if state is PartState.RUNNING},
            size,
            rows,
            is_backfilled=is_backfilled,
            is_requested=is_backfilled and self.is_at_work(),
        )

    def _backfills(self) -> list[Any]:
        """Dagster's own backfill and its re-executions.

        An instance whose data wasn't migrated finds by their tags only those that have runs already.
        """
        tagged, own = backfills_with_tag(self.lineage.instance, PLAN_TAG, self.plan.id), self.dagsters()
        others = [each for each in tagged if each.backfill_id != self.plan.id]
        return others if own is None else [own, *others]

    def _parts(self, run: dg.DagsterRun, stage: PlannedStage) -> Iterable[str]:
        definition = self.lineage.partitions_def(stage.asset)
        if definition is None:
            return [""]
        if RANGE_START_TAG in run.tags:
            span = dg.PartitionKeyRange(run.tags[RANGE_START_TAG], run.tags[RANGE_END_TAG])
            try:
                return definition.get_partition_keys_in_range(span)
            except Exception:  # noqa: BLE001  # each definition raises another one for a key that no longer exists
                return self._materialized_by(run, dg.AssetKey.from_user_string(stage.asset))
        return [run.tags[_PARTITION_TAG]] if _PARTITION_TAG in run.tags else []

    def _materialized_by(self, run: dg.DagsterRun, key: dg.AssetKey) -> set[str]:
        logged = self.lineage.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        made = [each.asset_materialization for each in logged if each.asset_materialization]
        return {each.partition or "" for each in made if each.asset_key == key}

    def _waiting(self, stage: PlannedStage) -> frozenset[str]:
        """The planned parts of a stage that have a pending change, whatever caused it."""
        known = self.lineage.consumers.get(stage.asset)
        if known is None or stage is self.plan.root or self.is_staged:
            return frozenset()
        is_partitioned = known.consumer.is_partitioned
        waiting = self._waiting_partitions(stage) if is_partitioned else self._waiting_whole(known, stage)
        return frozenset(waiting & set(stage.parts))

    def _waiting_partitions(self, stage: PlannedStage) -> set[str]:
        known, found = self.lineage.known(stage.asset, self.lineage.metadata(stage.asset)), set[str]()
        for tracked in self.lineage.inputs(stage.asset).values():
            source = self.lineage.metadata(tracked.upstream) if tracked.upstream in stage.upstreams else None
            if source is not None:
                storage = self.lineage.lake(tracked.upstream).storage
                found |= look_at(storage, source, tracked, known, stage.asset).pending.keys()
        return found

    def _waiting_whole(self, known: KnownConsumer, stage: PlannedStage) -> set[str]:
        lake = self.lineage.lake(stage.asset)
        inspector = Inspector(lake, self.lineage.store, stage.table, known.manager.icdc_namespace)
        inputs = [each for each in known.consumer.inputs.values() if each.upstream in stage.upstreams]
        statuses = [inspector.status(stage.asset, each) for each in inputs]
        # An input that can't be followed counts as pending, too: the next run says why.
        return {"" for each in statuses if each.problem or (each.pending and each.pending.files)}
