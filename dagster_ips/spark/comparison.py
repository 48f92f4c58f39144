"""Compares two frames of rows that should be the same, row by row.

Values are equal as in EXCEPT ALL, maps by their entries and variants by their content. Floating-point columns may
differ by as much as another order of summing may cause.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_ips.core.ranges import quoted
from dagster_ips.core.sampling import Sample
from dagster_ips.spark.changelog import comparable, net_rows
from dagster_ips.spark.frames import all_of, computed_once, distinct_keys, table_frame
from dagster_ips.spark.late import F, sql, types
from dagster_ips.spark.writes.partition_filter import collected, exactly

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

_TOLERANCE = {"double": 1e-9, "float": 1e-5}
_PARTS = 1_000_000
_MOST_FILES = 500


@dataclass(frozen=True, slots=True)
class Example:
    """A row that isn't as expected: ``kind`` is missing, extra or different.

    Without keys, ``key`` is the whole row; of a different row, it is what isn't a floating-point value.
    """

    kind: str
    key: str
    column: str
    expected: str | None
    actual: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many rows there should be and are, how many aren't as they should be, and examples of those."""

    expected: int
    actual: int
    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: tuple[Example, ...] = ()


def alike(expected: DataFrame, actual: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Both frames with the columns of either and ``actual``'s types, as a write would make them.

    A column that one of them lacks is null there. Names that differ only in case are the same column.
    """
    fields = {field.name.lower(): field for field in (*expected.schema.fields, *actual.schema.fields)}
    schema = types.StructType(
        [types.StructField(field.name, _nullable(field.dataType), nullable=True) for field in fields.values()]
    )
    return expected.to(schema), actual.to(schema)


def columns_of_one(expected: DataFrame, actual: DataFrame) -> tuple[list[str], list[str]]:
    """The columns that only ``expected`` has, and those that only ``actual`` has."""
    one, other = ({name.lower(): name for name in frame.columns} for frame in (expected, actual))
    return [one[k] for k in one if k not in other], [other[k] for k in other if k not in one]


def hashable(frames: Sequence[DataFrame], keys: Sequence[str]) -> list[str]:
    """The columns whose equal values hash alike, among ``keys`` or, without keys, all that the ``frames`` share.

    Values that can be equal in two forms, like 0.0, don't hash alike. There may be no such column.
    """
    kinds = [{field.name.lower(): field.dataType for field in frame.schema.fields} for frame in frames]
    named = keys or frames[0].columns
    return [name for name in named if all(_has_one_form(of.get(name.lower())) for of in kinds)]


def rows_among(  # noqa: PLR0913, PLR0917  # all are independent
    rows: DataFrame,
    keys: Sequence[str],
    sample: Sample,
    recent: Sequence[int] = (),
    columns: Sequence[str] = (),
    partitions: Sequence[tuple[object, ...]] | None = None,
) -> DataFrame:
    """The rows in ``partitions``, which are values of ``columns``, whose ``keys`` are in the sample.

    Rows whose keys have one of the hashes ``recent``, as returned by `changed_keys`, are included.
    """
    if partitions is not None:
        rows = rows.where(exactly(columns, partitions))
    if sample.is_everything:
        return rows
    hashed = _hashed(keys, sample.seed)
    in_sample = F.pmod(hashed, F.lit(_PARTS)) < F.lit(math.ceil(sample.share * _PARTS))
    return rows.where(in_sample | hashed.isin(list(recent)))


def _hashed(keys: Sequence[str], seed: int) -> Column:
    return F.xxhash64(F.lit(seed), *[F.col(quoted(key)) for key in keys])


def partitions_of(rows: DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The distinct values of ``columns``; runs a job that computes only these columns."""
    return collected(distinct_keys(rows, columns))


def rows_outside(rows: DataFrame, condition: str) -> int:
    """How many rows don't meet a condition on partitions; those for which it is null don't."""
    return rows.where(f"({condition}) IS DISTINCT FROM TRUE").count()


def floating(rows: DataFrame) -> list[str]:
    """The columns that are compared with a tolerance."""
    return [field.name for field in rows.schema.fields if field.dataType.typeName() in _TOLERANCE]


@dataclass(frozen=True, slots=True)
class FilesAt:
    """Data files of a table, with the rows that they have at one of its snapshots."""

    snapshot_id: int
    paths: tuple[str, ...]


def changed_keys(  # noqa: PLR0913  # all are independent
    session: SparkSession,
    catalog: str,
    table: str,
    keys: Sequence[str],
    *,
    before: FilesAt,
    after: FilesAt,
    most: int,
    seed: int,
) -> list[int]:
    """Hashes of up to ``most`` keys whose rows differ between ``before`` and ``after``; none if there are many files.

    A condition on hashes costs one look-up per row; a condition on as many values costs as many comparisons.
    """
    sides = [at for at in (before, after) if at.paths]
    if not sides or any(len(at.paths) > _MOST_FILES for at in sides):
        return []
    found = {
        at: table_frame(session, catalog, table, snapshot_id=at.snapshot_id).where(F.col("_file").isin(list(at.paths)))
        for at in sides
    }
    if len(sides) == 1:
        rows = found[sides[0]]
    else:
        there = {name for name in found[before].columns if name in found[after].columns}
        old, new = (found[at].select(*[quoted(name) for name in sorted(there)]) for at in sides)
        rows = net_rows(old, new).rows
    found_keys = rows.select(_hashed(keys, seed).alias("hash")).distinct().orderBy("hash").limit(most)
    return [row[0] for row in found_keys.collect()]


def compare(
    expected: DataFrame,
    actual: DataFrame,
    *,
    keys: Sequence[str],
    any_row_of_key: bool = False,
    most_examples: int = 10,
) -> Comparison:
    """The rows that ``actual`` lacks, has too many of, or has different from ``expected``. Both have the same columns.

    With ``keys``, a missing and an extra row of the same key count as one different row. With ``any_row_of_key``,
    ``expected`` holds all rows that have a key, and ``actual`` should have any one of them.
    """
    compared = RowPairs(expected, keys)
    with computed_once(compared.counted(expected, actual)) as counted:
        (rows,) = counted.agg(F.sum(compared.own("e")), F.sum(compared.own("a"))).collect()
        uneven = compared.one_per_key(counted) if any_row_of_key else counted
        with computed_once(compared.pairs(uneven)) as pairs:
            kinds = {row[0]: row[1] for row in pairs.groupBy("kind").count().collect()}
            shown = compared.examples(pairs, most_examples) if kinds else ()
    return Comparison(
        expected=rows[0] or 0,
        actual=rows[1] or 0,
        missing=kinds.get("missing", 0),
        extra=kinds.get("extra", 0),
        different=kinds.get("different", 0),
        examples=shown,
    )


class RowPairs:
    """Pairs rows that should be the same.

    The columns are numbered: ``c0``, ``c1``, … are the original values, ``f0``, ``f1``, … a form that can be compared.
    """

    def __init__(self, rows: DataFrame, keys: Sequence[str]) -> None:
        self.names = rows.columns
        self.kinds = [field.dataType for field in rows.schema.fields]
        wanted = {key.lower() for key in keys}
        self.keys = [i for i, name in enumerate(self.names) if name.lower() in wanted]
        self.floats = [i for i, kind in enumerate(self.kinds) if kind.typeName() in _TOLERANCE]
        self.paired_by = self.keys or [i for i in self._numbers if i not in self.floats]

    @property
    def _numbers(self) -> range:
        return range(len(self.names))

    @staticmethod
    def own(name: str) -> Column:
        """How often a row is in one of the two frames."""
        return F.col(f"n_{name}")

    def counted(self, expected: DataFrame, actual: DataFrame) -> DataFrame:
        """Every row once, with how often it is in each frame."""
        both = self._numbered(expected, 1, 0).unionAll(self._numbered(actual, 0, 1))
        values = [F.first(f"c{i}").alias(f"c{i}") for i in self._numbers]
        sums = [F.sum(self.own(n)).alias(f"n_{n}") for n in ("e", "a")]
        return both.groupBy(*[f"f{i}" for i in self._numbers]).agg(*values, *sums)

    def _numbered(self, rows: DataFrame, expected: int, actual: int) -> DataFrame:
        values = [F.col(quoted(name)) for name in self.names]
        return rows.select(
            *[value.alias(f"c{i}") for i, value in enumerate(values)],
            *[comparable(value, self.kinds[i]).alias(f"f{i}") for i, value in enumerate(values)],
            F.lit(expected).alias("n_e"),
            F.lit(actual).alias("n_a"),
        )

    def repeats_keys(self, counted: DataFrame) -> bool:
        """Whether one of the frames has several rows with the same key."""
        times = counted.groupBy(*[f"f{i}" for i in self.keys]).agg(*[F.sum(self.own(n)).alias(n) for n in ("e", "a")])
        return bool(times.where("e > 1 OR a > 1").limit(1).collect())

    def one_per_key(self, counted: DataFrame) -> DataFrame:
        """Expect only one row of a key: the one that exists, if it is among the expected rows."""
        key = sql.Window.partitionBy(*[f"f{i}" for i in self.keys])
        fits = (self.own("e") > 0) & (self.own("a") > 0)
        order = key.orderBy(fits.desc(), (self.own("e") > 0).desc(), *[f"f{i}" for i in self._numbers])
        first = F.row_number().over(order) == 1
        return counted.withColumn("n_e", F.when(first & (self.own("e") > 0), 1).otherwise(0))

    def expected(self, counted: DataFrame) -> DataFrame:
        """The rows that are expected, as often as they are."""
        values = [F.col(f"c{i}").alias(name) for i, name in enumerate(self.names)]
        times = F.array_repeat(F.lit(1), self.own("e").cast("int"))
        return counted.select(*values, F.explode(times).alias("__ips_time")).drop("__ips_time")

    def pairs(self, counted: DataFrame) -> DataFrame:
        """``kind``, the ``expected`` and the ``actual`` row of each pair that isn't as it should be."""
        more = self.own("e") - self.own("a")
        one_each = F.explode(F.array_repeat(F.signum(more).cast("int"), F.abs(more).cast("int"))).alias("sign")
        rows = counted.where(more != 0).select("*", one_each)
        paired_by = [F.col(f"f{i}") for i in self.paired_by]
        others = [i for i in self._numbers if i not in self.paired_by]
        order = [F.col(f"f{i}") for i in sorted(others, key=lambda i: i in self.floats)] or [F.lit(1)]
        nth = F.row_number().over(sql.Window.partitionBy(*paired_by, F.col("sign")).orderBy(*order))
        row = F.struct(*[F.col(f"c{i}") for i in self._numbers])
        sides = [
            F.first(F.when(F.col("sign") == sign, row), ignorenulls=True).alias(side)
            for side, sign in (("expected", 1), ("actual", -1))
        ]
        found = rows.withColumn("nth", nth).groupBy(*paired_by, F.col("nth")).agg(*sides).select("expected", "actual")
        one_side = F.when(F.col("actual").isNull(), "missing").when(F.col("expected").isNull(), "extra")
        same = all_of([self.same(i) for i in self._numbers])
        kind = one_side.when(~same, "different")
        return found.withColumn("kind", kind).where("kind IS NOT NULL")

    def same(self, i: int) -> Column:
        """Whether both rows of a pair have the same value in column ``i``."""
        expected, actual = F.col(f"expected.c{i}"), F.col(f"actual.c{i}")
        same = comparable(expected, self.kinds[i]).eqNullSafe(comparable(actual, self.kinds[i]))
        if i in self.floats:
            most = F.greatest(F.abs(expected), F.abs(actual))
            # To Spark, NaN is above infinity, and equal to itself.
            finite = most < F.lit(float("inf"))
            close = F.abs(expected - actual) <= most * F.lit(_TOLERANCE[self.kinds[i].typeName()])
            same |= F.coalesce(finite & close, F.lit(False))  # noqa: FBT003
        return same

    def examples(self, pairs: DataFrame, most: int) -> tuple[Example, ...]:
        """Some examples of each kind."""
        nth = F.row_number().over(sql.Window.partitionBy("kind").orderBy(F.lit(1)))
        some = pairs.withColumn("nth", nth).orderBy("nth", "kind").limit(most)
        differ = F.array(*[~self.same(i) for i in self._numbers])
        sides = [F.array(*[_text(F.col(f"{s}.c{i}"), self.kinds[i]) for i in self._numbers]) for s in _SIDES]
        found = some.select(
            "kind", *[F.when(F.col(s).isNotNull(), t) for s, t in zip(_SIDES, sides, strict=True)], differ
        )
        return tuple(self._example(row) for row in found.collect())

    def _example(self, row: Row) -> Example:
        kind, expected, actual, differ = row
        there = expected or actual
        named = self.paired_by if kind == "different" else self.keys or self._numbers
        key = ", ".join(f"{self.names[i]}={there[i]}" for i in named)
        if kind != "different":
            values = ", ".join(f"{self.names[i]}={there[i]}" for i in self._numbers if i not in self.keys)
            shown = values if self.keys else "1 row"
            return Example(kind, key, "", shown if expected else None, shown if actual else None)
        wrong = [i for i in self._numbers if differ[i]]
        listed = (", ".join(str(side[i]) for i in wrong) for side in (expected, actual))
        return Example(kind, key, ", ".join(self.names[i] for i in wrong), *listed)


_SIDES = ("expected", "actual")


def _text(value: Column, kind: types.DataType) -> Column:
    match kind:
        case types.BinaryType():
            return F.hex(value)
        case types.VariantType():
            return F.to_json(value)
        case _:
            return value.cast("string")


def _nullable(kind: types.DataType) -> types.DataType:
    match kind:
        case types.StructType():
            return types.StructType(
                [types.StructField(f.name, _nullable(f.dataType), nullable=True) for f in kind.fields]
            )
        case types.ArrayType():
            return types.ArrayType(_nullable(kind.elementType), containsNull=True)
        case types.MapType():
            return types.MapType(_nullable(kind.keyType), _nullable(kind.valueType), valueContainsNull=True)
        case _:
            return kind


def _has_one_form(kind: types.DataType | None) -> bool:
    two_forms = (
        types.FloatType | types.DoubleType | types.MapType | types.VariantType | types.ArrayType | types.StructType
    )
    return kind is not None and not isinstance(kind, two_forms)
