"""What a team's own settings, clocks and conventions do to results: nothing."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips import view
from dagster_ips.cli.context import Workplace
from dagster_ips.errors import DeclarationError, RemovedRowsError
from dagster_ips.orchestration.run.known_consumers import known_consumers
from tests.histories.handmade import add_column_with_default
from tests.histories.table import HistoryTable, Shape
from tests.histories.values import Column
from tests.support.lake import Lake
from tests.support.lake_catalog import catalog_resource
from tests.support.pipeline import materialize
from tests.support.spark_resource import NO_CONF, spark_resource


@pytest.fixture(autouse=True)
def namespace(lake: Lake) -> None:
    lake.catalog.create_namespace("media")


def of(lake: Lake, *assets: dg.AssetsDefinition, settings: dict[str, str] | None = None) -> dg.Definitions:
    """The assets, downstream of the table ``media.up``."""
    spark = spark_resource(lake.spark_folder, settings or NO_CONF)
    manager = ips.IcdcIOManager(catalog=catalog_resource(lake.folder), spark=spark)
    up = ips.iceberg_asset("up", table="media.up")
    return ips.with_incremental(dg.Definitions(assets=[up, *assets], resources={"io_manager": manager}))


def test_a_session_that_stages_commits_for_a_later_audit_is_refused(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"up": ips.incremental()},
        metadata=ips.append() | ips.table("media.copied", properties={"write.wap.enabled": True, "format-version": 2}),
    )
    def copied(up: ips.IcdcView) -> DataFrame:
        return up.added

    lake.sql("CREATE TABLE lake.media.up USING iceberg AS SELECT 1 AS id")
    staged, usual = of(lake, copied, settings={"spark.wap.id": "audit"}), of(lake, copied)
    for rows in ([(1,)], [(1,), (2,)]):
        with pytest.raises(DeclarationError, match="staged for an audit"):
            materialize(staged, instance, "copied")
        lake.session.conf.unset("spark.wap.id")
        materialize(usual, instance, "copied")
        assert lake.rows("media.copied") == Counter(rows)
        lake.sql("INSERT INTO lake.media.up VALUES (2)")


def test_a_row_that_is_delivered_again_does_not_tie_because_of_the_time_of_loading(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.merge(on=["id"], latest_by="at") | ips.table("media.latest"))
    def latest(up: ips.IcdcView) -> DataFrame:
        return up.added.withColumn("loaded_at", F.current_timestamp())

    lake.sql("CREATE TABLE lake.media.up USING iceberg AS SELECT 7 AS id, 1 AS at, 'a' AS name")
    definitions = of(lake, latest)
    materialize(definitions, instance, "latest")
    lake.sql("INSERT INTO lake.media.up VALUES (7, 1, 'a'), (8, 1, 'b')")
    materialize(definitions, instance, "latest")
    found = lake.sql("SELECT id, at, name FROM lake.media.latest").collect()
    assert Counter(tuple(row) for row in found) == Counter([(7, 1, "a"), (8, 1, "b")])


def test_where_removals_are_ignored_an_updated_row_still_replaces_its_old_version(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"up": ips.incremental(on_removed="ignore")}, metadata=ips.merge(on=["id"]) | ips.table("media.kept"))
    def kept(up: ips.IcdcView) -> DataFrame:
        return up.added

    lake.sql("CREATE TABLE lake.media.up USING iceberg AS SELECT * FROM VALUES (1, 'a'), (2, 'b') AS v(id, name)")
    definitions = of(lake, kept)
    materialize(definitions, instance, "kept")
    lake.sql("DELETE FROM lake.media.up WHERE id = 2")
    lake.sql("UPDATE lake.media.up SET name = 'new' WHERE id = 1")
    materialize(definitions, instance, "kept")
    assert lake.rows("media.kept") == Counter([(1, "new"), (2, "b")])


def test_a_removed_row_that_may_never_have_been_counted_is_not_subtracted(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        ins={"up": ips.incremental(start="latest")},
        metadata=ips.combine(on=["k"], aggregates={"n": "count(*)"}) | ips.table("media.counted"),
    )
    def counted(up: ips.IcdcView) -> DataFrame:
        return up.weighted

    lake.sql("CREATE TABLE lake.media.up USING iceberg AS SELECT * FROM VALUES ('g', 1), ('g', 2) AS v(k, id)")
    definitions = of(lake, counted)
    materialize(definitions, instance, "counted")
    lake.sql("INSERT INTO lake.media.up VALUES ('g', 3)")
    materialize(definitions, instance, "counted")
    assert [(row.k, row.n) for row in lake.sql("SELECT k, n FROM lake.media.counted").collect()] == [("g", 1)]
    lake.sql("DELETE FROM lake.media.up WHERE id = 1")
    with pytest.raises(RemovedRowsError, match="rows from before start= aren't counted"):
        materialize(definitions, instance, "counted")
    assert [(row.k, row.n) for row in lake.sql("SELECT k, n FROM lake.media.counted").collect()] == [("g", 1)]


@pytest.mark.parametrize("is_first_run_empty", [False, True])
def test_rows_from_before_a_start_are_still_missing_once_the_start_is_left_out(
    lake: Lake, instance: dg.DagsterInstance, *, is_first_run_empty: bool
) -> None:
    def counting(**start: str) -> dg.Definitions:
        @dg.asset(
            ins={"up": ips.incremental(**start)},
            metadata=ips.combine(on=["k"], aggregates={"n": "count(*)"}) | ips.table("media.counted"),
        )
        def counted(up: ips.IcdcView) -> DataFrame:
            return up.weighted

        return of(lake, counted)

    def older(definitions: dg.Definitions) -> str:
        workplace = Workplace(known_consumers(definitions), (), [definitions], instance)
        return str(workplace.older_rows(workplace.consumer("counted")))

    def counts() -> list[int]:
        return [row.n for row in lake.sql("SELECT n FROM lake.media.counted").collect()]

    lake.sql("CREATE TABLE lake.media.up USING iceberg AS SELECT * FROM VALUES ('g', 1), ('g', 2) AS v(k, id)")
    late, every = counting(start="latest"), counting()
    materialize(late, instance, "counted")
    assert older(late) == "None"
    if is_first_run_empty:
        assert counts() == []
    else:
        lake.sql("INSERT INTO lake.media.up VALUES ('g', 3)")
        materialize(late, instance, "counted")
    lake.sql("INSERT INTO lake.media.up VALUES ('g', 4), ('g', 5)")
    result = materialize(every, instance, "counted")
    (event,) = result.get_asset_materialization_events()
    assert "a start that was declared before" in str(event.materialization.metadata["up: began at"].value)
    assert is_first_run_empty or "from a start, and is declared with" in older(every)
    before = counts()
    lake.sql("DELETE FROM lake.media.up WHERE id = 1")
    with pytest.raises(RemovedRowsError, match="rows from before start= aren't counted"):
        materialize(every, instance, "counted")
    assert counts() == before
    materialize(every, instance, "counted", tags={"dagster_ips/mode": "full"})
    assert (older(every), counts()) == ("None", [before[0] + 1])
    lake.sql("DELETE FROM lake.media.up WHERE id = 2")
    materialize(every, instance, "counted")
    assert counts() == before


def test_more_changed_partitions_than_a_condition_lists_are_replaced_and_no_others(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        ins={"up": ips.incremental()},
        metadata=ips.overwrite_partitions() | ips.table("media.totals", partition_by=["day", "region"]),
    )
    def totals(up: ips.IcdcView) -> DataFrame:
        return up.scope.groupBy("day", "region").agg(F.count("*").alias("n"))

    lake.sql("CREATE TABLE lake.media.up (id INT, day DATE, region STRING) USING iceberg PARTITIONED BY (day, region)")
    days = "explode(sequence(DATE '2026-01-01', DATE '2026-01-05'))"
    lake.sql(f"INSERT INTO lake.media.up SELECT 1, {days}, 'eu'")
    lake.sql(f"INSERT INTO lake.media.up SELECT 1, {days}, NULL")
    definitions = of(lake, totals)
    materialize(definitions, instance, "totals")
    lake.sql("DELETE FROM lake.media.up WHERE day = DATE '2026-01-02' AND region IS NULL")
    lake.sql(f"INSERT INTO lake.media.up SELECT 2, {days}, 'eu'")
    with patch.object(view, "MOST_LITERALS", 2), patch("dagster_ips.spark.writes.overwrite.MOST_LITERALS", 2):
        materialize(definitions, instance, "totals")
    expected = lake.sql("SELECT day, region, count(*) AS n FROM lake.media.up GROUP BY day, region").collect()
    assert lake.rows("media.totals") == Counter(map(tuple, expected))


def test_a_merge_of_whole_partitions_goes_on_when_the_upstream_is_partitioned_anew(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.merge(on=["day", "region"]) | ips.table("media.totals"))
    def totals(up: ips.IcdcView) -> DataFrame:
        return up.scope.groupBy("day", "region").agg(F.count("*").alias("n"))

    lake.sql("CREATE TABLE lake.media.up (id INT, day DATE, region STRING) USING iceberg PARTITIONED BY (day)")
    rows = "(1, DATE '2026-01-01', 'eu'), (2, DATE '2026-01-01', 'us'), (3, DATE '2026-01-02', 'eu')"
    lake.sql(f"INSERT INTO lake.media.up VALUES {rows}")
    definitions = of(lake, totals)
    materialize(definitions, instance, "totals")
    lake.sql("ALTER TABLE lake.media.up ADD PARTITION FIELD region")
    lake.sql("DELETE FROM lake.media.up WHERE id = 2")
    materialize(definitions, instance, "totals")
    assert lake.rows("media.totals") == Counter([(dt.date(2026, 1, 1), "eu", 1), (dt.date(2026, 1, 2), "eu", 1)])


def test_statements_find_old_rows_by_a_column_that_was_added_with_a_default(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """Iceberg would leave out the files from before the column."""
    source = HistoryTable(lake, Shape(version=3), made_of=(Column("id", "int", ()),), name="media.up")
    lake.sql(f"INSERT INTO {source.sql_name} VALUES (1)")
    add_column_with_default(source, "plan", "string", "basic")
    lake.sql(f"REFRESH TABLE {source.sql_name}")

    @dg.asset(deps=[ips.incremental_dep("up")], metadata=ips.table("media.own"))
    def own(context):  # noqa: ANN001, ANN202  # Dagster reads its annotation at run time, and annotations are strings here
        with ips.capture(context, columns="id INT, plan STRING, place STRING") as icdc:
            for frame in ("added", "source"):
                select = f"SELECT id, plan, '{frame}' FROM {{up.{frame}}} WHERE plan = 'basic'"
                icdc.sql(f"INSERT INTO {{target}} {select}")

    materialize(of(lake, own), instance, "own")
    assert lake.rows("media.own") == Counter([(1, "basic", "added"), (1, "basic", "source")])


def test_a_file_that_is_removed_added_again_and_compacted_between_two_runs_is_read(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    """The rows that were deleted from it are back: such a delete doesn't apply to a file that is added later."""

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.append(remove_on=["id"]) | ips.table("media.copied"))
    def copied(up: ips.IcdcView) -> DataFrame:
        return up.added

    folder = f"file://{lake.folder}/landed"
    lake.session.range(10).coalesce(1).write.parquet(folder)
    (path,) = (f"file://{each}" for each in Path(lake.folder, "landed").glob("*.parquet"))
    properties = "'format-version' = '2', 'write.delete.mode' = 'merge-on-read'"
    lake.sql(f"CREATE TABLE lake.media.up (id BIGINT) USING iceberg TBLPROPERTIES ({properties})")

    def add_file() -> None:
        lake.catalog.client.load_table("media.up").add_files([path], check_duplicate_files=False)
        lake.sql("REFRESH TABLE lake.media.up")

    add_file()
    lake.sql("DELETE FROM lake.media.up WHERE id = 3")
    definitions = of(lake, copied)
    materialize(definitions, instance, "copied")
    lake.catalog.client.load_table("media.up").delete()  # leaves the delete file where it is
    add_file()
    lake.sql(
        "CALL lake.system.rewrite_data_files(table => 'media.up', options => map('rewrite-all', 'true'))"
    ).collect()
    materialize(definitions, instance, "copied")
    assert lake.rows("media.copied") == Counter((number,) for number in range(10))
