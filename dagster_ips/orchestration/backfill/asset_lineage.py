"""Which assets follow from which, across all available definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ips.core.ancestry import MAIN
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.errors import StateUnreadableError, TargetChangedError, UnknownConsumerError, UnknownPublicationError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.declarations import DATA_VERSION_TAG, code_of
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import SameKeys, partition_expression
from dagster_ips.orchestration.declare.run_numbers import PUBLISHED
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.run.known_consumers import KnownConsumer, KnownTable
from dagster_ips.progress.cursor import progress_of
from dagster_ips.progress.table_progress import TableProgress

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession


@dataclass(frozen=True)
class AssetLineage:
    """The consumers, tables and asset graphs of all definitions, and the instance that runs them."""

    consumers: Mapping[str, KnownConsumer]
    tables: Sequence[KnownTable]
    graphs: Sequence[Any] = field(repr=False)  # Dagster's asset graph has no public type
    instance: dg.DagsterInstance

    def node(self, asset: str) -> Any:  # noqa: ANN401  # as above
        """The asset's node in the graph that can compute it, or else in any graph that has it.

        Raises:
            UnknownConsumerError: no graph has the asset.
        """
        key = dg.AssetKey.from_user_string(asset)
        known = [graph.get(key) for graph in self.graphs if graph.has(key)]
        if not known:
            raise UnknownConsumerError(asset=asset, problem="isn't in the definitions", known=tuple(self.written))
        return next((node for node in known if node.is_executable), known[0])

    @property
    def written(self) -> Mapping[str, KnownTable]:
        """The tables that assets write, by asset."""
        return {each.asset: each for each in self.tables if not each.is_outside}

    def table(self, asset: str) -> KnownTable:
        """The table of an asset, written by the asset or by an outside job.

        A table that is outside for one code location may be written by an asset of another, which takes precedence.

        Raises:
            UnknownConsumerError: no table of the asset is known.
        """
        found = min(
            (each for each in self.tables if each.asset == asset), key=lambda each: each.is_outside, default=None
        )
        if found is None:
            known = tuple(sorted(each.asset for each in self.tables))
            raise UnknownConsumerError(asset=asset, problem="has no table in these definitions", known=known)
        return found

    def lake(self, asset: str) -> LakeCatalog:
        """The catalog of the asset's table."""
        return self.table(asset).manager.catalog.open()

    def session(self, asset: str) -> SparkSession:
        """The Spark session of the IO manager that knows the asset's table."""
        return self.table(asset).manager.session()

    @property
    def store(self) -> CursorStore:
        """The store of what consumers have consumed, and of backfills' records."""
        return CursorStore(self.instance)

    def metadata(self, asset: str) -> TableMetadata | None:
        """The current metadata of the asset's table; None if the table doesn't exist."""
        return self.lake(asset).find(self.table(asset).table)

    def known(self, asset: str, target: TableMetadata | None) -> TableProgress | None:
        """What the asset's table, as it is in ``target``, contains; None if nothing says so: its next run finds out.

        Raises:
            IpsError: metadata files or the cursor can't be read.
        """
        cursor = self.store.get(asset)
        try:
            return progress_of(target, cursor, asset=asset, storage=self.lake(asset).storage)
        except (TargetChangedError, UnknownPublicationError, StateUnreadableError):
            return None

    def inputs(self, asset: str) -> dict[str, TrackedInput]:
        """The asset's incremental inputs, by name, with their slicing; empty if it has none.

        Raises:
            DeclarationError: as ``Consumer.tracked``.
        """
        known = self.consumers.get(asset)
        return known.consumer.tracked(known.graph, self.instance) if known else {}

    def code_version(self, asset: str) -> str | None:
        """The version of the code that would compute the asset now; None if it is unknown."""
        if asset in self.consumers:
            return self.consumers[asset].code_version
        node = self.node(asset)
        return code_of(node.code_version, node.metadata)

    def partitions_def(self, asset: str) -> dg.PartitionsDefinition[str] | None:
        """The asset's partitions definition; None if it isn't partitioned."""
        found: dg.PartitionsDefinition[str] | None = self.node(asset).partitions_def
        return found

    def own_slicing(self, asset: str) -> Slicing | None:
        """How the rows of the asset's own table belong to its partitions; None if it has none or no ``partition_expr``.

        Raises:
            DeclarationError: its ``partition_expr`` doesn't fit.
        """
        definition, expression = self.partitions_def(asset), partition_expression(self.node(asset).metadata)
        if definition is None or expression is None:
            return None
        return SameKeys(partition_keys(definition, expression, self.instance, asset=asset))

    def downstream(self, root: str) -> list[KnownConsumer]:
        """The consumers that follow the changes of ``root``, directly or not, each after its own upstreams."""
        found: dict[str, KnownConsumer] = {}
        reached = {root}
        while more := [each for each in self.consumers.values() if each.consumer.name not in reached | found.keys()
                       and self.upstreams(each) & (reached | found.keys())]:  # fmt: skip
            found |= {each.consumer.name: each for each in more}
        return list(_in_order(root, found, self))

    def upstreams(self, known: KnownConsumer) -> set[str]:
        """The assets whose changes on ``main`` a consumer follows, except itself."""
        followed = {each.upstream for each in known.consumer.inputs.values() if each.ref == MAIN}
        return followed - {known.consumer.name}

    def whole_readers(self, asset: str) -> tuple[str, ...]:
        """The assets that read ``asset`` without following its changes, so that this library doesn't start them."""
        key = dg.AssetKey.from_user_string(asset)
        children = {
            child.to_user_string()
            for graph in self.graphs
            if graph.has(key)
            for child in graph.get(key).child_keys
            if graph.get(child).is_executable
        }
        return tuple(sorted(child for child in children if not self._follows(child, asset)))

    def report(self, asset: str, partition: str | None, *, backfill: str, became: str, snapshot: str) -> None:
        """Report what a backfill did to Dagster, whose own conditions and timelines rely on such events."""
        made = dg.AssetMaterialization(
            dg.AssetKey.from_user_string(asset),
            description=f"backfill {backfill} was {became}",
            partition=partition,
            metadata={"backfill": backfill, PUBLISHED: snapshot},
            tags={DATA_VERSION_TAG: snapshot},
        )
        with effect(Effect.REPORT_EVENT):
            self.instance.report_runless_asset_event(made)

    def _follows(self, child: str, asset: str) -> bool:
        known = self.consumers.get(child)
        return known is not None and any(each.upstream == asset for each in known.consumer.inputs.values())


def _in_order(root: str, found: Mapping[str, KnownConsumer], lineage: AssetLineage) -> Iterator[KnownConsumer]:
    left, done = dict(found), {root}
    while left:
        ready = [name for name, each in left.items() if lineage.upstreams(each) & (found.keys() | {root}) <= done]
        # A graph of Dagster's has no cycles, but cycles across several code locations aren't checked.
        for name in sorted(ready) or sorted(left):
            done.add(name)
            yield left.pop(name)
