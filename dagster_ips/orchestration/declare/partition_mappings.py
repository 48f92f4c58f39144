"""Which of an upstream's rows each of a consumer's partitions depends on, by Dagster's partition mappings.

The methods of ``SameKeys`` and ``MappedKeys`` are described in ``Slicing``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import CodeType
from typing import Any

import dagster as dg
from dagster import DagsterInstance

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.partition_keys import PartitionKeys
from dagster_ips.core.ranges import Predicate
from dagster_ips.errors import DeclarationError
from dagster_ips.iceberg.file_spans import column_kinds
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.declarations import plain
from dagster_ips.orchestration.declare.partition_definitions import partition_keys

PARTITION_EXPRESSION = "partition_expr"
MISSING_PARTITIONS = (
    "These partitions of the upstream don't exist, as the days before the first one of a week that began earlier. To "
    "compute the partition from those that do: ips.incremental(partition_mapping=dg.TimeWindowPartitionMapping("
    "allow_nonexistent_upstream_partitions=True)), with the offsets of its mapping if it has any."
)
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class SameKeys:
    """The upstream has no partitions in Dagster: its rows have the consumer's own keys."""

    upstream_keys: PartitionKeys
    own_division: str | None = None
    """The division of the consumer's own rows, if another column holds their keys."""

    @property
    def division(self) -> str:
        """What the keys of the consumer mean, and those of the upstream if they mean something else."""
        return _division_of(self.own_division or self.upstream_keys.division, self.upstream_keys)

    @property
    def sharing(self) -> frozenset[str]:
        """None, because each partition takes only its own key."""
        return frozenset()

    def taken_by(self, consumer_key: str) -> frozenset[str]:
        """The key itself."""
        return frozenset([consumer_key])

    def made_of(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """Those of the keys that are partitions now."""
        return frozenset(upstream_keys) & self._there

    def made_of_each(self, upstream_keys: Collection[str]) -> Mapping[str, frozenset[str]]:
        """The key itself, if it is a partition now."""
        return {key: frozenset([key]) & self._there for key in upstream_keys}

    @cached_property
    def _there(self) -> frozenset[str]:
        return self.upstream_keys.known()  # cached: there may be thousands, and they are looked up for each key

    def lost(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """The keys for which the current definition has no partition, now or ever."""
        return self.upstream_keys.outside(upstream_keys)


@dataclass(frozen=True)
class MappedKeys:
    """The upstream is partitioned in Dagster: a mapping says which of its partitions each consumer partition takes."""

    upstream_keys: PartitionKeys
    mapping: dg.PartitionMapping
    upstream: dg.PartitionsDefinition[str]
    consumer: dg.PartitionsDefinition[str]
    instance: DagsterInstance
    own_division: str
    _taken: dict[str, frozenset[str]] = field(default_factory=dict)

    @cached_property
    def division(self) -> str:
        """What the keys of the consumer mean, and those of the upstream if they mean something else.

        With ``LastPartitionMapping``, also which partition is the last one: each new one replaces the rows.
        """
        division = _division_of(self.own_division, self.upstream_keys)
        if not isinstance(self.mapping, dg.LastPartitionMapping):
            return division
        with knowing_partitions(self.instance):
            return f"{division} at {self.upstream.get_last_partition_key()}"

    @property
    def sharing(self) -> frozenset[str]:
        """All of the consumer's partitions, unless each takes only its own key."""
        if self._is_one_to_one:
            return frozenset()
        return frozenset(self.consumer.get_partition_keys(dynamic_partitions_store=self.instance))

    def taken_by(self, consumer_key: str) -> frozenset[str]:
        """The upstream's partitions by the mapping, including those that don't exist yet."""
        if self._is_one_to_one:
            return frozenset([consumer_key])
        if consumer_key not in self._taken:
            _ = self._there  # found first: then a partition that comes in between is taken or left out, never neither
            result = self.mapping.get_upstream_mapped_partitions_result_for_partitions(
                self.consumer.subset_with_partition_keys([consumer_key]),
                self.consumer,
                self.upstream,
                dynamic_partitions_store=self.instance,
            )
            missing = result.required_but_nonexistent_subset.get_partition_keys()
            self._taken[consumer_key] = frozenset(result.partitions_subset.get_partition_keys()) | frozenset(missing)
        return self._taken[consumer_key]

    def made_of(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """The consumer's partitions by the mapping, for those of the keys that are partitions now."""
        there = frozenset(upstream_keys) & self._there
        subset = self.mapping.get_downstream_partitions_for_partitions(
            self.upstream.subset_with_partition_keys(sorted(there)),
            self.upstream,
            self.consumer,
            dynamic_partitions_store=self.instance,
        )
        return frozenset(subset.get_partition_keys())

    def made_of_each(self, upstream_keys: Collection[str]) -> Mapping[str, frozenset[str]]:
        """By what the partitions take: to ask the mapping once for each key would take a millisecond each."""
        there = frozenset(upstream_keys) & self._there
        made: dict[str, set[str]] = {key: set() for key in upstream_keys}
        for partition in self.made_of(there):
            for key in self.taken_by(partition) & there:
                made[key].add(partition)
        return {key: frozenset(partitions) for key, partitions in made.items()}

    def lost(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """The keys that have no upstream partition, now or ever, and those that no consumer partition can ever take.

        With time windows on both sides, the latter are the unused windows that end before the consumer's first one
        begins; with a static consumer, all unused partitions; with several dimensions, the keys of which any part is
        such a partition. Other keys may be taken by a later partition.
        """
        outside = self.upstream_keys.outside(upstream_keys)
        return outside | self._unused(frozenset(upstream_keys) - outside)

    def _unused(self, upstream_keys: frozenset[str]) -> frozenset[str]:
        there = sorted(upstream_keys & self._there)
        if (mapping := self._by_dimension) is not None:
            dimensions = mapping.get_dimension_dependencies(self.upstream, self.consumer)
            return frozenset(key for each in dimensions for key in self._unused_by(each, there))
        if isinstance(self.consumer, dg.StaticPartitionsDefinition):
            return self._unmade(there)
        times = self.upstream, self.consumer
        if not all(isinstance(each, dg.TimeWindowPartitionsDefinition) for each in times):
            return frozenset()
        upstream, consumer = times
        early = [k for k in there if upstream.time_window_for_partition_key(k).end <= consumer.start]  # type: ignore[attr-defined]  # as just asked
        return self._unmade(early)

    @property
    def _by_dimension(self) -> dg.MultiPartitionMapping | dg.MultiToSingleDimensionPartitionMapping | None:
        """The mapping, if it maps dimensions; None if it doesn't."""
        match self.mapping, self.upstream, self.consumer:
            case (dg.MultiPartitionMapping() | dg.MultiToSingleDimensionPartitionMapping()) as mapping, _, _:
                return mapping
            case (
                dg.IdentityPartitionMapping() as mapping,
                dg.MultiPartitionsDefinition(),
                dg.MultiPartitionsDefinition(),
            ):
                # A key consists of its parts in the order of the dimensions' names.
                pairs = zip(self.upstream.partitions_defs, self.consumer.partitions_defs, strict=False)
                return dg.MultiPartitionMapping(
                    {one.name: dg.DimensionPartitionMapping(other.name, mapping) for one, other in pairs}
                )
        return None

    def _unused_by(self, dimension: Any, upstream_keys: Collection[str]) -> Iterator[str]:  # noqa: ANN401  # it isn't public
        """The upstream's keys whose part in a dimension is never used by the dimension that is mapped to it."""
        name, other_name = dimension.upstream_dimension_name, dimension.downstream_dimension_name
        upstream, consumer = _dimension(self.upstream, name), _dimension(self.consumer, other_name)
        keys = partition_keys(upstream, "", self.instance, asset="")  # no column matters here
        within = MappedKeys(keys, dimension.partition_mapping, upstream, consumer, self.instance, "")
        parts = {key: _part(self.upstream, key, name) for key in upstream_keys}
        unused = within._unused(frozenset(parts.values()))
        return (key for key, part in parts.items() if part in unused)

    def _unmade(self, upstream_keys: Collection[str]) -> frozenset[str]:
        return frozenset(key for key, partitions in self.made_of_each(upstream_keys).items() if not partitions)

    @cached_property
    def _is_one_to_one(self) -> bool:
        """Whether each partition takes the key of its own, whether or not the upstream has such a partition yet."""
        match self.mapping:
            case dg.IdentityPartitionMapping():
                return True
            case dg.TimeWindowPartitionMapping(start_offset=0, end_offset=0):
                return self.upstream == self.consumer
        return False

    @cached_property
    def _there(self) -> frozenset[str]:
        return self.upstream_keys.known()  # as for SameKeys


def _dimension(definition: dg.PartitionsDefinition[str], name: str) -> dg.PartitionsDefinition[str]:
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return definition
    return definition.get_partitions_def_for_dimension(name)


def _part(definition: dg.PartitionsDefinition[str], key: str, name: str) -> str:
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        return key
    return definition.get_partition_key_from_str(key).keys_by_dimension[name]


def slicing(
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    consumer: dg.AssetKey,
    upstream: dg.AssetKey,
    instance: DagsterInstance,
    *,
    column: str | None,
) -> SameKeys | MappedKeys:
    """How the rows of ``upstream`` are divided among the partitions of ``consumer``.

    If the upstream has no partitions in Dagster, ``column`` is its column that holds the consumer's keys. By default it
    has the same name as the consumer's own column.

    Raises:
        DeclarationError: a ``partition_expr`` is missing or doesn't fit, or there is a mapping but nothing to map.
    """
    require_partitions_to_map(graph, consumer, upstream, all_rows=False)
    own, other = graph.get(consumer), graph.get(upstream)
    asset, name = consumer.to_user_string(), upstream.to_user_string()
    own_keys = partition_keys(own.partitions_def, partition_expression(own.metadata), instance, asset=asset)
    if other.partitions_def is None:
        keys = partition_keys(own.partitions_def, column, instance, asset=asset) if column else own_keys
        return SameKeys(keys, own_keys.division)
    keys = partition_keys(other.partitions_def, partition_expression(other.metadata), instance, asset=name)
    mapping = graph.get_partition_mapping(consumer, upstream)
    return MappedKeys(keys, mapping, other.partitions_def, own.partitions_def, instance, own_keys.division)


def require_partitions_to_map(
    graph: Any,  # noqa: ANN401  # as above
    consumer: dg.AssetKey,
    upstream: dg.AssetKey,
    *,
    all_rows: bool,
) -> None:
    """Refuse a partition mapping to an asset without partitions, as it would have no effect.

    ``all_rows`` says that the consumer reads all rows of such an asset. Otherwise, a partition takes those of its key.

    Raises:
        DeclarationError: the mapping says anything else.
    """
    mapping = graph.get(consumer).partition_mappings.get(upstream)
    means_the_same = dg.AllPartitionMapping if all_rows else dg.IdentityPartitionMapping
    if mapping is None or isinstance(mapping, means_the_same) or graph.get(upstream).partitions_def is not None:
        return
    name = upstream.to_user_string()
    read = f"all rows of {name} would be read" if all_rows else "each partition would take only the rows of its own key"
    raise DeclarationError(
        asset=consumer.to_user_string(),
        problem=f"its input {name} has the partition mapping {mapping_text(mapping)}, but {name} has no partitions in "
        f"Dagster that it could map: {read}.",
        remedy=f'Declare the partitions of {name}: partitions_def=..., and metadata={{"partition_expr": ...}} with the '
        "column that holds them (iceberg_asset takes both). Or leave partition_mapping out"
        f"{', and filter the rows' if all_rows else ''}.",
    )


def _division_of(own: str, upstream_keys: PartitionKeys) -> str:
    return own if own == upstream_keys.division else f"{own} of {upstream_keys.division}"


def rows_of_keys(  # noqa: PLR0913  # independent parameters
    table: TableMetadata,
    definition: dg.PartitionsDefinition[str],
    keys: Collection[str],
    metadata: Mapping[str, Any],
    instance: DagsterInstance,
    *,
    asset: str,
) -> Predicate:
    """A condition for the rows of an asset's own ``table`` that are in its partitions ``keys``.

    Raises:
        DeclarationError: its ``partition_expr`` is missing or doesn't fit.
        UnknownColumnError: the table has no such column.
    """
    divided = partition_keys(definition, partition_expression(metadata), instance, asset=asset)
    return divided.predicate(keys, column_kinds(table, divided.columns))


def partition_expression(metadata: Mapping[str, Any]) -> object:
    """The column, or the columns by dimension, that hold an asset's partition keys; None if its metadata has none."""
    return plain(metadata.get(PARTITION_EXPRESSION))


def last_window_end(definition: dg.PartitionsDefinition[str] | None) -> dt.datetime | None:
    """When the last existing partition ends; if there is none yet, when the first one begins.

    None if the asset isn't partitioned by time alone.
    """
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return None
    last = definition.get_last_partition_window()
    return last.end if last else definition.start


def mapping_text(mapping: object) -> str:
    """A partition mapping as text that is the same in every process: its class and its values.

    Of Dagster's own classes, only the values that differ from the defaults. A long text is shortened to a digest. The
    code of your own class isn't part of it.

    Example:
        >>> mapping_text(dg.TimeWindowPartitionMapping(start_offset=-1))
        'TimeWindowPartitionMapping(start_offset=-1)'
        >>> mapping_text(dg.StaticPartitionMapping({"de": {"eu", "all"}}))
        "StaticPartitionMapping(downstream_partition_keys_by_upstream_partition_key={'de': ['all', 'eu']})"
    """
    text = _stable_text(mapping)
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{type(mapping).__name__}({hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _stable_text(value: object) -> str:
    match value:
        case Mapping():
            return f"{{{', '.join(sorted(f'{key!r}: {_stable_text(each)}' for key, each in value.items()))}}}"
        case set() | frozenset():
            return f"[{', '.join(sorted(map(_stable_text, value)))}]"
        case None | str() | bytes() | int() | float() | dt.date() | dt.time() | dt.timedelta() | dt.tzinfo() | Enum():
            return repr(value)
        case list() | tuple() if not hasattr(value, "_fields"):
            return f"[{', '.join(map(_stable_text, value))}]"
    if isinstance(code := getattr(value, "__code__", None), CodeType):
        # Constants may be sets, whose order differs between processes.
        constants = [_stable_text(each) for each in code.co_consts if not isinstance(each, CodeType)]
        told = [code.co_code, code.co_names, constants]
        return f"{code.co_name}({hashlib.sha256(repr(told).encode()).hexdigest()[:12]})"
    named = ", ".join(f"{name}={_stable_text(each)}" for name, each in _values(value).items())
    return f"{getattr(value, '__qualname__', type(value).__name__)}({named})"


def _values(value: object) -> dict[str, object]:
    """The values that make up an object, by name."""
    if isinstance(value, type) or callable(value):
        return {}
    if type(value).__module__.startswith("dagster."):
        given = inspect.signature(type(value)).parameters
        shown = {name: getattr(value, name, each.default) for name, each in given.items()}
        return {name: each for name, each in shown.items() if each != given[name].default}
    slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
    names = sorted({*getattr(value, "__dict__", {}), *slots})
    return {name: getattr(value, name) for name in names if hasattr(value, name)}
