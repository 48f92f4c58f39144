"""How two states of a table differ: rows added, removed and changed, by the values of some columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ips.core.ranges import quoted
from dagster_ips.core.row_changes import RowChanges, SideOfRows
from dagster_ips.spark.comparison import Example, RowPairs, alike
from dagster_ips.spark.frames import computed_once
from dagster_ips.spark.late import F, types
from dagster_ips.spark.writes.partition_filter import collected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SUMS = "decimal(38,0)"


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """The differences, by the values of the columns that rows are divided by, and examples of rows that differ.

    ``repeats_keys`` says that rows were compared without keys, because several rows have the same one.
    """

    by_values: Mapping[tuple[Any, ...], RowChanges]
    examples: tuple[Example, ...]
    repeats_keys: bool


def differences(  # noqa: PLR0913  # all are independent
    before: DataFrame,
    after: DataFrame,
    *,
    keys: Sequence[str],
    divided_by: Sequence[str] = (),
    by_minute: Sequence[str] = (),
    keys_may_repeat: bool = False,
    any_row_of_key: bool = False,
    most_examples: int = 10,
) -> RowDifferences:
    """How ``after`` differs from ``before``; a column that one of them lacks is null there.

    Two rows with the same ``keys`` are a changed row. Without keys, two rows that differ only in floating-point columns
    are; others are added or removed. With ``keys_may_repeat``, keys count only if no two rows of either have the same.
    Times in ``by_minute`` are divided by their minute. With ``any_row_of_key``, ``before`` holds all rows that have a
    key, and ``after`` should have any one of them, which then counts as the only one.
    """
    old, new = alike(before, after)
    compared = RowPairs(old, keys)
    numbers = [(compared.names.index(name), name in by_minute) for name in divided_by]
    parts = [_Part(number, compared.kinds[number] if is_by_minute else None) for number, is_by_minute in numbers]
    with computed_once(compared.counted(old, new)) as every:
        repeats_keys = keys_may_repeat and compared.repeats_keys(every)
        if repeats_keys:
            compared = RowPairs(old, ())
        counted = compared.one_per_key(every) if any_row_of_key else every
        old = compared.expected(counted) if any_row_of_key else old
        sides = [_sides(frame, compared, parts) for frame in (old, new)]
        with computed_once(compared.pairs(counted)) as pairs:
            found = _changes(pairs, compared, parts)
            examples = compared.examples(pairs, most_examples) if found else ()
    values = dict.fromkeys([*sides[0], *sides[1], *found])
    nothing, none = SideOfRows(), RowChanges()
    return RowDifferences(
        {
            value: found.get(value, none).plus(
                RowChanges(before=sides[0].get(value, nothing), after=sides[1].get(value, nothing))
            )
            for value in values
        },
        examples,
        repeats_keys,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A column, by its number, that rows are divided by; with its kind, if its times are divided by their minute."""

    number: int
    by_minute: types.DataType | None

    def of(self, value: Column) -> Column:
        """The value, of the same kind: what it means in a time zone isn't up to the session."""
        match self.by_minute:
            case types.TimestampType():
                value = F.date_trunc("minute", value)
            case types.TimestampNTZType():
                day = (F.year(value), F.month(value), F.dayofmonth(value))
                value = F.make_timestamp_ntz(*day, F.hour(value), F.minute(value), F.lit(0))
        return value.alias(f"p{self.number}")


def _sides(frame: DataFrame, compared: RowPairs, parts: Sequence[_Part]) -> dict[tuple[Any, ...], SideOfRows]:
    """Numbers of rows, sums and numbers of nulls, by the values of ``parts``."""
    columns = [F.col(quoted(name)) for name in compared.names]
    numbers = [i for i, kind in enumerate(compared.kinds) if isinstance(kind, types.NumericType)]
    sums = [F.sum(_addable(columns[i], compared.kinds[i])).alias(f"s{i}") for i in numbers]
    nulls = [F.sum(column.isNull().cast("long")).alias(f"n{i}") for i, column in enumerate(columns)]
    rows = frame.groupBy(*[part.of(columns[part.number]) for part in parts])
    found = {}
    for row in collected(rows.agg(F.count(F.lit(1)).alias("r"), *sums, *nulls)):
        count, rest = row[len(parts)], row[len(parts) + 1 :]
        if count:
            found[tuple(row[: len(parts)])] = SideOfRows(
                count,
                {compared.names[i]: value for i, value in zip(numbers, rest, strict=False)},
                dict(zip(compared.names, rest[len(numbers) :], strict=True)),
            )
    return found


def _addable(column: Column, kind: types.DataType) -> Column:
    """The column in a type whose sums don't overflow."""
    match kind:
        case types.IntegralType():
            return column.cast(_SUMS)
        case types.FloatType():
            return column.cast("double")
        case _:
            return column


def _changes(pairs: DataFrame, compared: RowPairs, parts: Sequence[_Part]) -> dict[tuple[Any, ...], RowChanges]:
    """How many rows of each kind there are, and in how many each column differs, by the values of ``parts``."""

    def count(kind: str, also: Column | None = None) -> Column:
        is_it = F.col("kind") == kind
        return F.sum((is_it if also is None else is_it & also).cast("long"))

    values = [
        part.of(
            F.when(F.col("actual").isNull(), F.col(f"expected.c{part.number}")).otherwise(
                F.col(f"actual.c{part.number}")
            )
        )
        for part in parts
    ]
    kinds = [count(kind).alias(kind) for kind in ("extra", "missing", "different")]
    differ = [count("different", ~compared.same(i)).alias(f"d{i}") for i in range(len(compared.names))]
    found = {}
    for row in collected(pairs.groupBy(*values).agg(*kinds, *differ)):
        added, removed, changed, *by_column = row[len(parts) :]
        if added or removed or changed:
            columns = {name: number for name, number in zip(compared.names, by_column, strict=True) if number}
            found[tuple(row[: len(parts)])] = RowChanges(added, removed, changed, columns)
    return found
