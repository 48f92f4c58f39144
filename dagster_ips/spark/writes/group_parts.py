"""What a change adds to and removes from groups: parts per group, and the values that parts add up to.

Rows become *parts* per group: sums and counts by weight, and the extremes of added rows and of removed rows. The values
of a group are computed from parts: those of a new group from its own parts alone, those of an existing group from its
parts and from what the table has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core import varying
from dagster_ips.core.aggregates import (
    EVERY_ROW,
    EXTREMES,
    MOST_DIGITS_OF_AVERAGE,
    Aggregate,
    AggregatePart,
    Function,
    KeptPart,
    Layout,
)
from dagster_ips.core.ranges import quoted
from dagster_ips.core.write_mode import Combine
from dagster_ips.errors import AggregateError, CombineError, UnknownColumnError
from dagster_ips.spark.error_text import first_line, unresolved_column
from dagster_ips.spark.frames import any_of, without_rows
from dagster_ips.spark.late import F, errors, types
from dagster_ips.spark.plans import varies
from dagster_ips.spark.writes.halved_decimals import MOST_DIGITS, HalvedDecimals

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REMOVED = "__ips_removed"
"""The column of parts that says how many rows were removed."""
ROWS = KeptPart(AggregatePart.ROWS, EVERY_ROW)
_MORE_DIGITS_OF_SUM = 10
_WEIGHT, _INFINITE = "__ips_weight", "__ips_infinite"
_APPROXIMATE = (
    "the sum of floating-point values depends on the order in which they are added and removed. Cast it to a decimal, "
    "or declare combine(..., approximate=True)"
)
WIDE_SUM = "decimal(30,0)"
"""The type of a sum of integers that is kept only for their average: no number of rows exceeds it."""
_TOO_LARGE = "is too large for its type"
_NOT_OURS = "of the table has no record of the rows behind it"
_OVERFLOWS = ("ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE", "CAST_OVERFLOW")


@dataclass(frozen=True)
class Aggregates:
    """The aggregates of a declaration over rows of known columns.

    ``kinds`` are the types of the expressions, in the layout's order. ``like`` is a frame that they were found with,
    which has the same columns as the rows, and hardly ever rows.
    """

    combine: Combine
    layout: Layout
    kinds: Mapping[str, types.DataType]
    like: DataFrame

    @classmethod
    def over(cls, rows: DataFrame, combine: Combine, *, table: str) -> Aggregates:
        """The aggregates of ``combine`` over ``rows``, of which only the columns are looked at; runs no job.

        Raises:
            UnknownColumnError: the key or an expression names a column that the rows don't have.
            AggregateError: an aggregate can't be maintained over these rows.
        """
        layout = combine.layout
        for key in combine.on:
            if key not in rows.columns:
                raise _unknown_column(key, f"Its key is {', '.join(combine.on)}.", rows, table)
        like, kinds = _kinds(rows, layout, table)
        for each in layout.declared:
            if each.expression == EVERY_ROW:
                continue
            problem = _misfit(each, kinds[each.expression], combine.approximate) or _moment(each, like)
            if problem:
                raise AggregateError(table=table, column=each.name, aggregate=str(each), problem=problem)
        return cls(combine, layout, kinds, like)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of a group's key."""
        return self.combine.on

    @property
    def columns(self) -> list[str]:
        """All columns of the table except for those that are computed from these."""
        declared = [] if self.layout.is_partial else [each.name for each in self.layout.declared]
        return [*self.keys, *declared, *self.layout.hidden.values()]

    @property
    def computed(self) -> dict[str, Column]:
        """The computed columns, over a frame that has all of ``columns``."""
        return {each.name: F.expr(each.expression) for each in self.combine.computed}

    def with_computed(self, groups: DataFrame) -> DataFrame:
        """All columns of the table, for groups that have ``columns``."""
        return groups.select("*", *[value.alias(name) for name, value in self.computed.items()])

    def groups(self, rows: DataFrame) -> DataFrame:
        """The table's rows, computed from all of ``rows``."""
        return self.with_computed(self.stored(self.parts(rows, weight=None)))

    def parts(self, rows: DataFrame, *, weight: str | None) -> DataFrame:
        """One row per group: its key, a column per part, and how many rows were removed. Without a key, always one row.

        ``weight`` is the column that says whether a row was added (1) or removed (-1); None if all were added.
        """
        names = {each: f"__ips_value_{i}" for i, each in enumerate(self.kinds)}
        values = [F.expr(f"({each})").alias(name) for each, name in names.items()]
        own = F.col(quoted(weight)) if weight else F.lit(1)
        known = rows.select(*self._keys(), *values, own.cast("int").alias(_WEIGHT))
        came, sign = F.col(_WEIGHT) > 0, F.col(_WEIGHT)
        parts: list[Column] = []
        for kept in self._kept:
            value = F.lit(None) if kept == ROWS else F.col(names[kept.expression])
            name = self._part(kept)
            match kept.part:
                case AggregatePart.ROWS:
                    parts.append(_total(sign).alias(name))
                case AggregatePart.COUNT:
                    parts.append(_total(F.when(value.isNotNull(), sign).otherwise(0)).alias(name))
                case AggregatePart.TRUE:
                    parts.append(_total(F.when(value, sign).otherwise(0)).alias(name))
                case AggregatePart.FALSE:
                    parts.append(_total(F.when(~value, sign).otherwise(0)).alias(name))
                case AggregatePart.SUM if halved := self._halved(kept):
                    parts.append(halved.total(value, is_negative=~came).alias(name))
                case AggregatePart.SUM:
                    if isinstance(self.kinds[kept.expression], types.IntegralType):
                        is_wide = self.layout.has_undeclared_sum(kept.expression)
                        value = value.cast("decimal(20, 0)" if is_wide else "bigint")
                    total = F.sum(F.when(came, value).otherwise(-value))
                    # Without ANSI, a sum of decimals that overflows is null, like a sum of no values.
                    parts.append(F.coalesce(total, F.when(F.count(value) > 0, self._too_large(kept))).alias(name))
                case AggregatePart.MIN | AggregatePart.MAX:
                    best = F.min if kept.part is AggregatePart.MIN else F.max
                    parts.append(best(F.when(came, value)).alias(name))
                    parts.append(best(F.when(~came, value)).alias(_gone(name)))
        floats = [names[each] for each in self._floats]
        infinite = any_of([F.isnan(name) | (F.abs(F.col(name)) == F.lit(float("inf"))) for name in floats])
        parts.append(F.coalesce(F.max(~came & infinite), F.lit(False)).alias(_INFINITE))  # noqa: FBT003
        parts.append(_total(F.when(came, 0).otherwise(1)).alias(REMOVED))
        return known.groupBy(*self._keys()).agg(*parts)

    def parts_that_matter(self, change: Change) -> DataFrame:
        """The ``parts`` of a change, for those groups to which it makes a difference."""
        rows = change.rows
        if change.weight is not None:
            rows = rows.where(F.col(quoted(change.weight)) != 0)
        return self.parts(rows, weight=change.weight).where(self.changes_something(may_cancel=change.may_cancel))

    def stored(self, parts: DataFrame) -> DataFrame:
        """The table's rows for groups that have only these ``parts``."""
        return parts.select(*self._keys(), *self.values({kept: F.col(self._part(kept)) for kept in self._kept}))

    def values(self, parts: Mapping[KeptPart, Column]) -> list[Column]:
        """The columns of the table except its keys, for a group with these ``parts``."""
        return [value.alias(column) for column, value in self.values_by_column(parts).items()]

    def values_by_column(self, parts: Mapping[KeptPart, Column]) -> dict[str, Column]:
        """As ``values``, but unnamed, by column."""
        if self.layout.is_partial:
            return {column: self._stored(kept, parts[kept]) for kept, column in self.layout.columns.items()}
        known = {kept: self._known(kept, parts) for kept in parts}
        declared = {each.name: self._value(each, known) for each in self.layout.declared}
        return declared | {column: known[kept] for kept, column in self.layout.hidden.items()}

    def folded(self, stored: DataFrame) -> DataFrame:
        """The groups of a table of partials, whose rows are ``stored``: keys and declared columns, one row each."""
        columns = self.layout.columns
        folds = [self._folded(kept, F.col(quoted(columns[kept]))).alias(self._part(kept)) for kept in self._kept]
        groups = stored.groupBy(*self._keys()).agg(*folds)
        parts = {kept: F.col(self._part(kept)) for kept in self._kept}
        said = F.lit("more rows of a group were removed than were ever added")
        is_there = F.when(self.is_impossible(parts), F.raise_error(said).cast("boolean")).otherwise(parts[ROWS] > 0)
        known = {kept: self._known(kept, parts) for kept in parts}
        shown = [self._value(each, known).alias(each.name) for each in self.layout.declared]
        return groups.where(is_there).select(*self._keys(), *shown)

    def part_columns(self, relation: str) -> dict[KeptPart, Column]:
        """The parts in a frame of ``parts`` with the alias ``relation``."""
        return {kept: F.col(f"{relation}.{self._part(kept)}") for kept in self._kept}

    def added(self, there: Mapping[KeptPart, Column], delta: str) -> dict[KeptPart, Column]:
        """The parts, after the change ``delta``, of a group that the table has with the parts ``there``."""
        found = {}
        for kept, more in self.part_columns(delta).items():
            match kept.part:
                case AggregatePart.MIN:
                    found[kept] = F.least(there[kept], more)
                case AggregatePart.MAX:
                    found[kept] = F.greatest(there[kept], more)
                case AggregatePart.SUM if halved := self._halved(kept):
                    found[kept] = halved.plus(there[kept], more)
                case AggregatePart.SUM:
                    total = there[kept] + more
                    found[kept] = F.when(there[kept].isNull(), more).when(more.isNull(), there[kept]).otherwise(total)
                case _:
                    found[kept] = self._counted(there[kept], kept) + more
        return found

    def is_lost(self, there: Mapping[KeptPart, Column], delta: str, *, may_cancel: bool) -> Column:
        """Whether a removed value may have been the table's extreme, and no added value is as good.

        If added and removed rows ``may_cancel``, an added value is only known to be there if it is better than every
        removed one. Also whether a value was removed that can't be subtracted from a sum again: NaN or an infinite one.
        """
        lost = [F.col(f"{delta}.{_INFINITE}")]
        for kept, came in self.part_columns(delta).items():
            if kept.part in EXTREMES:
                went, old = F.col(f"{delta}.{_gone(self._part(kept))}"), there[kept]
                reached, covered, is_there = (
                    (went <= old, came <= old, came < went)
                    if kept.part is AggregatePart.MIN
                    else (went >= old, came >= old, came > went)
                )
                covered = covered & is_there if may_cancel else covered
                true, false = F.lit(True), F.lit(False)  # noqa: FBT003
                lost.append(went.isNotNull() & F.coalesce(reached, true) & ~F.coalesce(covered, false))
        return any_of(lost)

    def changes_something(self, *, may_cancel: bool) -> Column:
        """Whether a row of ``parts`` makes any difference to its group.

        If added and removed rows ``may_cancel``, an extreme of both may be of none, and hide a lesser value.
        """
        different = [F.col(_INFINITE)]
        for kept in self._kept:
            name = self._part(kept)
            if kept.part in EXTREMES:
                different.append(~F.col(name).eqNullSafe(F.col(_gone(name))))
                if may_cancel:
                    different.append(F.col(_gone(name)).isNotNull())
            elif halved := self._halved(kept):
                different.append(F.coalesce(~halved.is_zero(F.col(name)), F.lit(False)))  # noqa: FBT003
            elif kept.part is AggregatePart.SUM:
                different.append(F.coalesce(F.col(name) != 0, F.lit(False)))  # noqa: FBT003
            else:
                different.append(F.col(name) != 0)
        return any_of(different)

    def is_impossible(self, parts: Mapping[KeptPart, Column]) -> Column:
        """Whether more was removed from a group than it had."""
        return any_of([parts[kept] < 0 for kept in self._kept if kept.part not in (*EXTREMES, AggregatePart.SUM)])

    @property
    def _kept(self) -> list[KeptPart]:
        return list(self.layout.columns)

    @property
    def _floats(self) -> list[str]:
        """The floating-point expressions that are summed."""
        summed = [kept.expression for kept in self._kept if kept.part is AggregatePart.SUM]
        return [each for each in summed if isinstance(self.kinds[each], types.FloatType | types.DoubleType)]

    def _part(self, kept: KeptPart) -> str:
        return f"__ips_part_{self._kept.index(kept)}"

    def _keys(self) -> list[Column]:
        return [F.col(quoted(key)) for key in self.keys]

    def _known(self, kept: KeptPart, parts: Mapping[KeptPart, Column]) -> Column:
        """A part as the table stores it: the sum of no values is null, and one that overflows is an error."""
        if kept.part is not AggregatePart.SUM:
            return parts[kept]
        is_known = parts[KeptPart(AggregatePart.COUNT, kept.expression)] > 0
        return F.when(is_known, self._sum(kept, parts[kept]))

    def _stored(self, kept: KeptPart, part: Column) -> Column:
        """A part as a row of partials stores it; for removed rows it is negative."""
        if kept.part is not AggregatePart.SUM:
            return part
        return F.when(part.isNotNull(), self._sum(kept, part))

    def _sum(self, kept: KeptPart, part: Column) -> Column:
        halved = self._halved(kept)
        total = halved.whole(part) if halved else part.cast(self._sum_type(kept.expression))
        return F.coalesce(total, self._too_large(kept))

    def _folded(self, kept: KeptPart, partials: Column) -> Column:
        """A group's part, computed from the ``partials`` of its rows."""
        match kept.part:
            case AggregatePart.MIN:
                return F.min(partials)
            case AggregatePart.MAX:
                return F.max(partials)
            case AggregatePart.SUM if halved := self._halved(kept):
                return halved.total(partials, is_negative=F.lit(False))  # noqa: FBT003
            case AggregatePart.SUM:
                # Without ANSI, a sum of decimals that overflows is null, like a sum of no values.
                return F.coalesce(F.sum(partials), F.when(F.count(partials) > 0, self._too_large(kept)))
            case _:
                return F.sum(self._counted(partials, kept))

    def _counted(self, count: Column, kept: KeptPart) -> Column:
        """A count that the table has; it is null only in a row that something else wrote."""
        said = f"a row {_NOT_OURS}: its {self.layout.columns[kept]} is null, so something else wrote it"
        return F.coalesce(count, F.raise_error(F.lit(said)).cast("bigint"))

    def _too_large(self, kept: KeptPart) -> Column:
        said = f"the sum of {kept.expression} ({self.layout.columns[kept]}) {_TOO_LARGE}"
        return F.raise_error(F.lit(said)).cast(self._sum_type(kept.expression))

    def _value(self, aggregate: Aggregate, known: Mapping[KeptPart, Column]) -> Column:
        first, *others = [known[kept] for kept in aggregate.parts]
        match aggregate.function:
            case Function.AVG:
                return F.when(others[0] > 0, self._quotient(aggregate.expression, first, others[0]))
            case Function.BOOL_AND:
                return F.when(first + others[0] > 0, others[0] == 0)
            case Function.BOOL_OR:
                return F.when(first + others[0] > 0, first > 0)
            case _:
                return first

    def _quotient(self, expression: str, total: Column, count: Column) -> Column:
        """The quotient in the type of Spark's avg: for decimals four digits more, for other numbers a double."""
        kind = self.kinds[expression]
        if isinstance(kind, types.DecimalType):
            return (total / count.cast("decimal(20, 0)")).cast(types.DecimalType(kind.precision + 4, kind.scale + 4))
        return total.cast("double") / count.cast("double")

    def _sum_type(self, expression: str) -> str:
        """Spark's type of the sum."""
        match self.kinds[expression]:
            case types.DecimalType() as kind:
                return f"decimal({min(MOST_DIGITS, kind.precision + _MORE_DIGITS_OF_SUM)}, {kind.scale})"
            case types.FloatType() | types.DoubleType():
                return "double"
            case _:
                return WIDE_SUM if self.layout.has_undeclared_sum(expression) else "bigint"

    def _halved(self, kept: KeptPart) -> HalvedDecimals | None:
        """How a sum that may need all of Spark's digits is computed; None for any other part."""
        kind = None if kept == ROWS else self.kinds[kept.expression]
        if kept.part is not AggregatePart.SUM or not isinstance(kind, types.DecimalType):
            return None
        return HalvedDecimals(kind.scale) if kind.precision + _MORE_DIGITS_OF_SUM >= MOST_DIGITS else None


