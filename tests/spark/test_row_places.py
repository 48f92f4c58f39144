"""A plan shows what in it says where rows lie, and what only has such a name isn't mistaken for it."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from dagster_ips.core.lineage import Leaf, Unit, lineage
from dagster_ips.spark.plans import marked, result_plan
from tests.support.lake import Lake

METADATA_COLUMNS = ("_file", "_pos", "_partition", "_spec_id", "_deleted", "_row_id", "_last_updated_sequence_number")
METADATA_TABLES = (
    *("snapshots", "history", "refs", "manifests", "partitions", "changes", "metadata_log_entries", "position_deletes"),
    *("entries", "files", "data_files", "delete_files", "all_files", "all_data_files", "all_delete_files"),
    *("all_manifests", "all_entries"),
)
FUNCTIONS = ("input_file_name", "input_file_block_start", "input_file_block_length", "spark_partition_id")


@pytest.fixture
def plays(lake: Lake) -> DataFrame:
    lake.catalog.create_namespace("media")
    lake.sql(
        "CREATE TABLE lake.media.plays (id int, day string) USING iceberg PARTITIONED BY (day) "
        "TBLPROPERTIES ('format-version' = '3')"
    )
    lake.sql("CREATE TABLE lake.media.snapshots (id int, files string) USING iceberg")
    return lake.session.table("lake.media.plays")


def places(frame: DataFrame) -> list[str]:
    return sorted(lineage(result_plan(frame), frame.columns, [Leaf("__ips_1", "plays", Unit.ROW)]).places)


def test_everything_that_says_where_rows_lie_is_found(lake: Lake, plays: DataFrame) -> None:
    own = marked(plays, "__ips_1", name="plays")
    for name in METADATA_COLUMNS:
        assert name in places(plays.select("id", name))[0]
        assert name in places(plays.where(F.col(name).isNotNull()).select("id"))[0]
    for name in METADATA_TABLES:
        table = f"lake.media.plays.{name}"
        assert places(lake.session.table(table)) == [f"the metadata table {table}"]
        assert places(lake.session.sql(f"SELECT count(*) AS n FROM lake.media.plays.{name.upper()}")), name
    for name in FUNCTIONS:
        assert places(own.select("id", F.expr(f"{name}() AS place"))) == [f"{name}()"]
        assert places(own.where(f"concat({name}(), '') <> 'a'")) == [f"{name}()"]
    looked_up = lake.session.table("lake.media.plays.files").select(F.max("file_path").alias("path"))
    assert places(own.crossJoin(looked_up)) == ["the metadata table lake.media.plays.files"]


def test_columns_and_tables_that_only_have_such_names_are_not_mistaken_for_it(lake: Lake, plays: DataFrame) -> None:
    renamed = plays.select("id", *[F.col("day").alias(name) for name in (*METADATA_COLUMNS, "input_file_name()")])
    own = marked(renamed, "__ips_1", name="plays")
    assert places(own) == []
    assert places(own.where("_file = 'a' AND `input_file_name()` = 'b'").select("_pos", "_partition")) == []
    assert places(lake.session.table("lake.media.snapshots")) == []
    assert places(lake.session.table("lake.media.plays.branch_main")) == []
