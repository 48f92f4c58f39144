"""A row's weight, added or removed, may only decide how it counts: any other use is detected in the plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.lineage import Leaf, Lineage, Unit, lineage
from dagster_ips.local_spark.connect_server import ConnectServer
from dagster_ips.spark.plans import marked, result_plan

LEAF = Leaf("__ips_weighed", "a", Unit.ROW, weight="_weight")
OTHER = Leaf("__ips_other", "b", Unit.ROW, weight="_weight")
Made = Callable[[DataFrame, DataFrame], DataFrame]


@pytest.fixture(scope="module")
def rows(spark_server: ConnectServer) -> tuple[DataFrame, DataFrame]:
    session = spark_server.session()
    facts = session.sql("SELECT * FROM VALUES (1, 'x', 3, 1), (2, NULL, 4, -1) AS t(id, k, v, _weight)")
    first, second = marked(facts, LEAF.name, name="weighed"), marked(facts, OTHER.name, name="other")
    first.createOrReplaceTempView("weighed")
    return first, second


def made_of(frame: DataFrame) -> Lineage:
    return lineage(result_plan(frame), frame.columns, [LEAF, OTHER])


PASSED_ON: dict[str, Made] = {
    "as it is": lambda a, _: a,
    "filtered by others": lambda a, _: a.where("v > 3 AND k IS NOT NULL"),
    "selected": lambda a, _: a.select("_weight", (F.col("v") * 2).alias("w")),
    "under another name and back": lambda a, _: (
        a.withColumnRenamed("_weight", "w").where("v > 1").withColumnRenamed("w", "_weight")
    ),
    "joined with a lookup": lambda a, _: a.join(a.sparkSession.sql("SELECT 1 AS id, 'one' AS name"), "id", "left"),
    "exploded": lambda a, _: a.select("_weight", F.explode(F.array("v", "id"))),
    "unpivoted": lambda a, _: a.unpivot(["_weight", "k"], ["v", "id"], "name", "value"),
    "put together": lambda a, b: a.select("id", "_weight").unionByName(b.select("_weight", "id")),
    "sorted": lambda a, _: a.sort("_weight").repartition(2, "_weight"),
    "in SQL": lambda a, _: a.sparkSession.sql("WITH c AS (SELECT * FROM weighed) SELECT k, _weight FROM c WHERE v > 3"),
}
USED: dict[str, Made] = {
    "in a filter": lambda a, _: a.where("_weight > 0"),
    "in a value": lambda a, _: a.withColumn("v", F.col("v") * F.col("_weight")),
    "among a function's values": lambda a, _: a.withColumn("v", F.coalesce("v", "_weight", "id")),
    "in a struct": lambda a, _: a.withColumn("s", F.struct("v", "_weight", "id")),
    "under another name, in a filter": lambda a, _: a.withColumn("w", F.col("_weight")).where("w = 1"),
    "in a join": lambda a, _: a.join(a.sparkSession.sql("SELECT 1 AS one"), F.expr("one = _weight"), "left"),
    "in a generator": lambda a, _: a.select("*", F.explode(F.sequence("_weight", "v"))),
    "as a value to unpivot": lambda a, _: a.withColumn("w", F.col("_weight")).unpivot("_weight", ["v", "w"], "n", "x"),
    "in SQL": lambda a, _: a.sparkSession.sql("SELECT id, if(_weight = 1, v, 0) AS v, _weight FROM weighed"),
}


@pytest.mark.parametrize("how", PASSED_ON)
def test_a_weight_that_is_passed_on_is_the_rows_own(rows: tuple[DataFrame, DataFrame], how: str) -> None:
    found = made_of(PASSED_ON[how](*rows))
    assert found.weighed == frozenset()
    for leaf in found.leaves:
        assert found.keeps("_weight", leaf=leaf, as_="_weight")


@pytest.mark.parametrize("how", USED)
def test_a_weight_that_decides_about_rows_or_values_is_detected(rows: tuple[DataFrame, DataFrame], how: str) -> None:
    assert LEAF.name in made_of(USED[how](*rows)).weighed


def test_a_choice_of_what_weighed_rows_are_joined_with_by_the_clock_is_detected(
    rows: tuple[DataFrame, DataFrame],
) -> None:
    weighed, _ = rows
    rates = weighed.sparkSession.sql("SELECT 1 AS id, DATE'2026-01-01' AS since")
    assert not made_of(weighed.join(rates.where("since > DATE'2020-01-01'"), "id")).varies_beside
    assert made_of(weighed.join(rates.where("since <= current_date()"), "id")).varies_beside
    in_sql = "SELECT *, (SELECT max(since) FROM VALUES (DATE'2026-01-01') t(since) WHERE since <= now()) m FROM weighed"
    assert made_of(weighed.sparkSession.sql(in_sql)).varies_beside
