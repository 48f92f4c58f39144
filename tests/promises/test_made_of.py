"""Assets whose results would silently be wrong are refused, and right ones that do something similar aren't."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.errors import (
    DuplicateKeysError,
    IpsError,
    RemovedRowsError,
    RowPlaceError,
    UnfitFrameError,
    UnfollowedChangeError,
    UnresolvedQueryError,
    UntracedResultError,
)
from tests.support.lake import Lake
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

Compute = Callable[..., DataFrame]


@pytest.fixture
def tables(lake: Lake) -> Lake:
    """``plays`` of titles, partitioned by day, and ``title`` with genres, without partitions."""
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.plays (id int, day string, title int, n int) USING iceberg PARTITIONED BY (day)")
    lake.sql("CREATE TABLE lake.media.title (title int, genre string) USING iceberg")
    lake.sql("INSERT INTO lake.media.plays VALUES (1, 'mo', 1, 10), (2, 'mo', 2, 20), (3, 'tu', 1, 30)")
    lake.sql("INSERT INTO lake.media.title VALUES (1, 'news'), (2, 'film')")
    return lake


def asset(write: dict[str, Any], compute: Compute, *, inputs: int = 1, by: str = "day") -> dg.AssetsDefinition:
    metadata = write | ips.table("media.out", partition_by=[by])
    if inputs == 1:

        @dg.asset(name="out", ins={"plays": ips.incremental()}, metadata=metadata)
        def of_one(plays: ips.IcdcView) -> DataFrame:
            return compute(plays)

        return of_one

    @dg.asset(name="out", ins={"plays": ips.incremental(), "title": ips.incremental()}, metadata=metadata)
    def of_two(plays: ips.IcdcView, title: ips.IcdcView) -> DataFrame:
        return compute(plays, title)

    return of_two


class Out:
    """The table ``media.out`` that an asset writes, run after run."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, made: dg.AssetsDefinition, *more: str) -> None:
        outside = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("plays", "title", *more)]
        self._definitions = pipeline(lake.folder, lake.spark_folder, made, *outside)  # type: ignore[arg-type]
        self._lake, self._instance = lake, instance

    def run(self, *steps: str, **tags: str) -> Counter[tuple[Any, ...]]:
        for step in steps:
            self._lake.sql(step)
        named = {f"dagster_ips/{name}": value for name, value in tags.items()}
        materialize(self._definitions, self._instance, "out", tags=named)
        return self.held()

    def held(self) -> Counter[tuple[Any, ...]]:
        return self._lake.rows("media.out")


def refused(out: Out, step: str, error: type[IpsError], match: str) -> None:
    """The run after the step is refused, and the table stays as it was."""
    before = out.held()
    with pytest.raises(error, match=match):
        out.run(step)
    assert out.held() == before


def joined(plays: DataFrame, title: DataFrame) -> DataFrame:
    return plays.join(title, "title").select("id", "day", "n", "genre")


ADD_PLAY = "INSERT INTO lake.media.plays VALUES (4, 'tu', 2, 40)"
ADD_TITLE = "INSERT INTO lake.media.title VALUES (3, 'talk')"
CHANGE_TITLE = "UPDATE lake.media.title SET genre = 'show' WHERE title = 2"


@pytest.mark.everywhere
@pytest.mark.parametrize("write", mostly_slow([ips.append(), ips.merge(on=["id"])]), ids=["append", "merge"])
def test_a_change_of_an_input_that_is_only_looked_up_is_refused(
    tables: Lake, instance: dg.DagsterInstance, write: dict[str, Any]
) -> None:
    out = Out(tables, instance, asset(write, lambda plays, title: joined(plays.added, title.source), inputs=2))
    out.run()
    assert out.run(ADD_PLAY)[4, "tu", 40, "film"] == 1
    tables.sql("UPDATE lake.media.title SET genre = 'film' WHERE title = 2")  # files changed, but no row did
    out.run()
    refused(out, CHANGE_TITLE, UnfollowedChangeError, r"rows of title changed.*lookup\(\).*affected.*Overwrite")


