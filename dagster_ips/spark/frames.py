"""Frames over tables and their changes. Lazy: nothing is read before the frame is."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from dagster_ips.core.misread_columns import ANY_TYPE, MisreadColumns, dotted
from dagster_ips.core.ranges import Predicate, literal, quoted
from dagster_ips.spark.branches import sql_name
from dagster_ips.spark.late import F
from dagster_ips.spark.session import VERSION_AS_OF

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MOST_LITERALS = 1000
"""How many values a condition lists at most: evaluating it for a row takes as long as the list is."""


def table_frame(session: SparkSession, catalog: str, table: str, *, snapshot_id: int | None = None) -> DataFrame:
    """The rows of a table, as of a snapshot if one is given."""
    of_version = {VERSION_AS_OF: str(snapshot_id)} if snapshot_id is not None else {}
    return session.read.options(**of_version).table(sql_name(catalog, table))


def without_rows(frame: DataFrame) -> DataFrame:
    """A frame of the same columns as ``frame``. What is built on it is analyzed without analyzing ``frame`` again."""
    return frame.sparkSession.createDataFrame([], frame.schema)


def as_spark_reads(rows: DataFrame, misread: MisreadColumns) -> DataFrame:
    """The ``rows`` of an Iceberg table, of which any condition selects what it selects of other rows in Spark.

    Rows with and without null in a partition are read apart, so that conditions on the column still skip files: where
    it isn't null, Iceberg reads them rightly; where it is null, Spark knows what they are.
    """
    values: dict[str, Column] = {}
    for path, sql in misread.to_hide.items():
        top, value = path[0], F.expr(sql.format(dotted(path)))
        values[top] = values.get(top, F.col(quoted(top))).withField(dotted(path[1:]), value) if path[1:] else value
    rows = rows.withColumns(values) if values else rows
    return reduce(lambda some, more: some.unionAll(more), [_part(rows, *each) for each in misread.parts])


def _part(rows: DataFrame, condition: str, nulls: Mapping[str, str]) -> DataFrame:
    rows = rows.where(condition) if condition else rows
    return rows.withColumns({name: F.expr(sql) for name, sql in nulls.items()}) if nulls else rows


def select_as_spark_reads(table: str, columns: Sequence[str], misread: MisreadColumns) -> str:
    """The ``columns`` of an Iceberg table as SQL, read as by ``as_spark_reads``.

    A struct with a hidden field is hidden as a whole.
    """
    if not misread.are_any:
        return f"SELECT * FROM {table}"  # noqa: S608  # quoted by the caller
    values = {path[0]: (ANY_TYPE if path[1:] else sql).format(quoted(path[0])) for path, sql in misread.to_hide.items()}
    selects = []
    for condition, nulls in misread.parts:
        shown = {**values, **nulls}
        listed = ", ".join(f"{shown[each]} AS {quoted(each)}" if each in shown else quoted(each) for each in columns)
        selects.append(f"SELECT {listed} FROM {table}{f' WHERE {condition}' if condition else ''}")  # noqa: S608  # as above
    return f"({' UNION ALL '.join(selects)})" if len(selects) > 1 else selects[0]


def rows_with_keys(
    rows: DataFrame, changed: DataFrame, keys: Sequence[str], prune: Sequence[Predicate], *, are_few: bool = False
) -> DataFrame:
    """The ``rows`` whose ``keys`` occur in ``changed``; a null key matches a null key.

    ``prune`` are conditions that all such rows are known to meet: they let files be skipped before the join. If the
    keys ``are_few``, they are broadcast to where the rows are read, whatever Spark estimates.
    """
    own = free_prefix(rows.columns)
    wanted = changed.select(*[F.col(quoted(key)).alias(f"{own}{i}") for i, key in enumerate(keys)]).distinct()
    wanted = F.broadcast(wanted) if are_few else wanted
    pruned = reduce(lambda frame, condition: frame.where(condition), prune, rows)
    matches = [pruned[quoted(key)].eqNullSafe(wanted[f"{own}{i}"]) for i, key in enumerate(keys)]
    return pruned.join(wanted, all_of(matches), "left_semi")


def listed(rows: DataFrame, columns: Sequence[str], values: Sequence[tuple[object, ...]], *, place: str) -> DataFrame:
    """``values`` as a frame whose ``columns`` have the types that they have in ``rows``.

    Its column ``place`` is the position of each in the list. There must be a value.
    """
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    typed = [F.col(quoted(name)).cast(kinds[name]).alias(name) for name in columns]
    lines = [
        ", ".join([str(at), *("NULL" if item is None else literal(item) for item in value)])
        for at, value in enumerate(values)
    ]
    names = ", ".join([place, *map(quoted, columns)])
    found = rows.sparkSession.sql(f"SELECT * FROM VALUES ({'), ('.join(lines)}) AS v({names})")  # noqa: S608  # literals
    return found.select(place, *typed)


def free_prefix(columns: Sequence[str]) -> str:
    """A prefix that none of ``columns`` starts with, in any case, for the names of internal columns."""
    prefix = "__ips_"
    while any(column.lower().startswith(prefix) for column in columns):
        prefix += "_"
    return prefix


def distinct_keys(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The distinct values of the columns ``keys``."""
    return rows.select(*[F.col(quoted(key)) for key in keys]).distinct()


def renamed(rows: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """``rows`` with the columns ``names``, each of them the column that it maps to."""
    return rows.select(*[F.col(quoted(old)).alias(new) for new, old in names.items()])


def column_of(relation: str, name: str) -> Column:
    """The column ``name`` of the frame or table with the alias ``relation``."""
    return F.col(f"{relation}.{quoted(name)}")


def same_keys(keys: Sequence[str], one: str, other: str, *, may_be_null: Collection[str] | None = None) -> Column:
    """Whether a row of the relation ``one`` and a row of ``other`` have the same ``keys``.

    Keys that ``may_be_null``, by default all, are compared by ``<=>``: a null is a value like any other. The others are
    compared by ``=``, by which Spark can join in more ways.
    """
    by_null = keys if may_be_null is None else may_be_null
    pairs = [(key, column_of(one, key), column_of(other, key)) for key in keys]
    return all_of([mine.eqNullSafe(others) if key in by_null else mine == others for key, mine, others in pairs])


def all_of(conditions: Sequence[Column]) -> Column:
    """The conjunction; true if there are no conditions."""
    return _balanced(operator.and_, conditions) if conditions else F.lit(True)  # noqa: FBT003


def any_of(conditions: Sequence[Column]) -> Column:
    """The disjunction; false if there are no conditions."""
    return _balanced(operator.or_, conditions) if conditions else F.lit(False)  # noqa: FBT003


def _balanced(join: Callable[[Column, Column], Column], conditions: Sequence[Column]) -> Column:
    """A tree and not a chain: Spark Connect refuses expressions that are a thousand levels deep."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return join(_balanced(join, conditions[:half]), _balanced(join, conditions[half:]))


@contextlib.contextmanager
def computed_once(frame: DataFrame) -> Iterator[DataFrame]:
    """``frame``, cached by Spark while it is used several times. If a user has cached it, it stays so.

    It isn't a ``localCheckpoint``: over Spark Connect, a response that is sent twice makes the client drop the
    checkpoint at once (seen on pyspark 4.1.4), and the next use fails.
    """
    level = frame.storageLevel
    if level.useMemory or level.useDisk:
        yield frame
        return
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
