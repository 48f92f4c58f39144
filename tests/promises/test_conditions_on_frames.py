"""A condition on a frame selects what it selects of the same rows anywhere else in Spark, however a table is laid out.

Spark leaves conditions to Iceberg, to which those on nulls, NaN, -0.0 and UUIDs mean something else.
"""

import uuid
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import StatsAggregator
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, Transform
from pyiceberg.types import IntegerType, NestedField, StringType, UUIDType
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import CutBoundError
from dagster_ips.exactly_once.snapshot_rows import current_rows
from dagster_ips.iceberg.null_partitions import misread_at
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import select_as_spark_reads
from dagster_ips.spark.writes.overwrite_where import delete_where
from tests.promises.conditions_by_path import conditions_for
from tests.spark import conditions as some
from tests.support.filtered_tables import LAYOUTS, FilteredTables, selected
from tests.support.lake import Lake
from tests.support.lake_definitions import definitions_on
from tests.support.pipeline import materialize
from tests.support.variants import mostly_slow

ROWS = (
    "(1, 'q', 1, 1.0D), (2, 'q', 2, double('NaN')), (3, NULL, 1, -0.0D), (4, NULL, 2, 0.0D), (5, 'zz', 1, 3D), "
    "(6, 'zz', 2, NULL), (7, 'a', 1, -1D), (8, NULL, NULL, NULL)"
)
COLUMNS = "id INT, x STRING, v INT, f DOUBLE"
CONDITIONS = (
    "x <> 'q' OR x = 'zz'",
    "x NOT IN ('q') OR v = 1",
    "NOT (x = 'q' AND v = 1)",
    "x NOT LIKE 'q%' OR v = 1",
    "x IN ('q', 'r')",
    "x IS NULL OR x > 'q'",
    "f > 2",
    "NOT f <= 2",
    "f > 1 OR v = 1",
    "f = 0.0",
    "f >= 0.0",
    "f < 0.0",
    "f IN (0.0, 7.0)",
)
SCHEMA = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "u", UUIDType()))
UUIDS = [uuid.UUID(int=each << 124 | 11) for each in (0, 7, 8, 10, 15)]
OF_TEXTS = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "x", StringType()))
_CUT = 4
"""Bytes of a bound: one letter, and one and a half of two bytes each."""
OF_UUIDS = (
    f"u = '{UUIDS[2]}'",
    f"u > '{UUIDS[1]}'",
    f"u < '{UUIDS[1]}' OR u = '{UUIDS[3]}'",
    f"u = '{str(UUIDS[3]).upper()}'",
    f"u IN ('{UUIDS[0]}', '{UUIDS[4]}')",
)


def create(lake: Lake, name: str, partition_by: str) -> str:
    lake.catalog.create_namespace("media")
    by = f"PARTITIONED BY ({partition_by})" if partition_by else ""
    lake.sql(f"CREATE TABLE lake.media.{name} ({COLUMNS}) USING iceberg {by}")
    lake.sql(f"INSERT INTO lake.media.{name} SELECT /*+ COALESCE(1) */ * FROM VALUES {ROWS}")
    return f"media.{name}"


def ids_in_memory(lake: Lake, condition: str) -> list[int]:
    found = lake.sql(f"SELECT id FROM VALUES {ROWS} AS t(id, x, v, f) WHERE {condition}")
    return sorted(row.id for row in found.collect())


def looked_up(lake: Lake, table: str) -> DataFrame:
    found = lake.catalog.load(table, asset="test")
    return current_rows(lake.session, "lake", found, storage=lake.catalog.storage)


SOME = (CONDITIONS[0], CONDITIONS[3], CONDITIONS[6], CONDITIONS[10])
BY_SQL = " UNION ALL ".join(f"SELECT id, {i} AS i FROM up WHERE {condition}" for i, condition in enumerate(SOME))


def chosen(rows: DataFrame) -> DataFrame:
    """The ids of the rows that each condition selects, with its number."""
    parts = [rows.where(condition).selectExpr("id", f"{i} AS i") for i, condition in enumerate(SOME)]
    return reduce(DataFrame.unionAll, parts)


@dg.asset(ins={"up": ips.incremental()}, metadata=ips.append() | ips.table("media.added"))
def added(up: ips.IcdcView) -> DataFrame:
    return chosen(up.added)


@dg.asset(ins={"up": ips.incremental()}, metadata=ips.replace() | ips.table("media.source"))
def source(up: ips.IcdcView) -> DataFrame:
    return chosen(up.source)


@dg.asset(metadata=ips.table("media.whole"))
def whole(up: DataFrame) -> DataFrame:
    return chosen(up)


