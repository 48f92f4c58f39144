"""Every plan that is accepted obeys the law for which it is accepted, on random plans and rows.

Over changed rows: the result of all rows is the result of the earlier rows plus the result of the new rows. Over
groups: the result of all rows has, for the changed keys, exactly the rows of the result of those groups alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.lineage import Leaf, Unit, lineage
from dagster_ips.local_spark.connect_server import ConnectServer
from dagster_ips.spark.plans import marked, result_plan

Step = Callable[[DataFrame, DataFrame], DataFrame]
"""From a frame and the first frame of the plan to the next frame."""

KEYS = ("k", "d")
COLUMNS = ("k", "d", "v")
SCHEMA = "k string, d int, v int"
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "A", None]), st.sampled_from([1, 2, None]), st.integers(0, 3)), max_size=6
)


def grouped(by: tuple[str, ...]) -> Step:
    """The groups by ``by``, with the columns that every step gives."""
    rest = [F.max(column).alias(column) for column in COLUMNS[:2] if column not in by]
    return lambda frame, _: frame.groupBy(*by).agg(F.sum("v").cast("int").alias("v"), *rest).select(*COLUMNS)


def ranked(by: tuple[str, ...]) -> Step:
    # The order has all columns, so that only equal rows tie.
    window = lambda: (Window.partitionBy(*by) if by else Window).orderBy(*COLUMNS)  # noqa: E731  # needs a session
    return lambda frame, _: frame.withColumn("v", F.rank().over(window()))


def joined(kind: str, by: tuple[str, ...], *, side: str, takes: str = "") -> Step:
    """A join with a lookup; ``takes`` is a column of the lookup that replaces the frame's."""

    def with_lookup(frame: DataFrame, _: DataFrame) -> DataFrame:
        lookup = frame.sparkSession.sql("SELECT * FROM VALUES ('a', 1, 7), ('a', 2, 8) AS t(k, d, w)")
        other = lookup.select(*[F.col(each).alias(f"l_{each}") for each in ("k", "d", "w")])
        same = [F.col(each) == F.col(f"l_{each}") for each in by]
        left, right = (frame, other) if side == "left" else (other, frame)
        found = left.join(right, same, kind)
        if takes and f"l_{takes}" in found.columns and takes in found.columns:
            found = found.drop(takes).withColumnRenamed(f"l_{takes}", takes)
        return found.select(*COLUMNS) if "k" in found.columns else found.toDF(*COLUMNS)

    return with_lookup


def shared(kind: str, by: tuple[str, ...]) -> Step:
    """A join with totals of the plan's first frame."""

    def with_totals(frame: DataFrame, first: DataFrame) -> DataFrame:
        totals = first.groupBy(*by).agg(F.count("*").cast("int").alias("n"))
        other = totals.select(*[F.col(each).alias(f"t_{each}") for each in (*by, "n")])
        same = [F.col(each).eqNullSafe(F.col(f"t_{each}")) for each in by]
        found = frame.join(other, same, kind)
        return found.select("k", "d", F.col("t_n" if "t_n" in found.columns else "v").alias("v"))

    return with_totals


BY = st.sampled_from([("k",), ("d",), ("k", "d"), ("d", "k")])
KINDS = st.sampled_from(["inner", "left", "right", "full", "left_semi", "left_anti", "cross"])

