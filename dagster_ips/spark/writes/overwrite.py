"""Replaces all rows, or the rows of given partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.core.row_text import row_text
from dagster_ips.errors import LongPartitionError, MixedFilesError, NullValueError, UnfitFrameError
from dagster_ips.spark.branches import Branch, table_argument
from dagster_ips.spark.error_text import column_without_nulls, is_of_long_path
from dagster_ips.spark.frames import MOST_LITERALS, all_of, any_of, computed_once, distinct_keys, free_prefix, listed
from dagster_ips.spark.late import F, errors, sql
from dagster_ips.spark.observed import watched
from dagster_ips.spark.writes.partition_filter import collected, exactly

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_MIXED = "some, but not all, rows match filter"


@contextlib.contextmanager
def write_errors_explained(frame: DataFrame, branch: Branch, partition_columns: Sequence[str]) -> Iterator[None]:
    """Around writes of ``frame`` to ``branch``: explains errors of its files, partitions and NOT NULL columns.

    Raises:
        MixedFilesError: a file has rows of a partition that is replaced and of others.
        NullValueError: a row has a null where the table can't hold one.
        LongPartitionError: the value of a partition is too long to be part of a path.
    """
    try:
        yield
    except errors.PySparkException as error:
        if (column := column_without_nulls(error)) is not None:
            raise NullValueError(branch.table, column, branch.table_sql_name) from error
        if is_of_long_path(error) and partition_columns:
            raise LongPartitionError(branch.table, *_longest(frame, partition_columns)) from error
        if _MIXED not in str(error):
            raise
        arguments = f"table => {table_argument(branch.table)}, options => map('rewrite-all', 'true')"
        rewrite = f"CALL {quoted(branch.catalog)}.system.rewrite_data_files({arguments})"
        raise MixedFilesError(branch.table, rewrite) from error


def _longest(frame: DataFrame, columns: Sequence[str]) -> tuple[str, int]:
    """The column that has the longest value as text, and how many characters that has; runs a job."""
    lengths = [F.max(F.length(F.col(quoted(column)).cast("string"))).alias(column) for column in columns]
    (found,) = frame.select(*lengths).collect()
    return max(zip(columns, (length or 0 for length in found), strict=True), key=lambda each: each[1])


def replace_rows(frame: DataFrame, branch: Branch, *, table_is_empty: bool) -> None:
    """Replace every row by ``frame``'s rows.

    A table without rows is appended to, so that its consumers see a plain append and not an overwrite.
    """
    if table_is_empty:
        frame.writeTo(branch.sql_name).append()
    else:
        frame.writeTo(branch.sql_name).overwrite(F.lit(True))  # noqa: FBT003


@dataclass(frozen=True)
class KeysToReplace:
    """Columns, and those of their values that changed: a frame of just these columns, or the values themselves."""

    columns: Sequence[str]
    values: DataFrame | Sequence[tuple[object, ...]]

    def collect(self) -> Sequence[tuple[object, ...]]:
        """The values; runs a job if they are a frame."""
        return collected(self.values) if isinstance(self.values, sql.DataFrame) else self.values


def replace_partitions(
    frame: DataFrame, branch: Branch, *, columns: Sequence[str], changed: Sequence[KeysToReplace], upstream: str
) -> None:
    """Replace the partitions that ``frame`` has rows in, and those of ``changed``, which may be empty now.

    It uses an explicit filter, because Spark's dynamic overwrite leaves a partition that should become empty as it was,
    and commits nothing for an empty frame.

    Raises:
        UnfitFrameError: a row of ``frame`` is in a partition that isn't among ``changed``: the asset moved its rows.
    """
    if not changed:
        with computed_once(frame) as rows:
            rows.writeTo(branch.sql_name).overwrite(exactly(columns, collected(distinct_keys(rows, columns))))
        return
    keys = [(each.columns, each.collect()) for each in changed]
    rows, elsewhere = _outside(frame, keys)
    watch = watched(rows, elsewhere)
    own = [F.col(quoted(name)) for name in frame.columns]
    replaced = any_of([exactly(of, values) for of, values in keys])
    watch.rows.select(*own).writeTo(branch.sql_name).overwrite(replaced)
    if watch.found():
        named = changed[0].columns
        example = next(
            (row_text(named, [row[column] for column in named]) for row in rows.where(elsewhere).limit(1).collect()),
            "any",
        )
        raise UnfitFrameError(
            table=branch.table,
            upstream=upstream,
            frame=f"partitions that changed ({', '.join(named)})",
            problem=f"it returned rows of other partitions, for example {example}",
            remedy=f"Keep {', '.join(named)} as it is in the upstream, or use replace() with a frame built on source.",
        )


def _outside(
    frame: DataFrame, keys: Sequence[tuple[Sequence[str], Sequence[tuple[object, ...]]]]
) -> tuple[DataFrame, Column]:
    """The rows of ``frame``, and the condition that a row has none of the ``keys``, which are columns and their values.

    The rows get columns for that if the condition would otherwise compare each row with a long list.
    """
    own, inside = free_prefix(frame.columns), []
    for place, (columns, values) in enumerate(keys):
        if len(values) <= MOST_LITERALS:
            inside.append(F.coalesce(exactly(columns, values), F.lit(False)))  # noqa: FBT003
            continue
        found, *names = (f"{own}{place}_{at}" for at in range(len(columns) + 1))
        known = listed(frame, columns, values, place=found).toDF(found, *names)
        matches = [F.col(quoted(column)).eqNullSafe(F.col(name)) for column, name in zip(columns, names, strict=True)]
        frame = frame.join(F.broadcast(known), all_of(matches), "left")
        inside.append(F.col(found).isNotNull())
    return frame, ~any_of(inside)
