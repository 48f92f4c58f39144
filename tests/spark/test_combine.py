"""Combining a random change into a table gives the groups of Spark's own GROUP BY over all rows."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.aggregates import AggregatePart, ComputedColumn, parse_aggregate
from dagster_ips.core.held_rows import HeldRows
from dagster_ips.core.write_mode import Combine
from dagster_ips.errors import AggregateError, CombineError, OutsidePartitionsError, UnknownColumnError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.writes.combine import combine_rows
from dagster_ips.spark.writes.group_parts import Aggregates, Change
from dagster_ips.spark.writes.partition_filter import Partitions, PartitionsHeld, all_held, collected
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

ROWS = "k STRING, day DATE, x INT, big BIGINT, d DECIMAL(6,2), f DOUBLE, b BOOLEAN, s STRING"
KEYS = ("k", "day")
DECLARED = {
    "plays": "count(*)",
    "known": "count(x)",
    "total": "sum(x)",
    "paid": "sum(d)",
    "mean": "avg(x)",
    "mean_big": "avg(big)",
    "mean_paid": "avg(d)",
    "least": "min(d)",
    "greatest": "max(f)",
    "first": "min(s)",
    "smallest": "min(f)",
    "all_": "bool_and(b)",
    "one": "bool_or(b)",
    "large": "count_if(x > 1)",
    "twice": "sum(2 * x)",
}
APPROXIMATE = {"floats": "sum(f)", "mean_float": "avg(f)"}

Row: TypeAlias = tuple[Any, ...]
Changed: TypeAlias = tuple[list[Row], list[Row], list[Row]]
"""The existing rows, which of them are removed, and which rows are added."""
Test: TypeAlias = Callable[..., None]

rows = st.tuples(
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
    st.sampled_from([None, -3, 0, 1, 2]),
    st.sampled_from([None, -5, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]),  # two are too much for a sum of Spark's
    st.sampled_from([None, Decimal("-9999.99"), Decimal("-0.01"), Decimal("0.10"), Decimal("0.20")]),
    st.sampled_from([None, -1.5, 0.0, -0.0, 2.5, math.inf, -math.inf, math.nan]),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, "", "A", "z"]),
)


@st.composite
def changes(draw: st.DrawFn) -> Changed:
    """The existing rows, which of them are removed, and which rows are added."""
    there = draw(st.lists(rows, max_size=8))
    gone = [row for row in there if draw(st.booleans())]
    return there, gone, draw(st.lists(rows, max_size=4))


def combine(*, approximate: bool, **aggregates: str) -> Combine:
    parsed = tuple(parse_aggregate(name, text) for name, text in aggregates.items())
    return Combine(KEYS, parsed, approximate=approximate)


def frame(lake: Lake, some: Sequence[Row], weight: int) -> DataFrame:
    return lake.session.createDataFrame(list(some), ROWS).withColumn("_weight", F.lit(weight))


def equal(row: Row) -> Row:
    """The row in a form that is equal exactly when SQL's IS NOT DISTINCT FROM says so."""
    return tuple(("NaN" if math.isnan(v) else v + 0.0) if isinstance(v, float) else v for v in row)


def without(there: Sequence[Row], gone: Sequence[Row]) -> list[Row]:
    """``there`` without one row for each row in ``gone``, because a row may occur twice."""
    left = list(there)
    for row in gone:
        del left[[equal(each) for each in left].index(equal(row))]
    return left


def holding_few(partitions: Partitions) -> HeldRows:
    """The answer for a small table: it may have rows in all of these partitions."""
    return HeldRows(partitions, 100)


