"""Change ranges of columns, from partition values and column bounds.

Source: Iceberg table spec, "Appendix D: Single-value serialization" and "Partition Transforms".
"""

from __future__ import annotations

import datetime as dt
import itertools
import struct
import unicodedata
from collections.abc import Sequence
from decimal import Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

from dagster_ips.core.change_set import ChangeSet, DataFile
from dagster_ips.core.ranges import Bound, ChangeRange, RangeKind
from dagster_ips.errors import UnknownColumnError, UnorderedColumnError
from dagster_ips.iceberg.late import conversions, types
from dagster_ips.iceberg.metadata import TableMetadata

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType, NestedField

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FOUR_BYTES = 4
_EVERY_DIGIT = Context(prec=38)
_NOT_PLAIN = {"map", "list", "struct", "nested", "variant"}
_REMEDY = "Correct the name in incremental(ranges=...) or affected(...); nothing was captured."


def change_range(changes: ChangeSet, metadata: TableMetadata, column: str) -> ChangeRange:
    """The lower and upper value of ``column`` over the files of ``changes``; no file gives ``nothing``.

    It is ``exact`` if every row of the files is new and each file's partition holds one value of the column,
    ``bounded`` if column bounds were needed or some rows may be old or deleted, ``unbounded`` if a file has neither.

    Raises:
        UnknownColumnError: the table has no such top-level column.
        UnorderedColumnError: its values aren't plain ones.
    """
    field = require_plain_column(metadata, column)
    if field is None or not can_prune(field):
        return ChangeRange.everything(column) if changes.touched else ChangeRange.nothing(column)
    bounds, exact, has_null = _bounds(changes, metadata, field)
    kind = RangeKind.EXACT if exact else RangeKind.BOUNDED
    return ChangeRange.of(column, bounds, kind=kind, has_null=has_null)


def change_ranges(changes: ChangeSet, metadata: TableMetadata, column: str, *, most: int) -> list[ChangeRange]:
    """Up to ``most`` ranges that together hold the values of ``column`` over the files of ``changes``, in their order.

    Between two of them there is no value; these gaps are the widest ones, if the column's values can be subtracted. No
    file gives no range; files without bounds give a single one.

    Raises:
        As for ``change_range``.
    """
    field = require_plain_column(metadata, column)
    if field is None or not can_prune(field):
        return [ChangeRange.everything(column)] if changes.touched else []
    bounds, _, has_null = _bounds(changes, metadata, field)
    return ranges_over(column, bounds, has_null=has_null, most=most)


def ranges_over(
    column: str, bounds: Sequence[tuple[Bound | None, Bound | None]], *, has_null: bool, most: int
) -> list[ChangeRange]:
    """Up to ``most`` ranges that together hold what is between the ``bounds``, as ``change_ranges``."""
    spans = [] if any(None in pair for pair in bounds) else _apart(bounds)
    if len(spans) <= 1:
        found = ChangeRange.of(column, list(bounds), kind=RangeKind.BOUNDED, has_null=has_null)
        return [] if found.is_empty else [found]
    ends = [0, *_widest_gaps(spans, most - 1), len(spans)]
    parts = [spans[start:end] for start, end in itertools.pairwise(ends)]
    return [
        ChangeRange.of(column, part, kind=RangeKind.BOUNDED, has_null=has_null and part is parts[0]) for part in parts
    ]


def _widest_gaps(spans: Sequence[tuple[Any, Any]], most: int) -> list[int]:
    """The places of up to ``most`` spans that follow the widest gaps, in order; evenly spread ones for other values."""
    places = range(1, len(spans))
    if isinstance(spans[0][0], str | bool):
        size = -(-len(spans) // (most + 1))
        return list(places[size - 1 :: size])
    return sorted(sorted(places, key=lambda at: spans[at - 1][1] - spans[at][0])[:most])


def _apart(bounds: Sequence[tuple[Any, Any]]) -> list[tuple[Bound | None, Bound | None]]:
    """The intervals in their order, with those that overlap united."""
    spans: list[tuple[Any, Any]] = []
    for lower, upper in sorted(bounds):
        if spans and lower <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], upper)
        else:
            spans.append((lower, upper))
    return spans


