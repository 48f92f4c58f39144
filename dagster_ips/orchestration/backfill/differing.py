"""Compares each stage of a backfill with its state before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.backfill_plan import BackfillPlan, PlannedStage
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.row_changes import RowChanges, all_together
from dagster_ips.core.write_mode import Append, Combine, Merge
from dagster_ips.errors import BackfillError
from dagster_ips.iceberg.cascade_stamps import CASCADE
from dagster_ips.iceberg.file_spans import column_kinds
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.declare.declarations import write_mode_of
from dagster_ips.spark.comparison import Example
from dagster_ips.spark.frames import table_frame
from dagster_ips.spark.row_differences import RowDifferences, differences
from dagster_ips.spark.writes.partials import as_read

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame

OF_NO_PARTITION = "rows outside all partitions"


@dataclass(frozen=True, slots=True)
class StageDifference:
    """How a stage differs from before: by partition, ``""`` without partitions; those without rows are left out.

    ``keys`` are the columns that tell a row; without any, a changed row is one that went and one that came. ``others``
    are commits since that belong to other changes, whose rows are among what differs. ``against_full``: what is called
    before is no earlier state, but what the asset's own function makes of all that the table was made of.
    """

    asset: str
    table: str
    before_snapshot_id: int | None
    after_snapshot_id: int | None
    keys: tuple[str, ...]
    parts: Mapping[str, RowChanges] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    others: tuple[int, ...] = ()
    against_full: bool = False

    @property
    def total(self) -> RowChanges:
        """Of all its parts."""
        return all_together(self.parts.values())


@dataclass(frozen=True)
class StageComparer:
    """Compares the tables of a backfill as they are, or as it has staged them, with their states before it."""

    lineage: AssetLineage
    plan: BackfillPlan

    def compare(self, *, most_examples: int) -> Iterator[StageDifference]:
        """Stage after stage.

        Raises:
            BackfillError: the state before isn't kept any more.
            IpsError: a table can't be read.
        """
        for stage in self.plan.stages:
            with knowing_partitions(self.lineage.instance):
                yield self._of_stage(stage, most_examples)

    def _of_stage(self, stage: PlannedStage, most_examples: int) -> StageDifference:
        now, keys = self.lineage.metadata(stage.asset), row_keys(self.lineage, stage.asset)
        metadata = now.on_branch(self.plan.staged_branch) if now else None
        head = metadata.head_snapshot_id() if metadata else None
        if metadata is None or head is None:
            return StageDifference(stage.asset, stage.table, None, head, keys)
        at = before_snapshot(self.plan, stage, metadata)
        slicing = self.lineage.own_slicing(stage.asset) if stage.partitions is not None else None
        if at == head:
            return StageDifference(stage.asset, stage.table, at, head, keys)
        after = self._rows(stage, metadata, head, slicing)
        before = after.limit(0) if at is None else self._rows(stage, metadata, at, slicing)
        columns = slicing.upstream_keys.columns if slicing else ()
        by_minute = slicing.upstream_keys.by_minute if slicing else ()
        found = differences(
            before, after, keys=keys, divided_by=columns, by_minute=by_minute, most_examples=most_examples
        )
        parts = by_partition(found, slicing)
        others = tuple(_others(metadata, at, self.plan.id))
        return StageDifference(stage.asset, stage.table, at, head, keys, parts, found.examples, others)

    def _rows(
        self, stage: PlannedStage, metadata: TableMetadata, snapshot_id: int, slicing: Slicing | None
    ) -> DataFrame:
        session = self.lineage.table(stage.asset).manager.session()
        lake = self.lineage.lake(stage.asset)
        frame = table_frame(session, lake.name, stage.table, snapshot_id=snapshot_id)
        frame = as_read(frame, metadata.properties)
        rows = rows_of_stage(stage, metadata, slicing)
        return frame if rows is None else frame.where(rows)


def row_keys(lineage: AssetLineage, asset: str) -> tuple[str, ...]:
    """The columns that tell an asset's rows apart, by its write mode; none where it has none."""
    match write_mode_of(lineage.node(asset).metadata, asset):
        case Merge(on=on) | Combine(on=on):
            return tuple(on)
        case Append(dedup_on=dedup_on):
            return tuple(dedup_on)
        case _:
            return ()


def before_snapshot(plan: BackfillPlan, stage: PlannedStage, metadata: TableMetadata) -> int | None:
    """The stage's state before the backfill; None if its table wasn't there.

    Raises:
        BackfillError: it isn't kept any more.
    """
    if plan.before_tag in metadata.tags:
        return metadata.head_snapshot_id(plan.before_tag)
    planned = next(each for each in plan.tables if each.asset == stage.asset)
    if planned.uuid is None:
        return None
    problem = f"the previous state of {stage.table} is no longer kept: its tag {plan.before_tag} is gone."
    raise BackfillError(backfill=plan.id, problem=problem, remedy="Next time, launch with a larger --keep-days.")


def rows_of_stage(stage: PlannedStage, metadata: TableMetadata, slicing: Slicing | None) -> Predicate | None:
    """The rows of a stage's partitions; None where that is all of its table."""
    if slicing is None or stage.partitions is None:
        return None
    kinds = column_kinds(metadata, slicing.upstream_keys.columns)
    return slicing.upstream_keys.predicate(stage.partitions, kinds)


def by_partition(found: RowDifferences, slicing: Slicing | None) -> dict[str, RowChanges]:
    """What differs by the partition of the rows; by ``""`` without partitions."""
    parts: dict[str, RowChanges] = {}
    for values, changes in found.by_values.items():
        key = "" if slicing is None else _key_of(values, slicing)
        parts[key] = parts.get(key, RowChanges()).plus(changes)
    return dict(sorted(parts.items()))


def _key_of(values: Sequence[Any], slicing: Slicing) -> str:
    keys = slicing.upstream_keys.of_values({tuple(values)}).keys
    return next(iter(keys or ()), OF_NO_PARTITION)


def _others(metadata: TableMetadata, before: int | None, backfill: str) -> Iterator[int]:
    """The commits after ``before`` that changed rows and aren't of the backfill, newest first."""
    for snapshot in metadata.ancestry().snapshots:
        if snapshot.snapshot_id == before:
            return
        is_of_it = backfill in Cascade.from_text(snapshot.summary.get(CASCADE, "")).ids
        if not (is_of_it or snapshot.keeps_rows or snapshot.changes_no_file):
            yield snapshot.snapshot_id
