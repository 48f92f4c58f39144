"""Which partitions a change set touches, according to its files' partition values.

Source: Iceberg table spec, "Partition Transforms".
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_ips.core.change_set import ChangeSet, DataFile
from dagster_ips.core.ranges import Bound, Predicate, equals, literal, quoted
from dagster_ips.iceberg.column_ranges import has_partition_value, identity_value, is_ordered, partition_value
from dagster_ips.iceberg.late import types
from dagster_ips.iceberg.metadata import TableMetadata

_TIME = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
_WITH_WIDTH = re.compile(r"(bucket|truncate)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of the current partition spec: its name, its source column and how the field's value is computed from it.

    ``can_prune`` says whether Iceberg may filter by the value in every spec of the table. It must not if a spec has the
    column itself (``identity``): Iceberg (1.11) would compare a month, for instance, with the day of the month's files,
    and leave these out.
    """

    name: str
    column: str
    transform: str
    can_prune: bool

    @property
    def is_identity(self) -> bool:
        """Whether the value is the column's own."""
        return self.transform == "identity"

    def condition(self, value: Bound | None, catalog: str) -> str:
        """The condition that selects the rows with the value."""
        expression, wanted = self.expression(catalog), "NULL" if value is None else literal(value)
        if self.is_identity and value is not None:
            return equals(expression, value)
        # Iceberg doesn't filter by arrays.
        return f"{expression} <=> {wanted}" if self.can_prune else f"array({expression}) <=> array({wanted})"

    def expression(self, catalog: str) -> str:
        """A row's value of the field in Spark SQL, by the functions that come with an Iceberg catalog."""
        if self.is_identity:
            return quoted(self.column)
        if self.transform in _TIME:
            return f"{quoted(catalog)}.system.{_TIME[self.transform]}({quoted(self.column)})"
        matched = _WITH_WIDTH.fullmatch(self.transform)
        assert matched  # noqa: S101  # affected_partitions leaves other transforms out
        return f"{quoted(catalog)}.system.{matched[1]}({matched[2]}, {quoted(self.column)})"


@dataclass(frozen=True, slots=True)
class AffectedPartitions:
    """The values of ``fields``, in their order, that occur in a change. No values: nothing changed."""

    fields: tuple[PartitionField, ...]
    values: frozenset[tuple[Bound | None, ...]]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose own values make up the partition; none if a transform is involved."""
        return tuple(f.column for f in self.fields) if all(f.is_identity for f in self.fields) else ()

    def as_mappings(self) -> tuple[Mapping[str, Bound | None], ...]:
        """Each partition as field name → value, in a stable order."""
        names = [field.name for field in self.fields]
        return tuple(dict(zip(names, value, strict=True)) for value in sorted(self.values, key=repr))

    def predicate(self, catalog: str) -> Predicate:
        """The rows that are in one of the partitions."""
        partitions = [self._condition(values, catalog) for values in sorted(self.values, key=repr)]
        return Predicate(f"({' OR '.join(partitions)})" if partitions else "FALSE")

    def _condition(self, values: tuple[Bound | None, ...], catalog: str) -> str:
        conditions = [field.condition(value, catalog) for field, value in zip(self.fields, values, strict=True)]
        return f"({' AND '.join(conditions)})"


def affected_partitions(changes: ChangeSet, metadata: TableMetadata) -> AffectedPartitions | None:
    """The partitions of the current spec that ``changes`` touch, including those of removed rows.

    None if they are unknown: the table isn't partitioned, or a file was written with another spec, or a column
    partitioned by its own value has a type without a literal, such as binary, or rows from before a column have a
    default of it.
    """
    names = {field.field_id: name for name, field in metadata.columns.items()}
    spec = [field for field in metadata.default_spec if field["transform"] != "void"]
    known = [f for f in spec if f.get("source-id") in names and _is_known(f["transform"])]
    if not known or len(known) < len(spec):
        return None
    if any(metadata.columns[names[f["source-id"]]].initial_default is not None for f in known):
        return None
    as_they_are = {f.get("source-id") for each in metadata.specs for f in each if f["transform"] == "identity"}
    fields = tuple(
        PartitionField(
            name=f["name"],
            column=names[f["source-id"]],
            transform=f["transform"],
            can_prune=f["transform"] == "identity" or f["source-id"] not in as_they_are,
        )
        for f in known
    )
    values = [_values(file, fields, metadata) for file in changes.touched if file.record_count]
    told = frozenset(value for value in values if value is not None)
    return AffectedPartitions(fields, told) if all(value is not None for value in values) else None


def files_within(
    files: Sequence[DataFile], partitions: AffectedPartitions, metadata: TableMetadata
) -> Sequence[DataFile]:
    """Those of ``files`` whose rows are in ``partitions``, which are some of what all of them touch."""
    return [file for file in files if _values(file, partitions.fields, metadata) in partitions.values]


def _is_known(transform: str) -> bool:
    return transform == "identity" or transform in _TIME or _WITH_WIDTH.fullmatch(transform) is not None


def _values(
    file: DataFile, fields: Sequence[PartitionField], metadata: TableMetadata
) -> tuple[Bound | None, ...] | None:
    found = []
    for field in fields:
        value = _value(file, field, metadata)
        if value is None:
            return None
        found.append(value[0])
    return tuple(found)


def _value(file: DataFile, field: PartitionField, metadata: TableMetadata) -> tuple[Bound | None] | None:
    column = metadata.columns[field.column]
    if field.is_identity:
        return identity_value(file, metadata, column) if is_ordered(column) else None
    if isinstance(column.field_type, types.UUIDType):  # Spark would compute the transform of its text
        return None
    if file.spec_id != metadata.default_spec_id or not has_partition_value(file, field.name):
        return None
    raw: Any = partition_value(file, field.name)
    if field.transform == "day" and isinstance(raw, int):
        try:
            return (dt.date(1970, 1, 1) + dt.timedelta(days=raw),)
        except OverflowError:  # beyond Python's calendar
            return None
    return (raw,) if raw is None or isinstance(raw, int | str) else None