@dg.asset(deps=[ips.incremental_dep("up")], metadata=ips.table("media.own"))
def own(context):  # noqa: ANN001, ANN201  # Dagster reads its annotation at run time
    with ips.capture(context, columns="id INT, i INT") as icdc:
        read = "source" if icdc.mode == "full" else "added"
        icdc.sql(f"INSERT INTO {{target}} {BY_SQL.replace('FROM up', f'FROM {{{read}}}')}")


by_query = ips.sql_asset("by_query", BY_SQL, table="media.by_query")


@pytest.mark.everywhere
@pytest.mark.parametrize("partition_by", ["x, v", pytest.param("f", marks=pytest.mark.slow)])
def test_assets_select_the_same_rows_by_every_way_to_read_a_table(
    lake: Lake, instance: dg.DagsterInstance, partition_by: str
) -> None:
    table, audits = create(lake, "up", partition_by), list[list[int]]()

    @dg.asset(metadata=ips.table("media.audited", partition_by=partition_by.split(", ")))
    def audited(up: DataFrame) -> DataFrame:
        return up

    @ips.audit(asset="audited")
    def selects_the_same(rows: DataFrame) -> bool:
        audits[:] = selected(rows, SOME)
        return True

    names = ("added", "source", "whole", "own", "by_query")
    assets = (ips.iceberg_asset("up", table=table), added, source, whole, own, by_query, audited)
    definitions = definitions_on(lake.folder, lake.spark_folder, *assets, asset_checks=[selects_the_same])
    expected = [ids_in_memory(lake, condition) for condition in SOME]
    for times in (1, 2):
        materialize(definitions, instance, *names, "audited")
        for name in names:
            found = Counter({(row, i): times for i, ids in enumerate(expected) for row in ids})
            assert lake.rows(f"media.{name}") == found, name
        assert audits == [sorted(ids * times) for ids in expected]
        lake.sql(f"INSERT INTO lake.{table} SELECT /*+ COALESCE(1) */ * FROM VALUES {ROWS}")


@pytest.mark.parametrize(
    ("seed", "layouts", "count"),
    mostly_slow([(1, ["by_p0", "text_and_field"], 25), *((n, list(LAYOUTS), 30) for n in (2, 3))]),
)
def test_random_conditions_select_the_same_rows(lake: Lake, seed: int, layouts: list[str], count: int) -> None:
    (rows,) = some.drawn(some.rows(), 1, seed=seed)
    tables = FilteredTables.of(lake, rows, layouts)
    for number, layout in enumerate(layouts):
        conditions = conditions_for(layout, count, seed + number)
        assert tables.differing(tables.frame(layout), conditions) == [], layout


@pytest.mark.parametrize(
    ("seed", "layouts"), mostly_slow([(4, ["by_p4", "text_and_field"]), *((n, list(LAYOUTS)) for n in (5, 6))])
)
def test_the_sql_of_a_table_has_its_rows_and_selects_the_same(lake: Lake, seed: int, layouts: list[str]) -> None:
    (rows,) = some.drawn(some.rows(), 1, seed=seed)
    tables = FilteredTables.of(lake, rows, layouts)
    for number, layout in enumerate(layouts):
        found = lake.catalog.load(f"t.{layout}", asset="test")
        misread = misread_at(lake.catalog.storage, found, found.ancestry().head)
        text = select_as_spark_reads(f"lake.t.{layout}", found.column_names, misread)
        frame, plain = lake.sql(f"SELECT * FROM ({text})"), tables.plain
        assert frame.schema.simpleString() == plain.schema.simpleString()
        assert plain.exceptAll(frame).unionAll(frame.exceptAll(plain)).collect() == []
        assert tables.differing(frame, conditions_for(layout, 20, seed + number)) == [], layout


@pytest.mark.everywhere
@pytest.mark.parametrize("transform", [None, pytest.param(IdentityTransform(), marks=pytest.mark.slow)])
def test_conditions_on_uuids_are_on_their_text(lake: Lake, transform: Transform[Any, Any] | None) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, transform, "u")) if transform else PartitionSpec()
    lake.catalog.create_namespace("media")
    lake.catalog.client.create_table("media.uuids", SCHEMA, partition_spec=spec)
    rows = ", ".join([f"({i}, '{each}')" for i, each in enumerate(UUIDS)] + ["(9, NULL)"])
    for i in range(len(UUIDS)):
        lake.sql(f"INSERT INTO lake.media.uuids SELECT * FROM VALUES {rows} AS t(id, u) WHERE id IN ({i}, 9 * {i} / 4)")
    found = selected(looked_up(lake, "media.uuids"), OF_UUIDS)
    plain = lake.sql(f"SELECT * FROM VALUES {rows} AS t(id, u)")
    assert found == [sorted(row.id for row in plain.where(each).collect()) for each in OF_UUIDS]
    for number, (condition, ids) in enumerate(zip(OF_UUIDS, found, strict=True)):
        branch = Branch("lake", "media.uuids", f"deleted{number}")
        branch.create(lake.session, head=None)
        delete_where(condition, branch, lake.session, hidden=["u"])
        left = {row.id for row in lake.session.table(branch.sql_name).collect()}
        assert left == {*range(len(UUIDS)), 9}.difference(ids), condition


