"""Sums of decimals of every precision and scale, up to their limits, are those of Python's decimals."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.aggregates import parse_aggregate
from dagster_ips.core.write_mode import Combine
from dagster_ips.errors import CombineError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.writes.combine import combine_rows
from dagster_ips.spark.writes.group_parts import Aggregates, Change
from dagster_ips.spark.writes.partials import append_partials, folded
from dagster_ips.spark.writes.partition_filter import all_held
from tests.support.lake import Lake

EXACT = Context(prec=200)
KINDS = ((38, 0), (38, 18), (38, 38), (36, 2), (27, 9))
ALL_KINDS = (
    *((38, 1), (38, 6), (38, 10), (38, 20), (38, 30), (38, 37), (37, 0), (37, 18), (37, 37)),
    *((35, 0), (35, 35), (34, 17), (33, 3), (29, 29), (28, 0), (28, 10), (27, 0), (27, 27)),
    *((38, 7), (28, 28), (19, 4), (18, 18), (10, 2), (1, 0), (1, 1)),
    *KINDS,
)
"""Precision and scale of each value of a row."""

Row = tuple[object, ...]
"""The number of the group, and a value or None of each kind."""


def most(precision: int, *, of_sum: bool = False) -> int:
    """The greatest value of a kind, or of its sum, in units of the last place."""
    return int(10 ** (min(38, precision + 10) if of_sum else precision) - 1)


def total(rows: Sequence[Row], place: int, scale: int) -> int | None:
    """The sum of the values at a place, in units of the last place; None if there are no values."""
    found = [int(EXACT.scaleb(each, scale)) for row in rows if isinstance(each := row[place], Decimal)]
    return sum(found) if found else None


def decimal(units: int | None, scale: int) -> Decimal | None:
    return None if units is None else EXACT.scaleb(Decimal(units), -scale)


@dataclass
class Values:
    """Random rows of these kinds, of which those of a group never add up to more than fits the type."""

    source: random.Random
    kinds: Sequence[tuple[int, int]]
    is_signed: bool

    def sums(self, rows: Sequence[Row]) -> dict[Row, int]:
        """The sum of each kind, None if there are no values, by group; and how many rows there are."""
        found: dict[object, list[Row]] = defaultdict(list)
        for row in rows:
            found[row[0]].append(row)
        kinds = [(place, scale) for place, (_, scale) in enumerate(self.kinds, 1)]
        return {
            (group, *(decimal(total(of, *kind), kind[1]) for kind in kinds)): len(of) for group, of in found.items()
        }

    def rows(self, group: int, there: Sequence[Row], least: int) -> list[Row]:
        """At least so many rows to be added to the rows that are ``there``."""
        left = [total(there, place, scale) or 0 for place, (_, scale) in enumerate(self.kinds, 1)]
        limits, found = [most(precision, of_sum=True) for precision, _ in self.kinds], list[Row]()
        while len(found) < least or any(abs(sum_) > limit for sum_, limit in zip(left, limits, strict=True)):
            values = [self._value(precision, sum_) for (precision, _), sum_ in zip(self.kinds, left, strict=True)]
            left = [sum_ + (value or 0) for sum_, value in zip(left, values, strict=True)]
            found.append((group, *(decimal(each, scale) for each, (_, scale) in zip(values, self.kinds, strict=True))))
        return found

    def _value(self, precision: int, so_far: int) -> int | None:
        limit, of_sum = most(precision), most(precision, of_sum=True)
        least = min(max(-limit if self.is_signed else 0, -of_sum - so_far), limit)
        greatest = max(min(limit, of_sum - so_far), least)
        drawn = [least, greatest, self.source.randint(least, greatest), self.source.randint(least, greatest)]
        return self.source.choice([*drawn, None] if abs(so_far) <= of_sum else drawn)


@dataclass
class Sums:
    """A table of the sums of every kind."""

    lake: Lake
    kinds: Sequence[tuple[int, int]]
    keeps_partials: bool = False

    def __post_init__(self) -> None:
        self.names = [f"d{precision}_{scale}" for precision, scale in self.kinds]
        aggregates = {"n": "count(*)"} | {name: f"sum({name})" for name in self.names}
        parsed = tuple(parse_aggregate(name, text) for name, text in aggregates.items())
        self.declared = Combine(("k",), parsed, keeps_partials=self.keeps_partials)
        self.lake.catalog.create_namespace("t")
        self.aggregates = Aggregates.over(self._frame([], 1), self.declared, table="t.sums")
        self.aggregates.groups(self._frame([], 1)).writeTo("lake.t.sums").using("iceberg").create()
        self.branch = Branch("lake", "t.sums", "main")

    def start(self, rows: Sequence[Row]) -> None:
        self.aggregates.groups(self._frame(rows, 1)).writeTo("lake.t.sums").overwrite(F.expr("TRUE"))

    def change(self, gone: Sequence[Row], come: Sequence[Row]) -> None:
        change = Change(self._frame(come, 1).unionAll(self._frame(gone, -1)), "_weight")
        if self.keeps_partials:
            append_partials(
                change, self.aggregates, self.branch, may_remove_rows=True, partition_columns=[], within=None
            )
        else:
            combine_rows(
                change,
                self.aggregates,
                self.branch,
                head=None,
                partition_columns=[],
                within=None,
                held=all_held,
                came_to=None,
            )

    def found(self) -> dict[Row, int]:
        stored = self.lake.session.table("lake.t.sums")
        groups = folded(stored, self.declared) if self.keeps_partials else stored
        return {tuple(row[name] for name in ("k", *self.names)): row["n"] for row in groups.collect()}

    def _frame(self, rows: Sequence[Row], weight: int) -> DataFrame:
        kinds = zip(self.names, self.kinds, strict=True)
        schema = ", ".join(["k INT", *(f"{name} DECIMAL{kind}" for name, kind in kinds)])
        return self.lake.session.createDataFrame(list(rows), schema).withColumn("_weight", F.lit(weight))


def follows(lake: Lake, kinds: Sequence[tuple[int, int]], *, keeps_partials: bool, seed: int, groups: int) -> None:
    # What a change adds to a group of partials is itself stored, so it must fit its type, too.
    values = Values(random.Random(seed), kinds, is_signed=not keeps_partials)
    table = Sums(lake, kinds, keeps_partials)
    live = [row for group in range(groups) for row in values.rows(group, [], values.source.randint(1, 3))]
    table.start(live)
    assert table.found() == values.sums(live)
    for _ in range(2):
        gone = [row for row in live if values.source.random() < 0.5]
        live = [row for row in live if row not in gone]
        come = list[Row]()
        for group in range(groups):
            left = [row for row in live if row[0] == group]
            come += values.rows(group, left, values.source.randint(0, 2))
        table.change(gone, come)
        live += come
        assert table.found() == values.sums(live)


STORAGES = pytest.mark.parametrize("keeps_partials", [False, True], ids=["merged", "partials"])


@STORAGES
def test_sums_of_decimals_up_to_their_limits_are_exact_after_every_change(lake: Lake, keeps_partials: bool) -> None:  # noqa: FBT001
    follows(lake, KINDS, keeps_partials=keeps_partials, seed=7, groups=12)


@pytest.mark.slow
@pytest.mark.everywhere
@STORAGES
@pytest.mark.parametrize("some", range(3))
def test_sums_of_decimals_of_all_kinds_are_exact_after_every_change(
    lake: Lake,
    some: int,
    keeps_partials: bool,  # noqa: FBT001
) -> None:
    follows(lake, ALL_KINDS[some::3], keeps_partials=keeps_partials, seed=some, groups=200)


def test_a_sum_that_only_exceeds_its_type_on_the_way_is_exact_and_one_that_does_in_the_end_is_refused(
    lake: Lake,
) -> None:
    table, great = Sums(lake, [(38, 38)]), decimal(10**38 - 1, 38)
    one, less = decimal(1, 38), decimal(1 - 10**38, 38)
    table.start([(1, great), (2, great)])
    table.change([(1, great)], [(1, less)])
    assert table.found() == {(1, less): 1, (2, great): 1}
    with pytest.raises(CombineError, match="too large"):
        table.change([], [(2, one)])
    with pytest.raises(CombineError, match="too large"):
        table.change([], [(3, great), (3, one)])
    assert table.found() == {(1, less): 1, (2, great): 1}


def test_a_change_of_partials_that_does_not_fit_its_type_is_refused(lake: Lake) -> None:
    table, great = Sums(lake, [(38, 0)], keeps_partials=True), Decimal("9" * 38)
    table.start([(1, great)])
    with pytest.raises(CombineError, match="mode=full"):
        table.change([(1, great)], [(1, EXACT.minus(great))])
    assert table.found() == {(1, great): 1}
