"""A key that the asset only renames is the upstream's key: rows are found, replaced and removed by it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.errors import UnfitFrameError
from tests.promises.test_made_of import Compute, Out, asset, tables
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

__all__ = ["tables"]  # a fixture

# Each names the columns of plays (order_id, tag, title, n).
RENAMED: dict[str, Compute] = {
    "select": lambda rows: rows.select(F.col("id").alias("order_id"), F.col("day").alias("tag"), "title", "n"),
    "renamed": lambda rows: rows.withColumnRenamed("id", "order_id").withColumnsRenamed({"day": "tag"}).select(*NAMES),
    "toDF": lambda rows: rows.select("id", "day", "title", "n").toDF(*NAMES),
    "twice": lambda rows: rows.select("id", F.col("id").alias("x"), "*").selectExpr(
        "x AS order_id", "day AS tag", "title", "n"
    ),
    "SQL": lambda rows: rows.sparkSession.sql("SELECT id AS order_id, day AS tag, title, n FROM {rows}", rows=rows),
}
NAMES = ("order_id", "tag", "title", "n")

STEPS = (
    "INSERT INTO lake.media.plays VALUES (4, 'tu', 2, 40), (5, 'we', 1, 50)",
    "UPDATE lake.media.plays SET n = 21 WHERE id = 2",
    "DELETE FROM lake.media.plays WHERE id = 1",
    "UPDATE lake.media.plays SET day = 'we' WHERE id = 3",
)


def recomputed(lake: Lake, columns: str = "*", rest: str = "") -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in lake.session.sql(f"SELECT {columns} FROM lake.media.plays {rest}").collect())


def follows(out: Out, lake: Lake, columns: str = "*", rest: str = "") -> None:
    """The table equals a recompute after the first run and after each step."""
    assert out.run() == recomputed(lake, columns, rest)
    for step in STEPS:
        assert out.run(step) == recomputed(lake, columns, rest), step


COLUMNS = "id AS order_id, day AS tag, title, n"


@pytest.mark.parametrize("way", mostly_slow(["select", "renamed", "toDF", "twice", "SQL"]))
@pytest.mark.parametrize(
    "write",
    [ips.append(remove_on=["order_id", "tag"]), ips.merge(on=["order_id"])],
    ids=["append", "merge"],
)
def test_rows_are_found_by_a_renamed_key(
    tables: Lake, instance: dg.DagsterInstance, write: dict[str, Any], way: str
) -> None:
    made = asset(write, lambda plays: RENAMED[way](plays.added), by="tag")
    follows(Out(tables, instance, made), tables, COLUMNS)


def test_names_that_trade_places_are_told_apart(tables: Lake, instance: dg.DagsterInstance) -> None:
    def swapped(plays: ips.IcdcView) -> DataFrame:
        return plays.added.selectExpr("title AS id", "id AS title", "day", "n")

    out = Out(tables, instance, asset(ips.append(remove_on=["id", "title"]), swapped))
    follows(out, tables, "title AS id, id AS title, day, n")


@pytest.mark.parametrize("mode", mostly_slow(["copy-on-write", "merge-on-read"]))
def test_groups_are_replaced_by_renamed_keys(tables: Lake, instance: dg.DagsterInstance, mode: str) -> None:
    modes = ", ".join(f"'write.{each}.mode' = '{mode}'" for each in ("delete", "update"))
    tables.sql(f"ALTER TABLE lake.media.plays SET TBLPROPERTIES ({modes})")

    def summed(plays: ips.IcdcView) -> DataFrame:
        groups = plays.affected("title", "day").groupBy("title", "day").agg(F.sum("n").alias("n"))
        return groups.selectExpr("day AS title", "title AS day", "n")

    out = Out(tables, instance, asset(ips.merge(on=["title", "day"]), summed))
    follows(out, tables, "day, title, sum(n)", "GROUP BY 1, 2")


@pytest.mark.parametrize("frame", mostly_slow(["scope", "affected"]))
def test_partitions_are_replaced_by_a_renamed_column(tables: Lake, instance: dg.DagsterInstance, frame: str) -> None:
    def by_tag(plays: ips.IcdcView) -> DataFrame:
        rows = plays.scope if frame == "scope" else plays.affected("day")
        return rows.groupBy("day").agg(F.sum("n").alias("day_sum")).selectExpr("day AS tag", "day_sum AS day")

    out = Out(tables, instance, asset(ips.overwrite_partitions(), by_tag, by="tag"))
    follows(out, tables, "day, sum(n)", "GROUP BY 1")


def test_rows_of_two_inputs_are_found_by_keys_that_each_has_under_another_name(
    tables: Lake, instance: dg.DagsterInstance
) -> None:
    def both(plays: ips.IcdcView, title: ips.IcdcView) -> DataFrame:
        own = plays.added.selectExpr("id AS key", "day AS kind")
        return own.unionByName(
            title.added.selectExpr("title + 0 AS other", "title AS key", "genre AS kind").drop("other")
        )

    tables.sql("UPDATE lake.media.title SET title = title + 100")
    out = Out(tables, instance, asset(ips.append(remove_on=["key", "kind"]), both, inputs=2, by="kind"))
    rows = "SELECT id, day FROM lake.media.plays UNION ALL SELECT title, genre FROM lake.media.title"

    def expected() -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row) for row in tables.session.sql(rows).collect())

    assert out.run() == expected()
    assert out.run("DELETE FROM lake.media.title WHERE title = 101", STEPS[2]) == expected()
    assert out.run("UPDATE lake.media.title SET genre = 'talk'", STEPS[1], STEPS[3]) == expected()


def test_a_renamed_struct_is_a_key(tables: Lake, instance: dg.DagsterInstance) -> None:
    tables.sql("CREATE TABLE lake.media.at (at struct<id: int, day: string>, n int) USING iceberg")
    tables.sql("INSERT INTO lake.media.at SELECT struct(id, day), n FROM lake.media.plays")

    @dg.asset(
        name="out", ins={"at": ips.incremental()}, metadata=ips.append(remove_on=["key"]) | ips.table("media.out")
    )
    def made(at: ips.IcdcView) -> DataFrame:
        return at.added.selectExpr("at AS key", "n")

    out = Out(tables, instance, made, "at")
    out.run()
    out.run("DELETE FROM lake.media.at WHERE n = 10", "UPDATE lake.media.at SET n = 31 WHERE n = 30")
    assert Counter((row[0].id, row[1]) for row in out.held()) == {(2, 20): 1, (3, 31): 1}


def _other_columns(plays: ips.IcdcView) -> DataFrame:
    keys = plays.added.selectExpr("id AS key", "n"), plays.added.selectExpr("title AS key", "n")
    return keys[0].unionByName(keys[1])


@pytest.mark.parametrize(
    ("write", "compute"),
    [
        (ips.append(remove_on=["key"]), lambda plays: plays.added.selectExpr("id + 1 AS key", "n")),
        (ips.append(remove_on=["key"]), lambda plays: plays.added.selectExpr("upper(day) AS key", "n")),
        (ips.append(remove_on=["id"]), lambda plays: plays.added.selectExpr("id AS key", "n AS id0", "id + 0 AS id")),
        (ips.append(remove_on=["key"]), _other_columns),
        (
            ips.merge(on=["key"]),
            lambda plays: plays.affected("title").groupBy((F.col("title") % 1).alias("key")).agg(F.sum("n")),
        ),
    ],
    ids=["a sum", "another case", "an expression of the old name", "two columns as one", "an expression of a group"],
)
def test_a_key_that_is_an_expression_is_still_refused(
    tables: Lake, instance: dg.DagsterInstance, write: dict[str, Any], compute: Compute
) -> None:
    made = dg.asset(name="out", ins={"plays": ips.incremental()}, metadata=write | ips.table("media.out"))(
        _named_plays(compute)
    )
    with pytest.raises(UnfitFrameError):
        Out(tables, instance, made).run()


def _named_plays(compute: Compute) -> Compute:
    def of_plays(plays: ips.IcdcView) -> DataFrame:
        return compute(plays)

    of_plays.__annotations__ = {"plays": ips.IcdcView, "return": DataFrame}
    return of_plays
