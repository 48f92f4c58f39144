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
        (model("a", "select 1 from media.stg"), "the view stg: its query can't be maintained: .*RAND"),
    ],
)
def test_a_model_that_is_left_out_says_why_and_is_read_as_a_table_that_dbt_writes(
    own: dict[str, Any], why: str
) -> None:
    view = model("stg", "select rand() as r from landing.plays_v1", materialized="view")
    found = ips.dbt_models(manifest(PLAYS, DAILY, view, own, model("b", "select * from media.a")))
    assert keys(found) == {"daily", "b"}
    assert {each.key.to_user_string() for each in found.tables} == {"landing/plays", "a"}
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
