"""Literal predicates for the partitions a frame touches: they prune, and keep commits to different ones apart."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster_ips.core.held_rows import HeldRows
from dagster_ips.core.ranges import literal, quoted
from dagster_ips.errors import OutOfRangeDateError
from dagster_ips.spark.frames import all_of, any_of
from dagster_ips.spark.late import F, types

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Partitions = Sequence[tuple[object, ...]]
"""Values of the columns that partition a table."""
PartitionsHeld: TypeAlias = Callable[[Partitions], HeldRows]
"""Which of some partitions a table may hold rows of."""

_MOST = 1000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def all_held(partitions: Partitions) -> HeldRows:
    """A table of which nothing is known may hold any number of rows of every partition."""
    return HeldRows(partitions, None)


def collected(rows: DataFrame) -> list[tuple[Any, ...]]:
    """The rows, a timestamp with a time zone as a datetime in UTC.

    Spark's client gives those as naive datetimes in the process's own time zone, where an hour of autumn occurs twice.

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
    except (OverflowError, ValueError) as error:  # A year before 1 or after 9999, as PyArrow and Python say it.
        kinds = types.DateType, types.TimestampType, types.TimestampNTZType
        dated = tuple(field.name for field in rows.schema.fields if isinstance(field.dataType, kinds))
        if not dated:
            raise
        raise OutOfRangeDateError(dated) from error


def _hashable(value: object) -> object:
    """Spark 4.0, and by a setting 4.1, gives binary values as arrays of bytes that could change."""
    return bytes(value) if isinstance(value, bytearray) else value


def _moment(micros: int | None) -> dt.datetime | None:
    return None if micros is None else _EPOCH + dt.timedelta(microseconds=micros)


def among(columns: Sequence[str], values: Sequence[tuple[object, ...]], *, alias: str | None = None) -> Column:
    """As ``exactly``, for pruning only: simply true of no columns, and of more than 1,000 values."""
    if not columns or len(values) > _MOST:
        return F.lit(True)  # noqa: FBT003
    return exactly(columns, values, alias=alias)


def exactly(columns: Sequence[str], values: Sequence[tuple[object, ...]], *, alias: str | None = None) -> Column:
    """Rows whose ``columns`` have one of ``values``; a null is a value like any other.

    By ``=`` and never by ``IN``, on which Iceberg fails where a partition of a string column is null.
    """
    names = [F.col(f"{alias}.{quoted(column)}" if alias else quoted(column)) for column in columns]
    return any_of([all_of([_is(name, item) for name, item in zip(names, value, strict=True)]) for value in values])


def _is(column: Column, value: object) -> Column:
    match value:
        case None:
            return column.isNull()
        case bool():  # Spark makes "= FALSE" a NOT, which Iceberg takes to hold of a null
            return column.isNotNull() & (column == F.lit(value))
        case float() if value == 0:  # Iceberg orders -0.0 below 0.0, which are equal to Spark
            return (column >= F.lit(-0.0)) & (column <= F.lit(0.0))
        case dt.datetime():  # F.lit takes a naive one for the process's own time
            return column == F.expr(literal(value))
        case _:
            return column == F.lit(value)
