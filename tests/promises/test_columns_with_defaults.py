"""A column added with a default applies to older rows as well: none of them is left out."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.histories.handmade import add_column_with_default, add_field_with_default
from tests.histories.table import HistoryTable, Shape
from tests.histories.values import Column
from tests.support.lake import Lake
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import follow
from tests.support.pipeline import materialize
from tests.support.variants import mostly_slow

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-05")


def with_default(lake: Lake, kind: str, default: str) -> HistoryTable:
    """A table with one row, written before the column ``at`` was added."""
    source = HistoryTable(lake, Shape(version=3), made_of=(Column("id", "int", ()),))
    lake.sql(f"INSERT INTO {source.sql_name} VALUES (1)")
    add_column_with_default(source, "at", kind, default)
    lake.sql(f"REFRESH TABLE {source.sql_name}")
    return source


def with_assets(lake: Lake, table: str, *assets: dg.AssetsDefinition) -> dg.Definitions:
    up = ips.iceberg_asset("up", table=table)
    return definitions_on(lake.folder, lake.spark_folder, up, *assets)


def copied_by_day(lake: Lake, table: str) -> dg.Definitions:
    @dg.asset(
        partitions_def=DAYS,
        ins={"up": ips.incremental(partition_column="at")},
        metadata=ips.append() | ips.table("media.by_day") | {"partition_expr": "at"},
    )
    def by_day(up: ips.IcdcView) -> DataFrame:
        return up.added

    return with_assets(lake, table, by_day)


@pytest.mark.everywhere
@pytest.mark.parametrize(
    ("kind", "default", "value"),
    mostly_slow(
        [
            ("date", "2026-01-02", dt.date(2026, 1, 2)),
            ("timestamp", "2026-01-02T03:00:00", dt.datetime(2026, 1, 2, 3)),  # noqa: DTZ001  # without a zone
            (
                "timestamptz",
                "2026-01-02T03:00:00+00:00",
                dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC).astimezone().replace(tzinfo=None),
            ),
            ("string", "2026-01-02", "2026-01-02"),
        ]
    ),
)
def test_rows_whose_day_comes_from_a_default_are_followed(
    lake: Lake, instance: dg.DagsterInstance, kind: str, default: str, value: object
) -> None:
    source = with_default(lake, kind, default)
    definitions = copied_by_day(lake, source.name)
    lake.sql(f"INSERT INTO {source.sql_name} SELECT 2, at FROM {source.sql_name}")
    assert follow(definitions, instance)
    expected = Counter([(1, value), (2, value)])
    assert lake.rows("media.by_day") == expected
    assert follow(definitions, instance) == []


def test_rows_whose_key_comes_from_a_default_stay_in_their_group(lake: Lake, instance: dg.DagsterInstance) -> None:
    """Iceberg takes them to have no key, and would leave them out of every condition on the key."""
    source = with_default(lake, "string", "a")

    def counted(rows: DataFrame) -> DataFrame:
        return rows.groupBy("at").agg(F.count("*").alias("n"))

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.merge(on=["at"]) | ips.table("media.merged"))
    def merged(up: ips.IcdcView) -> DataFrame:
        return counted(up.affected("at"))

    @dg.asset(ins={"up": ips.incremental(ranges=["at"])}, metadata=ips.table("media.overwritten"))
    def overwritten(up: ips.IcdcView) -> ips.Overwrite:
        scope = up.range("at").between("at")
        return ips.Overwrite(counted(up.source.where(scope)), where=scope)

    definitions = with_assets(lake, source.name, merged, overwritten)
    for times in (1, 2):
        materialize(definitions, instance, "merged", "overwritten")
        for table in ("media.merged", "media.overwritten"):
            assert lake.rows(table) == Counter([("a", times)])
        lake.sql(f"INSERT INTO {source.sql_name} VALUES ({times}, 'a')")


@pytest.mark.slow
@pytest.mark.everywhere
def test_a_users_filter_and_join_find_rows_with_a_default_before_and_after_files_are_rewritten(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    source = with_default(lake, "string", "a")
    lake.sql("CREATE TABLE lake.media.names USING iceberg AS SELECT 'a' AS at, 'first' AS name")

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.append() | ips.table("media.filtered"))
    def filtered(up: ips.IcdcView) -> DataFrame:
        return up.added.where("at = 'a' AND at IS NOT NULL AND at IN ('a', 'b') AND at LIKE 'a%'")

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.append() | ips.table("media.joined"))
    def joined(up: ips.IcdcView, names: DataFrame) -> DataFrame:
        return up.added.join(names, "at").select("id", "name")

    @dg.asset(metadata=ips.table("media.whole"))
    def whole(up: DataFrame) -> DataFrame:
        return up.where("at = 'a'")

    names = ips.iceberg_asset("names", table="media.names")
    definitions = with_assets(lake, source.name, names, filtered, joined, whole)
    for before in (1, 2):
        materialize(definitions, instance, "filtered", "joined", "whole")
        ids = range(1, before + 1)
        assert lake.rows("media.filtered") == lake.rows("media.whole") == Counter((each, "a") for each in ids)
        assert lake.rows("media.joined") == Counter((each, "first") for each in ids)
        lake.sql(
            f"CALL lake.system.rewrite_data_files(table => '{source.name}', options => map('rewrite-all', 'true'))"
        )
        lake.sql(f"INSERT INTO {source.sql_name} VALUES (2, 'a'), (3, 'b')")


def test_a_new_field_with_a_default_is_in_the_rows_that_a_sql_asset_has_already(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    source = HistoryTable(
        lake, Shape(version=3), made_of=(Column("id", "int", ()), Column("at", "struct<day: int>", ()))
    )
    lake.sql(f"INSERT INTO {source.sql_name} VALUES (1, named_struct('day', 1)), (2, NULL)")
    texts = {"copied": "SELECT id, at FROM up", "ids": "SELECT id FROM up"}
    made = [ips.sql_asset(name, text, table=f"media.{name}", refresh="incremental") for name, text in texts.items()]
    definitions = with_assets(lake, source.name, *made)
    materialize(definitions, instance, *texts)
    add_field_with_default(source, "at", "hour", "int", 5)
    lake.sql(f"REFRESH TABLE {source.sql_name}")
    lake.sql(f"INSERT INTO {source.sql_name} VALUES (3, named_struct('day', 2, 'hour', 7))")
    result = materialize(definitions, instance, *texts)
    lake.sql(f"SELECT * FROM {source.sql_name}").createOrReplaceTempView("up")
    for name, text in texts.items():
        assert lake.rows(f"media.{name}") == Counter(map(tuple, lake.sql(text).collect())), name
    assert lake.sql("SELECT at.hour FROM lake.media.copied WHERE id = 1").collect() == [(5,)]
    refreshes = {
        event.asset_key.to_user_string(): event.materialization.metadata["refresh"].value
        for event in result.get_asset_materialization_events()
        if event.asset_key
    }
    assert refreshes == {"copied": "full", "ids": "append"}
