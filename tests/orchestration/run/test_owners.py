"""Two assets with one table are refused when definitions load, before either removes what the other wrote."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import DeclarationError


def copying(name: str, table: dict[str, object]) -> dg.AssetsDefinition:
    @dg.asset(name=name, ins={"playback": ips.incremental()}, metadata=ips.append() | table)
    def copy(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    return copy


def plain(key: str, table: str | None = None, io_manager_key: str = "io_manager") -> dg.AssetsDefinition:
    @dg.asset(key=key.split("."), metadata=ips.table(table) if table else None, io_manager_key=io_manager_key)
    def report(playback: DataFrame) -> DataFrame:
        return playback

    return report


def load(folder: Path, *assets: dg.AssetsDefinition | dg.AssetSpec, **catalogs: ips.IcebergCatalog) -> dg.Definitions:
    catalogs = {"io_manager": ips.IcebergCatalog(folder=str(folder))} | catalogs
    managers = {key: ips.IcdcIOManager(catalog=each, spark=ips.LocalSparkConnect()) for key, each in catalogs.items()}
    playback = ips.iceberg_asset("playback", table="media.playback")
    return ips.with_incremental(dg.Definitions(assets=[playback, *assets], resources=managers))


@pytest.mark.parametrize(
    "assets",
    [
        (copying("one", ips.table("media.copy")), copying("two", ips.table("media.copy"))),
        (copying("one", ips.table("media.copy")), copying("two", {"dagster/table_name": "media.copy"})),
        (copying("one", ips.table("media.copy")), plain("media.copy")),
        (plain("report"), plain("another", "default.report")),
        (plain("one", "media.playback"),),
        (plain("one", "media.copy"), ips.iceberg_asset("two", table="media.copy")),
    ],
    ids=["two consumers", "by Dagster's name", "by the key", "by the default", "an outside table", "or another"],
)
def test_two_assets_with_one_table_are_refused_and_both_are_named(
    tmp_path: Path, assets: tuple[dg.AssetsDefinition | dg.AssetSpec, ...]
) -> None:
    with pytest.raises(DeclarationError, match="is the table of") as raised:
        load(tmp_path, *assets)
    names = [spec.key.to_user_string() for each in assets for spec in getattr(each, "specs", [each])]
    assert all(name in str(raised.value) for name in names)


def test_tables_of_one_name_in_two_catalogs_are_two_tables(tmp_path: Path) -> None:
    other = ips.IcebergCatalog(name="other", folder=str(tmp_path / "other"))
    one, two = copying("one", ips.table("media.copy")), plain("two", "media.copy", "other_io_manager")
    load(tmp_path, one, two, other_io_manager=other)


def test_names_that_differ_only_in_case_are_one_table_in_a_case_insensitive_catalog(tmp_path: Path) -> None:
    one, two = copying("one", ips.table("media.copy")), copying("two", ips.table("Media.COPY"))
    load(tmp_path, one, two)
    with pytest.raises(DeclarationError, match="is the table of"):
        load(tmp_path, one, two, io_manager=ips.IcebergCatalog(properties={"type": "Glue"}))


def test_an_asset_that_writes_nothing_may_name_the_table_that_it_maintains(tmp_path: Path) -> None:
    @dg.asset(deps=["one"], metadata={"dagster/table_name": "media.copy"})
    def compacted() -> None: ...

    load(tmp_path, copying("one", ips.table("media.copy")), compacted)
