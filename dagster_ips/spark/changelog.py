"""The exact change of a table's rows, computed from the files that may hold it.

Rows are compared by value, as in EXCEPT ALL, and also where EXCEPT ALL can't: maps by their entries, variants by their
content.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ips.core.columns import Kind, ListOf, MapOf, Struct
from dagster_ips.core.ranges import quoted
from dagster_ips.spark.frames import MOST_LITERALS, free_prefix
from dagster_ips.spark.late import F, types
from dagster_ips.spark.type_tree import contains

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FILE, _PLACE, DELETED = "_file", "_pos", "_deleted"
PLACES = (_FILE, _PLACE)
_OF_FILES = (*PLACES, DELETED)
"""The columns that Iceberg (1.11) adds to a table's own if a query names them."""
_MOST_AT_ONCE = 10_000
"""How many copies of a row are put into one array, to be returned one by one."""


@dataclass(frozen=True)
class NetRows:
    """Added and removed ``rows``: they have the ``columns`` of the table, and then one named ``weight``.

    The weight is 1 for an added row and -1 for a removed one; its name was free. Over Spark Connect, asking a frame for
    its columns is a request, so they are kept.
    """

    rows: DataFrame
    columns: tuple[str, ...]
    weight: str


def net_rows(
    before: DataFrame,
    after: DataFrame,
    fresh: DataFrame | None = None,
    *,
    hidden: Collection[str] = (),
    columns: Mapping[str, types.DataType | None] | None = None,
) -> NetRows:
    """The rows that ``after`` and ``fresh`` have more of than ``before``, and the other way round, each with a weight.

    ``columns`` are those of the result, by which rows are compared, with their types: None for a type by which Spark
    can group. If they aren't given, they are all columns of ``before``. A row that occurs three times more often is
    returned three times. Rows of ``fresh`` are known not to occur in ``before`` and aren't compared.

    ``hidden`` are data files of which both have all rows, apart from those that delete files hide. Then both frames are
    as `with_deleted_rows` reads them, and of these files only the deleted rows are compared: as all rows of a file are
    the same before and after, what is gone is what was deleted then, less what was deleted before.
    """
    if columns is None:
        columns = {field.name: field.dataType for field in before.schema.fields}
    names = tuple(columns)
    forms = {name: kind for name, kind in columns.items() if kind is not None and _needs_form(kind)}
    own, weight = free_prefix(names), _free_weight(names)
    both = _weighed(before, weight, -1, hidden).unionAll(_weighed(after, weight, 1, hidden))
    values = [F.col(quoted(name)) for name in names if name not in forms]
    keys = [comparable(F.col(quoted(name)), kind).alias(f"{own}{i}") for i, (name, kind) in enumerate(forms.items())]
    kept = [F.first(quoted(name)).alias(name) for name in forms]
    total = f"{own}sum"
    grouped = both.groupBy(*values, *keys).agg(F.sum(weight).alias(total), *kept)
    net = _one_each(grouped.where(F.col(total) != 0), names, total, weight)
    if fresh is not None:
        net = net.unionAll(fresh.select(*map(quoted, names), F.lit(1).alias(weight)))
    return NetRows(net, names, weight)


def _one_each(grouped: DataFrame, names: Sequence[str], total: str, weight: str) -> DataFrame:
    """The columns ``names`` of ``grouped``, and ``weight``: a row whose ``total`` is -3 three times, with -1."""
    shown, part = [quoted(name) for name in names], f"{total}_part"
    parts = f"explode(sequence(0L, (abs({total}) - 1L) div {_MOST_AT_ONCE})) AS {part}"
    copies = f"int(least(abs({total}) - {part} * {_MOST_AT_ONCE}, {_MOST_AT_ONCE}))"
    one_each = f"explode(array_repeat(int(signum({total})), {copies})) AS {weight}"
    return grouped.selectExpr(*shown, total, parts).selectExpr(*shown, one_each)


