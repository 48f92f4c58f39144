"""Replaces the rows that match a condition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from dagster_ips.core.row_text import row_text
from dagster_ips.core.sql_condition import mentions, mentions_only
from dagster_ips.errors import ConditionError, OutsideConditionError, OutsidePartitionsError, UnknownColumnError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.error_text import first_line, unresolved_column
from dagster_ips.spark.frames import distinct_keys
from dagster_ips.spark.late import F, errors, types
from dagster_ips.spark.observed import watched
from dagster_ips.spark.settings import with_settings
from dagster_ips.spark.type_tree import contains
from dagster_ips.spark.writes.partition_filter import collected, exactly

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_GROUP_FILTER = "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled"
_ONE = "__ips_one"
_MOST_PARTITIONS = 10_000
_T = TypeVar("_T")


def replace_where(
    frame: DataFrame, branch: Branch, *, where: str, whole_file_columns: Sequence[str], hidden: Collection[str] = ()
) -> None:
    """Replace the rows of ``branch`` that match ``where`` by ``frame``'s rows, all of which must match it as well.

    Only Spark decides what matches: to Iceberg, ``c <> 'x'`` holds if ``c`` is null. If ``where`` names only
    ``whole_file_columns``, of which every file holds one value, the values that match are found first, and one
    overwrite replaces them. Otherwise matching rows are deleted and the frame's rows are appended. ``hidden`` are
    columns of the table that Iceberg misreads in any condition.

    Raises:
        UnknownColumnError: the table has no column that ``where`` names.
        ConditionError: it can't select rows, as it contains a subquery, for example, or is random.
        OutsideConditionError: a row of ``frame`` doesn't match.
    """
    require_condition(frame.sparkSession.table(branch.sql_name), where, of=branch.table)
    watch = watched(frame, is_outside(where))
    overwrite_matching(watch.rows, branch, where=where, whole_file_columns=whole_file_columns, hidden=hidden)
    if watch.found():
        count, example = _outside(frame, where)
        raise OutsideConditionError(table=branch.table, condition=where, rows=count, example=example)


def overwrite_matching(
    rows: DataFrame, branch: Branch, *, where: str, whole_file_columns: Sequence[str], hidden: Collection[str] = ()
) -> None:
    """As ``replace_where``, for rows that are known to match, and a condition that is known to be valid."""
    session = rows.sparkSession
    partitions = _matching_partitions(session.table(branch.sql_name), where, whole_file_columns, hidden)
    if partitions is not None:
        rows.writeTo(branch.sql_name).overwrite(partitions)
    else:
        delete_where(where, branch, session, hidden=hidden)
        rows.writeTo(branch.sql_name).append()


def require_condition(rows: DataFrame, where: str, *, of: str) -> None:
    """Fail unless ``where`` is a condition on ``rows`` that always gives the same result for the same row.

    ``of`` says in errors what the rows are.

    Raises:
        UnknownColumnError: the rows have no column that it names.
        ConditionError: it isn't such a condition.
    """
    try:
        # As a join's condition, which can't be random, though a filter's can.
        _ = _one_row(rows.sparkSession).join(rows, F.expr(where)).schema
    except errors.AnalysisException as error:
        if (column := unresolved_column(error)) is not None:
            raise UnknownColumnError(
                where=of,
                column=column,
                known=tuple(rows.columns),
                remedy=f"The Overwrite's condition ({where}) names it. Nothing was written and nothing was consumed.",
            ) from error
        raise _not_a_condition(where, of, error) from error


def _not_a_condition(where: str, of: str, error: errors.AnalysisException) -> ConditionError:
    return ConditionError(table=of, condition=where, cause=first_line(error))


def refuse_rows_outside_partitions(rows: DataFrame, partitions: str, *, table: str) -> None:
    """Fail because a row isn't in the partitions that a run computes.

    Raises:
        OutsidePartitionsError: always; it says how many rows aren't, and names one.
    """
    count, example = _outside(rows, partitions)
    raise OutsidePartitionsError(table=table, partitions=partitions, rows=count, example=example)


def is_outside(where: str) -> Column:
    """Whether a row doesn't match ``where``, or it is unknown whether it does."""
    # Not by the condition itself, by which Spark skips batches of cached rows: wrongly, if they have only NaN.
    return F.array(F.expr(where)) != F.array(F.lit(True))  # noqa: FBT003


