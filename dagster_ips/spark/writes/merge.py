"""Merge rows by key: update what differs, insert what is new, delete what is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.errors import DuplicateKeysError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.changelog import comparable
from dagster_ips.spark.frames import all_of, any_of, computed_once, distinct_keys
from dagster_ips.spark.late import F, sql, types
from dagster_ips.spark.writes.overwrite import ChangedKeys
from dagster_ips.spark.writes.partition_filter import among, collected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SOURCE, _TARGET, _MATCHED = "ips_source", "ips_target", "ips_matched"
_DIFFERS, _TIES, _GONE = "__ips_differs", "__ips_ties", "__ips_gone"


def merge_rows(  # noqa: PLR0913  # each is a thing of its own
    frame: DataFrame,
    branch: Branch,
    *,
    on: Sequence[str],
    latest_by: str | None,
    keeps_newer: bool,
    gone: Sequence[ChangedKeys],
    partition_columns: Sequence[str],
    renewed: Sequence[DataFrame] | None = None,
) -> None:
    """Merge ``frame`` into ``branch`` by the columns ``on``; a null key matches a null key.

    The frame is computed once. Only the target's partitions that it touches are read, by literal predicates, and only
    rows that differ go through a MERGE, as matched rows; new ones are appended. A MERGE that also inserts would be an
    outer join that shuffles the target. With ``latest_by`` and ``keeps_newer`` a row gives way only to one that is
    newer. Rows of the target whose columns have values of ``gone`` are deleted unless ``frame`` has their key. With
    ``renewed``, frames of keys, a row may take the place of one in the target only if its key is among those.

    Raises:
        DuplicateKeysError: several rows have one key, the target's included, and nothing says which of them wins.
    """
    prune = [column for column in partition_columns if column in on]
    with computed_once(latest_rows(frame, on, latest_by)) as rows:
        partitions = _partitions_of_unique_keys(rows, on, prune, table=branch.table)
        there = frame.sparkSession.table(branch.sql_name).select(*[quoted(column) for column in rows.columns])
        with contextlib.ExitStack() as kept:
            both = rows.withColumn(_GONE, F.lit(False))  # noqa: FBT003
            if gone:
                # Distinct, because several inputs may lose a key, and a frame may be taken twice.
                lost = [_without_rows(keys, rows, there, on) for keys in gone]
                left = reduce(lambda some, more: some.unionByName(more), lost).distinct()
                left = kept.enter_context(computed_once(left))
                partitions += _partitions(left, prune)
                both = both.unionByName(left, allowMissingColumns=True)
            guard = latest_by if keeps_newer else None
            touched = sorted(set(partitions), key=repr)
            matched = _matched(both, there.where(among(prune, touched)), on, guard)
            matched = kept.enter_context(computed_once(matched))
            if renewed is not None:
                _refuse_rows_beside_others(matched, renewed, on, table=branch.table)
            if guard is not None:
                _refuse_ties(matched, on, guard, table=branch.table)
            # mergeInto gives the target no alias: its columns go by the last part of its name.
            target = quoted(f"branch_{branch.name}")
            changed = matched.where(_DIFFERS).drop(_DIFFERS, _TIES)
            _update(changed, branch, on, target, among(prune, touched, alias=target))
            there_already = all_of([_in(_SOURCE, key).eqNullSafe(_in(_MATCHED, key)) for key in on])
            new = rows.alias(_SOURCE).join(matched.alias(_MATCHED), there_already, "left_anti")
            new.writeTo(branch.sql_name).append()


def _without_rows(keys: ChangedKeys, rows: DataFrame, there: DataFrame, on: Sequence[str]) -> DataFrame:
    """The merge keys with a value of ``keys`` that ``rows`` doesn't have: their rows in the target are gone.

    Where ``keys`` is only a part of the merge key, the target says which whole keys there are.
    """
    assert isinstance(keys.values, sql.DataFrame)  # noqa: S101  # merge keys are too many to be listed
    found = keys.values
    if set(keys.columns) < set(on):
        same = all_of([_in(_TARGET, key).eqNullSafe(_in(_MATCHED, key)) for key in keys.columns])
        found = there.alias(_TARGET).join(found.alias(_MATCHED), same, "left_semi")
    found = distinct_keys(found, on).alias(_MATCHED)
    same = all_of([_in(_MATCHED, key).eqNullSafe(_in(_SOURCE, key)) for key in on])
    return found.join(rows.alias(_SOURCE), same, "left_anti").withColumn(_GONE, F.lit(True))  # noqa: FBT003


def _partitions(rows: DataFrame, prune: Sequence[str]) -> list[tuple[object, ...]]:
    return collected(distinct_keys(rows, prune)) if prune else []


def _matched(rows: DataFrame, there: DataFrame, on: Sequence[str], latest_by: str | None) -> DataFrame:
    """The rows whose key the target has, and whether they must replace what is there, or are another that is as late.

    An inner join, so that Spark may broadcast the rows and leave the target where it is.
    """
    source, target = rows.alias(_SOURCE), there.alias(_TARGET)
    same = all_of([_in(_TARGET, key).eqNullSafe(_in(_SOURCE, key)) for key in on])
    others = [column for column in rows.columns if column not in (*on, _GONE)]
    here = dict(zip(rows.columns, _types(there), strict=False))  # rows say besides which are gone
    new = dict(zip(rows.columns, _types(rows), strict=True))
    differs = any_of(
        [~comparable(_in(_TARGET, c), here[c]).eqNullSafe(comparable(_in(_SOURCE, c), new[c])) for c in others]
    )
    ties = F.lit(False)  # noqa: FBT003
    if latest_by is not None:
        ties = differs & _in(_SOURCE, latest_by).eqNullSafe(_in(_TARGET, latest_by))
        differs &= _in(_TARGET, latest_by).isNull() | (_in(_SOURCE, latest_by) > _in(_TARGET, latest_by))
    differs |= _in(_SOURCE, _GONE)
    shown = [_in(_SOURCE, c) for c in rows.columns]
    return target.join(source, same).select(*shown, differs.alias(_DIFFERS), ties.alias(_TIES))


def _refuse_ties(matched: DataFrame, on: Sequence[str], latest_by: str, *, table: str) -> None:
    """Fail where a row is as late as the other one of its key that the target has, as a full run would.

    Raises:
        DuplicateKeysError: one is; the error names an example.
    """
    if found := matched.where(F.col(_TIES) & ~F.col(_GONE)).select(*map(quoted, on)).limit(1).collect():
        raise DuplicateKeysError(table=table, keys=tuple(on), example=str(tuple(found[0])), latest_by=latest_by)


def _refuse_rows_beside_others(
    matched: DataFrame, renewed: Sequence[DataFrame], on: Sequence[str], *, table: str
) -> None:
    """Fail where a key that the target has comes again and its row there still counts, as a full run would.

    Raises:
        DuplicateKeysError: one does; the error names an example.
    """
    others = distinct_keys(matched.where(~F.col(_GONE)), on).alias(_SOURCE)
    for keys in renewed:
        same = all_of([_in(_MATCHED, key).eqNullSafe(_in(_SOURCE, key)) for key in on])
        others = others.join(keys.alias(_MATCHED), same, "left_anti").alias(_SOURCE)
    if found := others.limit(1).collect():
        raise DuplicateKeysError(table=table, keys=tuple(on), example=str(tuple(found[0])))


def _update(changed: DataFrame, branch: Branch, on: Sequence[str], target: str, touched: Column) -> None:
    values = {quoted(column): _in(_SOURCE, column) for column in changed.columns if column not in (*on, _GONE)}
    if changed.isEmpty():
        return
    same = all_of([_in(target, key).eqNullSafe(_in(_SOURCE, key)) for key in on])
    merging = changed.alias(_SOURCE).mergeInto(branch.sql_name, same & touched)
    merging = merging.whenMatched(_in(_SOURCE, _GONE)).delete()
    (merging.whenMatched().update(values) if values else merging).merge()


def latest_rows(frame: DataFrame, on: Sequence[str], latest_by: str | None) -> DataFrame:
    """One row per key, the one with the highest ``latest_by``; without it the frame as it is."""
    if latest_by is None:
        return frame
    newest = sql.Window.partitionBy(*[F.col(quoted(key)) for key in on]).orderBy(
        F.col(quoted(latest_by)).desc_nulls_last()
    )
    # rank, not row_number: two rows that tie are a question for the user, not ours to answer by chance.
    types = dict(zip(frame.columns, _types(frame), strict=True))
    ranked = frame.withColumn("__ips_rank", F.rank().over(newest)).where("__ips_rank = 1").drop("__ips_rank")
    forms = {f"__ips_{i}": comparable(F.col(quoted(c)), kind) for i, (c, kind) in enumerate(types.items())}
    return ranked.withColumns(forms).dropDuplicates(list(forms)).drop(*forms)


def _partitions_of_unique_keys(
    rows: DataFrame, on: Sequence[str], prune: Sequence[str], *, table: str
) -> list[tuple[object, ...]]:
    """The distinct values of ``prune``, found in the same job that sees whether every row has a key of its own.

    Raises:
        DuplicateKeysError: one hasn't; the error names an example.
    """
    per_key = _rows_per_key(rows, on)
    names = [F.col(quoted(column)) for column in prune]
    found = collected(per_key.groupBy(*names).agg(F.max("__ips_rows").alias("__ips_most")))
    if any((most or 0) > 1 for *_, most in found):
        refuse_repeated_keys(rows, on, table=table)
    return [value[:-1] for value in found]


def refuse_repeated_keys(rows: DataFrame, on: Sequence[str], *, table: str) -> None:
    """Fail unless every row has a key of its own.

    Raises:
        DuplicateKeysError: one hasn't; the error names an example.
    """
    repeated = _rows_per_key(rows, on).where("__ips_rows > 1").drop("__ips_rows").limit(1).collect()
    if repeated:
        raise DuplicateKeysError(table=table, keys=tuple(on), example=str(tuple(repeated[0])))


def _rows_per_key(rows: DataFrame, on: Sequence[str]) -> DataFrame:
    return rows.groupBy(*[F.col(quoted(key)) for key in on]).agg(F.count("*").alias("__ips_rows"))


def _types(rows: DataFrame) -> list[types.DataType]:
    return [field.dataType for field in rows.schema.fields]


def _in(relation: str, column: str) -> Column:
    return F.col(f"{relation}.{quoted(column)}")
