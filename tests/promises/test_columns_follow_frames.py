"""A table follows new columns and types of its asset's frame; others are refused before anything is written."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.errors import FrameColumnsError, NullValueError, UnknownColumnError
from dagster_ips.exactly_once.effects import Effect
from tests.support.at_effect import at
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

FULL = {"dagster_ips/mode": "full"}


def asset(*columns: str, mode: dict[str, object] | None = None, on_removed: str = "apply") -> dg.AssetsDefinition:
    """An asset that returns these SQL expressions over the added rows."""

    @dg.asset(
        name="shaped",
        ins={"playback": ips.incremental(on_removed=on_removed)},
        metadata=(mode or ips.append()) | ips.table("media.shaped", partition_by=["event_date"]),
    )
    def shaped(playback: ips.IcdcView) -> DataFrame:
        return playback.added.selectExpr("event_id", "event_date", *columns)

    return shaped


def run(lake: Lake, instance: dg.DagsterInstance, *columns: str, tags: dict[str, str] | None = None) -> None:
    made = asset(*columns, mode=ips.merge(on=["event_date", "event_id"]))
    materialize(pipeline(lake.folder, lake.spark_folder, made), instance, "shaped", tags=tags)


def rows(lake: Lake, columns: str) -> list[tuple[object, ...]]:
    return sorted(
        tuple(row) for row in lake.sql(f"SELECT {columns} FROM lake.media.shaped ORDER BY event_id").collect()
    )


def kinds(lake: Lake) -> dict[str, str]:
    return {
        field.name: field.dataType.simpleString() for field in lake.another_session().table("lake.media.shaped").schema
    }


def test_new_columns_and_wider_types_are_followed_and_a_full_run_fills_them_everywhere(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events([1]))
    run(lake, instance, "CAST(seconds AS int) AS seconds", "named_struct('a', 1) AS nested")
    lake.append(events([2]))
    # The columns come in another order and another case.
    run(lake, instance, "named_struct('b', 'x', 'A', 2L) AS nested", "account", "SECONDS")
    assert kinds(lake) == {
        "event_id": "bigint",
        "event_date": "date",
        "seconds": "bigint",
        "nested": "struct<a:bigint,b:string>",
        "account": "string",
    }
    assert rows(lake, "event_id, seconds, nested.a, nested.b, account") == [(1, 1, 1, None, None), (2, 2, 2, "x", "a2")]
    run(lake, instance, "named_struct('b', 'x', 'A', 2L) AS nested", "account", "SECONDS", tags=FULL)
    assert rows(lake, "event_id, seconds, nested.a, nested.b, account") == [(1, 1, 2, "x", "a1"), (2, 2, 2, "x", "a2")]


@pytest.mark.parametrize(
    ("columns", "said"),
    mostly_slow(
        [
            (["account"], "it lacks seconds"),
            (["account", "seconds AS played"], r"it lacks seconds.*new: played.*restore its old name"),
            (["account", "CAST(seconds AS int) AS seconds"], "seconds is int in the frame and bigint in the table"),
            (
                ["account", "CAST(seconds AS string) AS seconds"],
                "seconds is string in the frame and bigint in the table",
            ),
            (["account", "seconds", "NULL AS more"], "more is only NULL"),
            (["account", "seconds", "1 AS more", "2 AS More"], "more is in the frame more than once"),
        ]
    ),
)
def test_a_frame_that_the_table_cant_follow_is_refused_in_one_line_and_nothing_changes(
    lake: Lake, instance: dg.DagsterInstance, columns: list[str], said: str
) -> None:
    lake.create_playback(events([1]))
    run(lake, instance, "account", "seconds")
    before = lake.catalog.load("media.shaped", asset="test").metadata_location
    lake.append(events([2]))
    for tags in (None, FULL):
        with pytest.raises(FrameColumnsError, match=said) as refused:
            run(lake, instance, *columns, tags=tags)
        assert "\n" not in str(refused.value)
    assert lake.catalog.load("media.shaped", asset="test").metadata_location == before
    run(lake, instance, "account", "seconds")
    assert rows(lake, "event_id, seconds") == [(1, 1), (2, 2)]


@pytest.mark.parametrize("is_there", mostly_slow([False, True]))
@pytest.mark.parametrize("on_removed", ["apply", "ignore"])
def test_a_new_key_column_that_no_row_has_yet_recomputes_the_table_or_is_refused(
    lake: Lake, instance: dg.DagsterInstance, *, on_removed: str, is_there: bool
) -> None:
    def by(*keys: str) -> None:
        mode, columns = ips.merge(on=["event_date", "event_id", *keys]), ["account", *keys]
        made = asset(*columns, mode=mode, on_removed=on_removed)
        materialize(pipeline(lake.folder, lake.spark_folder, made), instance, "shaped")

    lake.create_playback(events([1]))
    by()
    lake.append(events([2]))
    if is_there:  # as a failed or killed run leaves it
        lake.sql("ALTER TABLE lake.media.shaped ADD COLUMN seconds bigint")
    if on_removed == "apply":  # Another key recomputes everything.
        by("seconds")
        assert rows(lake, "event_id, seconds") == [(1, 1), (2, 2)]
        return
    with pytest.raises(UnknownColumnError, match=r"has no column 'seconds'.*stay beside the rows that replace them"):
        by("seconds")
    assert rows(lake, "event_id") == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("is_in_some", [False, True])
def test_partitions_are_not_replaced_by_a_new_column_that_existing_rows_lack(
    lake: Lake, instance: dg.DagsterInstance, *, is_in_some: bool
) -> None:
    def by(*columns: str, beside: F.Column | None = None, **tags: str) -> None:
        @dg.asset(
            name="shaped",
            ins={"playback": ips.incremental()},
            metadata=ips.overwrite_partitions() | ips.table("media.shaped", partition_by=columns),
        )
        def shaped(playback: ips.IcdcView) -> DataFrame:
            more = [] if beside is None else [beside]
            return playback.affected(*columns).groupBy(*columns).agg(F.count("*").alias("count"), *more)

        materialize(pipeline(lake.folder, lake.spark_folder, shaped), instance, "shaped", tags=tags)

    lake.create_playback(events([1, 2]))
    by("event_date")
    lake.append(events([3]))
    lake.sql("ALTER TABLE lake.media.shaped ADD COLUMN account string")
    if is_in_some:
        lake.append(events([11], day=1))
        by("event_date", beside=F.max("account").alias("account"))
        lake.append(events([12], day=1))
    lake.sql("ALTER TABLE lake.media.shaped ADD PARTITION FIELD account")
    with pytest.raises(UnknownColumnError, match=r"has no column 'account'.*stay beside the rows that replace them"):
        by("event_date", "account")
    by("event_date", "account", **FULL)
    counted = "SELECT event_date, count, account FROM lake.media.shaped"
    expected = "SELECT event_date, count(*), account FROM lake.media.playback GROUP BY event_date, account"
    assert Counter(map(tuple, lake.sql(counted).collect())) == Counter(map(tuple, lake.sql(expected).collect()))


def test_a_first_frame_that_no_table_can_hold_is_refused_before_the_table_is_created(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events([1]))
    with pytest.raises(FrameColumnsError, match="long_ago is of type interval"):
        run(lake, instance, "interval 1 day AS long_ago")
    with pytest.raises(FrameColumnsError, match="nothing is a struct without fields"):
        run(lake, instance, "struct() AS nothing")
    assert lake.catalog.find("media.shaped") is None


def test_a_new_table_can_hold_a_variant_and_one_of_an_older_version_is_refused_with_the_way_on(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events([1]))

    def append(*columns: str) -> None:
        made = asset(*columns, mode=ips.append())
        materialize(pipeline(lake.folder, lake.spark_folder, made), instance, "shaped", tags=FULL)

    variant = "parse_json('{\"a\": 7}') AS parsed"
    append("array(1) AS more", variant)
    assert rows(lake, "event_id, variant_get(parsed, '$.a', 'int')") == [(1, 7)]
    lake.sql("DROP TABLE lake.media.shaped")
    lake.sql("CREATE TABLE lake.media.shaped (event_id LONG, event_date DATE) USING iceberg")
    with pytest.raises(FrameColumnsError, match=r"parsed holds a variant.*property format-version to 3"):
        append(variant)
    lake.sql("ALTER TABLE lake.media.shaped SET TBLPROPERTIES ('format-version' = '3')")
    append(variant)
    assert rows(lake, "event_id, variant_get(parsed, '$.a', 'int')") == [(1, 7)]


@pytest.mark.parametrize(
    "mode", mostly_slow([ips.merge(on=["event_id"]), ips.append(), ips.append(dedup_on=["event_id"])])
)
def test_a_null_where_the_table_has_none_is_refused_with_the_columns_name(
    lake: Lake, instance: dg.DagsterInstance, mode: dict[str, object]
) -> None:
    lake.create_playback(events([1]))
    lake.sql("CREATE TABLE lake.media.shaped (event_id LONG, event_date DATE, seconds LONG NOT NULL) USING iceberg")
    made = pipeline(lake.folder, lake.spark_folder, asset("nullif(seconds, 2) AS seconds", mode=mode))
    materialize(made, instance, "shaped")
    before = lake.catalog.load("media.shaped", asset="test")
    lake.append(events([2]))
    remedy = r"ALTER TABLE .lake.\..media.\..shaped. ALTER COLUMN seconds DROP NOT NULL"
    with pytest.raises(NullValueError, match=rf"NULL in seconds, .*: {remedy}"):
        materialize(made, instance, "shaped")
    after = lake.catalog.load("media.shaped", asset="test")
    assert (after.properties, after.raw["refs"]) == (before.properties, before.raw["refs"])


def test_a_column_that_the_asset_no_longer_fills_stays_and_is_null(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events([1]))
    run(lake, instance, "account", "seconds")
    lake.append(events([2]))
    run(lake, instance, "account", "NULL AS seconds")
    assert rows(lake, "event_id, seconds") == [(1, 1), (2, None)]


def test_the_advice_for_a_missing_column_or_another_type_leads_to_a_right_table(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events([1, 2]))
    run(lake, instance, "account", "seconds")
    with pytest.raises(FrameColumnsError, match=r"DROP COLUMN account, seconds\. Then recompute everything"):
        run(lake, instance, "CAST(seconds AS string) AS seconds")
    lake.sql("ALTER TABLE lake.media.shaped DROP COLUMN account, seconds")
    run(lake, instance, "CAST(seconds AS string) AS seconds", tags=FULL)
    assert rows(lake, "event_id, seconds") == [(1, "1"), (2, "2")]


@pytest.mark.slow
def test_a_column_that_only_a_killed_run_added_can_be_dropped_without_loss(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    def kill() -> None:
        raise KeyboardInterrupt

    lake.create_playback(events([1]))
    run(lake, instance, "account")
    lake.append(events([2]))
    with at(f"after:{Effect.ALTER_TARGET}", kill), pytest.raises(KeyboardInterrupt):
        run(lake, instance, "account", "seconds")
    with pytest.raises(FrameColumnsError, match="DROP COLUMN seconds loses nothing"):
        run(lake, instance, "account")
    lake.sql("ALTER TABLE lake.media.shaped DROP COLUMN seconds")
    run(lake, instance, "account")
    assert rows(lake, "event_id, account") == [(1, "a1"), (2, "a2")]


def test_rows_are_found_by_a_nested_key_whose_fields_have_another_order_in_the_table(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.up (id int, s struct<a: int, b: int>) USING iceberg")
    lake.sql("INSERT INTO lake.media.up VALUES (1, struct(1, 2)), (2, struct(2, 1)), (3, struct(3, 4))")

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.append(remove_on=["s"]) | ips.table("media.copied"))
    def copied(up: ips.IcdcView) -> DataFrame:
        return up.added

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.merge(on=["s"]) | ips.table("media.merged"))
    def merged(up: ips.IcdcView) -> DataFrame:
        return up.added

    @dg.asset(ins={"up": ips.incremental()}, metadata=ips.merge(on=["s", "id"]) | ips.table("media.grouped"))
    def grouped(up: ips.IcdcView) -> DataFrame:
        return up.affected("s").groupBy("s", "id").count()

    @dg.asset(
        ins={"up": ips.incremental()},
        metadata=ips.combine(on=["s"], aggregates={"id": "max(id)"}) | ips.table("media.combined"),
    )
    def combined(up: ips.IcdcView) -> DataFrame:
        return up.weighted

    @dg.asset(
        ins={"up": ips.incremental()},
        metadata=ips.combine(on=["s"], aggregates={"id": "sum(id)"}, storage="partials") | ips.table("media.parts"),
    )
    def parts(up: ips.IcdcView) -> DataFrame:
        return up.weighted

    assets = (copied, merged, grouped, combined, parts)
    names = [asset.key.to_user_string() for asset in assets]
    up = ips.iceberg_asset("up", table="media.up")
    definitions = pipeline(lake.folder, lake.spark_folder, up, *assets)  # type: ignore[arg-type]  # specs work as well
    materialize(definitions, instance, *names)
    lake.sql("ALTER TABLE lake.media.up ALTER COLUMN s.b FIRST")
    steps = (
        ["DELETE FROM lake.media.up WHERE id = 1"],
        ["INSERT INTO lake.media.up VALUES (5, named_struct('b', 2, 'a', 1)), (6, named_struct('b', 3, 'a', 4))"],
        # Of two keys that are each other's mirror, one is gone, and the other one's row changes (2) or stays (6).
        ["DELETE FROM lake.media.up WHERE id IN (3, 5)", "UPDATE lake.media.up SET id = 7 WHERE id = 2"],
    )
    for step in steps:
        for statement in step:
            lake.sql(statement)
        materialize(definitions, instance, *names)
        expected = Counter(map(tuple, lake.sql("SELECT id, s.a, s.b FROM lake.media.up").collect()))
        for name in names:
            column = "_ips_sum_id" if name == "parts" else "id"
            rows = f"SELECT sum({column}), s.a, s.b FROM lake.media.{name} GROUP BY s"
            rows += " HAVING sum(_ips_rows) > 0" if name == "parts" else ""
            assert Counter(map(tuple, lake.sql(rows).collect())) == expected, name


def test_groups_are_found_by_a_nested_key_that_gets_a_field_as_rows_are_removed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.up (id int, s struct<a: int>) USING iceberg")
    lake.sql("INSERT INTO lake.media.up VALUES (1, struct(1)), (2, struct(1)), (3, struct(2))")

    @dg.asset(
        ins={"up": ips.incremental()},
        metadata=ips.combine(on=["s"], aggregates={"n": "count(*)", "last": "max(id)"}) | ips.table("media.combined"),
    )
    def combined(up: ips.IcdcView) -> DataFrame:
        return up.weighted

    up = ips.iceberg_asset("up", table="media.up")
    definitions = pipeline(lake.folder, lake.spark_folder, up, combined)  # type: ignore[arg-type]  # specs work as well
    materialize(definitions, instance, "combined")
    lake.sql("ALTER TABLE lake.media.up ADD COLUMN s.b int")
    lake.sql("DELETE FROM lake.media.up WHERE id = 2")
    lake.sql("INSERT INTO lake.media.up VALUES (4, struct(1, 1))")
    materialize(definitions, instance, "combined")
    found = lake.sql("SELECT s.a, s.b, n, last FROM lake.media.combined").collect()
    assert Counter(map(tuple, found)) == Counter([(1, None, 1, 1), (2, None, 1, 3), (1, 1, 1, 4)])


@pytest.mark.parametrize("layout", mostly_slow([{"partition_by": ["amount"]}, {"sort_by": ["amount"]}, {}]))
def test_a_table_that_can_not_take_a_narrower_type_can_be_recomputed_as_its_refusal_says(
    lake: Lake, instance: dg.DagsterInstance, layout: dict[str, list[str]]
) -> None:
    """A column by which rows are partitioned or sorted can't be dropped; the table can."""

    def create(kind: str, amount: str) -> None:
        lake.sql(f"CREATE TABLE lake.media.playback (event_id BIGINT, amount {kind}) USING iceberg")
        lake.sql(f"INSERT INTO lake.media.playback VALUES (1, {amount})")

    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.append(remove_on=["event_id"]) | ips.table("media.narrow", **layout),
    )
    def narrow(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    lake.catalog.create_namespace("media")
    definitions = pipeline(lake.folder, lake.spark_folder, narrow)
    create("DECIMAL(20, 4)", "1.5")
    materialize(definitions, instance, "narrow")
    lake.sql("DROP TABLE lake.media.playback")
    create("DECIMAL(10, 2)", "2.5")
    with pytest.raises(FrameColumnsError, match="To change the table instead") as refused:
        materialize(definitions, instance, "narrow", tags=FULL)
    change = "DROP TABLE lake.media.narrow" if layout else "ALTER TABLE lake.media.narrow DROP COLUMN amount"
    assert f": {change}. " in str(refused.value)
    lake.sql(change)
    materialize(definitions, instance, "narrow", tags=None if layout else FULL)
    lake.sql("INSERT INTO lake.media.playback VALUES (2, 3.25)")
    materialize(definitions, instance, "narrow")
    found = lake.another_session().table("lake.media.narrow").collect()
    assert sorted((row.event_id, str(row.amount)) for row in found) == [(1, "2.50"), (2, "3.25")]