def _weighed(rows: DataFrame, name: str, weight: int, hidden: Collection[str]) -> DataFrame:
    """Live ``rows`` with ``weight``, and deleted rows of ``hidden`` with its opposite, in a column ``name``."""
    if not hidden:
        return rows.withColumn(name, F.lit(weight))
    is_deleted = F.col(DELETED)
    of_hidden = F.when(is_deleted, F.lit(-weight))
    of_others = F.when(~is_deleted, F.lit(weight))
    found = F.when(F.col(_FILE).isin(sorted(hidden)), of_hidden).otherwise(of_others)
    return rows.withColumn(name, found).where(F.col(name).isNotNull()).drop(*_OF_FILES)


def can_show_deleted_rows(columns: Collection[str]) -> bool:
    """Whether `with_deleted_rows` can read a table of these ``columns``.

    If one has the name of a column that Iceberg would add, in any case, then Spark (4.1) has only the table's own.
    """
    return not {name.lower() for name in columns}.intersection(_OF_FILES)


def with_deleted_rows(table: DataFrame) -> DataFrame:
    """All rows of the files of ``table``, also those that delete files hide, with three columns that Iceberg adds.

    ``table`` is a frame of an Iceberg table's rows and columns as they are. The columns say in which file a row is, at
    which place, and whether it is deleted.
    """
    return table.select("*", *_OF_FILES)


def deleted_at_one_end(before: DataFrame | None, after: DataFrame, *, added: Collection[str]) -> DataFrame:
    """The rows that delete files hide in only one of ``before`` and ``after``, one for each place in a file.

    Both frames are as `with_deleted_rows` reads them, and have the same files, except that ``after`` may also have the
    ``added`` ones, whose rows are left out. ``before`` is None if no delete file applied to the files then. The result
    also has the columns that say where a row is, and whether it is deleted in ``after``; if it isn't, the table's
    columns are null.
    """
    gone = after.where(F.col(DELETED))
    if added:
        gone = gone.where(~F.col(_FILE).isin(sorted(added)))
    if before is None:
        return gone
    names, own = gone.columns, free_prefix(gone.columns)
    then = before.where(F.col(DELETED)).select(*PLACES, F.lit(True).alias(f"{own}then"))  # noqa: FBT003
    both = gone.join(then, [*PLACES], "full")
    shown = [F.coalesce(DELETED, F.lit(False)).alias(DELETED) if name == DELETED else quoted(name) for name in names]  # noqa: FBT003
    return both.where(F.col(DELETED).isNull() | F.col(f"{own}then").isNull()).select(*shown)


def gone_rows(differing: DataFrame) -> DataFrame:
    """Of rows that are deleted at one end, those that are deleted now, with the columns that say where they are."""
    return differing.where(F.col(DELETED)).drop(DELETED)


@dataclass(frozen=True)
class Deletions:
    """How many rows are deleted at one end only: those that are ``gone`` since, and those that are ``back``.

    ``bounds`` are the least and the greatest value of columns in rows that are gone, for each file that has any, and
    ``nulls`` those of them that are null in such a row.
    """

    gone: int
    back: int
    bounds: Mapping[str, list[tuple[Any, Any]]]
    nulls: frozenset[str]


def deletions(differing: DataFrame, columns: Sequence[str] = ()) -> Deletions:
    """Count the rows that are deleted at one end, and find the bounds of ``columns``. It runs a job."""
    is_gone = F.col(DELETED)
    gone = [F.when(is_gone, F.col(quoted(name))) for name in columns]
    bounds = [each for value in gone for each in (F.min(value), F.max(value), F.count(value))]
    by_file = differing.groupBy(_FILE).agg(F.count_if(is_gone), F.count_if(~is_gone), *bounds).collect()
    found = dict[str, list[tuple[Any, Any]]]()
    nulls = set[str]()
    for at, name in enumerate(columns):
        of_files = [(number, *values[3 * at : 3 * at + 3]) for _, number, _, *values in by_file]
        found[name] = [(least, greatest) for _, least, greatest, count in of_files if count]
        nulls |= {name for number, _, _, count in of_files if count < number}
    return Deletions(sum(row[1] for row in by_file), sum(row[2] for row in by_file), found, frozenset(nulls))


