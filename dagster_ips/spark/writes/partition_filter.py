"""Literal predicates for the partitions that a frame touches: they prune, and keep commits from conflicting."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster_ips.core.held_rows import HeldRows
from dagster_ips.core.ranges import literal, quoted
from dagster_ips.errors import OutOfRangeDateError
from dagster_ips.spark.frames import MOST_LITERALS, all_of, any_of
from dagster_ips.spark.late import F, types

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Partitions = Sequence[tuple[object, ...]]
"""Values of the columns that a table is partitioned by."""
PartitionsHeld: TypeAlias = Callable[[Partitions], HeldRows]
"""Says which of some partitions a table may hold rows of."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def all_held(partitions: Partitions) -> HeldRows:
    """For a table about which nothing is known: it may hold any number of rows of every partition."""
    return HeldRows(partitions, None)


def collected(rows: DataFrame) -> list[tuple[Any, ...]]:
    """The rows as tuples, with timestamps with a time zone as datetimes in UTC.

    Spark's client returns those as naive datetimes in the process's own time zone, where one hour in autumn occurs
    twice.

    Raises:
        OutOfRangeDateError: Python has no such date.
    """
    zoned = [isinstance(field.dataType, types.TimestampType) for field in rows.schema.fields]
    shown = [F.col(quoted(name)) for name in rows.columns]
    shown = [F.unix_micros(column) if is_zoned else column for column, is_zoned in zip(shown, zoned, strict=True)]
    try:
        return [
            tuple(_moment(value) if is_zoned else _hashable(value) for value, is_zoned in zip(row, zoned, strict=True))
            for row in rows.select(*shown).collect()
        ]
    except (OverflowError, ValueError) as error:  # A year before 1 or after 9999: PyArrow's error and Python's.
        kinds = types.DateType, types.TimestampType, types.TimestampNTZType
        dated = tuple(field.name for field in rows.schema.fields if isinstance(field.dataType, kinds))
        if not dated:
            raise
        raise OutOfRangeDateError(dated) from error


def _hashable(value: object) -> object:
    """Binary values as bytes: Spark 4.0, and 4.1 with a certain setting, returns them as mutable byte arrays."""
    return bytes(value) if isinstance(value, bytearray) else value


def _moment(micros: int | None) -> dt.datetime | None:
    return None if micros is None else _EPOCH + dt.timedelta(microseconds=micros)


def among(columns: Sequence[str], values: Sequence[tuple[object, ...]], *, alias: str | None = None) -> Column:
    """As ``exactly``, but for pruning only: true for more rows if there are more than 1,000 values, or no columns.

    Of so many values, which must be all of them, only the lowest and the highest of each column count.
    """
    if len(values) > MOST_LITERALS:
        of_each = zip(*values, strict=True)
        return all_of([_between(name, of) for name, of in zip(_named(columns, alias), of_each, strict=True)])
    return exactly(columns, values, alias=alias) if columns else F.lit(True)  # noqa: FBT003


def exactly(columns: Sequence[str], values: Sequence[tuple[object, ...]], *, alias: str | None = None) -> Column:
    """Rows whose ``columns`` have one of ``values``; a null is a value like any other.

    It uses ``=`` and never ``IN``, on which Iceberg fails if a partition of a string column is null.
    """
    names = _named(columns, alias)
    return any_of([all_of([_is(name, item) for name, item in zip(names, value, strict=True)]) for value in values])


def _named(columns: Sequence[str], alias: str | None) -> list[Column]:
    return [F.col(f"{alias}.{quoted(column)}" if alias else quoted(column)) for column in columns]


def _between(column: Column, values: Sequence[Any]) -> Column:
    """Whether the column is within the range of ``values``; true if they have no range that all engines agree on."""
    known = [value for value in values if value is not None]
    kinds = {type(value) for value in known}
    if len(kinds) != 1 or not kinds <= {int, str, Decimal, dt.date, dt.datetime}:
        return F.lit(True)  # noqa: FBT003
    within = (column >= _literal(min(known))) & (column <= _literal(max(known)))
    return within | column.isNull() if len(known) < len(values) else within


def _is(column: Column, value: object) -> Column:
    match value:
        case None:
            return column.isNull()
        case bool():  # Spark turns "= FALSE" into a NOT, which to Iceberg holds for a null
            return column.isNotNull() & (column == F.lit(value))
        case float() if value == 0:  # Iceberg orders -0.0 below 0.0, which are equal to Spark
            return (column >= F.lit(-0.0)) & (column <= F.lit(0.0))
        case _:
            return column == _literal(value)


def _literal(value: object) -> Column:
    # F.lit takes a time without a zone to be in the process's own.
    return F.expr(literal(value)) if isinstance(value, dt.datetime) else F.lit(value)
