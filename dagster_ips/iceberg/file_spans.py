"""Which values of a column a data file holds, as far as its manifest says."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from dagster_ips.core.change_set import DataFile
from dagster_ips.core.partition_keys import ColumnKind, Span
from dagster_ips.iceberg.column_ranges import column_bound, identity_value, is_ordered, require_column
from dagster_ips.iceberg.late import types
from dagster_ips.iceberg.metadata import TableMetadata

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType, NestedField

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
    if field is None or not is_ordered(field) or isinstance(field.field_type, types.FloatType | types.DoubleType):
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