STEPS: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.sampled_from(
        [
            ("where", lambda f, _: f.where("v > 1 OR k IS NULL")),
            ("compute", lambda f, _: f.withColumn("v", F.col("v") + 1)),
            ("lower", lambda f, _: f.withColumn("k", F.lower("k"))),
            ("fill", lambda f, _: f.na.fill({"k": "a"})),
            ("swap", lambda f, _: f.select("k", F.col("v").alias("d"), F.col("d").alias("v"))),
            ("explode", lambda f, _: f.select("k", "d", F.explode(F.array("v", F.lit(9))).alias("v"))),
            ("distinct", lambda f, _: f.distinct()),
            ("limit", lambda f, _: f.orderBy(*COLUMNS).limit(2)),
            ("twice", lambda f, _: f.unionAll(f.withColumn("v", F.lit(5)))),
            ("with the first", lambda f, first: f.unionAll(first)),
            ("with constants", lambda f, _: f.unionAll(f.sparkSession.sql("SELECT 'a' AS k, 1 AS d, 3 AS v"))),
            ("without the first", lambda f, first: f.exceptAll(first)),
            ("in both", lambda f, first: f.intersect(first)),
            ("in its values", lambda f, _: f.where(F.col("v").isin(0, 1, 2, 5))),
        ]
    ),
    BY.map(lambda by: (f"grouped by {by}", grouped(by))),
    st.one_of(BY, st.just(())).map(lambda by: (f"ranked by {by}", ranked(by))),
    BY.map(
        lambda by: (
            f"one of {by}",
            lambda f, _: (
                f.groupBy(*by)
                .agg(F.min_by("v", "v").alias("v"))
                .select(
                    *[
                        F.col(c) if c in (*by, "v") else F.lit(None).cast("string" if c == "k" else "int").alias(c)
                        for c in COLUMNS
                    ]
                )
            ),
        )
    ),
    st.tuples(KINDS, BY, st.sampled_from(["left", "right"])).map(
        lambda j: (f"{j[2]} in a {j[0]} join by {j[1]}", joined(j[0], j[1], side=j[2]))
    ),
    st.tuples(st.sampled_from(["inner", "left"]), st.sampled_from(["k", "d"])).map(
        lambda j: (f"{j[1]} of a {j[0]} join by it", joined(j[0], (j[1],), side="left", takes=j[1]))
    ),
    st.tuples(st.sampled_from(["inner", "left", "left_semi", "left_anti"]), BY).map(
        lambda j: (f"shared by {j[1]}, {j[0]}", shared(*j))
    ),
)


@pytest.fixture(scope="module")
def session(spark_server: ConnectServer) -> SparkSession:
    return spark_server.session({"spark.sql.crossJoin.enabled": "true"})


def made(session: SparkSession, rows: list[tuple[Any, ...]], steps: list[tuple[str, Step]], mark: str) -> DataFrame:
    first = marked(session.createDataFrame(rows, SCHEMA), mark, name="frame")
    frame = first
    for _, step in steps:
        frame = step(frame, first)
    return frame


def held(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def obeys_its_law(
    session: SparkSession, steps: list[tuple[str, Step]], before: list[Any], new: list[Any]
) -> Counter[str]:
    """Check the laws for which the plan is accepted; which these are: ``rows``, ``groups``."""
    through: Counter[str] = Counter()
    every = made(session, before + new, steps, "__ips_row")
    note(" | ".join(name for name, _ in steps))
    if not lineage(result_plan(every), every.columns, [Leaf("__ips_row", "a", Unit.ROW)]).faults:
        through["rows"] += 1
        assert held(every) == held(made(session, before, steps, "__ips_row")) + held(
            made(session, new, steps, "__ips_row")
        )
    changed = {row[:2] for row in new}
    groups = made(session, [row for row in before + new if row[:2] in changed], steps, "__ips_group")
    found = lineage(result_plan(groups), groups.columns, [Leaf("__ips_group", "a", Unit.GROUP, KEYS)])
    if not found.faults and all(found.keeps(key, leaf="__ips_group", as_=key) for key in KEYS):
        through["groups"] += 1
        of_all = Counter({row: n for row, n in held(every).items() if row[:2] in changed})
        assert held(groups) == of_all
    return through


def check(session: SparkSession, examples: int) -> None:
    through: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(STEPS, min_size=1, max_size=4), ROWS, ROWS)
    def whatever(steps: list[tuple[str, Step]], before: list[Any], new: list[Any]) -> None:
        through.update(obeys_its_law(session, steps, before, new))

    whatever()
    assert min(through["rows"], through["groups"]) > examples // 10, through


def test_an_accepted_plan_obeys_its_law(session: SparkSession) -> None:
    check(session, 40)


@pytest.mark.slow
def test_many_accepted_plans_obey_their_law(session: SparkSession) -> None:
    check(session, 1000)
