"""The version of a plan changes with what its code computes, and with nothing else."""

from __future__ import annotations

import datetime as dt
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it
from pyspark.sql.types import LongType

from dagster_ips.core.plan_version import PlanVersion, is_other_code, with_plan
from dagster_ips.core.ranges import ChangeRange, RangeKind, Told
from dagster_ips.core.run_values import RunValues
from dagster_ips.local_spark.connect_server import ConnectServer
from dagster_ips.spark.plan_reading import plan_version
from dagster_ips.spark.plans import marked
from dagster_ips.spark.python_code import value_text
from tests.support import some_functions

Compute = Callable[[DataFrame], DataFrame]
LIMIT = 170
OWN_LIMIT = 170
FACTOR = 2


@pytest.fixture(scope="module")
def session(spark_server: ConnectServer) -> Iterator[SparkSession]:
    made = spark_server.session({})
    yield made
    made.stop()


class Runs:
    """Runs of an asset's function: each gives it another frame of the library, as of another snapshot."""

    def __init__(self, session: SparkSession) -> None:
        self.session, self.number = session, 0

    def version(self, compute: Compute, columns: Sequence[str] = ("id", "k", "name"), **values: Any) -> PlanVersion:  # noqa: ANN401  # of RunValues
        self.number += 1
        shown = ", ".join(f"cast(id AS {'string' if name == 'name' else 'bigint'}) AS {name}" for name in columns)
        rows = marked(self.session.sql(f"SELECT {shown} FROM range({self.number})"), f"__ips_{self.number}", name="src")
        given = RunValues({f"__ips_{self.number}": "added of src"}, **values)
        return plan_version(compute(rows), given, {})


@pytest.fixture(scope="module")
def runs(session: SparkSession) -> Runs:
    return Runs(session)


def base(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("id") < 170).select("k", (F.col("id") + 1).alias("x"))


def small(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("id") < LIMIT)


def given(rows: DataFrame, *pairs: tuple[int, str]) -> DataFrame:
    return rows.join(rows.sparkSession.createDataFrame(list(pairs), "k bigint, title string"), "k")


def joined(rows: DataFrame, other: DataFrame, own: str, others: str) -> DataFrame:
    return rows.join(other, rows[own] == other[others]).select(rows["k"])


def by_view(rows: DataFrame, below: int, name: str = "kept") -> DataFrame:
    rows.where(F.col("id") < below).createOrReplaceTempView(name)
    return rows.sparkSession.sql(f"SELECT k FROM {name}")


def by_name(rows: DataFrame, function: Callable[[int], int]) -> DataFrame:
    rows.sparkSession.udf.register("named", function, LongType())
    return rows.selectExpr("named(id) AS x")


def by_udf(rows: DataFrame, function: Callable[[int], Any]) -> DataFrame:
    return rows.select(F.udf(function, LongType())("id").alias("x"))


def times(factor: int) -> Callable[[int], int]:
    return lambda value: value * factor


class Scorer:
    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights

    def __call__(self, value: int) -> int:
        return int(value * self.weights["a"])


