"""Compares each stage of a backfill with a recompute by its own function, from everything that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.backfill_plan import BackfillPlan, PlannedStage
from dagster_ips.core.row_changes import RowChanges
from dagster_ips.errors import UnprovableError
from dagster_ips.exactly_once.inspect.claims import Claim, ClaimedPart, Prover
from dagster_ips.exactly_once.snapshot_rows import current_rows
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.differing import RowKeys, StageDifference, by_partition, rows_of_stage
from dagster_ips.orchestration.declare.consumers import captures_by_itself
from dagster_ips.orchestration.run.known_consumers import KnownConsumer
from dagster_ips.orchestration.run.recompute_asset import Asset, Surroundings, recompute
from dagster_ips.spark.comparison import Example
from dagster_ips.spark.row_differences import RowDifferences, differences

_UNPUBLISHED = "nothing of it is known to be published."


@dataclass(frozen=True)
class StageValidator:
    """Recomputes the planned partitions and compares the tables, as published or as staged, with the result.

    ``definitions`` contain the assets' functions. Nothing is written or consumed.
    """

    lineage: AssetLineage
    plan: BackfillPlan
    definitions: Sequence[dg.Definitions]

    def compare(self, *, most_examples: int) -> Iterator[StageDifference]:
        """Compare stage after stage, with the recompute in place of the state before.

        What can't be recomputed is named, and the others are compared.

        Raises:
            IpsError: a table can't be read.
            Exception: what a function raises.
        """
        for stage in self.plan.stages:
            with knowing_partitions(self.lineage.instance):
                try:
                    found = self._of_stage(stage, most_examples)
                except UnprovableError as error:
                    found = self._untold(stage, dict.fromkeys(stage.parts, _why(error)))
                yield found

    def _of_stage(self, stage: PlannedStage, most_examples: int) -> StageDifference:
        known = self._provable(stage)
        lake = self.lineage.lake(stage.asset).on_branch(self.plan.staged_branch)
        prover = Prover(lake, self.lineage.store)
        inputs = list(self.lineage.inputs(stage.asset).values())
        claim = prover.claim(stage.asset, stage.table, inputs, stage.partitions)
        begun = claim.begun if claim else ()
        known_parts = {key or "" for key in begun}
        uncompared = {part: _UNPUBLISHED for part in stage.parts if part not in known_parts}
        if claim is None:
            return self._untold(stage, uncompared)
        asset = self._asset(known)
        parts, untold = prover.parts(claim, begun, each_alone=asset.sees_one_partition)
        uncompared |= {key or "": _why(error) for key, error in untold.items()}
        found: dict[str, RowChanges] = {}
        examples: list[Example] = []
        repeats: list[bool] = []
        for part in parts:
            differing, changes = self._of_part(stage, claim, asset, part, most_examples - len(examples))
            found |= changes
            examples += differing.examples
            repeats.append(differing.repeats_keys)
        keys = RowKeys.of(self.lineage, stage.asset).columns
        return replace(
            self._untold(stage, uncompared),
            after_snapshot_id=claim.target.head_snapshot_id(),
            keys=() if repeats and all(repeats) else keys,
            parts=found,
            examples=tuple(examples),
            repeated_keys=keys if any(repeats) else (),
        )

    def _untold(self, stage: PlannedStage, uncompared: Mapping[str, str]) -> StageDifference:
        keys = RowKeys.of(self.lineage, stage.asset).columns
        return StageDifference(stage.asset, stage.table, None, None, keys, against_full=True, uncompared=uncompared)

    def _provable(self, stage: PlannedStage) -> KnownConsumer:
        known, key = self.lineage.consumers.get(stage.asset), dg.AssetKey.from_user_string(stage.asset)
        if known is None or captures_by_itself(known.graph.get(key).assets_def, key):
            why = "it reads nothing incrementally" if known is None else "it is written by its own statements"
            remedy = "Compare it with its previous state instead: omit --against."
            raise UnprovableError(stage.asset, f"{why}, so no function returns all of its rows", remedy)
        return known

    def _asset(self, known: KnownConsumer) -> Asset:
        definition = known.graph.get(known.consumer.key).assets_def
        return Asset(definition, known.consumer, definition.get_io_manager_key_for_asset_key(known.consumer.key))

    def _of_part(
        self, stage: PlannedStage, claim: Claim, asset: Asset, part: ClaimedPart, most_examples: int
    ) -> tuple[RowDifferences, Mapping[str, RowChanges]]:
        manager, target = self.lineage.table(stage.asset).manager, claim.target
        lake = self.lineage.lake(stage.asset).on_branch(self.plan.staged_branch)
        slicing = self.lineage.own_slicing(stage.asset) if stage.partitions is not None else None
        keys = RowKeys.of(self.lineage, stage.asset)
        rows = rows_of_stage(part.partitions, target, slicing)
        with dg.build_resources(self._resources(asset)) as resources:
            around = Surroundings(self.lineage.consumers[stage.asset].graph, self.lineage.instance, resources, lake)
            made = recompute(asset, part, manager, around)
            frame = made.frame
            there = current_rows(frame.sparkSession, lake.name, target, storage=lake.storage)
            found = differences(
                frame if rows is None else frame.where(rows),
                there if rows is None else there.where(rows),
                keys=keys.columns,
                divided_by=slicing.upstream_keys.columns if slicing else (),
                by_minute=slicing.upstream_keys.by_minute if slicing else (),
                keys_may_repeat=keys.may_repeat,
                any_row_of_key=made.keeps_any_row,
                most_examples=most_examples,
            )
            made.release()
        return found, by_partition(found, slicing)

    def _resources(self, asset: Asset) -> dict[str, object]:
        """The resources that an asset's function needs, from the definitions that compute the asset."""
        key = asset.consumer.key
        graphs = ((each, each.resolve_asset_graph()) for each in self.definitions)
        of = next(each for each, graph in graphs if graph.has(key) and graph.get(key).is_executable)
        return {name: (of.resources or {})[name] for name in asset.resources}


def _why(error: UnprovableError) -> str:
    return f"{error.problem}. {error.remedy}"