class Table:
    """A table of groups, and branches of it."""

    def __init__(self, lake: Lake, declared: Combine) -> None:
        self.lake, self.declared, self.branches = lake, declared, 0
        lake.catalog.create_namespace("t")
        self.aggregates = Aggregates.over(frame(lake, [], 1), declared, table="t.some")
        empty = self.aggregates.groups(frame(lake, [], 1))
        creating = empty.writeTo("lake.t.some").using("iceberg").tableProperty("write.merge.mode", "merge-on-read")
        self.partitions = [each for each in ("day",) if each in declared.on]
        (creating.partitionedBy(F.col("day")) if self.partitions else creating).create()

    def holding(self, there: Sequence[Row]) -> Branch:
        self.branches += 1
        branch = Branch("lake", "t.some", f"branch{self.branches}")
        self.lake.sql(f"ALTER TABLE lake.t.some CREATE BRANCH {branch.name}")
        self.aggregates.groups(frame(self.lake, there, 1)).writeTo(branch.sql_name).overwrite(F.expr("TRUE"))
        return branch

    def combine(  # noqa: PLR0913  # as in combine_rows
        self,
        branch: Branch,
        gone: Sequence[Row],
        come: Sequence[Row],
        live: Sequence[Row],
        held: PartitionsHeld = all_held,
        *,
        may_cancel: bool = False,
        came_to: Partitions | None = None,
        within: str | None = None,
    ) -> None:
        change = frame(self.lake, come, 1).unionAll(frame(self.lake, gone, -1)).unionAll(frame(self.lake, live, 0))
        combine_rows(
            Change(change, "_weight", may_cancel=may_cancel),
            self.aggregates,
            branch,
            head=None,
            partition_columns=self.partitions,
            within=within,
            held=held,
            came_to=came_to,
        )

    def rows(self, branch: Branch) -> Counter[Row]:
        return Counter(equal(tuple(row)) for row in self.lake.session.table(branch.sql_name).collect())

    def snapshots(self, branch: Branch) -> int:
        return len(self.lake.catalog.load("t.some", asset="test").ancestry(branch.name).snapshots)


@pytest.fixture
def exact(lake: Lake) -> Table:
    return Table(lake, combine(approximate=False, **DECLARED))


@pytest.fixture
def inexact(lake: Lake) -> Table:
    return Table(lake, combine(approximate=True, **APPROXIMATE))


_OF_PARTS = {
    AggregatePart.ROWS: "count({})",
    AggregatePart.COUNT: "count({})",
    AggregatePart.SUM: "sum({})",
    AggregatePart.TRUE: "count_if({})",
    AggregatePart.FALSE: "count_if(NOT ({}))",
}


def grouped(lake: Lake, some: Sequence[Row], declared: Combine, *, with_hidden: bool = True) -> Counter[Row]:
    """The groups that SQL makes of the rows."""
    frame(lake, some, 1).createOrReplaceTempView("of_sql")
    # Spark's avg of bigint rounds each value that a double can't represent, and adds them up in any order.
    exact = {"avg(big)": "CAST(sum(CAST(big AS DECIMAL(20, 0))) AS DOUBLE) / count(big)"}
    listed = [*declared.on, *(f"{exact.get(str(each), str(each))} AS {each.name}" for each in declared.aggregates)]
    wide = {"big": "CAST(big AS DECIMAL(20, 0))"}
    hidden = [kept for kept in declared.layout.hidden if with_hidden]
    listed += [_OF_PARTS[each.part].format(wide.get(each.expression, each.expression)) for each in hidden]
    groups = f"SELECT {', '.join(listed)} FROM of_sql" + (f" GROUP BY {', '.join(declared.on)}" if declared.on else "")
    computed = "".join(f", {each.expression}" for each in declared.computed)
    return Counter(equal(tuple(row)) for row in lake.sql(f"SELECT *{computed} FROM ({groups})").collect())


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def full(**values: Any) -> Row:  # noqa: ANN401  # of each column's type
    of = {"k": "a", "day": dt.date(2026, 1, 1), "x": 1, "big": 1, "d": Decimal("1.00"), "f": 1.0, "b": True, "s": "a"}
    return tuple((of | values).values())


CHANGES: list[Changed] = [
    ([full(), full()], [full()], []),  # a tie of extremes
    ([full(), full(x=None, d=None, f=None)], [full()], []),  # only nulls are left
    ([full(), full(d=Decimal("0.50"))], [full(d=Decimal("0.50"))], [full(d=Decimal("0.40"))]),  # a better one came
    ([full()], [full()], [full(k=None)]),  # an emptied group, and a new one
    ([full(), full(k=None, day=None, f=2.0)], [], [full(x=2, d=None), full(k=None, day=None, x=None, s=None)]),
    ([full(), full(x=None, s=None)], [], [full(k="b"), full(k=None), full(day=None), full(x=3, s="Z")]),
]
NOT_SUBTRACTED: list[Changed] = [
    ([full(), full(f=math.nan)], [full(f=math.nan)], []),
    ([full(), full(f=math.inf)], [full(f=math.inf)], [full(f=2.0)]),
]


