"""Literal predicates for the partitions a frame touches: they prune, and keep commits to different ones apart."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.ranges import quoted
from dagster_ips.spark.frames import all_of, any_of

_MOST = 1000


def partitions_of(frame: DataFrame, columns: Sequence[str], *, alias: str | None = None) -> Column:
    """Rows in a partition that ``frame`` has rows in; runs a job for the distinct values. No rows, no partition.

    Only for pruning: beyond 1,000 partitions it is simply true.
    """
    values = frame.select(*[F.col(quoted(column)) for column in columns]).distinct().limit(_MOST + 1).collect()
    return among(columns, [tuple(row) for row in values], alias=alias)


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
    return column.isNull() if value is None else column == F.lit(value)