def test_changes_of_a_declared_lookup_are_not_followed(tables: Lake, instance: dg.DagsterInstance) -> None:
    metadata = ips.append() | ips.table("media.out", partition_by=["day"])

    @dg.asset(ins={"plays": ips.incremental(), "title": ips.lookup()}, metadata=metadata)
    def out(plays: ips.IcdcView, title: DataFrame) -> DataFrame:
        return joined(plays.added, title)

    made = Out(tables, instance, out)
    made.run()
    assert made.run(ADD_PLAY, CHANGE_TITLE) == Counter(
        {(1, "mo", 10, "news"): 1, (2, "mo", 20, "film"): 1, (3, "tu", 30, "news"): 1, (4, "tu", 40, "show"): 1}
    )


def per_genre(rows: DataFrame) -> DataFrame:
    return rows.groupBy("day", "genre").agg(F.sum("n").cast("int").alias("n"))


HOW_TOUCHED: dict[str, tuple[dict[str, Any], Callable[[DataFrame, DataFrame], DataFrame], tuple[str, ...]]] = {
    "partitions": (ips.overwrite_partitions(), joined, ("day",)),
    "groups, merged": (
        ips.merge(on=["day", "genre"]),
        lambda plays, title: per_genre(plays.join(title, "title")),
        ("day",),
    ),
    "rows of groups, with what has no title": (
        ips.merge(on=["day", "title"]),
        lambda plays, title: (
            plays.join(title.groupBy("title").agg(F.max("genre").alias("genre")), "title", "left")
            .groupBy("day", "title")
            .agg(F.sum("n").alias("n"), F.max("genre").alias("genre"))
        ),
        ("day", "title"),
    ),
}

STEPS = (
    ADD_PLAY,
    CHANGE_TITLE,
    f"{ADD_TITLE}; INSERT INTO lake.media.plays VALUES (5, 'we', 3, 50), (6, 'we', NULL, 60)",
    "DELETE FROM lake.media.title WHERE title = 1",
    "DELETE FROM lake.media.plays WHERE day = 'mo'",
    "INSERT INTO lake.media.title VALUES (1, 'news'), (NULL, 'none')",
    "UPDATE lake.media.plays SET title = 2, day = 'th' WHERE id = 3",
)


