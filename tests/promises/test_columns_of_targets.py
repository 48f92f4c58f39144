"""If somebody renames columns of a target, that is noticed before rows are written into the wrong columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import TargetColumnsChangedError
from dagster_ips.exactly_once.publish.publisher import Publisher
from tests.support.lake import Lake
from tests.support.pipeline import materialize, pipeline

MAKE = "SELECT k, count(*) AS n, sum(seconds) AS seconds FROM lake.media.rows GROUP BY k"
SWAP = ["RENAME COLUMN n TO other", "RENAME COLUMN seconds TO n", "RENAME COLUMN other TO seconds"]
AGAIN = ["DROP COLUMN n", "ADD COLUMN n bigint"]
IN_OTHER_CASE = ["DROP COLUMN n", "ADD COLUMN N bigint"]
MODES: dict[str, tuple[dict[str, Any], Callable[[ips.IcdcView], DataFrame]]] = {
    "combine": (
        ips.combine(on=["k"], aggregates={"n": "count(*)", "seconds": "sum(seconds)"}),
        lambda rows: rows.weighted,
    ),
    "merge": (
        ips.merge(on=["k"]),
        lambda rows: rows.affected("k").groupBy("k").agg({"*": "count", "seconds": "sum"}).toDF("k", "n", "seconds"),
    ),
}


def asset(mode: str, meanwhile: Callable[[], None] = lambda: None) -> dg.AssetsDefinition:
    write, make = MODES[mode]

    @dg.asset(name="out", ins={"rows": ips.incremental()}, metadata=write | ips.table("media.out"))
    def out(rows: ips.IcdcView) -> DataFrame:
        meanwhile()
        return make(rows)

    return out


@pytest.fixture
def rows(lake: Lake) -> Lake:
    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.rows (k string, seconds bigint) USING iceberg")
    lake.sql("INSERT INTO lake.media.rows VALUES ('a', 10), ('a', 20), ('b', 30)")
    return lake


def run(lake: Lake, instance: dg.DagsterInstance, made: dg.AssetsDefinition, mode: str | None = None) -> None:
    source: Any = ips.iceberg_asset("rows", table="media.rows")
    tags = {"dagster_ips/mode": mode} if mode else None
    materialize(pipeline(lake.folder, lake.spark_folder, made, source), instance, "out", tags=tags)


def alter(lake: Lake, statements: list[str]) -> None:
    session = lake.another_session()
    for statement in statements:
        session.sql(f"ALTER TABLE lake.media.out {statement}")


def is_right(lake: Lake) -> bool:
    session = lake.another_session()
    found = session.sql("SELECT k, n, seconds FROM lake.media.out").collect()
    return sorted(found) == sorted(session.sql(MAKE).collect())


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("changes", [SWAP, AGAIN, IN_OTHER_CASE], ids=["swapped", "again", "in other case"])
def test_names_that_moved_to_other_columns_are_refused_until_they_are_moved_back_or_a_full_run(
    rows: Lake, instance: dg.DagsterInstance, mode: str, changes: list[str]
) -> None:
    run(rows, instance, asset(mode))
    alter(rows, changes)
    rows.sql("INSERT INTO lake.media.rows VALUES ('a', 5), ('c', 7)")
    before = rows.catalog.load("media.out", asset="test").metadata_location
    with pytest.raises(TargetColumnsChangedError, match=r"different columns under the same names \([nN]") as refused:
        run(rows, instance, asset(mode))
    assert "dagster_ips/mode=full" in str(refused.value)
    assert rows.catalog.load("media.out", asset="test").metadata_location == before
    if changes is SWAP:
        alter(rows, SWAP)
        run(rows, instance, asset(mode))
        assert is_right(rows)
        alter(rows, SWAP)
    run(rows, instance, asset(mode), "full")
    assert is_right(rows)
    rows.sql("INSERT INTO lake.media.rows VALUES ('a', 5), ('d', 7)")
    run(rows, instance, asset(mode))
    assert is_right(rows)


def test_changed_target_columns_are_noticed_after_the_asset_function_ran_and_after_maintenance(
    rows: Lake, instance: dg.DagsterInstance
) -> None:
    run(rows, instance, asset("merge"))
    rows.sql("INSERT INTO lake.media.rows VALUES ('a', 5)")
    with pytest.raises(TargetColumnsChangedError):
        run(rows, instance, asset("merge", lambda: alter(rows, SWAP)))
    # Maintenance writes files with the current columns and expires the snapshot that had the earlier ones.
    rows.sql("CALL lake.system.rewrite_data_files(table => 'media.out', options => map('rewrite-all', 'true'))")
    rows.sql("CALL lake.system.expire_snapshots(table => 'media.out', older_than => TIMESTAMP '2099-01-01 00:00:00')")
    with pytest.raises(TargetColumnsChangedError):
        run(rows, instance, asset("merge"))


def test_a_dropped_column_that_comes_back_empty_gets_no_rows_until_a_full_run(
    rows: Lake, instance: dg.DagsterInstance
) -> None:
    run(rows, instance, asset("merge"))
    alter(rows, ["DROP COLUMN seconds"])
    rows.sql("INSERT INTO lake.media.rows VALUES ('a', 5)")
    for _ in range(2):
        with pytest.raises(TargetColumnsChangedError, match="seconds"):
            run(rows, instance, asset("merge"))
    run(rows, instance, asset("merge"), "full")
    assert is_right(rows)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"longest": "max(seconds)"}], ids=["fewer", "others"])
def test_hidden_columns_that_the_declared_aggregates_no_longer_need_are_empty(
    rows: Lake, instance: dg.DagsterInstance, more: dict[str, str]
) -> None:
    def run_of(aggregates: dict[str, str]) -> list[str]:
        MODES["other"] = (ips.combine(on=["k"], aggregates=aggregates), lambda rows: rows.weighted)
        run(rows, instance, asset("other"))
        return rows.another_session().table("lake.media.out").columns

    hidden = ["_ips_rows", "_ips_count_seconds"]
    assert run_of({"seconds": "sum(seconds)"}) == ["k", "seconds", *hidden]
    rows.sql("INSERT INTO lake.media.rows VALUES ('a', 5), ('c', NULL)")
    every = {"seconds": "sum(seconds)", "n": "count(*)", "known": "count(seconds)", **more}
    assert run_of(every) == ["k", "seconds", *hidden, "n", "known", *more]
    rows.sql("DELETE FROM lake.media.rows WHERE seconds = 20")
    rows.sql("INSERT INTO lake.media.rows VALUES ('a', 1), ('d', 2)")
    run_of(every)
    assert is_right(rows)
    assert set(rows.another_session().table("lake.media.out").select(*hidden).collect()) == {(None, None)}


def test_aggregates_that_were_never_published_leave_the_earlier_ones_as_they_were(
    rows: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def declare(n: str) -> None:
        aggregates = {"n": n, "seconds": "sum(seconds)"}
        MODES["other"] = (ips.combine(on=["k"], aggregates=aggregates), lambda rows: rows.weighted)

    declare("count(k)")
    run(rows, instance, asset("other"))
    declare("count(seconds)")  # needs no _ips_count_seconds
    with monkeypatch.context() as patched:
        patched.delattr(Publisher, "publish")
        with pytest.raises(AttributeError):
            run(rows, instance, asset("other"))
    declare("count(k)")
    rows.sql("DELETE FROM lake.media.rows WHERE seconds = 20")
    rows.sql("INSERT INTO lake.media.rows VALUES ('a', 1), ('d', 2)")
    run(rows, instance, asset("other"))
    assert is_right(rows)


@pytest.mark.slow
def test_a_query_continues_though_a_wider_source_type_changes_how_its_sums_are_stored(
    rows: Lake, instance: dg.DagsterInstance
) -> None:
    rows.sql("CREATE TABLE lake.media.paid (k string, price decimal(9, 2)) USING iceberg")
    rows.sql("INSERT INTO lake.media.paid VALUES ('a', 1.5), ('b', 2)")
    text = "SELECT k, avg(price) AS price FROM paid GROUP BY k"
    made = ips.sql_asset("out", text, table="media.out", refresh="incremental")
    paid: Any = ips.iceberg_asset("paid", table="media.paid")
    definitions = pipeline(rows.folder, rows.spark_folder, made, paid)
    materialize(definitions, instance, "out")
    rows.sql("ALTER TABLE lake.media.paid ALTER COLUMN price TYPE decimal(20, 2)")
    rows.sql("INSERT INTO lake.media.paid VALUES ('a', 100000000000.25)")
    materialize(definitions, instance, "out")
    session = rows.another_session()
    wanted = session.sql(text.replace("paid", "lake.media.paid")).collect()
    assert sorted(session.sql("SELECT k, price FROM lake.media.out").collect()) == sorted(wanted)
