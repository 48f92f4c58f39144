"""Which values of a column a data file holds, as far as its manifest says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, TypeGuard

from dagster_ips.core.change_set import DataFile
from dagster_ips.core.partition_keys import ColumnKind, Span
from dagster_ips.iceberg.column_ranges import column_bound, identity_value, is_ordered, require_column
from dagster_ips.iceberg.late import types
from dagster_ips.iceberg.manifests import ManifestRow
from dagster_ips.iceberg.metadata import TableMetadata

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType, NestedField

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LENGTHS = {"day": dt.timedelta(days=1), "hour": dt.timedelta(hours=1)}
_ANYTHING = Span(None, None, has_null=None)
_REMEDY = (
    "Partition keys are computed from it. Name the column in partition_expr, or, for an upstream without partitions, "
    'in incremental(partition_column="..."). Nothing was captured or written.'
)


@cache
def _kinds() -> dict[type[IcebergType], ColumnKind]:
    return {
        types.DateType: ColumnKind.DATE,
        types.TimestampType: ColumnKind.TIMESTAMP,
        types.TimestamptzType: ColumnKind.TIMESTAMPTZ,
        types.StringType: ColumnKind.STRING,
    }


def column_kinds(metadata: TableMetadata, columns: tuple[str, ...]) -> dict[str, ColumnKind]:
    """The kind of values that each of ``columns`` has.

    Raises:
        UnknownColumnError: the table has no such top-level column.
    """
    found = {column: require_column(metadata, column, remedy=_REMEDY) for column in columns}
    return {c: _kinds().get(type(f.field_type), ColumnKind.OTHER) if f else ColumnKind.OTHER for c, f in found.items()}


def span(file: DataFile, metadata: TableMetadata, column: str) -> Span:
    """The values of ``column`` in ``file``; open on both sides if the manifest doesn't say."""
    field = metadata.columns.get(column)
    if not _has_spans(field):
        return _ANYTHING
    value = identity_value(file, metadata, field)
    if value is not None:
        return Span(value[0], value[0], has_null=value[0] is None, is_exact=True)
    return _by_bounds(file, field)


def _by_bounds(file: DataFile, field: NestedField) -> Span:
    nulls = file.null_counts.get(field.field_id)
    if nulls is not None and nulls == file.record_count:
        return Span(None, None, has_null=True, is_exact=True)
    lower, upper = column_bound(file.lower_bounds, field), column_bound(file.upper_bounds, field)
    return Span(lower, upper, has_null=None if nulls is None else nulls > 0)


def may_hold(row: ManifestRow, metadata: TableMetadata, extent: Mapping[str, Span]) -> bool:
    """Whether a file of the manifest may have a row with values of ``extent``, by column, as its partitions tell."""
    return all(manifest_span(row, metadata, column).may_meet(wanted) for column, wanted in extent.items())


def manifest_span(row: ManifestRow, metadata: TableMetadata, column: str) -> Span:
    """The values of ``column`` in the manifest's files, by its partition summaries; open where they don't say.

    Source: Iceberg table spec, "Manifest Lists" (field summaries), "Partition Transforms".
    """
    field, summaries = metadata.columns.get(column), row.get("partitions") or ()
    if not _has_spans(field):
        return _ANYTHING
    for partition, summary in zip(metadata.spec(row["partition_spec_id"]), summaries, strict=False):
        ends = summary.get("lower_bound"), summary.get("upper_bound")
        if partition.get("source-id") != field.field_id or None in ends:
            continue
        if partition["transform"] == "identity":
            lower, upper = (column_bound({field.field_id: end}, field) for end in ends)
            return Span(lower, upper, has_null=None)
        if length := _LENGTHS.get(partition["transform"]):
            first, last = (int.from_bytes(end, "little", signed=True) for end in ends)
            return Span(_moment(first, length, field), _moment(last + 1, length, field), has_null=None)
    return _ANYTHING


def _moment(count: int, length: dt.timedelta, field: NestedField) -> dt.date | None:
    """The time after that many days or hours, as a value of the column; None beyond Python's calendar."""
    try:
        moment = _EPOCH + count * length
    except OverflowError:
        return None
    if isinstance(field.field_type, types.DateType):
        return moment.date()
    return moment if isinstance(field.field_type, types.TimestamptzType) else moment.replace(tzinfo=None)


def _has_spans(field: NestedField | None) -> TypeGuard[NestedField]:
    is_float = field is not None and isinstance(field.field_type, types.FloatType | types.DoubleType)
    return field is not None and is_ordered(field) and not is_float
