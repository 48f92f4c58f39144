"""A result's plan shows how it depends on its inputs: accepted results are right, and wrong ones are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import reduce

import pytest
from pyspark.sql import DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it
from pyspark.sql.functions import udtf

from dagster_ips.core.lineage import Leaf, Lineage, Unit, lineage
from dagster_ips.core.spark_plan import PlanUnreadableError
from dagster_ips.local_spark.connect_server import ConnectServer
from dagster_ips.spark.plans import marked, result_plan

Frames = Mapping[str, DataFrame]
Made = Callable[[Frames], DataFrame]

FACTS = "VALUES (1, 'x', DATE'2026-01-01', 3), (2, 'y', DATE'2026-01-02', 4), (3, NULL, NULL, 5) AS t(id, k, d, v)"
NAMES = "VALUES (1, 'one', 'x'), (2, 'two', 'y') AS t(id, name, other)"
LEAVES = {
    "added": Leaf("__ips_row", "a", Unit.ROW, types={"id": "int", "v": "int"}),
    "groups": Leaf("__ips_group", "a", Unit.GROUP, ("k", "d")),
    "more": Leaf("__ips_more", "a", Unit.GROUP, ("k", "d")),
    "others": Leaf("__ips_others", "b", Unit.ROW),
    "source": Leaf("__ips_whole", "b", Unit.WHOLE),
    "touched": Leaf("__ips_touched", "a", Unit.GROUP, ("k", "d"), {"c": {"id": "id"}}),
    "by_id": Leaf("__ips_by_id", "a", Unit.GROUP, ("id",), {"c": {"id": "id"}}),
    "dimension": Leaf("__ips_dimension", "c", Unit.WHOLE, types={"id": "int"}),
    "part": Leaf("__ips_part", "c", Unit.GROUP, ("id",)),
    "widened": Leaf("__ips_widened", "a", Unit.GROUP, ("k", "d"), {"c": {"id": "id"}}, types={"id": "int"}),
}


@pytest.fixture(scope="module")
def session(spark_server: ConnectServer) -> SparkSession:
    return spark_server.session()


class Counted:
    """A table function that counts the rows it is called for."""

    def __init__(self) -> None:
        self._n = 0

    def eval(self, _: object) -> None:
        self._n += 1

    def terminate(self) -> Iterator[tuple[int]]:
        yield (self._n,)


@pytest.fixture(scope="module")
def frames(session: SparkSession) -> Iterator[Frames]:
    """Frames as views return them, and ``lookup``, a plain one; each is a temporary view of its name, too."""
    found = {"lookup": session.sql(f"SELECT * FROM {NAMES}")}
    for name, leaf in LEAVES.items():
        rows = session.sql(f"SELECT * FROM {NAMES if leaf.unit is Unit.WHOLE or leaf.upstream == 'c' else FACTS}")
        found[name] = marked(rows, leaf.name, name=name)
    for name, frame in found.items():
        frame.createOrReplaceTempView(name)
    session.udtf.register("counted", udtf(Counted, returnType="n int"))
    yield found
    for name in found:
        session.catalog.dropTempView(name)


def made_of(frame: DataFrame) -> Lineage:
    return lineage(result_plan(frame), frame.columns, LEAVES.values())


def faults(frame: DataFrame) -> list[str]:
    return [fault.what for fault in made_of(frame).faults]


def sql(text: str) -> Made:
    return lambda f: f["added"].sparkSession.sql(text)


def by_keys() -> WindowSpec:
    return Window.partitionBy("k", "d").orderBy("id")


RIGHT: dict[str, Made] = {
    "the rows as they are": lambda f: f["added"],
    "filtered": lambda f: f["added"].where("v > 3 AND k IN ('x', 'a, b) [c')").filter(F.col("id").isin(1, 2)),
    "computed": lambda f: f["added"].select("id", (F.col("v") * 2).alias("w"), F.upper("k").alias("k")),
    "a literal of several lines": lambda f: f["added"].withColumn("t", F.lit("one\n  two)\n[three")),
    "exploded": lambda f: f["added"].select("id", F.explode(F.array("v", "id")).alias("e")),
    "exploded in SQL": sql("SELECT id, e FROM added LATERAL VIEW explode(array(v, id)) t AS e"),
    "unpivoted": lambda f: f["added"].unpivot(["id"], ["v"], "name", "value"),
    "joined with a lookup": lambda f: f["added"].join(f["lookup"], "id"),
    "left-joined with a lookup": lambda f: f["added"].join(f["lookup"], "id", "left"),
    "a lookup right-joined": lambda f: f["lookup"].join(f["added"], "id", "right"),
    "filtered by a lookup": lambda f: f["added"].join(f["lookup"], "id", "left_semi"),
    "filtered by what a lookup lacks": lambda f: f["added"].join(f["lookup"], "id", "left_anti"),
    "joined with totals of a lookup": lambda f: f["added"].join(f["lookup"].groupBy("id").count(), "id"),
    "joined with the source of another": lambda f: f["added"].join(f["source"], "id"),
    "cross-joined": lambda f: f["added"].crossJoin(f["lookup"].limit(1).select("name")),
    "filtered by a subquery": sql("SELECT * FROM added WHERE id IN (SELECT id FROM lookup) OR v > 9"),
    "filtered by a correlated subquery": sql(
        "SELECT id, (SELECT max(name) FROM lookup l WHERE l.id = a.id) m FROM added a "
        "WHERE EXISTS (SELECT 1 FROM lookup l WHERE l.id = a.id)"
    ),
    "put together": lambda f: f["added"].select("id", "k").unionAll(f["others"].select("id", "k")),
    "put together by name": lambda f: (
        f["added"].select("id", "k").unionByName(f["others"].select("k", "id", "v"), allowMissingColumns=True)
    ),
    "sorted and repartitioned": lambda f: f["added"].orderBy("id").repartition(3, "k").coalesce(1).hint("broadcast"),
    "renamed, filled, dropped": lambda f: f["added"].withColumnRenamed("k", "q").na.fill({"q": "?"}).drop("v"),
    "with a common table expression": sql("WITH w AS (SELECT id, v + 1 AS v FROM added) SELECT * FROM w WHERE v > 1"),
    "stamped with when and by what": lambda f: f["added"].withColumns(
        {"at": F.current_timestamp(), "by": F.expr("uuid()")}
    ),
    "groups stamped with when": lambda f: f["groups"].groupBy("k", "d").agg(F.max(F.current_date()), F.sum("v")),
    "joined with a lookup of today": lambda f: f["added"].join(
        f["lookup"].where("current_date() > '2020-01-01'"), "id"
    ),
    "touched groups with what touched them, of a wider type": lambda f: f["widened"].join(
        f["dimension"].withColumn("id", F.col("id").cast("long")), "id"
    ),
    "kept by Spark": lambda f: f["added"].where("v > 1").persist(),
    "groups as they are": lambda f: f["groups"].where("v > 0").withColumn("w", F.lit(1)),
    "grouped": lambda f: f["groups"].groupBy("k", "d").agg(F.sum("v"), F.countDistinct("id"), F.median("v")),
    "grouped by more": lambda f: f["groups"].groupBy("k", F.upper("k").alias("u"), "d").count(),
    "grouped twice": lambda f: (
        f["groups"].groupBy("k", "d", "id").agg(F.max("v").alias("v")).groupBy("k", "d").sum("v")
    ),
    "grouped in SQL": sql("SELECT g.k AS q, d, sum(v) FROM groups g WHERE v > 0 GROUP BY 1, 2 HAVING sum(v) > 1"),
    "ranked within": lambda f: f["groups"].withColumn("r", F.row_number().over(by_keys())).where("r = 1"),
    "distinct within": lambda f: f["groups"].select("k", "d", "v").distinct(),
    "one within": lambda f: f["groups"].dropDuplicates(["d", "k"]),
    "pivoted within": lambda f: f["groups"].groupBy("k", "d").pivot("id", [1, 2]).sum("v"),
    "shares within": lambda f: f["groups"].join(f["more"].groupBy("k", "d").agg(F.sum("v").alias("t")), ["k", "d"]),
    "shares within, in SQL": sql(
        "WITH t AS (SELECT k, d, sum(v) AS t FROM groups GROUP BY k, d) "
        "SELECT g.id, g.k, g.d, g.v / t.t AS s FROM groups g LEFT JOIN t ON g.k = t.k AND g.d <=> t.d"
    ),
    "grouped in SQL in capitals": sql(
        "SELECT U.K AS k, d, m FROM (SELECT K, D, max(V) AS m FROM more GROUP BY K, D) U JOIN lookup ON ID = m"
    ),
    "grouped in SQL by pipes": sql("FROM groups |> WHERE v > 0 |> AGGREGATE sum(v) AS s GROUP BY k, d"),
    "by a window with a name": sql(
        "SELECT *, rank() OVER w AS r FROM groups WINDOW w AS (PARTITION BY k, d ORDER BY v)"
    ),
    "unions without doubles": sql("SELECT k, d FROM groups UNION SELECT k, d FROM more"),
    "joined sideways with a lookup": sql(
        "SELECT a.*, n FROM added a, LATERAL (SELECT max(name) AS n FROM lookup l WHERE l.id = a.id)"
    ),
    "grouped by a lookup's column that equals a key": sql(
        "SELECT l.other, d, sum(v) AS v FROM groups g JOIN lookup l ON l.other = g.k GROUP BY l.other, d"
    ),
    "groups put together": lambda f: f["groups"].select("k", "d", "v").unionAll(f["more"].select("k", "d", "id")),
    "put together, then grouped": lambda f: (
        f["groups"].select("k", "d").unionAll(f["more"].select("k", "d")).groupBy("k", "d").count()
    ),
    "groups with a lookup": lambda f: f["groups"].join(f["lookup"], "id", "left").groupBy("d", "k").count(),
    "touched groups with what touched them": lambda f: (
        f["touched"].join(f["dimension"], "id").groupBy("k", "d", "name").sum("v")
    ),
    "touched groups with totals of what touched them": lambda f: f["touched"].join(
        f["dimension"].groupBy("id").agg(F.max("name").alias("name")), "id", "left"
    ),
    "touched groups with what touched them, joined with itself": lambda f: f["touched"].join(
        f["dimension"].join(f["dimension"].groupBy("id").count(), "id", "left"), "id"
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_results_are_accepted(frames: Frames, name: str) -> None:
    assert not faults(RIGHT[name](frames))


WRONG: dict[str, tuple[Made, str]] = {
    "totals": (lambda f: f["added"].groupBy("k").agg(F.sum("v")), "an aggregate"),
    "a count of all": (lambda f: f["added"].groupBy().count(), "an aggregate"),
    "totals in SQL": (sql("SELECT k, sum(v) FROM added GROUP BY ALL"), "an aggregate"),
    "rolled up": (lambda f: f["added"].rollup("k", "d").count(), "an aggregate"),
    "pivoted": (lambda f: f["added"].groupBy("k").pivot("id", [1, 2]).sum("v"), "an aggregate"),
    "ranked": (lambda f: f["added"].withColumn("r", F.row_number().over(by_keys())), "a window"),
    "what came before": (lambda f: f["added"].withColumn("p", F.lag("v").over(by_keys())), "a window"),
    "distinct": (lambda f: f["added"].select("k").distinct(), "distinct rows"),
    "one each": (lambda f: f["added"].dropDuplicates(["k"]), "distinct rows"),
    "distinct in SQL": (sql("SELECT DISTINCT k FROM added"), "distinct rows"),
    "the top": (lambda f: f["added"].orderBy("v").limit(3), "a limit"),
    "a sample": (lambda f: f["added"].sample(0.5), "a sample"),
    "joined with itself": (lambda f: f["added"].join(f["added"].groupBy("k").count(), "k"), "an aggregate"),
    "its own other rows": (
        lambda f: f["added"].join(f["others"].select("id", F.col("v").alias("w")), "id"),
        "other changed rows",
    ),
    "looked up by others": (lambda f: f["lookup"].join(f["added"], "id", "left"), "doesn't decide"),
    "a full join": (lambda f: f["added"].join(f["lookup"], ["id"], "full"), "FullOuter"),
    "deciding what others stay": (lambda f: f["lookup"].join(f["added"], "id", "left_anti"), "doesn't decide"),
    "in a subquery": (sql("SELECT * FROM lookup WHERE id IN (SELECT id FROM added)"), "a subquery"),
    "a share of its total": (sql("SELECT v / (SELECT sum(v) FROM added) AS s FROM added"), "a subquery"),
    "with constant rows": (
        lambda f: f["added"].select("id").unionAll(f["lookup"].select("id")),
        "aren't part of a change",
    ),
    "without others": (lambda f: f["added"].select("id").exceptAll(f["lookup"].select("id")), "a difference"),
    "in both": (lambda f: f["added"].select("id").intersect(f["lookup"].select("id")), "an intersection"),
    "a function of Python": (lambda f: f["added"].select("id").mapInPandas(lambda rows: rows, "id int"), "be traced"),
    "groups of another key": (lambda f: f["groups"].groupBy("k").count(), "isn't grouped by k, d"),
    "groups of a lowered key": (
        lambda f: f["groups"].withColumn("k", F.lower("k")).groupBy("k", "d").count(),
        "isn't grouped by k, d",
    ),
    "groups of a negated key": (lambda f: f["groups"].groupBy(F.lower("k"), "d").count(), "isn't grouped by k, d"),
    "groups of all": (lambda f: f["groups"].groupBy().count(), "isn't grouped by"),
    "groups rolled up": (lambda f: f["groups"].rollup("k", "d").count(), "isn't grouped by"),
    "ranked over groups": (
        lambda f: f["groups"].withColumn("r", F.rank().over(Window.partitionBy("k").orderBy("id"))),
        "isn't partitioned by",
    ),
    "ranked over all groups": (
        lambda f: f["groups"].withColumn("r", F.rank().over(Window.orderBy("k", "d"))),
        "isn't partitioned by",
    ),
    "one over groups": (lambda f: f["groups"].dropDuplicates(["k"]), "isn't told apart by"),
    "the top of groups": (lambda f: f["groups"].orderBy("v").limit(5), "a limit"),
    "numbered": (lambda f: f["added"].withColumn("n", F.monotonically_increasing_id()), "starts over"),
    "groups numbered": (lambda f: f["groups"].select("*", F.monotonically_increasing_id()), "starts over"),
    "what a function of Python remembers": (
        sql("SELECT c.n FROM added, LATERAL counted(added.v) c"),
        "Generate, whose rows can't be traced",
    ),
    "what a function of Python remembers of a table": (
        sql("SELECT * FROM counted(TABLE(SELECT v FROM added))"),
        "Generate, whose rows can't be traced",
    ),
    "groups by what is null without a match": (
        sql("SELECT l.other, d, sum(v) FROM groups g LEFT JOIN lookup l ON l.other = g.k GROUP BY l.other, d"),
        "isn't grouped by k, d",
    ),
    "groups by a literal that only matches equal": (
        sql(
            "SELECT k, d, sum(v) FROM (SELECT 'x' AS k, d, v FROM groups g LEFT JOIN lookup l ON g.k = 'x') "
            "GROUP BY k, d"
        ),
        "isn't grouped by k, d",
    ),
    "all that touches groups, with them": (lambda f: f["dimension"].join(f["by_id"], "id", "left"), "doesn't decide"),
    "what touches no group": (lambda f: f["dimension"].join(f["by_id"], "id", "left_anti"), "doesn't decide"),
    "touched groups with a part of what touched them": (
        lambda f: f["touched"].join(f["part"], "id"),
        "other changed rows",
    ),
    "touched groups with others": (
        lambda f: f["touched"].join(f["more"].groupBy("k", "d").count(), ["k", "d"]),
        "other changed rows",
    ),
    "groups joined by a part of their key": (
        lambda f: f["groups"].join(f["more"].groupBy("k", "d").agg(F.sum("v").alias("t")).drop("d"), "k"),
        "other changed rows",
    ),
    "groups joined beside their key": (
        lambda f: (
            f["groups"]
            .alias("l")
            .join(f["more"].alias("r"), F.expr("l.k = r.k AND (l.d = r.d OR l.v > 3)"))
            .select("l.k", "l.d")
        ),
        "other changed rows",
    ),
    "a dimension joined otherwise": (
        lambda f: f["touched"].join(f["dimension"].select("name", F.col("other").alias("k")), "k"),
        "other changed rows",
    ),
    "totals of a dimension": (
        lambda f: f["touched"].join(f["dimension"].groupBy("name").agg(F.max("id").alias("id")), "id"),
        "isn't grouped by id",
    ),
    "chosen by the clock": (lambda f: f["added"].where(F.current_date() > F.col("d")), "depends on the clock"),
    "chosen by chance": (lambda f: f["added"].withColumn("r", F.rand()).where("r < 0.5").drop("r"), "on chance"),
    "chosen by the clock in a subquery": (sql("SELECT * FROM added WHERE d < (SELECT current_date())"), "the clock"),
    "chosen by the clock among others": (
        sql("SELECT * FROM added WHERE d IN (SELECT d FROM (SELECT current_date() AS d UNION ALL SELECT NULL))"),
        "the clock",
    ),
    "chosen by chance in one part": (
        sql("SELECT * FROM (SELECT id, 1.0D AS r FROM added UNION ALL SELECT id, rand() FROM others) WHERE r > 0.5"),
        "on chance",
    ),
    "chosen by chance in a common table expression": (
        sql("WITH w AS (SELECT id, uuid() AS u FROM added) SELECT a.id FROM w a WHERE a.u > 'a'"),
        "on chance",
    ),
    "chosen by chance after unpivoting": (
        lambda f: f["added"].select("id", F.rand().alias("r")).unpivot(["id"], ["r"], "n", "x").where("x > 0.5"),
        "on chance",
    ),
    "groups by the clock": (lambda f: f["groups"].groupBy("k", "d", F.current_date().alias("t")).count(), "the clock"),
    "touched groups with what touched them, of a narrower type": (
        lambda f: f["widened"].join(f["dimension"].withColumn("id", F.col("id").cast("short")), "id"),
        "other changed rows",
    ),
    "a share in a dimension": (sql("SELECT t.*, (SELECT count(*) FROM dimension) AS n FROM touched t"), "a subquery"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_needs_rows_outside_its_frame_has_a_fault(frames: Frames, name: str) -> None:
    make, what = WRONG[name]
    found = faults(make(frames))
    assert found
    assert any(what in each for each in found)


KEPT: dict[str, tuple[Made, set[str]]] = {
    "as they are": (lambda f: f["added"], {"id", "k", "d", "v"}),
    "filtered, sorted, joined": (lambda f: f["added"].where("v > 1").join(f["lookup"], "id"), {"id", "k", "d", "v"}),
    "lowered": (lambda f: f["added"].withColumn("k", F.lower("k")), {"id", "d", "v"}),
    "cast": (lambda f: f["added"].withColumn("id", F.col("id").cast("string")), {"k", "d", "v"}),
    "widened": (
        lambda f: f["added"].withColumns({"id": F.col("id").cast("long"), "v": F.col("v").cast("double")}),
        {"id", "k", "d"},
    ),
    "narrowed again": (sql("SELECT CAST(CAST(id AS BIGINT) AS SHORT) AS id, k FROM added"), {"k"}),
    "negated": (lambda f: f["added"].select((-F.col("v")).alias("v"), (~(F.col("id") > 1)).alias("id"), "k"), {"k"}),
    "swapped": (lambda f: f["added"].select(F.col("id").alias("v"), F.col("v").alias("id"), "k"), {"k"}),
    "filled": (lambda f: f["added"].na.fill({"k": "?"}), {"id", "d", "v"}),
    "another's": (
        lambda f: f["added"].drop("k").join(f["lookup"].withColumnRenamed("other", "k"), "id").select("k", "v"),
        {"v"},
    ),
    "another's that is equal": (lambda f: f["lookup"].join(f["added"], "id").select("id", "k"), {"id", "k"}),
    "another's or null": (lambda f: f["lookup"].join(f["added"].select("id", "v"), "id", "left").select("v"), set()),
    "another's that is equal or null": (
        lambda f: f["added"].join(f["lookup"], F.col("k") == F.col("other"), "left").select(F.col("other").alias("k")),
        set(),
    ),
    "in another case": (sql("SELECT K AS k, V AS id FROM added WHERE ID > 1"), {"k"}),
    "put together otherwise": (lambda f: f["added"].select("id", "v").unionAll(f["added"].select("v", "id")), set()),
    "grouped": (sql("SELECT k, max(d) AS d, sum(v) v FROM groups GROUP BY k"), {"k"}),
    "in SQL": (
        sql(
            "WITH w AS (SELECT k AS q, d FROM added) SELECT w.q AS k, o.d "
            "FROM w JOIN lookup ON true CROSS JOIN (SELECT 1 AS d) o"
        ),
        {"k"},
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_column_is_known_to_be_the_upstreams_only_where_it_is(frames: Frames, name: str) -> None:
    make, expected = KEPT[name]
    frame = make(frames)
    made = made_of(frame)
    marks = {LEAVES["added"].name, LEAVES["groups"].name} & made.leaves
    kept = {column for column in frame.columns if all(made.keeps(column, leaf=m, as_=column) for m in marks)}
    assert kept == expected


def test_a_union_keeps_a_column_only_if_each_part_does(frames: Frames) -> None:
    both = frames["added"].select("id", "k").unionAll(frames["others"].select("v", "k"))
    made = made_of(both)
    others = LEAVES["others"].name
    assert made.keeps("k", leaf=others, as_="k")
    assert made.keeps("id", leaf=LEAVES["added"].name, as_="id")
    assert not made.keeps("id", leaf=others, as_="id")


def test_columns_that_depend_on_the_clock_or_on_chance_are_recognized(frames: Frames) -> None:
    rows = frames["added"].withColumns({"at": F.current_timestamp(), "by": F.rand(), "same": F.lit("now")})
    later = rows.select("id", (F.col("by") * 2).alias("twice"), F.to_date("at").alias("day"), "same")
    assert made_of(later).varying == {"twice", "day"}


UNREADABLE: dict[str, tuple[Made, str]] = {
    "names that differ in case alone": (lambda f: f["added"].select("k", F.col("d").alias("K")), "two columns .* k"),
    "a plan that is too deep": (
        lambda f: reduce(lambda frame, at: frame.where(f"v > {at}"), range(480), f["added"]),
        "too deep",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_plan_that_cannot_be_read_is_an_error_with_the_reason(frames: Frames, name: str) -> None:
    make, match = UNREADABLE[name]
    with pytest.raises(PlanUnreadableError, match=match):
        made_of(make(frames))


def test_a_plan_that_the_session_truncates_is_not_taken_for_a_complete_one(
    session: SparkSession, frames: Frames
) -> None:
    session.conf.set("spark.sql.maxPlanStringLength", 600)
    try:
        with pytest.raises(PlanUnreadableError, match="is truncated"):
            made_of(frames["added"].join(frames["lookup"], "id").where("v > 1"))
    finally:
        session.conf.unset("spark.sql.maxPlanStringLength")


def test_a_column_is_not_mistaken_for_the_one_that_its_name_ends_with(session: SparkSession) -> None:
    strange = marked(session.sql("SELECT 1 AS `x, k`, 2 AS k, 3 AS `x AS d`"), "__ips_strange", name="strange")
    moved = strange.select(F.col("`x, k`").alias("k"), F.col("`x AS d`").alias("d"))
    made = lineage(result_plan(moved), moved.columns, [Leaf("__ips_strange", "a", Unit.ROW)])
    assert not made.keeps("k", leaf="__ips_strange", as_="k")
    assert not made.keeps("d", leaf="__ips_strange", as_="d")


@pytest.mark.slow
def test_a_classic_session_shows_which_rows_were_computed_from_a_frame_that_its_plan_lacks() -> None:
    # This process's Spark Connect client has put its own settings into the environment.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    command = [sys.executable, "-m", "tests.support.classic_frames"]
    said = subprocess.run(command, check=True, env=clean, stdout=subprocess.PIPE, text=True).stdout
    untraced = {name for name, is_untraced in json.loads(said).items() if is_untraced}
    assert untraced == {
        "a checkpoint",
        "a lazy checkpoint",
        "an RDD of a frame",
        "a checkpoint in a subquery",
        "a checkpoint in a WITH",
    }