@dataclass(frozen=True)
class Change:
    """The rows of a change; the column ``weight`` says which were added and which removed, None if all were added.

    Rows of weight 0 are the live rows, from which groups that lost an extreme are computed. ``may_cancel`` says that
    rows may have been added and removed within the change, as happens if several sources of a query changed. Otherwise
    removed rows existed before, and added rows exist now.
    """

    rows: DataFrame
    weight: str | None
    may_cancel: bool = False


@contextlib.contextmanager
def explained(table: str) -> Iterator[None]:
    """Around writes to ``table``: explains errors that its values, or rows that something else wrote, cause.

    Raises:
        CombineError: a value is too large for its type, or a row doesn't say what it was made of.
    """
    try:
        yield
    except errors.PySparkException as error:
        cause = first_line(error)
        if _NOT_OURS in str(error):
            raise CombineError(table=table, problem=cause) from error
        if not (error.getCondition() or "").startswith(_OVERFLOWS) and _TOO_LARGE not in str(error):
            raise
        raise CombineError(table=table, problem=f"a value {_TOO_LARGE}: {cause}") from error


def _total(values: Column) -> Column:
    """The sum; 0 if there are no values."""
    return F.coalesce(F.sum(values), F.lit(0))


def _gone(part: str) -> str:
    """The column with the same part of the removed rows."""
    return f"{part}_gone"