def merged(parts: Iterable[Sequence[Row]]) -> list[Row]:
    """The rows of all parts; each part has keys of its own, apart from null."""
    return [(k if k is None else f"{number}:{k}", *rest) for number, part in enumerate(parts) for k, *rest in part]


def together(some: Sequence[Changed]) -> Changed:
    """Several changes as one, because each takes several queries, however few rows it has."""
    there, gone, come = map(merged, zip(*some, strict=True))
    return there, gone, come


def each_alone(some: Sequence[Any]) -> Callable[[Test], Test]:
    """A random test has these examples as well."""
    return lambda test: reduce(lambda before, one: example(one)(before), some, test)


def gives_the_groups(lake: Lake, exact: Table, change: Changed) -> None:
    there, gone, come = change
    after = without(there, gone) + come
    places = sorted({(row[1],) for row in come}, key=repr)
    for held, came_to in [(all_held, None)] if gone else [(all_held, None), (holding_few, None), (holding_few, places)]:
        branch = exact.holding(there)
        exact.combine(branch, gone, come, after, held, came_to=came_to)
        assert exact.rows(branch) == grouped(lake, after, exact.declared)


def test_a_change_gives_the_groups_that_sql_makes_of_all_rows(lake: Lake, exact: Table) -> None:
    for is_of_removed in (True, False):
        gives_the_groups(lake, exact, together([each for each in CHANGES if bool(each[1]) == is_of_removed]))


@pytest.mark.slow
@pytest.mark.everywhere
@given(change=changes())
@each_alone(CHANGES)
@examples(6)
def test_a_random_change_gives_the_groups_that_sql_makes_of_all_rows(lake: Lake, exact: Table, change: Changed) -> None:
    gives_the_groups(lake, exact, change)


FIRST, SECOND, THIRD = [(dt.date(2026, 1, day),) for day in (1, 2, 3)]


@pytest.mark.everywhere
@pytest.mark.parametrize(
    "held", mostly_slow([holding_few, lambda _: HeldRows([], 0)]), ids=["some are there", "none is"]
)
def test_groups_outside_the_allowed_partitions_are_refused_by_the_query_that_would_add_them(
    lake: Lake, exact: Table, held: PartitionsHeld
) -> None:
    within, inside, outside = "day >= DATE '2026-01-02'", full(day=SECOND[0], k=None), full()
    branch = exact.holding([])
    with pytest.raises(OutsidePartitionsError, match="2026-01-01"):
        exact.combine(branch, [], [inside, outside], [], held, came_to=[FIRST, SECOND], within=within)
    asked: list[Partitions] = []

    def holding(partitions: Partitions) -> HeldRows:
        asked.append(partitions)
        return held(partitions)

    exact.combine(branch, [], [inside], [], holding, came_to=[FIRST, SECOND, THIRD], within=within)
    assert asked == [[SECOND, THIRD]]
    assert exact.rows(branch) == grouped(lake, [inside], exact.declared)


@pytest.mark.everywhere
@pytest.mark.parametrize("on", [(), pytest.param(KEYS, marks=pytest.mark.slow)])
def test_a_total_of_all_rows_stays_one_row_and_columns_computed_from_aggregates_follow_them(
    lake: Lake, on: tuple[str, ...]
) -> None:
    declared = combine(approximate=False, **DECLARED)
    ratio = ComputedColumn("ratio", "100 * total / CAST(plays AS decimal(20, 0)) + coalesce(known, 7)")
    table = Table(lake, Combine(on, declared.aggregates, computed=(ratio, ComputedColumn("big", "greatest < 2"))))
    there: list[Row] = []
    branch = table.holding(there)
    steps: list[tuple[list[Row], list[Row]]] = [
        ([], [full(), full(k=None, x=2, d=None)]),  # the first rows
        ([full()], [full(x=5, f=0.0)]),
        ([full(k=None, x=2, d=None)], []),  # an extreme is lost
        ([], [full(x=None, s="b")]),
        ([full(x=5, f=0.0), full(x=None, s="b")], []),  # nothing is left
        ([], [full(b=None)]),
    ]
    for gone, come in steps:
        there = without(there, gone) + come
        table.combine(branch, gone, come, there)
        assert table.rows(branch) == grouped(lake, there, table.declared), (gone, come)


