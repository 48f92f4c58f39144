"""All actions on managed backfills, which the command line and the job in Dagster's UI offer."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import dagster as dg

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage
from dagster_ips.errors import BackfillError, InstanceError, UnknownBackfillError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.publisher import Publication
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.differing import StageComparer, StageDifference
from dagster_ips.orchestration.backfill.following import BackfillFollower
from dagster_ips.orchestration.backfill.launching import BackfillLauncher
from dagster_ips.orchestration.backfill.planning import partitions_with_rows, planned
from dagster_ips.orchestration.backfill.reverting import BackfillReverter, Reverted, RevertPlan
from dagster_ips.orchestration.backfill.staging import StagedBackfill, StagedPublication
from dagster_ips.orchestration.backfill.validating import StageValidator
from dagster_ips.orchestration.run.known_consumers import consumer_named, known_consumers, known_tables
from dagster_ips.progress.made_rows import older_rows_of, partitions_not_of
from dagster_ips.progress.table_progress import newest_progress


@dataclass(frozen=True)
class BackfillDesk:
    """The managed backfills of some definitions on an instance."""

    definitions: Sequence[dg.Definitions]
    lineage: AssetLineage

    @classmethod
    def of(cls, definitions: Sequence[dg.Definitions], instance: dg.DagsterInstance) -> BackfillDesk:
        """The desk for all assets of ``definitions``.

        Raises:
            DeclarationError: a declaration can't work.
        """
        graphs = [each.resolve_asset_graph() for each in definitions]
        lineage = AssetLineage(known_consumers(*definitions), known_tables(*definitions), graphs, instance)
        return cls(definitions, lineage)

    def span(self, asset: str, span: str) -> list[str]:
        """The partitions of ``asset`` in the span ``A...B`` or ``A..B``, both included; ``span`` itself if it is a key.

        With several dimensions, these are the keys between both ends in each dimension, as in Dagster.

        Raises:
            InstanceError: there are no such partitions.
            UnknownConsumerError: there is no such asset.
        """
        definition = self.lineage.partitions_def(asset)
        first, dots, last = span.partition("..." if "..." in span else "..")
        if definition is None or not dots:
            return [span]
        keys = list(definition.get_partition_keys(dynamic_partitions_store=self.lineage.instance))
        if span in keys:
            return [span]
        with knowing_partitions(self.lineage.instance):
            are_there = first in keys and last in keys
            within = definition.get_partition_keys_in_range(dg.PartitionKeyRange(first, last)) if are_there else ()
        if not within:
            problem = f"{asset} has no partitions from {first} to {last}."
            if are_there and not isinstance(definition, dg.MultiPartitionsDefinition):
                problem = f"{first} comes after {last}, so there is nothing from the one to the other."
                raise InstanceError(problem=problem, remedy=f"Swap them: {last}...{first}")
            raise InstanceError(
                problem=problem,
                remedy=f"Its partitions are {keys[0]} to {keys[-1]}." if keys else "It has no partitions.",
            )
        return list(within)

    def of_older_code(self, asset: str) -> list[str] | None:
        """The partitions with rows that an older version of the asset's code computed; None without partitions.

        They include partitions of which it is unknown which version computed them.

        Raises:
            InstanceError: no such rows are known.
            UnknownConsumerError: there is no such asset.
        """
        code, target = consumer_named(self.lineage.consumers, asset).code_version, self.lineage.metadata(asset)
        definition = self.lineage.partitions_def(asset)
        there = definition.get_partition_keys(dynamic_partitions_store=self.lineage.instance) if definition else None
        known = newest_progress(target) if target is not None else None
        if there is not None:
            computed = partitions_with_rows(self.lineage, asset) | (known.progress.made.keys() if known else set())
            there = [key for key in there if key in computed]
        older = older_rows_of(target, code, there) if target is not None else None
        found = set(older.partitions if older is not None else ())
        if there is not None and known is not None:
            found |= partitions_not_of(known.progress, code, there)
        if older is None and not found:
            problem = f"No rows of {asset} are known to come from an older code version."
            raise InstanceError(
                problem=problem, remedy="Name the partitions, or omit the option to recompute all of them."
            )
        return None if there is None else [key for key in there if key in found]

    def plan(self, asset: str, partitions: Sequence[str] | None) -> BackfillPlan:
        """Plan a backfill of ``partitions`` of ``asset``, or of all partitions if None, and store the plan.

        Raises:
            UnknownConsumerError: no table of the asset is known.
            InstanceError: the asset can't be computed here, or doesn't have such partitions.
            IpsError: a table can't be read.
        """
        made = planned(self.lineage, asset, partitions, now_ms=_now_ms())
        with effect(Effect.RECORD_BACKFILL):
            self.lineage.store.set_backfill(made)
        return made

    def planned(self, backfill: str) -> BackfillPlan:
        """The plan with an id, launched or not.

        Raises:
            UnknownBackfillError: there is no such plan.
        """
        found = self._found(backfill)
        return found if isinstance(found, BackfillPlan) else found.plan

    def launched(self, backfill: str) -> LaunchedBackfill:
        """The record of a launched backfill.

        Raises:
            UnknownBackfillError: there is no such backfill.
            BackfillError: it has only been planned.
        """
        found = self._found(backfill)
        if isinstance(found, BackfillPlan):
            remedy = f"To launch it: dagster-ips backfill launch {backfill}"
            raise BackfillError(backfill=backfill, problem="it has been planned but not launched.", remedy=remedy)
        return found

    def follower(self, backfill: str) -> BackfillFollower:
        """The follower of a launched backfill.

        Raises:
            BackfillError: the definitions lack one of its stages.
            As for ``launched``.
        """
        launched = self.launched(backfill)
        self._require_stages(launched.plan)
        return BackfillFollower(self.lineage, launched.plan, launched.is_staged)

    def staged(self, backfill: str) -> StagedBackfill | None:
        """The staged backfill; None if it was launched live.

        Raises:
            As for ``launched``.
        """
        launched = self.launched(backfill)
        return StagedBackfill(self.lineage, launched) if launched.is_staged else None

    def reverter(self, backfill: str) -> BackfillReverter:
        """The reverter of a backfill that was launched and, if it was staged, published.

        Raises:
            BackfillError: nothing of it is published, or the definitions don't write its first stage.
            As for ``launched``.
        """
        launched = self.launched(backfill)
        self._require_written([launched.plan.root], backfill)
        if (staged := self.staged(backfill)) is not None:
            staged.require_published()
        return BackfillReverter(self.lineage, launched)

    def reverted(self, backfill: str) -> Reverted | None:
        """What has been reverted of a launched backfill so far; None if nothing has.

        Raises:
            As for ``launched`` and ``BackfillReverter.reverted``.
        """
        return BackfillReverter(self.lineage, self.launched(backfill)).reverted()

    def launch(
        self, plan: BackfillPlan, *, who: str, staged: bool, although_moved: bool, keep_days: int
    ) -> LaunchedBackfill:
        """Launch a plan, live or staged; the previous states are kept for ``keep_days``.

        Raises:
            BackfillError: the definitions lack one of its stages, or don't write it.
            As for ``BackfillLauncher.launch`` and ``stage``.
        """
        self._require_stages(plan)
        self._require_written(plan.stages, plan.id)
        launcher = BackfillLauncher(self.lineage, keep_days)
        by = launcher.stage if staged else launcher.launch
        return by(plan, who=who, although_moved=although_moved, now_ms=_now_ms())

    def compare(self, backfill: str, *, against: str, examples: int) -> Iterator[StageDifference]:
        """How each stage differs from its state ``before``, or from a ``full`` recompute.

        Raises:
            As for ``launched``, ``StageComparer.compare`` and ``StageValidator.compare``.
        """
        launched = self.launched(backfill)
        comparer: StageComparer | StageValidator = (
            StageValidator(self.lineage, launched.plan, self.definitions)
            if against == "full"
            else StageComparer(self.lineage, launched)
        )
        return comparer.compare(most_examples=examples)

    def cancel(self, backfill: str) -> tuple[list[str], bool]:
        """Cancel a backfill; returns the runs that were told to end, and whether all of it was staged and is dropped.

        Raises:
            As for ``launched``.
        """
        staged = self.staged(backfill)
        ended = self.follower(backfill).cancel()
        return ended, staged is not None and staged.discard()

    def publishable(self, backfill: str) -> StagedBackfill:
        """The staged backfill.

        Raises:
            BackfillError: it was launched live.
            As for ``launched``.
        """
        staged = self.staged(backfill)
        if staged is None:
            remedy = f"To compare its stages with their previous states: dagster-ips backfill diff {backfill}"
            raise BackfillError(backfill, "it was launched live, so each stage is published as it runs.", remedy)
        return staged

    def publish(self, backfill: str) -> StagedPublication:
        """Publish what a backfill has staged, or continue an interrupted publication.

        Raises:
            BackfillError: it isn't staged, or can't be published, or the definitions don't write one of its stages.
        """
        self._require_written(self.launched(backfill).plan.stages, backfill)
        return self.publishable(backfill).publish(self.follower(backfill).unfinished())

    def revert(
        self, backfill: str, partitions: Collection[str] | None, *, leave_out_changed: bool
    ) -> tuple[RevertPlan, Publication]:
        """Revert a backfill; a publication of it that is in progress isn't continued.

        Raises:
            BackfillError: Dagster still starts runs of it, or one isn't finished.
            As for ``reverter`` and ``BackfillReverter.revert``.
        """
        reverter, staged = self.reverter(backfill), self.staged(backfill)
        follower = BackfillFollower(self.lineage, reverter.backfill.plan, staged is not None)
        if follower.is_at_work():
            problem = "Dagster still starts runs of it, which would compute the partitions again. Nothing was reverted."
            raise BackfillError(backfill, problem, f"First cancel it: dagster-ips backfill cancel {backfill}")
        if (run_id := follower.unfinished_run()) is not None:
            problem = f"its run {run_id} isn't finished and could still publish rows. Nothing was reverted."
            remedy = (
                f"Wait for it, or end it: dagster-ips backfill cancel {backfill}. If its process is gone, terminate it "
                "by force in Dagster's UI."
            )
            raise BackfillError(backfill, problem, remedy)
        drop_staged: Callable[[], object] = staged.discard if staged else lambda: None
        return reverter.revert(partitions, leave_out_changed=leave_out_changed, drop_staged=drop_staged)

    def release(self, backfill: str) -> list[str]:
        """Stop keeping the states before a backfill; returns the tables that had such a state.

        Raises:
            BackfillError: it is staged and not fully published.
            As for ``launched``.
        """
        if (staged := self.staged(backfill)) is not None:
            staged.require_no_branches()
        return BackfillLauncher(self.lineage).release(self.launched(backfill).plan)

    def _found(self, backfill: str) -> BackfillPlan | LaunchedBackfill:
        found = self.lineage.store.get_backfill(backfill)
        if found is None:
            is_of_dialog = self.lineage.instance.get_backfill(backfill) is not None
            raise UnknownBackfillError(backfill=backfill, is_of_dialog=is_of_dialog)
        return found

    def _require_stages(self, plan: BackfillPlan) -> None:
        known = {each.asset for each in self.lineage.tables}
        if gone := [stage.asset for stage in plan.stages if stage.asset not in known]:
            problem = f"{', '.join(gone)}, which it computes, isn't in these definitions. Nothing was done."
            remedy = (
                "Use the definitions that it was planned with: those of all its code locations (-w workspace.yaml), or "
                f"those from before {gone[0]} was removed or renamed. If it isn't launched yet, plan again."
            )
            raise BackfillError(plan.id, problem, remedy)

    def _require_written(self, stages: Sequence[PlannedStage], backfill: str) -> None:
        """Fail if one of ``stages`` is an outside table for these definitions: what its rows consumed is unknown then.

        Raises:
            BackfillError: one is.
        """
        outside = {each.asset for each in self.lineage.tables if each.is_outside} - self.lineage.written.keys()
        if found := [stage.asset for stage in stages if stage.asset in outside]:
            problem = f"{', '.join(found)}, which it computes, is an outside table in these definitions."
            remedy = (
                "Use the definitions that it was planned with: those of all its code locations (-w workspace.yaml). "
                "Nothing was done."
            )
            raise BackfillError(backfill, problem, remedy)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
