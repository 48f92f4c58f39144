"""On a REST catalog, which is a server: registered tables can be read, and dropping one deletes no data file."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import Capability
from pyiceberg.catalog.rest import RestCatalog as PyIcebergRestCatalog
from pyiceberg.exceptions import CommitFailedException

from dagster_ips.cli.doctor.lake_tables import catalog as doctor_of_catalog
from dagster_ips.errors import CatalogUnreachableError, NoRegisterError, UnknownTableError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.local_spark.connect_server import ConnectServer
from tests.support.lake import Lake, events
from tests.support.lake_catalog import choose_catalog
from tests.support.pipeline import expected_agg, expected_daily, materialize, pipeline
from tests.support.rest_catalog import RestCatalog, rest_catalog_in

pytestmark = pytest.mark.slow


@pytest.fixture
def rest_lake(rest_catalog: RestCatalog, tmp_path: Path, spark_server: ConnectServer, spark_folder: Path) -> Lake:
    rest_catalog.clear()
    choose_catalog(tmp_path / "lake", rest_catalog.properties)
    return Lake(tmp_path / "lake", spark_folder, spark_server)


@pytest.mark.parametrize("version", [2, 3])
def test_two_stages_follow_appends_deletes_and_compaction(
    rest_lake: Lake, instance: dg.DagsterInstance, version: int
) -> None:
    lake = rest_lake
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback()
    lake.sql(f"ALTER TABLE lake.media.playback SET TBLPROPERTIES ('format-version' = '{version}')")
    rows = []
    for i in range(3):
        new = events(range(10 * i, 10 * i + 10), day=i)
        rows += new
        values = ", ".join(f"({e}, DATE '{d}', '{a}', {s})" for e, d, a, s in new)
        lake.sql(f"INSERT INTO lake.media.playback VALUES {values}")
        materialize(definitions, instance, "daily", "agg")
        assert lake.rows("media.daily") == expected_daily(rows)
        assert lake.rows("media.agg") == expected_agg(rows)
    lake.sql("CALL lake.system.rewrite_data_files('media.playback', options => map('rewrite-all', 'true'))")
    before = lake.commits("media.daily")
    materialize(definitions, instance, "daily", "agg")
    assert lake.commits("media.daily") == before
    lake.sql("DELETE FROM lake.media.daily WHERE event_id % 2 = 0")
    kept = [row for row in rows if row[0] % 2]
    materialize(definitions, instance, "agg", tags={"dagster_ips/mode": "full"})
    assert lake.rows("media.agg") == expected_agg(kept)


def test_dropping_an_icdc_table_keeps_the_upstreams_files(rest_lake: Lake, instance: dg.DagsterInstance) -> None:
    lake = rest_lake
    definitions = pipeline(lake.folder, lake.spark_folder, icdc_keep_last=1)
    rows = events(range(10))
    lake.create_playback(rows)
    materialize(definitions, instance, "daily")
    first = lake.catalog.metadata_locations_by_prefix("ips", "")
    assert first
    for i in range(1, 4):
        rows += events(range(10 * i, 10 * i + 10))
        lake.append(rows[-10:])
        materialize(definitions, instance, "daily")
    assert not first.keys() & lake.catalog.metadata_locations_by_prefix("ips", "").keys()
    assert len(lake.rows("media.playback")) == len(rows)
    assert lake.rows("media.daily") == expected_daily(rows)


def test_a_server_that_is_gone_is_an_error_and_nothing_is_lost_when_it_is_back(
    tmp_path: Path, spark_server: ConnectServer, spark_folder: Path, instance: dg.DagsterInstance
) -> None:
    rows, served = events(range(10)), tmp_path / "served"
    served.mkdir()
    with rest_catalog_in(str(served)) as server:
        choose_catalog(tmp_path / "lake", server.properties)
        lake = Lake(tmp_path / "lake", spark_folder, spark_server)
        lake.create_playback(rows)
        definitions = pipeline(lake.folder, lake.spark_folder)
        materialize(definitions, instance, "daily", "agg")
        with pytest.raises(UnknownTableError):
            lake.catalog.load("media.nothing", asset="daily")
        rows += events(range(10, 20))
        lake.append(rows[10:])
    with pytest.raises(CatalogUnreachableError, match="lake"):
        materialize(definitions, instance, "daily")
    with rest_catalog_in(str(served), port=server.port):
        materialize(definitions, instance, "daily", "agg")
        assert lake.rows("media.daily") == expected_daily(rows)
        assert lake.rows("media.agg") == expected_agg(rows)


def test_a_server_that_cannot_register_tables_is_reported_before_a_run_and_refused_in_one(
    rest_lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, rest_catalog: RestCatalog
) -> None:
    """Servers list in their configuration which endpoints they offer; this one is made to leave out register."""
    lake = rest_lake
    fetch = PyIcebergRestCatalog._fetch_config

    def without_register(client: PyIcebergRestCatalog) -> None:
        fetch(client)
        client._supported_endpoints.discard(Capability.V1_REGISTER_TABLE)

    lake.create_playback(events(range(10)))
    choose_catalog(lake.folder, rest_catalog.properties | {"another": "client"})
    monkeypatch.setattr(PyIcebergRestCatalog, "_fetch_config", without_register)
    definitions = pipeline(lake.folder, lake.spark_folder)
    with pytest.raises(NoRegisterError, match="No row was read"):
        materialize(definitions, instance, "daily")
    assert lake.catalog.find("media.daily") is None
    (finding,) = doctor_of_catalog(definitions.resources["io_manager"])
    assert finding.fix
    assert "register" in finding.what


def test_several_tables_are_published_in_one_commit_or_not_at_all(rest_catalog: RestCatalog) -> None:
    rest_catalog.clear()
    lake = LakeCatalog("lake", rest_catalog.properties)
    lake.create_namespace("media")
    rows = pa.table({"n": [1]})
    tables = [lake.client.create_table(f"media.{name}", schema=rows.schema) for name in ("one", "two")]
    for table in tables:
        table.append(rows)
        with table.manage_snapshots() as change:
            at = table.metadata.current_snapshot_id or 0
            change.create_branch(at, "staged").create_branch(at, "main", min_snapshots_to_keep=7)
        table.append(rows, branch="staged")

    def found() -> list[TableMetadata]:
        return [lake.load(f"media.{name}", asset="test") for name in ("one", "two")]

    assert lake.commits_tables_together()
    lake.fast_forward_together(found(), "staged", pin="pin")
    done = found()
    assert [each.head_snapshot_id() for each in done] == [each.head_snapshot_id("staged") for each in done]
    assert [each.raw["refs"]["main"]["min-snapshots-to-keep"] for each in done] == [7, 7]

    for table in tables:
        table.refresh().append(rows, branch="staged")
    read = found()
    tables[1].refresh().append(rows)
    with pytest.raises(CommitFailedException):
        lake.fast_forward_together(read, "staged", pin="pin")
    with pytest.raises(CommitFailedException, match=r"main of media\.two isn't an ancestor of staged"):
        lake.fast_forward_together(found(), "staged", pin="pin")
    assert found()[0].head_snapshot_id() == done[0].head_snapshot_id()