def test_more_rows_than_there_were_cannot_be_removed_from_a_total_of_all_rows(lake: Lake) -> None:
    table = Table(lake, Combine((), combine(approximate=False, plays="count(*)").aggregates))
    branch = table.holding([full()])
    with pytest.raises(CombineError, match="more rows were removed than were ever added"):
        table.combine(branch, [full(), full()], [], [])


def recomputes_sums(lake: Lake, inexact: Table, change: Changed) -> None:
    there, gone, come = change
    after = without(there, gone) + come
    branch = inexact.holding(there)
    inexact.combine(branch, gone, come, after)
    assert inexact.rows(branch) == grouped(lake, after, inexact.declared)


def test_a_sum_is_recomputed_when_a_value_that_cannot_be_subtracted_is_removed(lake: Lake, inexact: Table) -> None:
    recomputes_sums(lake, inexact, together(NOT_SUBTRACTED))


@pytest.mark.slow
@pytest.mark.everywhere
@given(change=changes())
@each_alone(NOT_SUBTRACTED)
@examples(3)
def test_sums_of_floats_are_right_after_a_random_change(lake: Lake, inexact: Table, change: Changed) -> None:
    recomputes_sums(lake, inexact, change)


def test_a_change_that_leaves_every_group_as_it_was_commits_nothing(exact: Table) -> None:
    branch = exact.holding([full(), full(s="b")])
    before = exact.snapshots(branch)
    exact.combine(branch, [full()], [full()], [full(), full(s="b")])
    exact.combine(branch, [full(s="b")], [full(s="c")], [full(), full(s="c")])  # no minimum is changed
    assert exact.snapshots(branch) == before


def test_live_rows_are_read_only_where_an_extreme_was_lost(exact: Table) -> None:
    between = full(d=Decimal("2.00"), f=2.0, s="b")
    branch = exact.holding([full(), between, full(f=3.0)])
    # These rows aren't live: if they were read, they would be counted.
    exact.combine(branch, [between], [], [full(x=1000)] * 5)
    (row,) = exact.rows(branch)
    assert row[2] == 2
    assert 1000 not in row


@pytest.mark.slow
@pytest.mark.parametrize("there", [[], [full(k="c")]])
def test_a_new_group_may_lose_rows_that_the_same_change_added(lake: Lake, exact: Table, there: list[Row]) -> None:
    branch = exact.holding(there)
    lost, gone = full(d=Decimal("9.00"), f=9.0, s="A"), full(k="b")
    after = [*there, full(), full(x=2)]
    change = [lost, gone], [full(), lost, gone, full(x=2)], after
    with pytest.raises(CombineError, match="more rows of the group"):
        exact.combine(branch, *change)
    exact.combine(branch, *change, may_cancel=True)
    assert exact.rows(branch) == grouped(lake, after, exact.declared)
    with pytest.raises(CombineError, match=r"more rows of the group with \w+ = 'b', "):
        exact.combine(branch, [gone, gone], [gone], after, may_cancel=True)


@pytest.mark.parametrize("is_updated", [True, False])
def test_a_row_that_a_change_both_adds_and_removes_is_no_extreme(lake: Lake, exact: Table, is_updated: bool) -> None:  # noqa: FBT001  # a parameter
    branch, never = exact.holding([full()]), full(f=9.0)
    gone, come = [full()] if is_updated else [], [full(f=5.0)]
    after = [*([] if is_updated else [full()]), *come]
    exact.combine(branch, [never, *gone], [never, *come], after, may_cancel=True)
    assert exact.rows(branch) == grouped(lake, after, exact.declared)


@pytest.mark.everywhere
@pytest.mark.parametrize("there", mostly_slow([[full()], [], [full(x=None), full(x=None)]]))
def test_rows_that_a_group_never_had_cannot_be_removed_from_it(exact: Table, there: list[Row]) -> None:
    branch = exact.holding(there)
    before = exact.rows(branch)
    with pytest.raises(CombineError, match=r"more rows of the group with \w+ = 'a', .*mode=full"):
        exact.combine(branch, [full(), full(s="b")], [], [])
    assert exact.rows(branch) == before