def _outside(rows: DataFrame, where: str) -> tuple[int, str]:
    """How many rows don't match, and one of them as an example."""
    outside = rows.where(is_outside(where))
    found = outside.limit(1).collect()
    if not found:
        return 1, "a row that the frame no longer returned when it was computed again"
    named = [column for column in rows.columns if any(mentions(where, [column]))]
    return outside.count(), row_text(named, [found[0][column] for column in named])


def _matching_partitions(
    there: DataFrame, where: str, columns: Sequence[str], hidden: Collection[str]
) -> Column | None:
    """The filter for the files that match ``where``; None if it names other columns, or too many values match."""
    if not mentions_only(where, columns, of=[*there.columns, "select"]):
        return None
    named = [column for column in columns if any(mentions(where, [column]))]
    values = distinct_keys(there, named) if named else _one_row(there.sparkSession).toDF("__ips_other")
    one = _one_row(there.sparkSession)

    def found(condition: Column) -> list[tuple[object, ...]]:
        # By a join: a filter would also resolve columns that aren't among the values.
        matching = one.join(values, condition).select(*[values[name] for name in values.columns])
        return collected(matching.limit(_MOST_PARTITIONS + 1))

    try:
        matching = _evaluated(where, there, found, hidden)
    except errors.AnalysisException:  # it names a column that its text didn't show, such as Iceberg's own _file
        return None
    if len(matching) > _MOST_PARTITIONS:
        return None
    return exactly(named, matching if named else [() for _ in matching])


def delete_where(where: str, branch: Branch, session: SparkSession, *, hidden: Collection[str] = ()) -> None:
    """Delete the rows of ``branch`` that match ``where``; if there are none, nothing is committed.

    It uses a MERGE, because a DELETE that finds whole files to drop commits without the session's stamp.
    """
    there = session.table(branch.sql_name)

    one = _one_row(session)

    def merge_away(condition: Column) -> None:
        one.mergeInto(branch.sql_name, condition).whenMatched().delete().merge()

    def delete(condition: Column) -> None:
        if one.join(there, condition).isEmpty():
            return
        try:
            merge_away(condition)
        except errors.AnalysisException:
            raise
        except errors.PySparkException:
            # Spark 4.1 fails to plan some conditions as a filter of files: those that it simplifies to constants.
            with with_settings(session, {_GROUP_FILTER: "false"}):
                merge_away(condition)

    try:
        _evaluated(where, there, delete, hidden)
    except errors.AnalysisException as error:
        raise _not_a_condition(where, branch.table, error) from error


def _evaluated(where: str, there: DataFrame, use: Callable[[Column], _T], hidden: Collection[str]) -> _T:
    """What ``use`` returns for the condition ``where`` on ``there``, as a condition that joins it with ``_one_row``.

    Only Spark evaluates it. It would leave a plain condition on partition columns to Iceberg, to which ``c <> 'x'``
    holds for a null. Iceberg sees the condition in addition, to skip files that can't match, unless it would skip too
    many: with floats it skips NaN, which to Spark is above every number, and takes -0.0 to be less than 0.0. Iceberg
    also doesn't see conditions on ``hidden`` columns, and none on which it or Spark's optimizer fails, such as IN if a
    partition is null (Iceberg 1.11).
    """
    condition = F.expr(where)
    # Inside an array, neither of them looks at it.
    unseen = F.array(condition) == F.array(F.col(_ONE) == 0)
    if any(mentions(where, [*_with_floats(there), *hidden])):
        return use(unseen)
    try:
        return use(condition & unseen)
    except errors.AnalysisException:
        raise
    except errors.PySparkException:
        return use(unseen)


def _with_floats(rows: DataFrame) -> Iterator[str]:
    floats = (types.FloatType, types.DoubleType)
    return (field.name for field in rows.schema.fields if contains(field.dataType, *floats))


def _one_row(session: SparkSession) -> DataFrame:
    return session.range(1).toDF(_ONE)