@pytest.mark.everywhere
@pytest.mark.parametrize("how", mostly_slow(HOW_TOUCHED))
def test_groups_that_a_change_of_either_input_touches_equal_a_recompute(
    tables: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    write, compute, keys = HOW_TOUCHED[how]

    def made(plays: ips.IcdcView, title: ips.IcdcView) -> DataFrame:
        return compute(ips.affected(plays, *keys, by=title, on="title"), title.source)

    out = Out(tables, instance, asset(write, made, inputs=2))
    out.run()
    for step in STEPS:
        for statement in step.split("; "):
            tables.sql(statement)
        plays, title = (tables.sql(f"SELECT * FROM lake.media.{name}") for name in ("plays", "title"))
        columns = tables.sql("SELECT * FROM lake.media.out").columns
        assert out.run() == Counter(tuple(row) for row in compute(plays, title).select(*columns).collect())


def ranked(title: DataFrame) -> DataFrame:
    return title.withColumn("genre", F.rank().over(Window.orderBy("genre")).cast("string"))


WRONG_WITH: dict[str, tuple[Compute, str]] = {
    "its groups alone": (lambda title, _: title.affected("title"), "changed only in title"),
    "its ranks": (lambda title, _: ranked(title.source), "isn't partitioned by title"),
    "ranks of the table itself": (
        lambda _, session: ranked(session.table("lake.media.title")),
        "isn't partitioned by title",
    ),
}


@pytest.mark.parametrize("how", WRONG_WITH)
def test_groups_joined_with_anything_but_the_source_of_the_input_that_touched_them_are_refused(
    tables: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    of_title, match = WRONG_WITH[how]

    def made(plays: ips.IcdcView, title: ips.IcdcView) -> DataFrame:
        rows = ips.affected(plays, "day", by=title, on="title")
        return joined(rows, of_title(title, rows.sparkSession))

    with pytest.raises(UnfitFrameError, match=match):
        Out(tables, instance, asset(ips.overwrite_partitions(), made, inputs=2)).run()


def totals(plays: DataFrame, *by: str) -> DataFrame:
    return plays.groupBy(*by).agg(F.sum("n").alias("n"))


def with_all(plays: DataFrame) -> DataFrame:
    every = plays.sparkSession.table("lake.media.plays").agg(F.sum("n").alias("all"))
    return totals(plays, "day").crossJoin(every)


WRONG_ALWAYS: dict[str, tuple[dict[str, Any], Compute, str]] = {
    "partial sums": (
        ips.merge(on=["day"]),
        lambda plays: plays.added.groupBy("day").agg(F.sum("n").alias("n")),
        "an aggregate",
    ),
    "appended counts": (ips.append(), lambda plays: plays.added.groupBy("day").count(), "an aggregate"),
    "a rank among new rows": (
        ips.append(),
        lambda plays: plays.added.withColumn("r", F.rank().over(Window.partitionBy("day").orderBy("n"))),
        "a window",
    ),
    "the newest of new rows": (ips.merge(on=["day"]), lambda plays: plays.added.dropDuplicates(["day"]), "distinct"),
    "a share of all": (
        ips.append(),
        lambda plays: plays.added.crossJoin(plays.source.agg(F.sum("n").alias("all"))),
        "affect results of rows that didn't change",
    ),
    "a share of all, of groups": (
        ips.merge(on=["day"]),
        lambda plays: totals(plays.affected("day"), "day").crossJoin(plays.source.agg(F.sum("n").alias("all"))),
        r"affected\(day\) and source.*they hold different rows",
    ),
    "a share of the table itself": (
        ips.merge(on=["day"]),
        lambda plays: with_all(plays.affected("day")),
        r"affected\(day\) and source.*they hold different rows",
    ),
    "groups of two choices": (
        ips.merge(on=["day", "title"]),
        lambda plays: totals(plays.affected("day").unionAll(plays.affected("day", "title")), "day", "title"),
        r"they hold different rows",
    ),
    "whole partitions and groups": (
        ips.overwrite_partitions(),
        lambda plays: totals(plays.affected("day").unionAll(plays.scope), "day"),
        r"they hold different rows",
    ),
    "groups of a lowered key": (
        ips.merge(on=["day"]),
        lambda plays: plays.affected("day").withColumn("day", F.lower("day")).groupBy("day").agg(F.sum("n").alias("n")),
        "isn't grouped by day",
    ),
    "a lowered key": (
        ips.merge(on=["day", "id"]),
        lambda plays: plays.affected("day", "id").withColumn("day", F.lower("day")),
        "column 'day' of the result isn't plays's own column",
    ),
    "a key changed in part": (
        ips.append(remove_on=["id"]),
        lambda plays: plays.added.withColumn("id", F.when(F.col("n") > 15, F.col("id") + 100).otherwise(F.col("id"))),
        "column 'id' of the result isn't plays's own column",
    ),
    "a derived column beside the key": (
        ips.append(remove_on=["month", "id"]),
        lambda plays: plays.added.withColumn("month", F.substring("day", 1, 1)),
        "If a row is identified without it, leave month out of remove_on",
    ),
    "constant rows": (
        ips.append(),
        lambda plays: plays.added.unionAll(plays.added.sparkSession.sql("SELECT 0, 'mo', 0, 0")),
        "aren't part of a change",
    ),
}


class Whole:
    """A view whose every frame is the source: results from it are right, and computed in full."""

    def __init__(self, view: ips.IcdcView) -> None:
        self.added = self.scope = self.source = view.source

    def affected(self, *_: str) -> DataFrame:
        return self.source


@pytest.mark.everywhere
@pytest.mark.parametrize("how", mostly_slow(WRONG_ALWAYS, quick=3))
def test_results_that_only_a_full_run_makes_right_are_refused_from_the_first_run_on(
    tables: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    write, compute, match = WRONG_ALWAYS[how]
    with pytest.raises(UnfitFrameError, match=match):
        Out(tables, instance, asset(write, compute)).run()
    out = Out(tables, instance, asset(ips.replace(), lambda plays: compute(Whole(plays))))
    out.run()
    refused(Out(tables, instance, asset(write, compute)), ADD_PLAY, UnfitFrameError, match)


def in_python(plays: ips.IcdcView) -> DataFrame:
    return plays.added.mapInPandas(lambda parts: parts, "id int, day string, title int, n int")


def collected(plays: ips.IcdcView) -> DataFrame:
    return plays.added.withColumn("of", F.lit(plays.source.count()))


def made_anew(plays: ips.IcdcView) -> DataFrame:
    rows = plays.added
    found = [tuple(row) for row in rows.collect()]
    return rows.sparkSession.createDataFrame(found, "id int, day string, title int, n int")


CHECKPOINTS: list[DataFrame] = []  # Spark Connect drops one as soon as Python does.


def beside_a_checkpoint(plays: ips.IcdcView) -> DataFrame:
    added = plays.added
    kept: Any = added.groupBy("day").agg(F.sum("n").cast("int").alias("of")).localCheckpoint()
    CHECKPOINTS.append(kept)
    totals = type(kept)(kept._plan, added.sparkSession)  # PySpark takes the process's newest session for it.
    return added.join(totals, "day")


UNSEEN = {
    "a function of Python": in_python,
    "a collected value": collected,
    "collected rows": made_anew,
    "a checkpoint": beside_a_checkpoint,
}


@pytest.mark.everywhere
def test_a_first_run_refuses_a_result_that_no_run_after_a_change_could_write(
    tables: Lake, instance: dg.DagsterInstance
) -> None:
    copy = asset(ips.merge(on=["id"]), lambda plays: plays.source.select("id", "day", "n"))
    with pytest.raises(UnfollowedChangeError, match=r"a run after a change could not write it.*replace\(\)"):
        Out(tables, instance, copy).run()


@pytest.mark.parametrize("how", mostly_slow(UNSEEN))
def test_results_that_a_plan_does_not_show_are_refused_unless_trusted_or_computed_in_full(
    tables: Lake, instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    out = Out(tables, instance, asset(ips.append(), UNSEEN[how]))
    with caplog.at_level("WARNING"):
        out.run()
    assert re.search(r"an incremental run would be refused: .*trusted\(because=", caplog.text)
    refused(out, ADD_PLAY, UntracedResultError, r"doesn't show.*trusted\(because=.*mode=full")
    assert len(out.run(mode="full")) == 4
    trusted = ips.append() | ips.trusted(because="each row is made of one")
    again = Out(tables, instance, asset(trusted, UNSEEN[how]))
    assert len(again.run("INSERT INTO lake.media.plays VALUES (5, 'tu', 2, 50)")) == 5
    CHECKPOINTS.clear()


def test_the_empty_scope_of_an_unchanged_input_does_not_empty_the_table(
    tables: Lake, instance: dg.DagsterInstance
) -> None:
    both = asset(
        ips.overwrite_partitions(),
        lambda plays, title: title.scope.join(plays.source, "title").select("id", "day", "n", "genre"),
        inputs=2,
    )
    with pytest.raises(UnfitFrameError, match="changed only in"):
        Out(tables, instance, both).run()
    alone = dg.asset(
        name="out",
        ins={"title": ips.incremental(), "plays": ips.incremental()},
        metadata=ips.overwrite_partitions() | ips.table("media.out", partition_by=["genre"]),
    )(_titles)
    out = Out(tables, instance, alone)
    before = out.run()
    with pytest.raises(UnfollowedChangeError, match="rows of plays changed"):
        out.run(ADD_PLAY)
    assert out.held() == before


def _titles(title: ips.IcdcView, plays: ips.IcdcView) -> DataFrame:
    assert plays.stats.files >= 0
    return title.scope


def test_a_row_removed_from_one_input_does_not_remove_a_row_of_the_other(
    tables: Lake, instance: dg.DagsterInstance
) -> None:
    tables.sql("CREATE TABLE lake.media.extra (id int, day string, title int, n int) USING iceberg")
    tables.sql("INSERT INTO lake.media.extra VALUES (1, 'mo', 1, -1), (9, 'mo', 1, 90)")

    @dg.asset(
        ins={"plays": ips.incremental(), "extra": ips.incremental()},
        metadata=ips.append(remove_on=["id"]) | ips.table("media.out", partition_by=["day"]),
    )
    def out(plays: ips.IcdcView, extra: ips.IcdcView) -> DataFrame:
        return plays.added.where("id > 1").unionAll(extra.added)

    made = Out(tables, instance, out, "extra")
    before = made.run()
    refused(made, "DELETE FROM lake.media.plays WHERE id = 1", RemovedRowsError, "extra has rows with the key")
    assert before[1, "mo", 1, -1] == 1


def test_a_key_that_is_added_again_is_refused_as_in_a_full_run(tables: Lake, instance: dg.DagsterInstance) -> None:
    out = Out(tables, instance, asset(ips.merge(on=["id"]), lambda plays: plays.added))
    out.run()
    assert out.run("UPDATE lake.media.plays SET n = 11 WHERE id = 1")[1, "mo", 1, 11] == 1
    again = "INSERT INTO lake.media.plays VALUES (1, 'mo', 1, 12)"
    refused(out, again, DuplicateKeysError, r"several rows for the same key, for example .* = 1\.")
    with pytest.raises(DuplicateKeysError):
        out.run(mode="full")


def test_an_upstream_that_is_read_besides_its_view_counts_as_its_source(
    tables: Lake, instance: dg.DagsterInstance
) -> None:
    def beside(plays: ips.IcdcView) -> DataFrame:
        added = plays.added
        everything = added.sparkSession.table("lake.media.plays").groupBy("day").agg(F.sum("n").alias("all"))
        return added.join(everything, "day")

    with pytest.raises(UnfitFrameError, match="would have to be recomputed"):
        Out(tables, instance, asset(ips.append(), beside)).run()


def test_an_asset_that_reads_its_own_table_is_refused(tables: Lake, instance: dg.DagsterInstance) -> None:
    def own(plays: ips.IcdcView) -> DataFrame:
        rows = plays.added
        if plays.mode == "full":
            return rows
        seen = rows.sparkSession.table("lake.media.out").select("id")
        return rows.join(seen, "id", "left_anti")

    out = Out(tables, instance, asset(ips.append(), own))
    out.run()
    refused(out, ADD_PLAY, UntracedResultError, "reads lake.media.out, the table that it is written to")


def test_a_parameter_that_is_a_table_name_reads_the_change(tables: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(ins={"plays": ips.incremental()}, metadata=ips.append() | ips.table("media.out", partition_by=["day"]))
    def out(plays: str) -> DataFrame:
        return tables.another_session().table(plays)

    made = Out(tables, instance, out)
    made.run()
    assert made.run(ADD_PLAY)[4, "tu", 2, 40] == 1


def test_a_trusted_asset_is_proved_with_each_run_unless_that_is_turned_off(tables: Lake) -> None:
    def checks(trusted: dict[str, Any]) -> set[str]:
        outside = [ips.iceberg_asset("plays", table="media.plays")]
        made = asset(ips.append() | trusted, in_python)
        definitions = pipeline(tables.folder, tables.spark_folder, made, *outside)  # type: ignore[arg-type]
        graph = definitions.resolve_asset_graph()
        return {key.name for key in graph.asset_check_keys if key.asset_key == dg.AssetKey("out")}

    assert checks(ips.trusted(because="each row is made of one")) == {"pending", "proof"}
    assert checks(ips.trusted(because="each row is made of one", proof=False)) == {"pending"}


OF_TWO_TYPES = {
    "append": (ips.append(remove_on=["id"]), lambda plays, extra: plays.added.unionByName(extra.added)),
    "merge": (ips.merge(on=["id"]), lambda plays, extra: extra.added.unionByName(plays.added)),
}


@pytest.mark.slow
@pytest.mark.everywhere
@pytest.mark.parametrize("how", OF_TWO_TYPES)
def test_an_input_whose_key_has_a_wider_type_is_united_with_the_other(
    tables: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    tables.sql("CREATE TABLE lake.media.extra (id bigint, day string, title int, n int) USING iceberg")
    tables.sql("INSERT INTO lake.media.extra VALUES (11, 'mo', 1, -1), (12, 'tu', 1, 90), (20000000000, 'we', 1, 7)")
    write, compute = OF_TWO_TYPES[how]

    @dg.asset(
        ins={"plays": ips.incremental(), "extra": ips.incremental()},
        metadata=write | ips.table("media.out", partition_by=["day"]),
    )
    def out(plays: ips.IcdcView, extra: ips.IcdcView) -> DataFrame:
        return compute(plays, extra)

    made = Out(tables, instance, out, "extra")
    made.run()
    steps = ("DELETE FROM lake.media.plays WHERE id = 2", "UPDATE lake.media.plays SET n = 31, day = 'we' WHERE id = 3")
    for step in (*steps, "DELETE FROM lake.media.extra WHERE id > 11", ADD_PLAY):
        both = "SELECT * FROM lake.media.plays UNION ALL SELECT * FROM lake.media.extra"
        assert made.run(step) == Counter(tuple(row) for row in tables.sql(both).collect())


BY_WHAT_CHANGED: dict[str, tuple[dict[str, Any], Compute]] = {
    "groups": (
        ips.merge(on=["day"]),
        lambda plays: totals(plays.affected("day").where(plays.range("n").between("n")), "day"),
    ),
    "partitions": (ips.overwrite_partitions(), lambda plays: plays.scope.where(plays.range("n").since("n"))),
}


@pytest.mark.everywhere
@pytest.mark.parametrize("how", mostly_slow(BY_WHAT_CHANGED))
def test_groups_filtered_by_the_range_of_changed_values_are_refused(
    tables: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    """Such an asset would replace a whole day by its rows in the range of the new ones."""
    out = Out(tables, instance, asset(*BY_WHAT_CHANGED[how]))
    out.run()
    refused(out, ADD_PLAY, UntracedResultError, r"asked which values of plays changed.*trusted\(because=")


BY_CHANCE: dict[str, tuple[dict[str, Any], Compute, str]] = {
    "rows of today": (
        ips.append(),
        lambda plays: plays.added.where(F.current_date() > F.lit("2026-01-01")),
        "a choice that depends on the clock or on chance",
    ),
    "keys by chance": (
        ips.append(dedup_on=["key"]),
        lambda plays: plays.added.withColumn("key", F.expr("uuid()")),
        "column 'key' depends on the clock or on chance",
    ),
    "keys of today": (
        ips.merge(on=["id", "on"]),
        lambda plays: plays.affected("id").withColumn("on", F.current_date()),
        "column 'on' depends on the clock or on chance",
    ),
    "values of today, added up": (
        ips.combine(on=["day"], aggregates={"age": "sum(age)"}),
        lambda plays: plays.weighted.withColumn("age", F.datediff(F.current_date(), F.lit("2026-01-01"))),
        "column 'age' depends on the clock or on chance",
    ),
}


@pytest.mark.parametrize("how", BY_CHANCE)
def test_choices_by_the_clock_or_by_chance_are_refused_from_the_first_run_on(
    tables: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    write, compute, match = BY_CHANCE[how]
    with pytest.raises(UnfitFrameError, match=match):
        Out(tables, instance, asset(write, compute)).run()


@pytest.mark.slow
@pytest.mark.everywhere
def test_the_load_time_of_a_row_stays_until_the_row_changes(tables: Lake, instance: dg.DagsterInstance) -> None:
    """A full run sets a later time. That is right: the column says when the row was loaded."""
    compute: Compute = lambda plays: plays.added.withColumn("loaded_at", F.current_timestamp())  # noqa: E731
    out = Out(tables, instance, asset(ips.append(remove_on=["id"]), compute))
    first = {row[0]: row[-1] for row in out.run()}
    out.run("UPDATE lake.media.plays SET n = 11 WHERE id = 1")
    loaded = {row[0]: row[-1] for row in out.run(ADD_PLAY)}
    assert loaded[2] == first[2]
    assert first[1] < loaded[1] < loaded[4]


WHERE_ROWS_LIE: dict[str, tuple[dict[str, Any], Compute]] = {
    "a file's name in append": (ips.append(), lambda plays: plays.added.withColumn("file", F.input_file_name())),
    "a place in merge": (
        ips.merge(on=["id"]),
        lambda plays: plays.added.withColumn("at", F.expr("input_file_block_start()")),
    ),
    "a file's name in replace": (ips.replace(), lambda plays: plays.source.withColumn("file", F.input_file_name())),
    "a file's name in a group": (
        ips.merge(on=["day"]),
        lambda plays: plays.affected("day").withColumn("file", F.input_file_name()).groupBy("day").agg(F.max("file")),
    ),
    "a file's name in combine": (
        ips.combine(on=["day"], aggregates={"file": "max(file)"}),
        lambda plays: plays.weighted.withColumn("file", F.input_file_name()),
    ),
    "a metadata column of the change": (
        ips.append(),
        lambda plays: plays.session.table(plays.table).select("id", "day", "_pos"),
    ),
    "a metadata column in a filter": (
        ips.append(),
        lambda plays: plays.added.join(
            plays.session.table("lake.media.title").where("_spec_id = 0").select("title"), "title"
        ),
    ),
    "a metadata table": (
        ips.append(),
        lambda plays: plays.added.crossJoin(
            plays.session.table("lake.media.plays.snapshots").agg(F.max("committed_at").alias("committed_at"))
        ),
    ),
    "a metadata table in a subquery": (
        ips.append(),
        lambda plays: plays.added.where("n < (SELECT count(*) FROM lake.media.title.files) + 1000"),
    ),
}


@pytest.mark.parametrize("case", mostly_slow(list(WHERE_ROWS_LIE)))
def test_a_result_that_depends_on_where_rows_lie_is_refused_from_the_first_run_on(
    tables: Lake, instance: dg.DagsterInstance, case: str
) -> None:
    write, compute = WHERE_ROWS_LIE[case]
    out = Out(tables, instance, asset(write, compute))
    with pytest.raises(RowPlaceError, match="A compaction changes that"):
        out.run()
    assert tables.catalog.find("media.out") is None


def test_a_trusted_asset_may_keep_where_a_row_lay_when_it_arrived(tables: Lake, instance: dg.DagsterInstance) -> None:
    write = ips.append() | ips.trusted(because="the file a row came in")
    out = Out(tables, instance, asset(write, lambda plays: plays.added.withColumn("file", F.input_file_name())))
    assert all(row[-1].endswith(".parquet") for row in out.run())


def test_a_query_that_reads_where_rows_lie_is_refused(tables: Lake, instance: dg.DagsterInstance) -> None:
    out = Out(tables, instance, ips.sql_asset("out", "SELECT id, _file FROM plays", table="media.out"))
    with pytest.raises(UnresolvedQueryError, match="_file says where a row lies"):
        out.run()
