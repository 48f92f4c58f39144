"""Names of tables, columns, partitions and assets may contain what ends a text, a path or a statement."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.core.table_name import name_of
from dagster_ips.errors import FrameColumnsError, UnfitFrameError, UnsupportedTableError
from dagster_ips.iceberg.icdc.icdc_names import new_name
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import run
from tests.support.pipeline import materialize
from tests.support.variants import mostly_slow

HOSTILE = [
    "a`b",
    "it's; DROP TABLE x --",
    'say "hi"',
    "a|b|c",
    "<script>alert(1)</script>",
    "[here](http://elsewhere)",
    "../../up",
    "${env:HOME}",
    "back\\slash",
    "*/ /* ü 雪 😀",
]


def definitions(lake: Lake, *assets: dg.AssetsDefinition | dg.AssetSpec) -> dg.Definitions:
    return definitions_on(lake.folder, lake.spark_folder, *assets)


@pytest.mark.parametrize("column", mostly_slow(["ü 雪 😀 \\ /* x", "a`b", "it's; DROP TABLE x --", '"|<b>']))
def test_a_column_is_followed_and_written_whatever_its_name(
    lake: Lake, instance: dg.DagsterInstance, column: str
) -> None:
    quoted = f"`{column.replace('`', '``')}`"
    lake.catalog.create_namespace("media")
    up = f"lake.media.`up {column.replace('`', '``').replace('/', '')}`"
    lake.sql(f"CREATE TABLE {up} ({quoted} string, n int) USING iceberg PARTITIONED BY ({quoted})")

    def insert(key: str, n: int) -> None:
        lake.session.createDataFrame([(key, n)], f"{quoted} string, n int").writeTo(up).append()

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.merge(on=[column]) | ips.table("media.merged"))
    def merged(up: ips.IcdcView) -> DataFrame:
        return up.affected(column).groupBy(quoted).agg(F.sum("n").alias("n"))

    @dg.asset(
        ins={"up": ips.incremental()},
        metadata=ips.overwrite_partitions() | ips.table("media.copied", partition_by=[column]),
    )
    def copied(up: ips.IcdcView) -> DataFrame:
        return up.affected(column)

    name = name_of(("media", f"up {column.replace('/', '')}"))
    defs = definitions(lake, ips.iceberg_asset("up", table=name), merged, copied)
    expected: Counter[tuple[str, int]] = Counter()
    totals: Counter[str] = Counter()
    for n, key in enumerate([*HOSTILE, HOSTILE[0], HOSTILE[1]]):
        insert(key, n)
        expected[key, n] += 1
        totals[key] += n
        if n in (3, 9, 11):
            materialize(defs, instance, "merged", "copied")
            assert lake.rows("media.copied") == expected
            assert lake.rows("media.merged") == Counter(totals.items())


def test_rows_of_hostile_partition_keys_arrive_and_the_keys_are_shown_as_text(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.up (k string, n int) USING iceberg PARTITIONED BY (k)")
    keys = [key for key in HOSTILE if "..." not in key]

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(keys),
        ins={"up": ips.incremental()},
        metadata=ips.replace() | ips.table("media.by_key", partition_by=["k"]) | {"partition_expr": "k"},
    )
    def by_key(up: ips.IcdcView) -> DataFrame:
        return up.source

    rows = [(key, n) for n, key in enumerate(keys)]
    lake.session.createDataFrame(rows, "k string, n int").writeTo("lake.media.up").append()
    defs = definitions(lake, ips.iceberg_asset("up", table="media.up"), by_key)
    result = run(defs, instance, "by_key", keys[0], keys[-1])
    assert lake.rows("media.by_key") == Counter(rows)
    (event, *_) = result.asset_materializations_for_node("by_key")
    summary = str(event.metadata["summary"].value)
    assert "a\\`b to" in summary
    assert "a`b to" not in summary
    assert len(summary.splitlines()) == summary.count("- ")


def test_an_upstream_that_is_read_beside_its_view_is_recognized_by_a_name_that_spark_quotes(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.`play-back` (day int, n int) USING iceberg")
    lake.sql("INSERT INTO lake.media.`play-back` VALUES (1, 10)")

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.merge(on=["day"]) | ips.table("media.shares"))
    def shares(up: ips.IcdcView) -> DataFrame:
        of_all = up.session.table("lake.media.`play-back`").agg(F.sum("n").alias("of_all"))
        return up.affected("day").groupBy("day").agg(F.sum("n").alias("n")).crossJoin(of_all)

    with pytest.raises(UnfitFrameError, match=r"affected\(day\) and source.*they hold different rows"):
        materialize(definitions(lake, ips.iceberg_asset("up", table="media.play-back"), shares), instance, "shares")


@pytest.mark.parametrize("name", ["${spark.sql.warehouse.dir}", "a ${env:HOME}"])
def test_a_column_name_that_spark_would_replace_by_one_of_its_settings_is_refused(
    lake: Lake, instance: dg.DagsterInstance, name: str
) -> None:
    lake.catalog.create_namespace("media")
    lake.catalog.client.create_table("media.up", pa.schema([(name, pa.int64())])).append(pa.table({name: [1]}))

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.append() | ips.table("media.out"))
    def out(up: ips.IcdcView) -> DataFrame:
        return up.added

    with pytest.raises(UnsupportedTableError, match="after the dollar sign as one of its settings"):
        materialize(definitions(lake, ips.iceberg_asset("up", table="media.up"), out), instance, "out")
    assert lake.catalog.find("media.out") is None


def test_names_in_a_statement_that_an_error_advises_are_quoted(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.up (n int) USING iceberg")
    lake.sql("INSERT INTO lake.media.up VALUES (1)")
    lake.sql("CREATE TABLE lake.media.`my;out` (n int, `x; DROP TABLE y` int) USING iceberg")

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.append() | ips.table("media.`my;out`"))
    def out(up: ips.IcdcView) -> DataFrame:
        return up.added

    with pytest.raises(FrameColumnsError) as caught:
        materialize(definitions(lake, ips.iceberg_asset("up", table="media.up"), out), instance, "out")
    assert "ALTER TABLE lake.media.`my;out` DROP COLUMN `x; DROP TABLE y`" in str(caught.value)


@pytest.mark.parametrize("key", [*HOSTILE, "x" * 5000, "a\nb", "🙈" * 300])
def test_the_name_of_an_icdc_table_is_only_letters_digits_and_underscores(key: str) -> None:
    name = new_name(Edge(key, key), 1)
    assert name.isascii()
    assert name.replace("_", "").isalnum()
    assert len(name) < 120
    assert new_name(Edge(key, key + "!"), 1)[:-14] != name[:-14]


def test_the_columns_of_a_query_may_have_any_names(lake: Lake, instance: dg.DagsterInstance) -> None:
    text = "SELECT account AS `a``b`, count(*) AS `n```, sum(seconds) AS `sum(s); --` FROM playback GROUP BY account"
    lake.create_playback(events(range(6)))
    asset = ips.sql_asset("odd", text, table="media.odd", refresh="incremental")
    defs = definitions(lake, ips.iceberg_asset("playback", table="media.playback"), asset)
    materialize(defs, instance, "odd")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (0, 3, 4)")
    result = materialize(defs, instance, "odd")
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["refresh"].value == "combine"
    shown = lake.sql("SELECT `a``b`, `n```, `sum(s); --` FROM lake.media.odd").collect()
    assert Counter(map(tuple, shown)) == Counter([("a1", 1, 1), ("a2", 2, 7)])