@pytest.mark.parametrize(
    ("aggregate", "error", "match"),
    [
        ("sum(f)", AggregateError, "floating-point.*approximate=True"),
        ("avg(f)", AggregateError, "floating-point.*approximate=True"),
        ("sum(s)", AggregateError, "string, not numbers"),
        ("bool_and(x)", AggregateError, "int, not boolean"),
        ("count_if(s)", AggregateError, "string, not boolean"),
        ("max(array(x))", AggregateError, "no minimum and maximum"),
        ("max(NULL)", AggregateError, "no minimum and maximum"),
        ("avg(CAST(d AS DECIMAL(20, 2)))", AggregateError, "more than 18 digits.*sum and its count"),
        ("sum(count(x))", AggregateError, "can't be maintained"),
        ("sum(x + row_number() OVER (ORDER BY k))", AggregateError, "can't be maintained"),
        ("sum(explode(array(x)))", AggregateError, "can't be maintained"),
        ("sum(x +)", AggregateError, "can't be maintained"),
        ("sum(nothing)", UnknownColumnError, "nothing.*sum.nothing."),
        ("count_if(current_date() > 'Today')", ValueError, "different value"),
        (
            "count_if(CAST(s AS DATE) >= ' Today')",
            AggregateError,
            "Today in it may give removed rows a different value",
        ),
        ("max(datediff('yesterday', CAST(s AS DATE)))", AggregateError, "yesterday in it may"),
        ("max(months_between('now', CAST(s AS TIMESTAMP)))", AggregateError, "now in it may"),
    ],
)
def test_an_aggregate_that_cannot_be_maintained_over_the_rows_is_refused(
    lake: Lake, aggregate: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Aggregates.over(frame(lake, [], 1), combine(approximate=False, value=aggregate), table="t.some")


def test_a_text_that_is_no_time_may_be_a_word_for_one(lake: Lake) -> None:
    rows = frame(lake, [], 1).withColumn("seen", F.current_timestamp())
    Aggregates.over(rows, combine(approximate=False, value="count_if(s = 'today' OR s > 'now')"), table="t.some")


@pytest.mark.everywhere
@pytest.mark.parametrize("ansi", mostly_slow(["true", "false"]))
def test_a_sum_that_overflows_is_an_error_and_not_null(lake: Lake, ansi: str) -> None:
    value = "CAST('99999999999999999999999999999999999.12' AS DECIMAL(38, 2))"
    table = Table(lake, combine(approximate=False, total=f"sum({value})"))
    before = lake.session.conf.get("spark.sql.ansi.enabled")
    lake.session.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        branch = table.holding([full()])
        with pytest.raises(CombineError, match=r"too large for its type.*larger type"):
            table.combine(branch, [], [full()] * 60, [])
        table.combine(branch, [], [full()] * 5, [])
        with pytest.raises(CombineError, match=r"too large for its type.*larger type"):
            table.combine(branch, [], [full()] * 5, [])
    finally:
        lake.session.conf.set("spark.sql.ansi.enabled", before)


def test_a_sum_of_the_longest_decimals_keeps_every_place(lake: Lake) -> None:
    value = "CAST('123456.0000000000000000000000000000001' AS DECIMAL(38, 31))"
    table = Table(lake, combine(approximate=False, total=f"sum({value})"))
    branch = table.holding([full()])
    table.combine(branch, [], [full()], [])
    (row,) = table.rows(branch)
    assert row[2] == Decimal("246912.0000000000000000000000000000002")


# Expressions for the first partition column, of the existing and of the added rows.
PLACES = {
    "a STRING": "element_at(array('', 'ä', 'x/y=z', 'A', 'a', 'null'), {} + 1)",
    "a INT": "{} - 2",
    "a BIGINT": "{} * 4294967296 - 2",
    "a DATE": "date_add(DATE '1969-12-29', {})",
    "a TIMESTAMP": "timestamp_micros({} * 3600000001 - 2)",
    "a DECIMAL(20,3)": "CAST({} / 8 AS DECIMAL(20,3))",
    "a BOOLEAN": "{} % 2 = 0",
    "a BINARY": "unhex(concat('00', hex({})))",
    "a DOUBLE": "element_at(array(-0.0D, 0.0D, double('NaN'), 1e300D, -1D, double('Infinity')), {} + 1)",
}
LAYOUTS = {
    "by one column": ["ALTER TABLE {} ADD PARTITION FIELD a"],
    "by one column since some files are there": ["", "ALTER TABLE {} ADD PARTITION FIELD a"],
    "by two columns": ["ALTER TABLE {} ADD PARTITION FIELD b", "ALTER TABLE {} ADD PARTITION FIELD a"],
    "by a column and a bucket": [
        "ALTER TABLE {} ADD PARTITION FIELD a",
        "ALTER TABLE {} ADD PARTITION FIELD bucket(3, k)",
    ],
    "by another column than before": [
        "ALTER TABLE {} ADD PARTITION FIELD b",
        "ALTER TABLE {} DROP PARTITION FIELD b",
        "ALTER TABLE {} ADD PARTITION FIELD a",
    ],
}


_USUAL = "by two columns"


@pytest.mark.parametrize(
    ("place", "layout"),
    [
        pytest.param(place, layout, marks=[] if place == "a DATE" and layout == _USUAL else pytest.mark.slow)
        for place in PLACES
        for layout in LAYOUTS
        if layout == _USUAL or place in {"a STRING", "a DATE"}
    ],
)
@pytest.mark.parametrize(("nulls", "is_known"), [(False, False), (True, False), (False, True)])
def test_groups_are_found_in_partitions_of_every_kind(
    lake: Lake, place: str, layout: str, *, nulls: bool, is_known: bool
) -> None:
    lake.catalog.create_namespace("t")
    declared = Combine(("a", "b", "k"), (parse_aggregate("n", "count(*)"), parse_aggregate("total", "sum(v)")))

    def rows_of(first: int, count: int, *, null: bool) -> DataFrame:
        part = f"CAST(pmod(hash(id), {4 if first == 0 else 6}) AS INT)"
        at, kind = PLACES[place].format(part), place.partition(" ")[2]
        some = f"IF(id % 7 = 3, NULL, CAST({at} AS {kind}))" if null else f"CAST({at} AS {kind})"
        key = "IF(id % 11 = 5, NULL, id % 13)" if null else "id % 13"
        text = f"SELECT {some} AS a, CAST(id % 3 AS STRING) AS b, {key} AS k, CAST(id AS INT) AS v, 1 AS _weight"
        return lake.sql(f"{text} FROM range({first}, {first + count})")

    aggregates = Aggregates.over(rows_of(0, 0, null=True), declared, table="t.kinds")
    aggregates.groups(rows_of(0, 0, null=True)).writeTo("lake.t.kinds").using("iceberg").create()
    before = rows_of(0, 150, null=True)
    each = [step for step in LAYOUTS[layout] if not step]
    for at, step in enumerate(LAYOUTS[layout]):
        if step:
            lake.sql(step.format("lake.t.kinds"))
        if each and at == 0:
            aggregates.groups(before.where("k < 5 AND b = '0'")).writeTo("lake.t.kinds").append()
    rest = before.where("NOT (k < 5 AND b = '0') OR k IS NULL") if each else before
    aggregates.groups(rest).writeTo("lake.t.kinds").append()
    lake.sql("ALTER TABLE lake.t.kinds CREATE BRANCH work")
    come = rows_of(150, 60, null=nulls)
    columns = lake.catalog.load("t.kinds", asset="test").identity_partition_columns()
    combine_rows(
        Change(come, "_weight", may_cancel=False),
        aggregates,
        Branch("lake", "t.kinds", "work"),
        head=None,
        partition_columns=columns,
        within=None,
        held=holding_few,
        came_to=collected(come.select(*columns).distinct()) if is_known else None,
    )
    before.unionAll(come).createOrReplaceTempView("of_sql")
    wanted = lake.sql("SELECT a, b, k, count(*) AS n, sum(v) AS total FROM of_sql GROUP BY a, b, k")
    found = lake.sql("SELECT a, b, k, n, total FROM lake.t.kinds VERSION AS OF 'work'")
    assert found.exceptAll(wanted).count() == wanted.exceptAll(found).count() == 0
    assert found.count() == wanted.count()
