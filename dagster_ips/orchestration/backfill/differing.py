"""Compares each stage of a backfill with its state before the backfill."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.aggregates import hidden
from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.row_changes import RowChanges, all_together
from dagster_ips.core.write_mode import Append, ByQuery, Combine, Merge
from dagster_ips.errors import BackfillError
from dagster_ips.exactly_once.capture.partition_captures import rows_of
from dagster_ips.exactly_once.snapshot_rows import snapshot_rows
from dagster_ips.iceberg.cascade_stamps import belongs_to
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import is_of_same_attempt
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.declare.declarations import write_mode_of
from dagster_ips.orchestration.declare.sql_assets import query_of
from dagster_ips.spark.comparison import Example
from dagster_ips.spark.row_differences import RowDifferences, differences

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame

OF_NO_PARTITION = "rows outside all partitions"


@dataclass(frozen=True, slots=True)
class StageDifference:
    """How a stage differs from its state before, by partition; the key is ``""`` without partitions.

    Partitions without rows are left out. ``keys`` are the columns that identify a row; without any, rows are compared
    as a whole. ``repeated_keys`` don't identify one, since several rows have the same. ``others`` are commits since
    then that belong to other changes; the differences include their rows. With ``against_full``, "before" isn't an
    earlier state but a recompute by the asset's own function, from everything that the table was made of.
    ``uncompared`` says for which partitions there is none, and why.
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
    uncompared: Mapping[str, str] = field(default_factory=dict)
    repeated_keys: tuple[str, ...] = ()

    @property
    def total(self) -> RowChanges:
        """The changes of all partitions together."""
        return all_together(self.parts.values())


@dataclass(frozen=True)
class StageComparer:
    """Compares the tables of a backfill, as published or as staged, with their states before it."""

    lineage: AssetLineage
    backfill: LaunchedBackfill

    @property
    def plan(self) -> BackfillPlan:
        """The backfill's plan."""
        return self.backfill.plan

    def compare(self, *, most_examples: int) -> Iterator[StageDifference]:
        """Compare stage after stage.

        Raises:
            BackfillError: the state before is no longer kept.
            IpsError: a table can't be read.
        """
        for stage in self.plan.stages:
            with knowing_partitions(self.lineage.instance):
                yield self._of_stage(stage, most_examples)

    def _of_stage(self, stage: PlannedStage, most_examples: int) -> StageDifference:
        now, keys = self.lineage.metadata(stage.asset), RowKeys.of(self.lineage, stage.asset)
        metadata = now.on_branch(self.plan.staged_branch) if now else None
        head = metadata.head_snapshot_id() if metadata else None
        at = before_snapshot(self.backfill, stage, metadata)
        if metadata is None or head is None or at == head:
            return StageDifference(stage.asset, stage.table, at, head, keys.columns)
        slicing = self.lineage.own_slicing(stage.asset) if stage.partitions is not None else None
        after = self._rows(stage, metadata, head, slicing)
        before = after.limit(0) if at is None else self._rows(stage, metadata, at, slicing)
        found = differences(
            before,
            after,
            keys=keys.columns,
            divided_by=slicing.upstream_keys.columns if slicing else (),
            by_minute=slicing.upstream_keys.by_minute if slicing else (),
            keys_may_repeat=keys.may_repeat,
            most_examples=most_examples,
        )
        return StageDifference(
            stage.asset,
            stage.table,
            at,
            head,
            () if found.repeats_keys else keys.columns,
            parts=by_partition(found, slicing),
            examples=found.examples,
            others=tuple(_others(metadata, at, self.plan.id)),
            repeated_keys=keys.columns if found.repeats_keys else (),
        )

    def _rows(
        self, stage: PlannedStage, metadata: TableMetadata, snapshot_id: int, slicing: Slicing | None
    ) -> DataFrame:
        """The stage's rows at a snapshot, without hidden columns: what they keep is of no use to readers."""
        session, lake = self.lineage.session(stage.asset), self.lineage.lake(stage.asset)
        frame = snapshot_rows(session, lake.name, metadata, metadata.snapshots[snapshot_id], storage=lake.storage)
        frame = frame.drop(*hidden(frame.columns))
        rows = rows_of_stage(stage.partitions, metadata, slicing)
        return frame if rows is None else frame.where(rows)