def kept_rows(before: DataFrame, gone: DataFrame, hidden: Collection[str], *, are_few: bool) -> DataFrame:
    """The rows ``before`` that aren't ``gone``, which `gone_rows` returned, in the files ``hidden``.

    ``before`` is a frame of an Iceberg table's rows and columns as they are. If those that are gone ``are_few``, they
    are broadcast to where the others are read, because the files' names make Spark take them for larger than they are.
    """
    place_in = F.col(_FILE)
    if len(hidden) <= MOST_LITERALS:  # Rows of other files needn't be looked up.
        place_in = F.when(place_in.isin(sorted(hidden)), place_in).alias(_FILE)
    placed = before.select("*", place_in, _PLACE)
    places = gone.select(*PLACES)
    return without_places(placed.join(F.broadcast(places) if are_few else places, [*PLACES], "left_anti"))


def without_places(rows: DataFrame) -> DataFrame:
    """``rows`` as `gone_rows` returns them, without the columns that say where a row is."""
    return rows.drop(*PLACES)


def all_added(rows: DataFrame, columns: Sequence[str]) -> NetRows:
    """Net rows of a change that only added ``rows``, which have these ``columns``."""
    weight = _free_weight(columns)
    return NetRows(rows.withColumn(weight, F.lit(1)), tuple(columns), weight)


def all_apart(before: DataFrame, fresh: DataFrame | None, columns: Sequence[str]) -> NetRows:
    """Net rows of a change that removed ``before`` and added ``fresh``: frames of ``columns`` without a common row."""
    weight = _free_weight(columns)
    rows = before.withColumn(weight, F.lit(-1))
    rows = rows if fresh is None else rows.unionAll(fresh.withColumn(weight, F.lit(1)))
    return NetRows(rows, tuple(columns), weight)


def only_added(net: NetRows) -> NetRows:
    """``net`` without the removed rows."""
    return NetRows(net.rows.where(_weight(net) > 0), net.columns, net.weight)


def weighted(net: NetRows, name: str) -> DataFrame:
    """``net`` with its weight named ``name``."""
    return net.rows.withColumnRenamed(net.weight, name)


def with_live_rows(weighted: DataFrame, live: DataFrame, name: str) -> DataFrame:
    """``weighted``, whose weight is ``name``, and its table's ``live`` rows: a filter by weight leaves those unread.

    Their weight is 0.
    """
    return weighted.unionByName(live.withColumn(name, F.lit(0)), allowMissingColumns=True)


def added(net: NetRows) -> DataFrame:
    """The added rows of ``net``."""
    return net.rows.where(_weight(net) > 0).drop(net.weight)


def removed(net: NetRows) -> DataFrame:
    """The removed rows of ``net``."""
    return net.rows.where(_weight(net) < 0).drop(net.weight)


def changelog(net: NetRows, keys: Sequence[str], change_type: str) -> DataFrame:
    """``net`` with a column ``change_type``: insert or delete; for shared ``keys``, update_before or update_after.

    A null key is a key like any other. Without ``keys`` there are no updates.
    """
    is_added = _weight(net) > 0
    shown = [F.col(quoted(name)) for name in net.columns]
    kind = F.when(is_added, "insert").otherwise("delete")
    if not keys:
        return net.rows.select(*shown, kind.alias(change_type))
    own = free_prefix([*net.columns, net.weight])
    forms = {field.name: field.dataType for field in net.rows.schema.fields}
    named = [comparable(F.col(quoted(key)), forms[key]).alias(f"{own}key_{i}") for i, key in enumerate(keys)]
    by_key = net.rows.select("*", *named)
    names = [f"{own}key_{i}" for i in range(len(keys))]
    low, high = F.min(_weight(net)).alias(f"{own}low"), F.max(_weight(net)).alias(f"{own}high")
    updated = by_key.groupBy(*names).agg(low, high)
    updated = updated.where((F.col(f"{own}low") < 0) & (F.col(f"{own}high") > 0)).select(
        *[F.col(n).alias(f"{n}_u") for n in names]
    )
    same = F.expr(" AND ".join(f"{name} <=> {name}_u" for name in names))
    joined = by_key.join(updated.withColumn(f"{own}updated", F.lit(True)), same, "left")  # noqa: FBT003
    update = F.when(is_added, "update_after").otherwise("update_before")
    return joined.select(*shown, F.when(F.col(f"{own}updated"), update).otherwise(kind).alias(change_type))