def without_files(lake: Lake, table: str, condition: str) -> None:
    """Delete the data files of ``table`` that have no row of the ``condition``, so that reading them fails."""
    of_files = lake.sql(f"SELECT _file, max(coalesce({condition}, FALSE)) AS needed FROM lake.{table} GROUP BY _file")
    gone = [Path(row[0].removeprefix("file:")) for row in of_files.collect() if not row.needed]
    assert gone
    for file in gone:
        file.unlink()


@pytest.mark.parametrize(
    ("partition_by", "condition"),
    [
        ("v", "v = 2"),  # null in a partition
        ("x, v", "x IN ('q', 'zz') AND NOT v = 1"),
        ("truncate(1, x)", "x LIKE 'z%'"),
        ("x", "x IS NULL"),
        ("", "id BETWEEN 2 AND 4"),
    ],
)
def test_files_that_cannot_match_are_not_read(lake: Lake, partition_by: str, condition: str) -> None:
    table = create(lake, "up", partition_by)
    lake.sql(f"INSERT INTO lake.{table} VALUES (20, 'ä', 20, NULL), (21, 'y', 21, NULL)")
    without_files(lake, table, condition)
    rows = looked_up(lake, table).where(condition)
    assert sorted(row.id for row in rows.select("id").collect()) == ids_in_memory(lake, condition)


def test_a_table_without_nulls_in_partitions_and_floats_is_read_as_it_is(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.up (x STRING, v INT, w INT) USING iceberg PARTITIONED BY (x, bucket(2, v))")
    for row, is_plain in (("'a', 1, NULL", True), ("NULL, 2, NULL", False)):
        lake.sql(f"INSERT INTO lake.media.up VALUES ({row})")
        head = lake.catalog.load("media.up", asset="test").head_snapshot_id()
        plain = lake.session.read.option("versionAsOf", str(head)).table("lake.media.up")
        assert looked_up(lake, "media.up").sameSemantics(plain) is is_plain


@pytest.mark.parametrize("is_in_change", [True, False])
def test_a_condition_on_a_text_whose_bound_is_cut_inside_a_character_selects_the_same_rows_or_says_what_to_do(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, *, is_in_change: bool
) -> None:
    """To Iceberg it is an error. Of files that aren't in the change, only Iceberg looks at the bounds."""

    def add(number: int, *, is_cut: bool) -> None:
        with monkeypatch.context() as patch:
            if is_cut:
                for name in ("min_as_bytes", "max_as_bytes"):
                    own = getattr(StatsAggregator, name)
                    patch.setattr(StatsAggregator, name, lambda each, own=own: (own(each) or b"")[:_CUT])
            table = lake.catalog.client.load_table("media.texts")
            table.append(pa.table({"id": pa.array([number], pa.int32()), "x": ["a" + "\u00e9" * 20]}))

    @dg.asset(ins={"texts": ips.incremental()}, metadata=ips.merge(on=["id"]) | ips.table("media.some"))
    def some(texts: ips.IcdcView) -> DataFrame:
        return texts.affected("id").where("x > 'a'")

    lake.catalog.create_namespace("media")
    lake.catalog.client.create_table("media.texts", OF_TEXTS)
    definitions = definitions_on(lake.folder, lake.spark_folder, ips.iceberg_asset("texts", table="media.texts"), some)
    add(1, is_cut=is_in_change)
    materialize(definitions, instance, "some")
    add(2, is_cut=True)
    if is_in_change:
        lake.sql("DELETE FROM lake.media.texts WHERE id = 1")
    materialize(definitions, instance, "some")
    left = {2} if is_in_change else {1, 2}
    assert {row.id for row in lake.sql("SELECT id FROM lake.media.some").collect()} == left
    if is_in_change:
        return
    lake.sql("INSERT INTO lake.media.texts SELECT /*+ COALESCE(1) */ * FROM VALUES (0, 'b'), (3, 'b')")
    with pytest.raises(CutBoundError, match=r"media\.texts: the metadata of a data file has a bound") as refused:
        materialize(definitions, instance, "some")
    remedy = str(refused.value).rpartition("again: ")[2].rstrip(".")
    lake.sql(remedy).collect()
    materialize(definitions, instance, "some")
    assert {row.id for row in lake.sql("SELECT id FROM lake.media.some").collect()} == left | {0, 3}