@dataclass(frozen=True, slots=True)
class RowKeys:
    """The columns that identify an asset's rows, by its write mode; empty if none are known.

    ``may_repeat`` says that only the rows tell whether they do.
    """

    columns: tuple[str, ...] = ()
    may_repeat: bool = False

    @classmethod
    def of(cls, lineage: AssetLineage, asset: str) -> RowKeys:
        """Those of an asset."""
        match write_mode := write_mode_of(lineage.node(asset).metadata, asset):
            case Merge(on=on) | Combine(on=on):
                return cls(on)
            case Append(dedup_on=dedup_on, remove_on=remove_on):
                return cls(dedup_on or remove_on, may_repeat=not dedup_on)
            case ByQuery():
                query = query_of(write_mode)
                return cls(query.grouped_by if query else (), may_repeat=True)
            case _:
                return cls()


def before_snapshot(backfill: LaunchedBackfill, stage: PlannedStage, metadata: TableMetadata | None) -> int | None:
    """The stage's state before the backfill, as the launch tagged it; None if its table had no snapshot then.

    Raises:
        BackfillError: the state is no longer kept.
    """
    before, tag = backfill.before.get(stage.table), backfill.plan.before_tag
    if before is None:
        return None
    remedy = "It was released, or has expired: next time, launch with a larger --keep-days."
    if backfill.is_staged:
        remedy = f"If it was cancelled, that dropped what it had staged and the previous states. Otherwise: {remedy}"
    if metadata is None:
        gone, remedy = f"{stage.table} was dropped", "Its next run recomputes it."
    elif tag not in metadata.tags:
        gone = f"its tag {tag} is gone"
    elif metadata.head_snapshot_id(tag) != before:
        gone, remedy = f"its tag {tag} was moved", f"Move it back to snapshot {before}, if that is still there."
    else:
        return before
    raise BackfillError(backfill.plan.id, f"the previous state of {stage.table} is no longer kept: {gone}.", remedy)


def rows_of_stage(
    partitions: Collection[str] | None, metadata: TableMetadata, slicing: Slicing | None
) -> Predicate | None:
    """A condition for the rows of a stage's ``partitions``; None if that is the whole table."""
    return None if slicing is None or partitions is None else rows_of(metadata, slicing, partitions)


def by_partition(found: RowDifferences, slicing: Slicing | None) -> dict[str, RowChanges]:
    """The differences by the rows' partition; the key is ``""`` without partitions."""
    parts: dict[str, RowChanges] = {}
    for values, changes in found.by_values.items():
        key = "" if slicing is None else _key_of(values, slicing)
        parts[key] = parts.get(key, RowChanges()).plus(changes)
    return dict(sorted(parts.items()))


def _key_of(values: Sequence[Any], slicing: Slicing) -> str:
    keys = slicing.upstream_keys.of_values({tuple(values)}).keys
    return next(iter(keys or ()), OF_NO_PARTITION)


def _others(metadata: TableMetadata, before: int | None, backfill: str) -> Iterator[int]:
    """The commits after ``before`` that changed rows and don't belong to the backfill, newest first.

    Of a block of an asset's own statements, only the last commit says what it belongs to.
    """
    blocks: list[Snapshot] = []
    for snapshot in metadata.ancestry().snapshots:
        if snapshot.snapshot_id == before:
            return
        if belongs_to(snapshot, backfill):
            blocks.append(snapshot)
        elif not snapshot.keeps_rows and not any(is_of_same_attempt(each, snapshot) for each in blocks[-1:]):
            yield snapshot.snapshot_id
