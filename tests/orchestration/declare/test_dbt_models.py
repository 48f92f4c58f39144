"""Which models of a dbt project become assets, with which keys and tables, and why the others don't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from tests.support.dbt_manifest import manifest, model, seed, source

PLAYS = source("landing", "plays", "landing.plays_v1")
DAILY = model("daily", "select day, count(*) as plays from landing.plays_v1 group by day", partition_by="day")


def keys(found: ips.DbtModels) -> set[str]:
    return {asset.key.to_user_string() for asset in found.assets}


def spec(found: ips.DbtModels, key: str) -> dg.AssetSpec:
    (asset,) = [each for each in found.assets if each.key == dg.AssetKey.from_user_string(key)]
    (only,) = asset.specs
    return only


def test_models_get_the_keys_of_dagster_dbt_and_the_tables_they_read_are_found() -> None:
    found = ips.dbt_models(
        manifest(
            PLAYS,
            DAILY,
            model("top", "select day from media.daily where plays > 3", schema="media_gold") | {"meta": {}},
            model("named", "select day from `MEDIA`.`daily`", meta={"dagster": {"asset_key": ["gold", "named"]}}),
            model("extra", "select code from media.countries", schema="media_x")
            | {"config": model("", "")["config"] | {"schema": "x"}},
            seed("countries"),
        )
    )
    assert keys(found) == {"daily", "top", "gold/named", "x/extra"}
    assert found.left_out == {}
    assert {each.key.to_user_string(): each.metadata["dagster/table_name"] for each in found.tables} == {
        "landing/plays": "landing.plays_v1",
        "countries": "media.countries",
    }
    assert spec(found, "top").metadata["dagster/table_name"] == "media_gold.top"
    assert {each.asset_key for each in spec(found, "gold/named").deps} == {dg.AssetKey("daily")}
    assert found.exclude == "media.daily media.top media.named media.extra"


def test_queries_of_views_are_put_into_the_queries_of_models_that_read_them() -> None:
    view = model("stg", "select day from landing.plays_v1 where day > 3 -- the rest", materialized="view")
    above = model("above", "select s.day from media.stg s", materialized="view")
    found = ips.dbt_models(manifest(PLAYS, view, above, model("days", "select distinct day from media.above")))
    assert keys(found) == {"days"}
    assert {each.asset_key for each in spec(found, "days").deps} == {dg.AssetKey(["landing", "plays"])}
    assert set(found.left_out) == {"stg", "above"}


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (model("a", "select 1 from landing.plays_v1", materialized="incremental"), "it is incremental"),
        (model("a", "select 1 from landing.plays_v1", materialized="materialized_view"), "as materialized_view"),
        (model("a", "def model(): ...", language="python"), "written in python"),
        (model("a", None), "no compiled SQL for it"),
        (model("a", "select current_date() as d from landing.plays_v1"), "CURRENT_DATE"),
        (model("a", "select 1 from other.place"), "it reads other.place, which isn't in the manifest"),
        (model("a", "select 1 from landing.plays_v1", file_format="delta"), "format is delta, not Iceberg"),
        (model("a", "select 1 from landing.plays_v1", **{"post-hook": [{"sql": "x"}]}), "it has post-hook"),
        (model("a", "select 1 from landing.plays_v1", grants={"select": ["b"]}), "it has grants"),
        (model("a", "select 1 from landing.plays_v1", contract={"enforced": True}), "enforced contract"),
        (model("a", "select 1 from landing.plays_v1", partition_by={"field": "day"}), "not columns"),
        *(
            (model("a", "select 1 from landing.plays_v1", **{name: "x"}), f"it has {name}")
            for name in ("location_root", "clustered_by", "options", "row_filter", "lf_grants", "catalog_name")
        ),
        (
            model("a", "select 1 from landing.plays_v1") | {"columns": {"day": {"column_mask": {"function": "f"}}}},
            "it has column_mask",
        ),
        (model("a", "select 1 from media.stg"), "the view stg: its query can't be maintained: .*RAND"),
    ],
)
def test_a_model_that_is_left_out_says_why_and_is_read_as_a_table_that_dbt_writes(
    own: dict[str, Any], why: str
) -> None:
    view = model("stg", "select rand() as r from landing.plays_v1", materialized="view")
    found = ips.dbt_models(manifest(PLAYS, DAILY, view, own, model("b", "select * from media.a")))
    is_iceberg = "delta" not in why and "materialized_view" not in why
    assert keys(found) == {"daily", "b"} if is_iceberg else {"daily"}
    assert {each.key.to_user_string() for each in found.tables} == {"landing/plays", *(["a"] if is_iceberg else [])}
    assert is_iceberg or found.left_out["b"].startswith("it reads media.a, ")
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found.left_out["a"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"nodes": {}}, "isn't a dbt manifest"),
        (manifest(PLAYS, DAILY, adapter="postgres"), "compiled for postgres"),
        (manifest(PLAYS, model("a", None)), "no compiled SQL"),
    ],
)
def test_anything_but_a_compiled_manifest_is_refused_with_what_to_do(
    given: dict[str, Any], why: str, tmp_path: Path
) -> None:
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(given))
    for each in (given, file, str(file)):
        with pytest.raises(DeclarationError, match=why) as refused:
            ips.dbt_models(each)
        assert "dbt compile" in str(refused.value)


def test_a_file_that_is_missing_or_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{")
    for name in ("none.json", "odd.json"):
        with pytest.raises(DeclarationError, match=f"{name} can't be read"):
            ips.dbt_models(tmp_path / name)


def test_a_table_that_names_no_format_has_the_one_of_dbts_adapter() -> None:
    by_default = model("a", "select day from landing.plays_v1", file_format=None)
    as_iceberg = model("b", "select day from landing.plays_v1", file_format="delta", table_format="iceberg")
    assert keys(ips.dbt_models(manifest(PLAYS, by_default))) == {"a"}
    for adapter, default in (("databricks", "delta"), ("glue", "parquet")):
        found = ips.dbt_models(manifest(PLAYS, by_default, as_iceberg, adapter=adapter))
        assert keys(found) == {"b"}
        assert found.left_out == {"a": f"its table format is {default}, not Iceberg"}


def test_glues_properties_are_the_tables() -> None:
    found = ips.dbt_models(
        manifest(PLAYS, model("a", "select day from landing.plays_v1", table_properties={"p": 1}), adapter="glue")
    )
    assert spec(found, "a").metadata["dagster_ips/table"]["properties"] == {"p": "1"}


SEED = seed("codes") | {"config": seed("codes")["config"] | {"schema": "ref"}}


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (
            [source("ref", "codes", "raw.codes"), SEED, model("b", "select x from media.codes")],
            "media.codes and raw.codes would both be the asset ref/codes",
        ),
        (
            [
                source("ref", "codes", "raw.codes"),
                model("codes", "select x from landing.plays_v1")
                | {"config": SEED["config"] | {"materialized": "table"}},
                model("b", "select x from media.codes"),
            ],
            "media.codes and raw.codes would both be the asset ref/codes",
        ),
        (
            [
                source("ref", "codes", "`one`.raw.codes"),
                source("ref", "others", "`two`.raw.codes"),
                model("b", "select x from two.raw.codes"),
            ],
            "one.raw.codes and two.raw.codes would both be the table raw.codes",
        ),
    ],
)
def test_two_tables_are_never_taken_for_one(nodes: list[dict[str, Any]], why: str) -> None:
    read = nodes[0]["relation_name"]
    found = ips.dbt_models(manifest(PLAYS, DAILY, *nodes, model("a", f"select x from {read}")))
    assert {"a": found.left_out["a"], "b": found.left_out["b"]} == {"a": why, "b": why}
    assert keys(found) == {"daily"}


def test_a_table_in_another_catalog_cant_be_followed() -> None:
    here = model("a", "select x from raw.sales.orders") | {"relation_name": "`main`.`sales`.`a`"}
    found = ips.dbt_models(manifest(source("sales", "orders", "`raw`.`sales`.`orders`"), here))
    assert found.left_out == {"a": "it and the tables that it reads are in several catalogs: main, raw"}


def test_names_of_many_parts_are_those_of_nested_namespaces() -> None:
    here = model("a", "select o.x from lake.eu.sales.orders o join lake.us.sales.orders using (x)")
    found = ips.dbt_models(
        manifest(
            source("eu", "orders", "lake.eu.sales.orders"),
            source("us", "orders", "lake.us.sales.orders"),
            here | {"relation_name": "lake.eu.sales.a"},
        )
    )
    assert {each.key.to_user_string(): each.metadata["dagster/table_name"] for each in found.tables} == {
        "eu/orders": "eu.sales.orders",
        "us/orders": "us.sales.orders",
    }
    assert spec(found, "a").metadata["dagster/table_name"] == "eu.sales.a"
    assert {each.asset_key.to_user_string() for each in spec(found, "a").deps} == {"eu/orders", "us/orders"}


def test_a_source_that_is_a_models_table_is_the_model() -> None:
    found = ips.dbt_models(
        manifest(PLAYS, DAILY, source("own", "x", "media.daily"), model("b", "select * from media.daily"))
    )
    assert {each.asset_key for each in spec(found, "b").deps} == {dg.AssetKey("daily")}


def test_a_model_that_dagster_cant_declare_is_left_out_alone() -> None:
    own = "select day from landing.plays_v1 where day > (select max(day) from media.own)"
    named = [model(name, "select day from landing.plays_v1") for name in ("type", "a__b", "a-b", "a_b")]
    named[2] |= {"relation_name": "media.`a-b`"}
    found = ips.dbt_models(manifest(PLAYS, DAILY, model("own", own), *named))
    assert keys(found) == {"daily", "a__b"}
    assert "reads its own table" in found.left_out["own"]
    assert '"type" is not a valid name in Dagster' in found.left_out["type"]
    both = "media.a-b and media.a_b would both be the operation a_b in Dagster"
    assert {found.left_out["a-b"], found.left_out["a_b"]} == {both}


@pytest.mark.parametrize("name", ["type", "input", "class", "my.table", "größe"])
def test_a_source_may_have_any_name(name: str) -> None:
    found = ips.dbt_models(
        manifest(source("landing", name, f"landing.`{name}`"), model("a", f"select x from landing.`{name}`"))
    )
    assert {each.asset_key for each in spec(found, "a").deps} == {dg.AssetKey(["landing", name])}


def test_models_with_the_same_name_are_told_apart() -> None:
    versions = [
        model("a", sql)
        | {"version": number, "alias": f"a_v{number}", "fqn": ["media", "a", f"v{number}"]}
        | {"relation_name": f"media.a_v{number}"}
        for number, sql in ((1, "select rand() as r from landing.plays_v1"), (2, "select day from landing.plays_v1"))
    ]
    packages = [
        model("p", "select uuid() as r from landing.plays_v1", schema=package) | {"fqn": [package, "p"]}
        for package in ("one", "two")
    ]
    found = ips.dbt_models(manifest(PLAYS, *versions, *packages))
    assert keys(found) == {"a_v2"}
    assert set(found.left_out) == {"media.a.v1", "one.p", "two.p"}
    assert found.exclude == "media.a.v2"


def test_what_dbt_is_to_leave_out_has_no_more_than_the_models_taken() -> None:
    inner = model("inner", "select rand() as r from landing.plays_v1") | {"fqn": ["media", "daily", "inner"]}
    assert ips.dbt_models(manifest(PLAYS, DAILY, inner)).exclude == "media.daily,file:daily.sql"


MACROS = {
    "macro.dbt_utils.get_column_values": {"depends_on": {"macros": ["macro.dbt.statement"]}},
    "macro.media.pivot": {"depends_on": {"macros": ["macro.dbt_utils.get_column_values"]}},
    "macro.media.stamp": {"macro_sql": "{{ return(run_started_at) }}"},
    "macro.media.plain": {"depends_on": {"macros": ["macro.dbt.concat"]}},
    "macro.dbt.get_intervals_between": {"depends_on": {"macros": ["macro.dbt.statement"]}},
}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"raw_code": "select '{{ run_started_at }}' as at"}, "run_started_at"),
        ({"raw_code": "{% set day = modules.datetime.date.today() %} select 1"}, r"modules\.datetime"),
        ({"depends_on": {"macros": ["macro.media.pivot"]}}, "its macro pivot"),
        ({"depends_on": {"macros": ["macro.dbt.run_query"]}}, "its macro run_query"),
        ({"depends_on": {"macros": ["macro.media.stamp"]}}, "its macro stamp"),
        ({"depends_on": {"macros": ["macro.media.plain", "macro.dbt.get_intervals_between"]}}, None),
        ({"raw_code": "select invocation_id from {{ source('landing', 'plays') }}"}, None),
    ],
)
def test_sql_that_was_another_at_another_time_is_left_to_dbt(more: dict[str, Any], why: str | None) -> None:
    inner = model("inner", "select day from landing.plays_v1", materialized="ephemeral") | more
    view = model("stg", "select day from landing.plays_v1", materialized="view") | more
    above = model("above", "select day from landing.plays_v1") | {"depends_on": {"nodes": ["model.media.inner"]}}
    found = ips.dbt_models(
        manifest(PLAYS, DAILY | more, inner, above, view, model("b", "select * from media.stg")) | {"macros": MACROS}
    )
    if why is None:
        assert keys(found) == {"daily", "above", "b"}
        return
    assert keys(found) == set()
    for name in ("daily", "above", "b"):
        with pytest.raises(AssertionError, match=f"its SQL depends on when it was compiled, because of {why}"):
            raise AssertionError(found.left_out[name])


@pytest.mark.parametrize("wrong", [{"refresh": "incremntal"}, {"partitions_def": dg.StaticPartitionsDefinition(["a"])}])
def test_a_wrong_argument_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError):
        ips.dbt_models(manifest(PLAYS, DAILY), **wrong)
