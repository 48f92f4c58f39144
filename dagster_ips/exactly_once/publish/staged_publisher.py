"""Publishes what a backfill has staged on a branch; the branch's own stamps then say what is consumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.edge import Edge
from dagster_ips.core.target import settle_all
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.target_table.target_history import histories_of, store_settled
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.code_stamps import lasting_properties
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import BranchStamps, announcements, division_properties, published
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.targets import set_properties
from dagster_ips.state.store import EdgeStore

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession


@dataclass(frozen=True)
class StagedPublisher:
    """Makes a branch that many runs wrote, each with its stamps, the ``main`` of its table."""

    catalog: LakeCatalog
    store: EdgeStore
    session: SparkSession

    def consumed_since(self, target: TableMetadata, stamped: Mapping[Edge, BranchStamps]) -> list[Edge]:
        """The edges for which a run has consumed more, or a person has changed something, since the branch was written.

        The branch's stamps would take these edges back to before that.
        """
        states = self.store.get_many(stamped)
        histories = histories_of(self.catalog.storage, target, states.values())
        settled = settle_all(states, histories)
        return [edge for edge, each in stamped.items() if settled[edge].next_number != each.first_number]

    def publish(self, target: TableMetadata, branch: Branch, stamped: Mapping[Edge, BranchStamps]) -> None:
        """Announce the head of ``branch``, make it the head of ``main``, and commit what it is made of.

        Raises:
            Exception: the engine's, if ``main`` is no longer an ancestor of the branch; nothing was published.
        """
        self.announce(target, branch, stamped)
        try:
            with effect(Effect.PUBLISH):
                branch.fast_forward(self.session, onto="main")
        except Exception:
            now, head = self.catalog.load(branch.table, asset=branch.table), target.head_snapshot_id(branch.name)
            if head is None or now.ancestry().find(head) is None:  # Otherwise the error came after it took effect.
                raise
        self.commit(branch.table, stamped)

    def announce(self, target: TableMetadata, branch: Branch, stamped: Mapping[Edge, BranchStamps]) -> None:
        """Record, as runs do, that the head of ``branch`` is about to be published.

        It is then known even after its snapshots have expired.
        """
        head = target.head_snapshot_id(branch.name)
        assert head is not None  # noqa: S101  # a branch has a snapshot
        newest = {edge: each.newest_snapshot_id for edge, each in stamped.items()}
        meanings: dict[Edge, set[str | None]] = {}
        for edge, each in stamped.items():
            if edge.partition is not None and each.division is None:
                continue  # A stamp of an earlier release: unknown.
            meanings.setdefault(edge.line, set()).add(each.division)
        divisions = {line: found.pop() if len(found) == 1 else "several" for line, found in meanings.items()}
        published_already = {snapshot.snapshot_id for snapshot in target.ancestry().snapshots}
        staged = [s for s in target.ancestry(branch.name).snapshots if s.snapshot_id not in published_already]
        with effect(Effect.ANNOUNCE):
            said = announcements(newest) | published(target.snapshots[head]) | division_properties(target, divisions)
            said |= lasting_properties(target, [snapshot.summary for snapshot in staged])
            set_properties(self.session, branch.catalog, branch.table, said)

    def commit(self, table: str, edges: Collection[Edge]) -> None:
        """Commit as consumed what the stamps of ``main`` say; doing it again does no harm."""
        states = self.store.get_many(edges)
        target = self.catalog.load(table, asset=table)
        store_settled(self.store, states, histories_of(self.catalog.storage, target, states.values()))