def _bounds(
    changes: ChangeSet, metadata: TableMetadata, field: NestedField
) -> tuple[list[tuple[Bound | None, Bound | None]], bool, bool]:
    """The bounds of each file that has values, whether partitions alone gave them, and whether there may be nulls."""
    exact = not (changes.may_remove_rows or changes.has_deletes)
    has_null = False
    bounds: list[tuple[Bound | None, Bound | None]] = []
    for file in changes.touched:
        if not file.record_count:
            continue
        partition = identity_value(file, metadata, field)
        if partition is not None:
            value = partition[0]
            has_null |= value is None
            if value is not None:
                bounds.append((value, value))
            continue
        exact = False
        nulls = file.null_counts.get(field.field_id)
        has_null |= nulls is None or nulls > 0
        if nulls is None or nulls < file.record_count:
            # Bounds leave out NaN, which Spark orders above every number, so a float's upper side stays open.
            is_float = isinstance(field.field_type, types.FloatType | types.DoubleType)
            upper = None if is_float else column_bound(file.upper_bounds, field)
            bounds.append((column_bound(file.lower_bounds, field), upper))
    return bounds, exact, has_null


@cache
def _ordered() -> tuple[type[IcebergType], ...]:
    return (
        types.BooleanType,
        types.IntegerType,
        types.LongType,
        types.FloatType,
        types.DoubleType,
        types.DateType,
        types.TimestampType,
        types.TimestamptzType,
        types.StringType,
        types.DecimalType,
    )


def is_ordered(field: NestedField) -> bool:
    """Whether the column's values can serve as bounds: they have an order and a SQL literal."""
    return isinstance(field.field_type, _ordered())


def can_prune(field: NestedField) -> bool:
    """Whether Iceberg may filter by values of the column.

    It must not if rows from before the column have a default: Iceberg (1.11) takes the column to be null in their
    files, and leaves these out.
    """
    return is_ordered(field) and field.initial_default is None


def require_column(metadata: TableMetadata, column: str, remedy: str = _REMEDY) -> NestedField | None:
    """The top-level column; None if the table has it with a type that can't be interpreted here.

    Raises:
        UnknownColumnError: the table doesn't have it; ``remedy`` says what to do then.
    """
    if column not in metadata.column_names:
        raise UnknownColumnError(where=metadata.table, column=column, known=metadata.column_names, remedy=remedy)
    return metadata.columns.get(column)


def require_plain_column(metadata: TableMetadata, column: str) -> NestedField | None:
    """As ``require_column``, for a column that may have a range.

    Raises:
        UnknownColumnError: the table doesn't have it.
        UnorderedColumnError: it holds maps, lists, structs or variants.
    """
    field = require_column(metadata, column)
    kind = metadata.column_types[column]
    if kind.partition("<")[0] in _NOT_PLAIN:
        raise UnorderedColumnError(table=metadata.table, column=column, type=kind)
    return field


def identity_value(file: DataFile, metadata: TableMetadata, field: NestedField) -> tuple[Bound | None] | None:
    """The column's only value in this file, as a 1-tuple, if the file's spec partitions by the column's own value.

    Otherwise None; also for NaN, which has no place in Python's order.
    """
    for partition in metadata.spec(file.spec_id):
        if partition.get("source-id") == field.field_id and partition["transform"] == "identity":
            if not has_partition_value(file, partition["name"]):  # an unknown spelling: the bounds are used
                return None
            raw = partition_value(file, partition["name"])
            if raw != raw:  # noqa: PLR0124  # finds NaN
                return None
            try:
                return (None if raw is None else _from_avro(raw, field.field_type),)
            except OverflowError:  # beyond Python's calendar
                return None
    return None


