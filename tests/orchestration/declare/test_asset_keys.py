"""An asset with a key of several parts can be named in each way that Dagster has for it, everywhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declare.consumers import capturing_consumers
from dagster_ips.orchestration.run import own_sql


def loaded(assets: Sequence[Any], **more: Any) -> dg.Definitions:  # noqa: ANN401  # of many types
    io_manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder="/unused"), spark=ips.LocalSparkConnect())
    made = ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": io_manager}, **more))
    dg.Definitions.validate_loadable(made)
    return made


def reading(upstream: Any) -> dg.AssetsDefinition:  # noqa: ANN401  # of many types
    @dg.asset(
        key_prefix="media",
        ins={"playback": ips.incremental(upstream), "title": ips.lookup("media/title")},
        metadata=ips.append(),
    )
    def daily(playback: ips.IcdcView, title: Any) -> object:  # noqa: ANN401  # a DataFrame
        return playback.added.join(title)

    return daily


PLAYBACK = ips.iceberg_asset("media/playback", table="media.playback")
TITLE = ips.iceberg_asset(["media", "title"], table="media.title")
DAILY = reading("media/playback")
NAMES = {
    "text": ("media/playback", "media/daily"),
    "parts": (["media", "playback"], ["media", "daily"]),
    "key": (dg.AssetKey(["media", "playback"]), dg.AssetKey(["media", "daily"])),
    "definition": (PLAYBACK, DAILY),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_capture_takes_its_upstream_by_each_of_its_names(names: tuple[Any, Any]) -> None:
    @dg.asset(deps=[ips.incremental_dep(PLAYBACK)])
    def copy() -> None: ...

    (consumer,) = capturing_consumers(copy, {copy.key: {}}, "media")
    own_sql._require_declared(consumer, (names[0],))
    with pytest.raises(DeclarationError, match="it captures media/daily, but declares media/playback"):
        own_sql._require_declared(consumer, (names[1],))


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_an_asset_is_found_by_each_of_its_names(names: tuple[Any, Any]) -> None:
    upstream, name = names

    @ips.audit(asset=name)
    def has_rows(rows: Any) -> bool:  # noqa: ANN401  # a DataFrame
        return bool(rows.count())

    @dg.asset(automation_condition=ips.valid_through(name, every=dt.timedelta(days=1)))
    def best() -> None: ...

    @dg.asset(deps=[ips.incremental_dep(upstream)])
    def copy() -> None: ...

    made = loaded(
        [
            PLAYBACK,
            TITLE,
            reading(upstream),
            best,
            copy,
            ips.sql_asset("q", "SELECT a FROM p", sources={"p": upstream}),
        ],
        asset_checks=[has_rows, ips.proof(name)],
        sensors=[ips.pending_sensor("hourly", [name])],
    )
    checked = {each.to_user_string() for each in made.resolve_asset_graph().asset_check_keys}
    assert {"media/daily:has_rows", "media/daily:proof"} <= checked


@pytest.mark.parametrize(
    "asset", [ips.sql_asset("x", "SELECT a FROM media.playback"), reading(["media", "playback"])], ids=["sql", "python"]
)
def test_the_advice_on_a_missing_upstream_can_be_followed(asset: dg.AssetsDefinition) -> None:
    with pytest.raises(DeclarationError, match=r'Add iceberg_asset\(\["media", "playback"\], table="\.\.\."\)'):
        loaded([TITLE, asset])
    loaded([TITLE, asset, ips.iceberg_asset(["media", "playback"], table="media.playback")])


def test_a_single_text_is_not_a_list_of_assets() -> None:
    with pytest.raises(DeclarationError, match=r"^s: .*each letter would count as an asset\. Write \['media/daily'\]"):
        ips.pending_sensor("s", "media/daily")


def test_an_error_names_an_outside_table_by_its_key() -> None:
    with pytest.raises(DeclarationError, match=r"^a/b: its table 'b' has no namespace"):
        ips.iceberg_asset(["a", "b"], table="b")