def _kinds(rows: DataFrame, layout: Layout, table: str) -> tuple[DataFrame, dict[str, types.DataType]]:
    """The types of the layout's expressions on ``rows``, in its order, and a frame with which they were found."""
    expressions = layout.expressions
    # The rows' own plan is analyzed only if need be: an expression may name their alias, or a hidden column.
    for like in (without_rows(rows), rows):
        with contextlib.suppress(errors.AnalysisException):
            return like, dict(zip(expressions, _types(like, expressions), strict=True))
    for each in layout.declared:
        _require_scalar(rows, each, table)
    return rows, dict(zip(expressions, _types(rows, expressions), strict=True))


def _types(rows: DataFrame, expressions: Sequence[str]) -> list[types.DataType]:
    # As a join's condition, which can't have an aggregate, window or random value, though a column can.
    one = rows.sparkSession.range(1).toDF("__ips_one")
    _ = one.join(rows, F.expr(" AND ".join(["TRUE", *[f"({each}) IS NULL" for each in expressions]]))).schema
    values = [F.expr(f"({each})").alias(f"__ips_value_{i}") for i, each in enumerate(expressions)]
    return [field.dataType for field in rows.select(*values).schema.fields]


def _require_scalar(rows: DataFrame, aggregate: Aggregate, table: str) -> None:
    try:
        _types(rows, [aggregate.expression] if aggregate.expression != EVERY_ROW else [])
    except errors.AnalysisException as error:
        if (column := unresolved_column(error)) is not None:
            said = f"Its column {aggregate.name} is {aggregate}."
            raise _unknown_column(column, said, rows, table) from error
        problem = first_line(error)
        raise AggregateError(table=table, column=aggregate.name, aggregate=str(aggregate), problem=problem) from error


