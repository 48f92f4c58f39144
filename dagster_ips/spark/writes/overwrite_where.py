"""Replace the rows that match a condition."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.condition import mentions, mentions_only
from dagster_ips.errors import ConditionError, OutsideConditionError, OutsidePartitionsError, UnknownColumnError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import computed_once


def replace_where(frame: DataFrame, branch: Branch, *, where: str, whole_file_columns: Sequence[str]) -> None:
    """Replace the rows of ``branch`` that match ``where`` by ``frame``'s, all of which must match it as well.

    One overwrite if files match as a whole: if ``where`` names none but ``whole_file_columns``, of which every file
    holds one value. Otherwise matching rows are deleted and the frame's appended.

    Raises:
        UnknownColumnError: the table has no column that ``where`` names.
        ConditionError: rows can't be chosen by it, as by a subquery or at random.
        OutsideConditionError: a row of ``frame`` doesn't match.
    """
    there = frame.sparkSession.table(branch.sql_name)
    require_condition(there, where, of=branch.table)
    matches_whole_files = mentions_only(where, whole_file_columns, of=there.columns)
    with computed_once(frame) as rows:
        _refuse_rows_outside(rows, where, table=branch.table)
        if not (matches_whole_files and _overwrite(rows, branch, where)):
            delete_where(where, branch, frame.sparkSession)
            rows.writeTo(branch.sql_name).append()


def require_condition(rows: DataFrame, where: str, *, of: str) -> None:
    """Fail unless ``where`` is a condition on ``rows``, which are ``of`` a table.

    Raises:
        UnknownColumnError: they have no column that it names.
        ConditionError: it isn't a condition.
    """
    try:
        _ = rows.where(where).schema
    except AnalysisException as error:
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            raise UnknownColumnError(
                where=of,
                column=(error.getMessageParameters() or {}).get("objectName", "").strip("`"),
                known=tuple(rows.columns),
                remedy=f"The Overwrite's condition ({where}) names it. Nothing was written and nothing was consumed.",
            ) from error
        raise _not_a_condition(where, of, error) from error


def _not_a_condition(where: str, of: str, error: AnalysisException) -> ConditionError:
    return ConditionError(table=of, condition=where, cause=str(error).strip().partition("\n")[0])


def refuse_rows_outside_partitions(rows: DataFrame, partitions: str, *, table: str) -> None:
    """Fail unless every row is in the partitions that a run computes.

    Raises:
        OutsidePartitionsError: one isn't.
    """
    if outside := _outside(rows, partitions):
        count, example = outside
        raise OutsidePartitionsError(table=table, partitions=partitions, rows=count, example=example)


def _refuse_rows_outside(rows: DataFrame, where: str, *, table: str) -> None:
    if outside := _outside(rows, where):
        count, example = outside
        raise OutsideConditionError(table=table, condition=where, rows=count, example=example)


def _outside(rows: DataFrame, where: str) -> tuple[int, str] | None:
    """How many rows don't match, and one of them; None if all do."""
    outside = rows.where(~F.coalesce(F.expr(where), F.lit(False)))  # noqa: FBT003
    found = outside.limit(1).collect()
    if not found:
        return None
    named = [column for column in rows.columns if any(mentions(where, [column]))]
    return outside.count(), ", ".join(f"{column} = {found[0][column]!r}" for column in named)


def _overwrite(rows: DataFrame, branch: Branch, where: str) -> bool:
    """Whether Iceberg understands ``where``, which is found before any row is written."""
    try:
        rows.writeTo(branch.sql_name).overwrite(F.expr(where))
    except (AnalysisException, IllegalArgumentException):
        return False
    return True


def delete_where(where: str, branch: Branch, session: SparkSession) -> None:
    """Delete the rows of ``branch`` that match ``where``; without such a row nothing is committed.

    By MERGE, because a DELETE that finds whole files to drop commits without the session's stamp.
    """
    try:
        if session.table(branch.sql_name).where(where).isEmpty():
            return
        anything = session.range(1).toDF("__ips_one")
        anything.mergeInto(branch.sql_name, F.expr(where)).whenMatched().delete().merge()
    except AnalysisException as error:
        raise _not_a_condition(where, branch.table, error) from error
