"""Merges rows by key: updates what differs, inserts what is new, deletes what is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.core.row_text import row_text
from dagster_ips.errors import DuplicateKeysError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.changelog import comparable
from dagster_ips.spark.frames import any_of, column_of, computed_once, distinct_keys, same_keys, table_frame
from dagster_ips.spark.late import F, sql, types
from dagster_ips.spark.writes.merge_joins import small_sources_broadcast
from dagster_ips.spark.writes.overwrite import KeysToReplace
from dagster_ips.spark.writes.overwrite_where import is_outside, refuse_rows_outside_partitions
from dagster_ips.spark.writes.partition_filter import Partitions, PartitionsHeld, all_held, among, collected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SOURCE, _TARGET, _MATCHED = "ips_source", "ips_target", "ips_matched"
_DIFFERS, _TIES, GONE = "__ips_differs", "__ips_ties", "__ips_gone"


def merge_rows(  # noqa: PLR0913  # all are independent
    frame: DataFrame,
    branch: Branch,
    *,
    head: int | None = None,
    on: Sequence[str],
    latest_by: str | None,
    keeps_newer: bool,
    gone: Sequence[KeysToReplace],
    partition_columns: Sequence[str],
    renewed: Sequence[DataFrame] | None = None,
    within: str | None = None,
    partitions: str | None = None,
    held: PartitionsHeld = all_held,
    varying: Collection[str] = (),
) -> None:
    """Merge ``frame`` into ``branch`` by the columns ``on``; a null key matches a null key.

    ``head`` is the branch's snapshot, if that is known to have the branch's columns. The frame is computed once. Of the
    target, only the partitions that the frame touches are read, by literal predicates. Only rows that differ go through
    a MERGE, as matched rows; new ones are appended. A MERGE that also inserts would be an outer join, which shuffles
    the target. With ``latest_by`` and ``keeps_newer``, a row is replaced only by a newer one. Rows of the target whose
    columns have values of ``gone`` are deleted unless ``frame`` has their key. With ``renewed``, which are frames of
    keys, a row may replace one in the target only if its key is among those. All rows that are merged must match
    ``within``, the run's partitions. Only rows of ``partitions`` are deleted: if ``gone`` are only a part of the merge
    key, other partitions may have rows with the same values. Rows of partitions that aren't ``held`` are new. Rows that
    differ only in ``varying`` columns, such as the time of loading, don't tie by ``latest_by``. Rows that do tie are
    ignored if the target has a later row of their key, as a full run would ignore them.

    Raises:
        OutsidePartitionsError: a row doesn't match ``within``.
        DuplicateKeysError: several rows have one key, including the target's, and nothing says which of them wins.
    """
    prune = [column for column in partition_columns if column in on]
    with computed_once(latest_rows(frame, on, latest_by)) as rows, contextlib.ExitStack() as kept:
        there = _rows_of(branch, frame.sparkSession, head).select(*[quoted(column) for column in rows.columns])
        both = rows.withColumn(GONE, F.lit(False))  # noqa: FBT003
        if gone:
            # Distinct, because several inputs may lose a key, and a frame may be taken twice.
            own = there if partitions is None else there.where(partitions)
            lost = [_without_rows(keys, rows, own, on) for keys in gone]
            left = reduce(lambda some, more: some.unionByName(more), lost).distinct()
            both = both.unionByName(kept.enter_context(computed_once(left)), allowMissingColumns=True)
        seen = _survey(both, on, prune, within)
        if within is not None and seen.outside:
            refuse_rows_outside_partitions(rows, within, table=branch.table)
        if not seen.keys:
            return
        touched = held(seen.partitions).partitions
        there = there.where(among(prune, touched) if touched else F.lit(False))  # noqa: FBT003
        guard = latest_by if keeps_newer else None
        if seen.most > 1:
            contending = _not_beaten(rows, there, on, guard) if guard else rows
            refuse_repeated_keys(contending, on, latest_by, table=branch.table)
        if not touched:
            rows.writeTo(branch.sql_name).append()
            return
        matched = _matched(both, there, on, guard, varying)
        matched = kept.enter_context(computed_once(matched))
        found = _survey_matched(matched, on)
        if renewed is not None and found.rows:
            _refuse_rows_beside_others(matched, renewed, on, table=branch.table)
        if found.ties:
            _refuse_ties(matched, on, str(latest_by), table=branch.table)
        if found.differing:
            changed = matched.where(_DIFFERS).drop(_DIFFERS, _TIES)
            update_matched(changed, branch, on, among(prune, touched, alias=branch.qualifier))
        if found.rows < seen.rows:
            there_already = same_keys(on, _SOURCE, _MATCHED)
            new = rows.alias(_SOURCE).join(matched.alias(_MATCHED), there_already, "left_anti")
            (new if found.rows else rows).writeTo(branch.sql_name).append()


def _rows_of(branch: Branch, session: SparkSession, head: int | None) -> DataFrame:
    """The rows of ``branch``, before it is written to if its ``head`` is given.

    What is cached of a branch by its name, Spark reads again as soon as the branch is written to.
    """
    if head is None:
        return session.table(branch.sql_name)
    return table_frame(session, branch.catalog, branch.table, snapshot_id=head)


@dataclass(frozen=True, slots=True)
class _Survey:
    """Rows to be merged and keys that are gone, as one query finds them.

    ``partitions`` are the values of the partition columns in both, ``keys`` and ``rows`` the number of keys in both and
    in the rows. ``most`` is the largest number of rows with the same key, and ``outside`` is the number of rows that
    aren't in the run's partitions.
    """

    partitions: Partitions
    keys: int
    rows: int
    most: int
    outside: int


def _survey(both: DataFrame, on: Sequence[str], prune: Sequence[str], within: str | None) -> _Survey:
    outside = is_outside(within) if within is not None else F.lit(False)  # noqa: FBT003
    flags = {"__ips_rows": ~F.col(GONE), "__ips_outside": ~F.col(GONE) & outside}
    per_key = both.groupBy(*_columns(on)).agg(*[F.count_if(flag).alias(name) for name, flag in flags.items()])
    counted = {
        "__ips_keys": F.count("*"),
        "__ips_keys_of_rows": F.count_if(F.col("__ips_rows") > 0),
        "__ips_outside_sum": F.sum("__ips_outside"),
        "__ips_most": F.max("__ips_rows"),
    }
    totals = [count.alias(name) for name, count in counted.items()]
    found = collected(per_key.groupBy(*_columns(prune)).agg(*totals))
    counts = [value[len(prune) :] for value in found]
    return _Survey(
        partitions=[value[: len(prune)] for value in found],
        keys=sum(each[0] for each in counts),
        rows=sum(each[1] or 0 for each in counts),
        outside=sum(each[2] or 0 for each in counts),
        most=max([each[3] or 0 for each in counts], default=0),
    )


@dataclass(frozen=True, slots=True)
class _MatchedKeys:
    """How many keys the target has: of the ``rows`` to be merged, and of these and lost keys that differ or tie."""

    rows: int
    differing: int
    ties: int


def _survey_matched(matched: DataFrame, on: Sequence[str]) -> _MatchedKeys:
    # By key: the target may have several rows of a key, because of what others wrote to it.
    is_row = ~F.col(GONE)
    flags = {"__ips_row": is_row, "__ips_differs": F.col(_DIFFERS), "__ips_ties": F.col(_TIES) & is_row}
    per_key = matched.groupBy(*_columns(on)).agg(*[F.max(flag).alias(name) for name, flag in flags.items()])
    (counts,) = per_key.agg(*[F.count_if(F.col(name)) for name in flags]).collect()
    return _MatchedKeys(*counts)


def _without_rows(keys: KeysToReplace, rows: DataFrame, there: DataFrame, on: Sequence[str]) -> DataFrame:
    """The merge keys with a value of ``keys`` that ``rows`` doesn't have: their rows in the target are gone.

    If ``keys`` is only a part of the merge key, the target says which whole keys exist.
    """
    assert isinstance(keys.values, sql.DataFrame)  # noqa: S101  # merge keys are too many to be listed
    found = keys.values
    if set(keys.columns) < set(on):
        same = same_keys(keys.columns, _TARGET, _MATCHED)
        found = there.alias(_TARGET).join(found.alias(_MATCHED), same, "left_semi")
    found = distinct_keys(found, on).alias(_MATCHED)
    same = same_keys(on, _MATCHED, _SOURCE)
    return found.join(rows.alias(_SOURCE), same, "left_anti").withColumn(GONE, F.lit(True))  # noqa: FBT003


def _matched(
    rows: DataFrame, there: DataFrame, on: Sequence[str], latest_by: str | None, varying: Collection[str]
) -> DataFrame:
    """The rows whose key the target has, and whether they must replace what is there, or tie with it by ``latest_by``.

    It is an inner join, so that Spark may broadcast the rows and leave the target's rows where they are.
    """
    source, target = rows.alias(_SOURCE), there.alias(_TARGET)
    same = same_keys(on, _TARGET, _SOURCE)
    others = [column for column in rows.columns if column not in (*on, GONE)]
    here = dict(zip(rows.columns, _types(there), strict=False))  # rows have one more column, GONE
    new = dict(zip(rows.columns, _types(rows), strict=True))
    changed = {
        c: ~comparable(column_of(_TARGET, c), here[c]).eqNullSafe(comparable(column_of(_SOURCE, c), new[c]))
        for c in others
    }
    differs = any_of(list(changed.values()))
    ties = F.lit(False)  # noqa: FBT003
    if latest_by is not None:
        ties = any_of([each for c, each in changed.items() if c not in varying])
        mine, other = column_of(_SOURCE, latest_by), column_of(_TARGET, latest_by)
        ties &= mine.eqNullSafe(other)
        differs &= other.isNull() | (mine > other)
    differs |= column_of(_SOURCE, GONE)
    shown = [column_of(_SOURCE, c) for c in rows.columns]
    return target.join(source, same).select(*shown, differs.alias(_DIFFERS), ties.alias(_TIES))


def _not_beaten(rows: DataFrame, there: DataFrame, on: Sequence[str], latest_by: str) -> DataFrame:
    """The rows of whose key the target has no later one by ``latest_by``."""
    mine, other = column_of(_SOURCE, latest_by), column_of(_TARGET, latest_by)
    same = same_keys(on, _TARGET, _SOURCE)
    is_later = (mine.isNull() & other.isNotNull()) | (other > mine)
    return rows.alias(_SOURCE).join(there.alias(_TARGET), same & is_later, "left_anti")


def _refuse_ties(matched: DataFrame, on: Sequence[str], latest_by: str, *, table: str) -> None:
    """Fail if a row is as late as another row of its key that the target has; a full run would fail as well.

    Raises:
        DuplicateKeysError: one is; the error names an example.
    """
    if found := matched.where(F.col(_TIES) & ~F.col(GONE)).select(*map(quoted, on)).limit(1).collect():
        raise DuplicateKeysError(table=table, example=row_text(on, found[0]), latest_by=latest_by)


def _refuse_rows_beside_others(
    matched: DataFrame, renewed: Sequence[DataFrame], on: Sequence[str], *, table: str
) -> None:
    """Fail if a key that the target has comes again although its row there is still valid; a full run would as well.

    Raises:
        DuplicateKeysError: one does; the error names an example.
    """
    others = distinct_keys(matched.where(~F.col(GONE)), on).alias(_SOURCE)
    for keys in renewed:
        same = same_keys(on, _MATCHED, _SOURCE)
        others = others.join(keys.alias(_MATCHED), same, "left_anti").alias(_SOURCE)
    if found := others.limit(1).collect():
        raise DuplicateKeysError(table=table, example=row_text(on, found[0]))


def update_matched(changed: DataFrame, branch: Branch, on: Sequence[str], touched: Column) -> None:
    """Give the rows of ``branch`` the values that ``changed`` has for their keys; delete those that are ``GONE`` in it.

    ``touched`` is a condition that all of these rows meet, on columns with the branch's ``qualifier``.
    """
    values = {quoted(column): column_of(_SOURCE, column) for column in changed.columns if column not in (*on, GONE)}
    same = same_keys(on, branch.qualifier, _SOURCE)
    merging = changed.alias(_SOURCE).mergeInto(branch.sql_name, same & touched)
    merging = merging.whenMatched(column_of(_SOURCE, GONE)).delete()
    with small_sources_broadcast(changed.sparkSession):
        (merging.whenMatched().update(values) if values else merging).merge()


def latest_rows(frame: DataFrame, on: Sequence[str], latest_by: str | None) -> DataFrame:
    """One row per key, the one with the highest ``latest_by``; without ``latest_by``, the frame unchanged."""
    if latest_by is None:
        return frame
    newest = sql.Window.partitionBy(*_columns(on)).orderBy(F.col(quoted(latest_by)).desc_nulls_last())
    # rank, not row_number: if two rows tie, the user has to decide, not chance.
    kinds = dict(zip(frame.columns, _types(frame), strict=True))
    ranked = frame.withColumn("__ips_rank", F.rank().over(newest)).where("__ips_rank = 1").drop("__ips_rank")
    forms = {f"__ips_{i}": comparable(F.col(quoted(c)), kind) for i, (c, kind) in enumerate(kinds.items())}
    return ranked.withColumns(forms).dropDuplicates(list(forms)).drop(*forms)


def refuse_repeated_keys(rows: DataFrame, on: Sequence[str], latest_by: str | None, *, table: str) -> None:
    """Fail unless every row has a different key; rows that share one tie by ``latest_by``.

    Raises:
        DuplicateKeysError: two have the same; the error names an example.
    """
    per_key = rows.groupBy(*_columns(on)).agg(F.count("*").alias("__ips_rows"))
    if repeated := per_key.where("__ips_rows > 1").drop("__ips_rows").limit(1).collect():
        raise DuplicateKeysError(table=table, example=row_text(on, repeated[0]), latest_by=latest_by)


def _columns(names: Sequence[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]


def _types(rows: DataFrame) -> list[types.DataType]:
    return [field.dataType for field in rows.schema.fields]