def _free_weight(columns: Sequence[str]) -> str:
    return f"{free_prefix(columns)}weight"


def _weight(net: NetRows) -> Column:
    return F.col(net.weight)


def _needs_form(kind: types.DataType) -> bool:
    """Whether Spark can't group by values of this type directly."""
    return contains(kind, types.MapType, types.VariantType)


def comparable(value: Column, kind: types.DataType) -> Column:
    """``value`` in a form that Spark can compare and group by; forms are equal exactly if the values are."""
    if not _needs_form(kind):
        return value
    match kind:
        case types.VariantType():
            return F.when(value.isNotNull(), F.struct(F.to_json(value), F.schema_of_variant(value)))
        case types.MapType():
            entries = F.transform(F.map_entries(value), _entry(kind))
            return F.array_sort(entries)
        case types.ArrayType():
            return F.transform(value, lambda element: comparable(element, kind.elementType))
        case types.StructType():
            fields = [comparable(value[field.name], field.dataType) for field in kind.fields]
            return F.when(value.isNotNull(), F.struct(*fields))
        case _:
            raise AssertionError(kind)


def more_in_sql(many: str, few: str, columns: Mapping[str, Kind]) -> str:
    """The rows that the query ``many`` has more of than ``few``, in SQL; both return ``columns``, with Iceberg's types.

    As ``EXCEPT ALL``, and also where Spark can't compare values for that.
    """
    forms = {name: comparable_sql(quoted(name), kind) for name, kind in columns.items()}
    if all(form == quoted(name) for name, form in forms.items()):
        return f"({many} EXCEPT ALL {few})"
    own = free_prefix([*columns])
    shown = ", ".join(map(quoted, columns))
    kept = ", ".join(f"first({quoted(name)}) AS {quoted(name)}" for name in columns)
    both = f"SELECT *, 1 AS {own}weight FROM ({many}) UNION ALL SELECT *, -1 AS {own}weight FROM ({few})"  # noqa: S608  # made here
    net = (
        f"SELECT {kept}, sum({own}weight) AS {own}sum FROM ({both}) "  # noqa: S608  # as above
        f"GROUP BY {', '.join(forms.values())} HAVING sum({own}weight) > 0"
    )
    return f"(SELECT {shown} FROM ({net}) LATERAL VIEW explode(sequence(1L, {own}sum)) {own}copies AS {own}copy)"  # noqa: S608  # as above


def comparable_sql(value: str, kind: Kind, depth: int = 0) -> str:
    """As ``comparable``, in SQL: ``value`` is an expression, and ``kind`` its type in Iceberg.

    Example:
        >>> comparable_sql("tags", MapOf("string", "long"))
        'array_sort(transform(map_entries(tags), e0 -> struct(e0.key, e0.value)))'
        >>> comparable_sql("days", ListOf("date"))
        'days'
    """
    one = f"e{depth}"
    match kind:
        case "variant":
            return f"if({value} IS NULL, NULL, struct(to_json({value}), schema_of_variant({value})))"
        case MapOf():
            entry = f"struct({one}.key, {comparable_sql(f'{one}.value', kind.value, depth + 1)})"
            return f"array_sort(transform(map_entries({value}), {one} -> {entry}))"
        case ListOf():
            element = comparable_sql(one, kind.element, depth + 1)
            return value if element == one else f"transform({value}, {one} -> {element})"
        case Struct():
            names = [f"{value}.{quoted(field.name)}" for field in kind.fields]
            fields = [comparable_sql(name, field.kind, depth) for name, field in zip(names, kind.fields, strict=True)]
            return value if fields == names else f"if({value} IS NULL, NULL, struct({', '.join(fields)}))"
        case _:
            return value


def _entry(kind: types.MapType) -> Callable[[Column], Column]:
    return lambda entry: F.struct(entry["key"], comparable(entry["value"], kind.valueType))