def _unknown_column(column: str, said: str, rows: DataFrame, table: str) -> UnknownColumnError:
    return UnknownColumnError(
        where=f"The frame returned for {table}",
        column=column,
        known=tuple(rows.columns),
        remedy=f"{said} Nothing was written and nothing was consumed.",
    )


def _moment(aggregate: Aggregate, like: DataFrame) -> str | None:
    """Why a string in the aggregate has another value on another day; None if it hasn't."""
    named = varying.PERHAPS_MOMENTS_IN_SQL.search(aggregate.expression)
    if named is None or not varies(like.select(F.expr(f"({aggregate.expression})").alias("__ips_value"))):
        return None
    return f"{named[0].strip()[1:]} in it may give removed rows a different value than when they were added"


def _misfit(aggregate: Aggregate, kind: types.DataType, approximate: bool) -> str | None:  # noqa: FBT001  # as declared
    """Why the aggregate can't be maintained over values of ``kind``; None if it can."""
    name, problem = kind.simpleString(), None
    match aggregate.function:
        case Function.COUNT:
            pass
        case Function.COUNT_IF | Function.BOOL_AND | Function.BOOL_OR:
            problem = None if isinstance(kind, types.BooleanType) else f"its values are {name}, not boolean"
        case Function.MIN | Function.MAX:
            if isinstance(
                kind, types.ArrayType | types.MapType | types.StructType | types.VariantType | types.NullType
            ):
                problem = f"its values are {name}, which have no minimum and maximum"
        case _ if isinstance(kind, types.FloatType | types.DoubleType):
            problem = None if approximate else _APPROXIMATE
        case Function.AVG if isinstance(kind, types.DecimalType) and kind.precision > MOST_DIGITS_OF_AVERAGE:
            problem = (
                f"an average of more than {MOST_DIGITS_OF_AVERAGE} digits can't be kept exactly. Declare its sum and "
                "its count instead"
            )
        case _ if not isinstance(kind, types.IntegralType | types.DecimalType):
            problem = f"its values are {name}, not numbers"
    return problem