def has_partition_value(file: DataFile, name: str) -> bool:
    """Whether the file's partition has a field of this name."""
    return name in file.partition or _avro_name(name) in file.partition


def partition_value(file: DataFile, name: str) -> Any:  # noqa: ANN401  # a raw Avro value
    """The file's value of a partition field; None also if it has no such field."""
    return file.partition.get(_avro_name(name), file.partition.get(name))


@cache
def _avro_name(name: str) -> str:
    """A partition field's name as Iceberg writes it into Avro: only letters, digits and underscores are kept.

    As in Java, a character beyond the first 65,536 is two, and numbers such as ½ are no digits.
    """
    utf_16 = name.encode("utf-16-be", "surrogatepass")
    units = [chr(int.from_bytes(utf_16[at : at + 2], "big")) for at in range(0, len(utf_16), 2)]
    kinds = map(unicodedata.category, units)
    escaped = "".join(
        unit if unit == "_" or kind[0] == "L" or kind == "Nd" else f"_x{ord(unit):X}"
        for unit, kind in zip(units, kinds, strict=True)
    )
    return f"_{escaped}" if escaped[:1].isdigit() else escaped


def _from_avro(raw: Any, kind: Any) -> Bound:  # noqa: ANN401  # an Avro value of the column's own type
    match kind:
        case types.DateType():
            return _EPOCH.date() + dt.timedelta(days=raw)
        case types.TimestampType():
            return (_EPOCH + dt.timedelta(microseconds=raw)).replace(tzinfo=None)
        case types.TimestamptzType():
            return _EPOCH + dt.timedelta(microseconds=raw)
        case types.DecimalType():
            return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-kind.scale, _EVERY_DIGIT)
        case _:
            return raw  # type: ignore[no-any-return]  # numbers, strings and booleans are themselves


def column_bound(bounds: Any, field: NestedField) -> Bound | None:  # noqa: ANN401  # bytes by field id
    """A file's lower or upper bound of the column; None if it has none that can be read.

    None also for NaN, which old writers of ORC files report as both bounds if it is the first value.
    """
    content = bounds.get(field.field_id)
    try:
        found = None if content is None else _from_bytes(content, field.field_type)
    except (OverflowError, ValueError, struct.error):  # beyond Python's calendar: the side stays open
        return None
    return None if found != found else found  # noqa: PLR0124  # finds NaN


def _from_bytes(content: bytes, kind: Any) -> Bound:  # noqa: ANN401  # a primitive Iceberg type
    """A bound, even one written before the column was widened: such bounds keep their narrower, four-byte form."""
    if len(content) == _FOUR_BYTES:
        match kind:
            case types.LongType():
                return int(struct.unpack("<i", content)[0])
            case types.DoubleType():
                return float(struct.unpack("<f", content)[0])
            case types.TimestampType():
                return dt.datetime.combine(
                    _EPOCH.date() + dt.timedelta(days=struct.unpack("<i", content)[0]), dt.time()
                )
            case _:
                pass
    assert isinstance(kind, types.PrimitiveType)  # noqa: S101  # what is ordered is primitive
    decoded = conversions.from_bytes(kind, content)
    return (
        _from_avro(decoded, kind)
        if isinstance(kind, types.DateType | types.TimestampType | types.TimestamptzType)
        else decoded
    )


def partition_values(changes: ChangeSet, metadata: TableMetadata, column: str) -> set[Bound | None] | None:
    """Every value of ``column`` in ``changes`` if each file's partition determines it; otherwise None.

    Raises:
        UnknownColumnError: the table has no such top-level column.
    """
    field = require_column(metadata, column)
    if field is None or not can_prune(field):
        return None
    values: set[Bound | None] = set()
    for file in changes.touched:
        value = identity_value(file, metadata, field)
        if value is None:
            return None
        values.add(value[0])
    return values
