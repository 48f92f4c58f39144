"""How a consumer's partitions are made of an upstream's rows, by Dagster's partition mappings."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from dagster_ips.core.partition_keys import PartitionKeys
from dagster_ips.core.ranges import Predicate
from dagster_ips.errors import DeclarationError
from dagster_ips.iceberg.file_spans import column_kinds
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.declarations import plain
from dagster_ips.orchestration.declare.partition_definitions import partition_keys

PARTITION_EXPRESSION = "partition_expr"


@dataclass(frozen=True)
class SameKeys:
    """The upstream has no partitions in Dagster: its rows have the consumer's own keys."""

    upstream_keys: PartitionKeys

    @property
    def division(self) -> str:
        """That of its rows."""
        return self.upstream_keys.division

    @property
    def sharing(self) -> frozenset[str]:
        """None: each has a key of its own."""
        return frozenset()

    def taken_by(self, consumer_key: str) -> frozenset[str]:
        """The key itself."""
        return frozenset([consumer_key])

    def left_out(self, consumer_key: str, upstream_keys: Collection[str]) -> frozenset[str]:  # noqa: ARG002  # as others
        """None: it takes its own key, whether there is a partition or not."""
        return frozenset()

    def made_of(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """Those of them that are there now."""
        return frozenset(upstream_keys) & self._there

    @cached_property
    def _there(self) -> frozenset[str]:
        return self.upstream_keys.known()  # of which there may be thousands, asked for each key

    def lost(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """Those that the definition, as it is now, has no partition for, now or ever."""
        return self.upstream_keys.outside(upstream_keys)


@dataclass(frozen=True)
class MappedKeys:
    """The upstream is partitioned in Dagster, and a mapping says which of its partitions a consumer's is made of."""

    upstream_keys: PartitionKeys
    mapping: dg.PartitionMapping
    upstream: dg.PartitionsDefinition[str]
    consumer: dg.PartitionsDefinition[str]
    instance: DagsterInstance
    division: str
    _taken: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def sharing(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self.consumer.get_partition_keys(dynamic_partitions_store=self.instance))

    def taken_by(self, consumer_key: str) -> frozenset[str]:
        """By the mapping, those that aren't there yet included."""
        if consumer_key not in self._taken:
            result = self.mapping.get_upstream_mapped_partitions_result_for_partitions(
                self.consumer.subset_with_partition_keys([consumer_key]),
                self.consumer,
                self.upstream,
                dynamic_partitions_store=self.instance,
            )
            missing = result.required_but_nonexistent_subset.get_partition_keys()
            self._taken[consumer_key] = frozenset(result.partitions_subset.get_partition_keys()) | frozenset(missing)
        return self._taken[consumer_key]

    def left_out(self, consumer_key: str, upstream_keys: Collection[str]) -> frozenset[str]:
        """Any that it doesn't take: what the mapping makes of a partition that isn't there, it doesn't say."""
        if isinstance(self.mapping, dg.IdentityPartitionMapping):
            return frozenset()
        return frozenset(upstream_keys) - self._there - self.taken_by(consumer_key)

    def made_of(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """By the mapping, of the partitions that are there now."""
        there = frozenset(upstream_keys) & self._there
        subset = self.mapping.get_downstream_partitions_for_partitions(
            self.upstream.subset_with_partition_keys(sorted(there)),
            self.upstream,
            self.consumer,
            dynamic_partitions_store=self.instance,
        )
        return frozenset(subset.get_partition_keys())

    def lost(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """Those that the upstream has no partition for, and those that the consumer's partitions aren't made of.

        Of time windows, those that end before the consumer's begin; of static partitions, those without a mapping.
        Others may have a partition later.
        """
        outside = self.upstream_keys.outside(upstream_keys)
        return outside | self._unused(frozenset(upstream_keys) - outside)

    def _unused(self, upstream_keys: frozenset[str]) -> frozenset[str]:
        there = sorted(upstream_keys & self._there)
        if isinstance(self.consumer, dg.StaticPartitionsDefinition):
            return frozenset(key for key in there if not self.made_of([key]))
        times = self.upstream, self.consumer
        if not all(isinstance(each, dg.TimeWindowPartitionsDefinition) for each in times):
            return frozenset()
        upstream, consumer = times
        early = [k for k in there if upstream.time_window_for_partition_key(k).end <= consumer.start]  # type: ignore[attr-defined]  # as just asked
        return frozenset(key for key in early if not self.made_of([key]))

    @cached_property
    def _there(self) -> frozenset[str]:
        return self.upstream_keys.known()  # as for SameKeys


def slicing(  # each is a thing of its own
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    consumer: dg.AssetKey,
    upstream: dg.AssetKey,
    instance: DagsterInstance,
    *,
    column: str | None,
) -> SameKeys | MappedKeys:
    """How ``consumer``'s partitions are made of the rows of ``upstream``.

    ``column`` is that of an upstream without partitions in Dagster that the consumer's keys are made of; by default it
    has the name that the consumer's own has.

    Raises:
        DeclarationError: a ``partition_expr`` is missing or doesn't fit.
    """
    own, other = graph.get(consumer), graph.get(upstream)
    if other.partitions_def is None:
        expression = column or partition_expression(own.metadata)
        keys = partition_keys(own.partitions_def, expression, instance, asset=consumer.to_user_string())
        return SameKeys(keys)
    name = upstream.to_user_string()
    keys = partition_keys(other.partitions_def, partition_expression(other.metadata), instance, asset=name)
    mapping = graph.get_partition_mapping(consumer, upstream)
    own_keys = partition_keys(
        own.partitions_def, partition_expression(own.metadata), instance, asset=consumer.to_user_string()
    )
    return MappedKeys(keys, mapping, other.partitions_def, own.partitions_def, instance, own_keys.division)


def rows_of_keys(  # noqa: PLR0913  # each is a thing of its own
    table: TableMetadata,
    definition: dg.PartitionsDefinition[str],
    keys: Collection[str],
    metadata: Mapping[str, Any],
    instance: DagsterInstance,
    *,
    asset: str,
) -> Predicate:
    """The rows of an asset's own ``table`` that are in its partitions ``keys``.

    Raises:
        DeclarationError: its ``partition_expr`` doesn't fit.
        UnknownColumnError: the table has no such column.
    """
    divided = partition_keys(definition, partition_expression(metadata), instance, asset=asset)
    return divided.predicate(keys, column_kinds(table, divided.columns))


def partition_expression(metadata: Mapping[str, Any]) -> object:
    """The column, or columns by dimension, that an asset's partition keys are made of; None if it doesn't say."""
    return plain(metadata.get(PARTITION_EXPRESSION))


def require_partition_expression(asset: str, metadata: Mapping[str, Any]) -> None:
    """Fail unless it says.

    Raises:
        DeclarationError: it doesn't.
    """
    if partition_expression(metadata) is None:
        raise DeclarationError(
            asset=asset,
            problem="it is partitioned in Dagster, but nothing says which column of its table holds the partitions.",
            remedy='Add metadata={"partition_expr": "event_date"}.',
        )


def last_window_end(definition: dg.PartitionsDefinition[str] | None) -> dt.datetime | None:
    """When the last partition there is ends; where there is none yet, when the first begins.

    None for an asset that isn't partitioned by time, or not by it alone.
    """
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return None
    last = definition.get_last_partition_window()
    return last.end if last else definition.start
