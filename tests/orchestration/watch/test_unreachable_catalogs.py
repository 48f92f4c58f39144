"""A catalog or table that can't be read holds up only assets that need it, and the tick says which it is and why."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.orchestration.platform import resources
from tests.support.lake import events
from tests.support.ticks import tick
from tests.support.without_spark import Tables, manager_of

PATIENCE_SECONDS = 2.0
MOST_SECONDS = 3 * PATIENCE_SECONDS


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    tables = Tables(tmp_path / "lake")
    tables.create("playback")
    tables.append(events(range(3)))
    return tables


@pytest.fixture
def silent_address() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=["closed port", "silent address", "folder in a file", "silent storage"])
def broken(request: pytest.FixtureRequest, tmp_path: Path, silent_address: str) -> ips.IcebergCatalog:
    """A catalog that can't be reached, or whose tables can't be read."""
    resources._open.cache_clear()
    settings: dict[str, Any] = {"name": "broken", "patience_seconds": PATIENCE_SECONDS}
    match request.param:
        case "closed port":
            return ips.IcebergCatalog(properties={"type": "rest", "uri": "http://127.0.0.1:1"}, **settings)
        case "silent address":
            return ips.IcebergCatalog(properties={"type": "rest", "uri": silent_address}, **settings)
        case "folder in a file":
            (tmp_path / "file").write_text("not a folder")
            return ips.IcebergCatalog(folder=str(tmp_path / "file" / "lake"), **settings)
    # The catalog answers, but the storage of its tables doesn't.
    other = Tables(tmp_path / "other")
    for number in range(3):
        other.create(f"far_{number}")
    uri = other.catalog.properties["uri"]
    at = {"type": "sql", "uri": uri, "s3.endpoint": silent_address, "s3.region": "here"}
    _move_to(other, "s3://far/metadata.json")
    return ips.IcebergCatalog(properties=at | {"warehouse": "s3://far"}, **settings | {"name": "lake"})


def _move_to(tables: Tables, location: str) -> None:
    with sqlite3.connect(tables.folder / "catalog.db") as database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))


def definitions(tables: Tables, broken: ips.IcebergCatalog) -> dg.Definitions:
    """An asset that reads a readable table, another that a sensor drives, and three that read unreadable tables."""
    assets: list[Any] = [ips.iceberg_asset("playback", table="media.playback"), _reader("playback", "io_manager")]
    assets.append(ips.iceberg_asset("missing", table="media.missing"))
    for number in range(3):
        far = f"far_{number}"
        assets += [ips.iceberg_asset(far, table=f"media.{far}", io_manager_key="far"), _reader(far, "far")]
    managers = {"io_manager": manager_of(tables.folder), "far": manager_of(tables.folder, catalog=broken)}
    sensor = ips.pending_sensor("by_sensor", ["driven"])
    driven = _reader("playback", "io_manager", name="driven")
    return ips.with_incremental(dg.Definitions(assets=[*assets, driven], sensors=[sensor], resources=managers))


def _reader(upstream: str, io_manager: str, name: str = "") -> dg.AssetsDefinition:
    @dg.asset(
        name=name or f"reads_{upstream}",
        ins={"upstream": ips.incremental(upstream)},
        metadata=ips.append(),
        io_manager_key=io_manager,
    )
    def reader(upstream: ips.IcdcView) -> object:
        return upstream.added

    return reader


def test_every_sensor_continues_with_what_it_can_read_and_names_what_it_cannot(
    tables: Tables, instance: dg.DagsterInstance, broken: ips.IcebergCatalog, capfd: pytest.CaptureFixture[str]
) -> None:
    defined = definitions(tables, broken)
    defined.get_repository_def()  # made before the time of a tick is taken
    for sensor, found in (
        ("ips_outside_tables", {"playback"}),
        ("ips_pending", {"reads_playback", "driven"}),
        ("by_sensor", {"driven"}),
        ("ips_automation", {"reads_playback"}),
    ):
        started = time.monotonic()
        result = tick(defined, instance, sensor)
        assert time.monotonic() - started < MOST_SECONDS
        keys = {event.asset_key.to_user_string() for event in result.asset_events}
        keys |= {key.to_user_string() for each in result.run_requests or () for key in each.asset_selection or ()}
        assert keys == found
        said = capfd.readouterr()
        if sensor != "by_sensor":  # it needs only readable tables
            assert "far_0" in (result.skip_message or "") + said.err + said.out
