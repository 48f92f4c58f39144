"""Restores rows of a target from an earlier snapshot, with stamps that say what the rows are made of then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite
from dagster_ips.core.ownership import ForeignWrites, told
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.target import settle
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import RevertError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.publisher import Publication, Publisher
from dagster_ips.exactly_once.snapshot_rows import stored_rows
from dagster_ips.exactly_once.target_table.target_history import histories_of, store_settled
from dagster_ips.iceberg import code_stamps, lookup_stamps
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import REVERTED
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.targets import set_properties
from dagster_ips.spark.writes.overwrite import replace_rows
from dagster_ips.spark.writes.overwrite_where import overwrite_matching


@dataclass(frozen=True, slots=True)
class MadeOf:
    """What rows were made of: an upstream up to ``to_inclusive``, without the keys that were ``left_out``.

    If a change was consumed only in part, ``bite`` is that part, and the change begins after ``from_exclusive``.
    ``division`` is what the key of the partition meant then; None if that is unknown.
    """

    to_inclusive: Watermark
    left_out: frozenset[str] | None
    from_exclusive: Watermark | None = None
    bite: Bite | None = None
    division: str | None = None


@dataclass(frozen=True, slots=True)
class Restoration:
    """What is restored in a ``table`` of ``asset``: ``rows`` as they are in ``snapshot_id``; None stands for all rows.

    ``consumed`` is what they were made of, by edge; what came later is consumed again. ``head`` is the snapshot up to
    which it is known that nothing of others is lost; None if that isn't asked.
    """

    backfill: str
    asset: str
    table: str
    snapshot_id: int
    rows: Predicate | None
    consumed: Mapping[Edge, MadeOf]
    head: int | None = None

    @property
    def partitions(self) -> list[str | None]:
        """The partitions that are restored; for an asset without partitions, a single None."""
        return list(dict.fromkeys(edge.partition for edge in self.consumed)) or [None]


@dataclass(frozen=True)
class Restorer:
    """Restores through a publisher: on a branch, published at once or not at all, unless someone published first."""

    publisher: Publisher

    def settle(self, target: TableMetadata | None, edges: Sequence[Edge]) -> None:
        """Commit what the target's stamps say and a run or a revert didn't live to commit."""
        store = self.publisher.store
        states = store.get_many(edges)
        store_settled(store, states, histories_of(self.publisher.catalog.storage, target, states.values()))

    def restore(self, wanted: Restoration) -> Publication:
        """Publish the rows as they were.

        Raises:
            RevertError: the table has lost columns since, or another run published or someone else wrote meanwhile.
            PublishError: ``main`` kept moving.
        """
        before = self.publisher.catalog.load(wanted.table, asset=wanted.asset)
        require_same_columns(before, wanted)
        captures = self._captures(before, wanted)
        # Set before it can be published: such snapshots are looked for only in tables with this property.
        if before.properties.get(REVERTED) != wanted.backfill:
            with effect(Effect.ANNOUNCE):
                set_properties(
                    self.publisher.session, self.publisher.catalog.name, wanted.table, {REVERTED: wanted.backfill}
                )
        at = before.as_of(wanted.snapshot_id, "main")
        said = code_stamps.restored(at, wanted.partitions) | (lookup_stamps.restored(at) if wanted.rows is None else {})
        properties = {**self.publisher.properties, REVERTED: wanted.backfill, **said}

        def write(branch: Branch, target: TableMetadata) -> None:
            require_nothing_newer(target, wanted)
            session = self.publisher.session
            snapshot, storage = target.snapshots[wanted.snapshot_id], self.publisher.catalog.storage
            old = stored_rows(session, branch.catalog, target, snapshot, storage=storage)
            if wanted.rows is None:
                replace_rows(old, branch, table_is_empty=False)
            else:
                rows = old.where(wanted.rows)
                files = target.whole_file_columns()
                overwrite_matching(
                    rows, branch, where=wanted.rows, whole_file_columns=files, hidden=target.hidden_names
                )

        published = replace(self.publisher, properties=properties).publish(
            wanted.table, captures, write, consumer=wanted.asset
        )
        if published.superseded_by:
            raise RevertError(
                backfill=wanted.backfill,
                table=wanted.table,
                problems=("another run published in the meantime",),
                remedy="Revert again when no run is writing it.",
            )
        return published

    def _captures(self, target: TableMetadata, wanted: Restoration) -> list[Capture]:
        """The captures that the commit is stamped with, like a run's; numbered after all that was consumed before."""
        states = self.publisher.store.get_many(wanted.consumed)
        histories = histories_of(self.publisher.catalog.storage, target, states.values())
        captures = []
        for edge, consumed in wanted.consumed.items():
            state, history = settle(states[edge], histories.get(edge)), histories.get(edge)
            captures.append(
                Capture(
                    edge=edge,
                    number=state.next_number,
                    mode=Mode.FULL,
                    reason=f"reverts backfill {wanted.backfill}",
                    from_exclusive=consumed.from_exclusive,
                    to_inclusive=consumed.to_inclusive,
                    icdc_table="",
                    run_id=self.publisher.run_id,
                    after_stamp=history.newest.target.snapshot_id if history and history.newest else None,
                    bite=consumed.bite,
                    target=state.target,
                    left_out=consumed.left_out,
                    division=consumed.division,
                )
            )
        return captures


def require_same_columns(target: TableMetadata, wanted: Restoration) -> None:
    """Fail unless the table still has all columns of the rows to restore.

    Raises:
        RevertError: the table has lost columns since.
    """
    snapshot = target.snapshots[wanted.snapshot_id]
    others = target.columns_of_other_meaning(snapshot.schema_id)
    lost = target.columns_lost_since(snapshot.schema_id)
    problems = [f"it is unknown whether {wanted.table} still has the same columns"] if others is None else []
    problems += [f"column {name} is a different column now" for name in others or ()]
    problems += [f"column {name} has since been dropped or renamed" for name in lost]
    if problems:
        remedy = "Recompute the partitions with the code that produced them."
        raise RevertError(wanted.backfill, wanted.table, tuple(problems), remedy)


def require_nothing_newer(target: TableMetadata, wanted: Restoration) -> None:
    """Fail if someone else changed the table after it was found out what a revert would lose.

    Raises:
        RevertError: someone did.
    """
    known = [] if wanted.head is None else [wanted.head]
    newer = ForeignWrites.of(target.ancestry(), wanted.asset).after(known) if known else ()
    if newer:
        problems = (f"someone else has changed the table in the meantime, in {told(newer[0])}",)
        raise RevertError(wanted.backfill, wanted.table, problems, "Revert again: it then says what would be lost.")
