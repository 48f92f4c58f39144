"""Which IO manager an asset has decides where its table is: in runs, and for the sensors that request them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from tests.support.lake import SCHEMA, events
from tests.support.without_spark import Tables, manager_of


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    tables = Tables(tmp_path / "lake")
    tables.catalog.create_namespace("second")
    tables.catalog.client.create_table("second.playback", SCHEMA)
    tables.append(events(range(3)), "second.playback")
    return tables


def in_manager(key: str) -> list[dg.AssetsDefinition]:
    """``playback`` and ``daily``, which reads it, with the IO manager of that key."""

    @dg.asset(io_manager_key=key)
    def playback() -> object: ...

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append(), io_manager_key=key)
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    return [playback, daily]


def requested(definitions: dg.Definitions) -> set[str]:
    result = dg.evaluate_automation_conditions(defs=definitions, instance=dg.DagsterInstance.ephemeral())
    return {each.key.to_user_string() for each in result.results if result.get_num_requested(each.key)}


def test_each_asset_is_watched_in_the_namespace_of_its_own_io_manager(tables: Tables) -> None:
    managers = {"io_manager": manager_of(tables.folder), "other": manager_of(tables.folder, default_namespace="second")}
    made = ips.with_incremental(dg.Definitions(assets=in_manager("other"), resources=managers))
    assert requested(made) == {"daily"}


@pytest.mark.parametrize("setting", ["namespace", "folder", "name"])
def test_sensors_resolve_environment_variables_as_runs_do(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("WHERE", {"namespace": "second", "folder": str(tables.folder), "name": "lake"}[setting])
    variable = dg.EnvVar("WHERE")
    catalog = ips.IcebergCatalog(
        name=variable if setting == "name" else "lake", folder=variable if setting == "folder" else str(tables.folder)
    )
    made = manager_of(
        tables.folder, catalog=catalog, default_namespace=variable if setting == "namespace" else "second"
    )
    resources = {"io_manager": made}
    assert requested(ips.with_incremental(dg.Definitions(assets=in_manager("io_manager"), resources=resources))) == {
        "daily"
    }


def test_a_namespace_in_an_unset_environment_variable_is_refused(tables: Tables) -> None:
    resources = {"io_manager": manager_of(tables.folder, default_namespace=dg.EnvVar("NOT_SET"))}
    with pytest.raises(DeclarationError, match="NOT_SET"):
        ips.with_incremental(dg.Definitions(assets=in_manager("io_manager"), resources=resources))


@pytest.mark.parametrize("is_merged", [False, True])
def test_definitions_go_through_with_incremental_once(tables: Tables, *, is_merged: bool) -> None:
    made = ips.with_incremental(
        dg.Definitions(in_manager("io_manager"), resources={"io_manager": manager_of(tables.folder)})
    )
    if is_merged:
        made = dg.Definitions.merge(dg.Definitions([dg.AssetSpec("more")]), made)
    with pytest.raises(DeclarationError, match="Merge the plain definitions"):
        ips.with_incremental(made)


def test_a_catalog_that_is_configured_at_launch_is_refused(tables: Tables) -> None:
    resources = {"io_manager": manager_of(tables.folder, catalog=ips.IcebergCatalog.configure_at_launch())}
    with pytest.raises(DeclarationError, match="configure_at_launch"):
        ips.with_incremental(dg.Definitions(assets=in_manager("io_manager"), resources=resources))


@pytest.mark.parametrize("settings", [{}, {"folder": "/lake", "properties": {"type": "glue"}}, {"folder": "~/lake"}])
def test_a_catalog_without_a_clear_place_is_refused_when_definitions_load(
    tables: Tables, settings: dict[str, Any]
) -> None:
    resources = {"io_manager": manager_of(tables.folder, catalog=ips.IcebergCatalog(**settings))}
    with pytest.raises(DeclarationError, match=r"^IcebergCatalog: "):
        ips.with_incremental(dg.Definitions(assets=in_manager("io_manager"), resources=resources))


def test_an_input_that_another_io_manager_loads_is_refused_when_definitions_load(tables: Tables) -> None:
    @dg.asset(io_manager_key="files")
    def playback() -> object: ...

    resources = {"io_manager": manager_of(tables.folder), "files": dg.FilesystemIOManager()}
    with pytest.raises(DeclarationError, match="files"):
        ips.with_incremental(dg.Definitions(assets=[playback, in_manager("io_manager")[1]], resources=resources))