def parts(factor: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def each(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch[["k"]] * factor

    return each


OTHER: dict[str, tuple[Compute, Compute]] = {
    "a filter is gone": (base, lambda rows: rows.select("k", (F.col("id") + 1).alias("x"))),
    "a constant": (base, lambda rows: rows.where(F.col("id") < 10).select("k", (F.col("id") + 1).alias("x"))),
    "an expression": (base, lambda rows: rows.where(F.col("id") < 170).select("k", (F.col("id") - 1).alias("x"))),
    "a column": (base, lambda rows: rows.where(F.col("k") < 170).select("k", (F.col("id") + 1).alias("x"))),
    "a text and a column": (lambda rows: rows.where(F.col("name") == "k"), lambda rows: rows.where("name = k")),
    "a text with a comma": (
        lambda rows: rows.where(F.col("name").isin("a, b")),
        lambda rows: rows.where(F.col("name").isin("a", "b")),
    ),
    "null and its text": (
        lambda rows: rows.select(F.lit(None).alias("x")),
        lambda rows: rows.select(F.lit("null").alias("x")),
    ),
    "a number and its text": (
        lambda rows: rows.select(F.lit(1).alias("x")),
        lambda rows: rows.select(F.lit("1").alias("x")),
    ),
    "a type": (lambda rows: rows.select(F.lit(1).alias("x")), lambda rows: rows.select(F.lit(1.0).alias("x"))),
    "a long list": (
        lambda rows: rows.where(F.col("id").isin(*range(500))),
        lambda rows: rows.where(F.col("id").isin(*range(499), 501)),
    ),
    "given rows": (lambda rows: given(rows, (1, "a")), lambda rows: given(rows, (1, "b"))),
    "a kind of join": (
        lambda rows: rows.join(rows.groupBy("k").count(), "k"),
        lambda rows: rows.join(rows.groupBy("k").count(), "k", "left"),
    ),
    "the sides of a condition": (
        lambda rows: joined(rows, rows.select("id", "k"), "id", "k"),
        lambda rows: joined(rows, rows.select("id", "k"), "k", "id"),
    ),
    "an order": (
        lambda rows: rows.select(F.rank().over(Window.partitionBy("k").orderBy("id")).alias("x")),
        lambda rows: rows.select(F.rank().over(Window.partitionBy("k").orderBy(F.desc("id"))).alias("x")),
    ),
    "a function instead of an expression": (
        lambda rows: rows.selectExpr("id AS x"),
        lambda rows: by_udf(rows, lambda v: v),
    ),
    "a function's constant": (lambda rows: by_udf(rows, lambda v: v * 2), lambda rows: by_udf(rows, lambda v: v * 3)),
    "a function's closure": (lambda rows: by_udf(rows, times(2)), lambda rows: by_udf(rows, times(3))),
    "a function's default": (
        lambda rows: by_udf(rows, lambda v, by=2: v * by),
        lambda rows: by_udf(rows, lambda v, by=3: v * by),
    ),
    "a helper of a function": (
        lambda rows: by_udf(rows, lambda v: some_functions.twice(v) + 1),
        lambda rows: by_udf(rows, lambda v: some_functions.thrice(v) + 1),
    ),
    "a state of a callable": (
        lambda rows: by_udf(rows, Scorer({"a": 1.0})),
        lambda rows: by_udf(rows, Scorer({"a": 2.0})),
    ),
    "a function over partitions": (
        lambda rows: rows.mapInPandas(parts(2), "k bigint"),
        lambda rows: rows.mapInPandas(parts(3), "k bigint"),
    ),
    "a function over groups": (
        lambda rows: rows.groupBy("k").applyInPandas(lambda group: group.head(1)[["k"]], "k bigint"),
        lambda rows: rows.groupBy("k").applyInPandas(lambda group: group.tail(1)[["k"]], "k bigint"),
    ),
    "a temporary view": (lambda rows: by_view(rows, 5), lambda rows: by_view(rows, 6)),
    "a registered function": (lambda rows: by_name(rows, lambda v: v), lambda rows: by_name(rows, lambda v: v + 1)),
    "words of SQL": (lambda rows: rows.selectExpr("id + 1 AS x"), lambda rows: rows.selectExpr("id + 2 AS x")),
    "a text in SQL": (lambda rows: rows.where("name = 'a  b'"), lambda rows: rows.where("name = 'a b'")),
    "today": (
        lambda rows: rows.where(F.lit(dt.date(2026, 1, 1)) > "2025-01-01"),
        lambda rows: rows.where(F.lit(dt.date(2026, 1, 2)) > "2025-01-01"),
    ),
    "a scale": (
        lambda rows: rows.select(F.lit(Decimal("1.10")).alias("x")),
        lambda rows: rows.select(F.lit(Decimal("1.1")).alias("x")),
    ),
    "another table": (
        lambda rows: rows.join(rows.sparkSession.read.table("lake.media.a"), "k"),
        lambda rows: rows.join(rows.sparkSession.read.table("lake.media.b"), "k"),
    ),
}


def renamed(taken: DataFrame) -> DataFrame:
    # A comment, and a variable of another name.
    kept = taken.where(F.col("id") < 170)
    return kept.select("k", (F.col("id") + 1).alias("x"))


def in_steps(rows: DataFrame) -> DataFrame:
    columns = [F.col(name) for name in ("k",)]
    x = F.col("id") + F.lit(1)
    return small(rows).select(*columns, x.alias("x"))


def documented(value: int) -> int:
    """Twice the value."""
    return value * FACTOR


def plain(
    other: int,
) -> int:
    return other * FACTOR


def with_local(value: int) -> int:
    result = value + 1
    return result * 2


def with_other_local(value: int) -> int:
    found = value + 1
    return found * 2


SAME: dict[str, tuple[Compute, Compute]] = {
    "the same": (base, base),
    "comments and names": (base, renamed),
    "a helper and a constant": (base, in_steps),
    "a constant of another name": (small, lambda rows: rows.where(F.col("id") < OWN_LIMIT)),
    "columns by frame or name": (small, lambda rows: rows.where(rows["id"] < LIMIT)),
    "another name of a method": (small, lambda rows: rows.filter(F.col("id") < LIMIT)),
    "spaces and comments in SQL": (
        lambda rows: rows.selectExpr("id+1 AS x"),
        lambda rows: rows.selectExpr("id  + 1 /* one */ AS x -- more"),
    ),
    "a function's docstring and place": (lambda rows: by_udf(rows, documented), lambda rows: by_udf(rows, plain)),
    "a function's local variable": (lambda rows: by_udf(rows, with_local), lambda rows: by_udf(rows, with_other_local)),
    "a lambda or a function": (lambda rows: by_udf(rows, plain), lambda rows: by_udf(rows, lambda v: v * FACTOR)),
    "a set in another order": (
        lambda rows: by_udf(rows, lambda v: int(str(v) in {"a", "b", "c"})),
        lambda rows: by_udf(rows, lambda v: int(str(v) in {"c", "b", "a"})),
    ),
    "another name of a view": (lambda rows: by_view(rows, 5), lambda rows: by_view(rows, 5, "kept_more")),
    "an argument of SQL": (
        lambda rows: rows.sparkSession.sql("SELECT k FROM {rows} WHERE id < 5", rows=rows),
        lambda rows: rows.sparkSession.sql("SELECT k FROM {rows} WHERE id < 5", rows=rows),
    ),
    "a function of higher order": (
        lambda rows: rows.select(F.transform(F.array("id"), lambda v: v + 1).alias("x")),
        lambda rows: rows.select(F.transform(F.array("id"), lambda w: w + 1).alias("x")),
    ),
    "a drawn seed": (
        lambda rows: rows.withColumn("x", F.rand()).sample(0.5),
        lambda rows: rows.withColumn("x", F.rand()).sample(0.5),
    ),
    "a hint": (lambda rows: given(rows, (1, "a")), lambda rows: given(rows.hint("broadcast"), (1, "a"))),
    "rows from a list or a tuple": (
        lambda rows: given(rows, *[(1, "a"), (2, "b")]),
        lambda rows: given(rows, *((key, title) for key, title in zip((1, 2), "ab", strict=True))),
    ),
    "a snapshot": (
        lambda rows: rows.join(rows.sparkSession.read.options(versionAsOf="5").table("lake.media.a"), "k"),
        lambda rows: rows.join(rows.sparkSession.read.options(versionAsOf="6").table("lake.media.a"), "k"),
    ),
}


def test_what_computes_something_else_has_another_version(runs: Runs) -> None:
    def are_told_apart(one: Compute, other: Compute) -> bool:
        codes = [with_plan(None, runs.version(each)) for each in (one, other)]
        return is_other_code(codes[0] or "", codes[1])

    assert [how for how, both in OTHER.items() if not are_told_apart(*both)] == []


def test_what_computes_the_same_has_the_same_version(runs: Runs) -> None:
    both = {how: (runs.version(one), runs.version(other)) for how, (one, other) in SAME.items()}
    assert {how: pair for how, pair in both.items() if str(pair[0]) != str(pair[1]) or pair[0].unknown} == {}


def test_a_column_that_the_upstream_gets_and_the_code_does_not_use_changes_nothing(runs: Runs) -> None:
    for compute in (base, small, lambda rows: rows.mapInPandas(parts(2), "k bigint")):
        assert str(runs.version(compute)) == str(runs.version(compute, columns=("id", "more", "k", "name")))


def test_what_a_run_gives_stands_for_what_it_is(runs: Runs) -> None:
    def days(first: int | None) -> PlanVersion:
        told = Told("src.k")
        last = None if first is None else first + 1
        found = ChangeRange("k", RangeKind.EXACT, first, last, told=told)
        condition = (found.between("k") | "k = 7") & "id > 0"
        bounds = tuple((value, "k") for value in (first, last) if value is not None)
        return runs.version(
            lambda rows: rows.where(found.since("k")).where(condition).where(f"({found.between('k')}) OR id = 1"),
            predicates=told.predicates,
            bounds=bounds,
            ranges=told.ranges,
        )

    assert days(3).lines[-2:] == ("between k of src.k", "since k of src.k")
    assert str(days(3)).partition(".")[0] == str(days(100)).partition(".")[0] == str(days(None))

    def of_partition(key: str) -> PlanVersion:
        return runs.version(lambda rows: rows.where(F.col("name") == key), bounds=((key, "a partition"),))

    first, second = of_partition("2026-01-01"), of_partition("2026-01-02")
    assert first.lines == second.lines
    assert str(first) != str(second)  # The constants may also be the code's own.

    def of_table(name: str) -> PlanVersion:
        return runs.version(lambda rows: rows.sparkSession.table(f"lake.ips.{name}"), names={name: "changes of src"})

    assert of_table("out__src__7").lines == of_table("out__src__8").lines


LOCK = threading.Lock()


def locked(value: int) -> int:
    with LOCK:
        return value


def test_what_cannot_be_read_is_said(runs: Runs) -> None:
    assert runs.version(lambda rows: by_udf(rows, times(2))).unknown == ()
    (said,) = runs.version(lambda rows: by_udf(rows, locked)).unknown
    assert said == "the Python function locked: it refers to an object of type _thread.lock"


def test_an_installed_package_counts_by_its_names_unless_it_is_the_project_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def made(factor: int) -> Callable[[int], int]:
        (folder / "scores_of_a_test.py").write_text(f"def score(value):\n    return value * {factor}\n")
        monkeypatch.delitem(sys.modules, "scores_of_a_test", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("scores_of_a_test").score

    one, other = made(2), made(33)
    assert value_text(one) == value_text(other) == "scores_of_a_test.score"
    own = {"scores_of_a_test"}
    assert value_text(one, own) != value_text(other, own)


IN_A_PROCESS = """
import sys
from tests.spark.test_plan_versions import Scorer, parts, documented, times
from dagster_ips.spark.python_code import value_text
of_sets = [{"x", "y", "z"}, lambda v: v in {"a", "b", "c"}]
print(value_text([Scorer({"b": 1.0, "a": 2.0}), parts(2), documented, times(3), *of_sets]))
"""


def test_functions_have_the_same_text_in_every_process() -> None:
    def told(seed: str) -> str:
        command = [sys.executable, "-c", IN_A_PROCESS]
        environment = {"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert told("1") == told("2") != ""
