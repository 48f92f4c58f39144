"""Tables in an S3-compatible store: what runs leave there, which secrets they hide, and what failures cost."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import CatalogUnreachableError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.storage import Storage
from dagster_ips.local_spark.connect_server import ConnectServer
from tests.backfill.three_stages import ThreeStages
from tests.promises.test_hygiene import tidy_up
from tests.support.at_effect import at
from tests.support.faulty_proxy import Fault, FaultyProxy, running_faulty_proxy
from tests.support.lake import Lake, events
from tests.support.lake_catalog import choose_catalog
from tests.support.object_store import ObjectStore, running_object_store
from tests.support.pipeline import (
    agg,
    daily,
    daily_in_bites,
    expected_agg,
    expected_daily,
    materialize,
    pipeline,
    report,
)

pytestmark = pytest.mark.slow

QUICKLY = {"s3.retry.num-retries": "1", "s3.request-timeout": "5"}
"""Spark's retries and PyArrow's timeout in seconds: by default each request to a store that is down takes long."""


@pytest.fixture
def bucket(object_store: ObjectStore) -> str:
    return object_store.new_bucket()


@pytest.fixture
def properties(object_store: ObjectStore, bucket: str, tmp_path: Path) -> dict[str, str]:
    """The properties of a catalog in SQLite whose tables are in the store."""
    uri = LakeCatalog.embedded("lake", tmp_path / "lake").properties["uri"]
    return {"type": "sql", "uri": uri, "warehouse": f"s3://{bucket}/warehouse", **object_store.properties}


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[FaultyProxy]:
    with running_faulty_proxy(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def s3_lake(properties: dict[str, str], tmp_path: Path, spark_server: ConnectServer, spark_folder: Path) -> Lake:
    choose_catalog(tmp_path / "lake", properties)
    return Lake(tmp_path / "lake", spark_folder, spark_server)


@pytest.fixture
def faulty_lake(
    proxy: FaultyProxy, properties: dict[str, str], tmp_path: Path, spark_server: ConnectServer, spark_folder: Path
) -> Lake:
    """A lake in the same store, reached through the proxy."""
    choose_catalog(tmp_path / "lake", properties | QUICKLY | {"s3.endpoint": proxy.endpoint})
    return Lake(tmp_path / "lake", spark_folder, spark_server)


def test_a_whole_pipeline_follows_every_change_and_leaves_nothing_behind(
    s3_lake: Lake, instance: dg.DagsterInstance, object_store: ObjectStore, bucket: str
) -> None:
    lake, rows = s3_lake, events(range(10))
    names = ("daily", "agg", "daily_in_bites", "report")
    definitions = pipeline(lake.folder, lake.spark_folder, daily_in_bites)
    lake.create_playback(rows)
    materialize(definitions, instance, *names)
    for number in (1, 2, 3):
        rows += (late := events(range(10 * number, 10 * number + 5), day=number))
        lake.append(late)
        materialize(definitions, instance, *names)
    lake.sql("CALL lake.system.rewrite_data_files('media.playback', options => map('rewrite-all', 'true'))").collect()
    tidy_up(definitions, instance)
    rows += (late := events(range(90, 95), day=2))
    lake.append(late)
    materialize(definitions, instance, *names)
    assert lake.rows("media.daily") == expected_daily(rows)
    assert lake.rows("media.agg") == expected_agg(rows)

    lake.sql("DELETE FROM lake.media.playback WHERE event_id % 5 = 0").collect()
    rows = [row for row in rows if row[0] % 5]
    while lake.rows("media.daily_in_bites") != expected_daily(rows):
        before = lake.commits("media.daily_in_bites")
        materialize(definitions, instance, "daily_in_bites")
        assert lake.commits("media.daily_in_bites") > before
    materialize(definitions, instance, "daily", tags={"dagster_ips/mode": "full"})
    materialize(definitions, instance, "agg")
    assert lake.rows("media.agg") == expected_agg(rows)

    kept = lake.catalog.metadata_locations_by_prefix("ips", "").values()
    folders = {location.partition(f"{bucket}/")[2].rpartition("/metadata/")[0] for location in kept}
    there = {key for key in object_store.objects(bucket) if "/_ips/" in key}
    assert {key for key in there if not any(key.startswith(f"{folder}/") for folder in folders)} <= {
        "warehouse/media/_ips/"  # PyArrow's marker of the folder that all ICDC tables share
    }


def test_a_folder_of_a_store_is_removed_only_when_it_is_empty(object_store: ObjectStore, bucket: str) -> None:
    storage, table = Storage(object_store.properties), f"s3://{bucket}/_ips/table"
    for name in ("one", "two"):
        storage.write(f"{table}/metadata/{name}", b"content", table="ips.any")
    for _ in range(2):
        storage.delete(f"{table}/metadata/one", table="ips.any")
    storage.remove_empty_folder(table, table="ips.any")
    assert "_ips/table/metadata/two" in object_store.objects(bucket)
    storage.delete(f"{table}/metadata/two", table="ips.any")
    for _ in range(2):
        storage.remove_empty_folder(table, table="ips.any")
    assert not [key for key in object_store.objects(bucket) if key.startswith("_ips/table")]


def test_a_backfill_in_a_store_can_be_reverted(
    s3_lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    stages = ThreeStages(s3_lake, instance, tmp_path)
    stages.begin()
    stages.deploy(bug=False)
    plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-10")
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.follow()
    assert stages.rows() == stages.right(bug=False)
    stages.deploy(bug=True)
    assert "Reverted: 10:" in stages.says("revert", plan, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)


def pages_of_queries(lake: Lake) -> list[str]:
    """The pages of Spark's UI, which must be on, about the latest queries and their sessions."""
    ui = f"{lake.server.ui}/api/v1/applications"
    (application,) = json.loads(urllib.request.urlopen(ui).read())  # noqa: S310  # http, ours
    queries = json.loads(urllib.request.urlopen(f"{ui}/{application['id']}/sql?length=10000").read())  # noqa: S310
    pages = [f"{lake.server.ui}/SQL/execution/?id={query['id']}" for query in queries[-20:]]
    shown = [urllib.request.urlopen(page).read().decode() for page in pages]  # noqa: S310  # http, ours
    assert any("s3.access-key-id" in page for page in shown)
    return shown


@pytest.mark.parametrize("ends", ["well", "refused", "unreachable"])
def test_a_run_shows_its_keys_nowhere(  # noqa: PLR0913, PLR0917  # each is a fixture
    ends: str,
    s3_lake: Lake,
    object_store: ObjectStore,
    bucket: str,
    properties: dict[str, str],
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the secret nor the key that it belongs to is shown; both come from the environment."""
    caplog.set_level(logging.DEBUG)
    lake, rows = s3_lake, events(range(10))
    lake.create_playback(rows)
    login = {"S3_KEY": object_store.key, "S3_SECRET": object_store.secret[:: -1 if ends == "refused" else 1]}
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    address = {"s3.endpoint": "http://127.0.0.1:9"} if ends == "unreachable" else {}
    given = {"s3.access-key-id": dg.EnvVar("S3_KEY"), "s3.secret-access-key": dg.EnvVar("S3_SECRET")}
    catalog = ips.IcebergCatalog(properties=properties | QUICKLY | given | address)
    spark = ips.LocalSparkConnect(server_folder=str(lake.spark_folder), extra_jars=["aws"])
    manager = ips.IcdcIOManager(catalog=catalog, spark=spark)
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = ips.with_incremental(
        dg.Definitions(assets=[playback, daily, agg, report], resources={"io_manager": manager})
    )
    said = [repr(catalog), str(catalog), repr(catalog.open()), repr(manager)]
    if ends == "well":
        materialize(definitions, instance, "daily", "agg", "report")
        assert lake.rows("media.daily") == expected_daily(rows)
        said += pages_of_queries(lake)
    else:
        with pytest.raises(
            CatalogUnreachableError, match="ACCESS_DENIED" if ends == "refused" else "NETWORK"
        ) as caught:
            materialize(definitions, instance, "daily")
        said += [str(caught.value), repr(caught.value), str(vars(caught.value))]
        session = lake.server.session(LakeCatalog("far", catalog.open().properties).spark_configuration())
        with pytest.raises(Exception) as of_spark:  # noqa: PT011  # what it is doesn't matter here
            session.sql("SELECT * FROM far.media.playback").collect()
        said.append(str(of_spark.value))
    folder = Path(instance.root_directory)
    said += [each.read_bytes().decode(errors="replace") for each in folder.rglob("*") if each.is_file()]
    said += [object_store.content(bucket, key).decode(errors="replace") for key in object_store.objects(bucket)]
    said += [(lake.spark_folder / "server.log").read_text(), *capfd.readouterr()]
    # botocore and PyIceberg write no key to their logs either, whatever the level.
    said.append(
        "\n".join(each.getMessage() for each in caplog.records if not each.name.startswith(("boto", "urllib3")))
    )
    for text in said:
        assert object_store.secret not in text
        assert login["S3_SECRET"] not in text
        assert object_store.key not in text


def test_icdc_tables_of_read_only_sources_are_stored_elsewhere(
    s3_lake: Lake, instance: dg.DagsterInstance, object_store: ObjectStore, bucket: str, properties: dict[str, str]
) -> None:
    lake, rows = s3_lake, events(range(10))
    lake.create_playback(rows)
    ours = object_store.new_bucket()
    catalog = ips.IcebergCatalog(properties=properties, icdc_location=f"s3://{ours}/icdc")
    spark = ips.LocalSparkConnect(server_folder=str(lake.spark_folder))
    manager = ips.IcdcIOManager(catalog=catalog, spark=spark, icdc_keep_last=1)
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = ips.with_incremental(dg.Definitions(assets=[playback, daily], resources={"io_manager": manager}))
    before = {key for key in object_store.objects(bucket) if "/playback/" in key}
    materialize(definitions, instance, "daily")
    first = set(object_store.objects(ours))
    assert {key.rpartition("/")[0].count("icdc/_ips/") for key in first} == {1}
    assert {key for key in object_store.objects(bucket) if "/daily/" not in key} == before
    rows += (late := events(range(10, 20)))
    lake.append(late)
    materialize(definitions, instance, "daily")
    assert not first & set(object_store.objects(ours))  # the second run dropped the first ICDC table
    assert lake.rows("media.daily") == expected_daily(rows)


WRITES_FAIL = {
    "before:write_icdc_files": Fault.SLOW_DOWN,
    "before:create_branch": Fault.CUT,
    "before:write_branch": Fault.SLOW_DOWN,
    "before:publish": Fault.CUT,
    "after:publish": Fault.SLOW_DOWN,
    "before:drop_icdc_table": Fault.CUT,
}


def test_a_store_that_stops_accepting_writes_at_any_point_of_a_run_costs_at_most_that_run(
    faulty_lake: Lake, instance: dg.DagsterInstance, proxy: FaultyProxy
) -> None:
    """Only writes fail: Spark would retry reads for minutes before it gives up. A branch may stay, as after a kill."""
    lake, rows = faulty_lake, events(range(10))
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(rows)
    materialize(definitions, instance, "daily", "agg")
    proxy.spares_reads = True
    failures = {}
    for number, (point, fault) in enumerate(WRITES_FAIL.items(), start=1):
        rows += (late := events(range(10 * number, 10 * number + 5), day=number % 3))
        lake.append(late)
        with at(point, lambda fault=fault: proxy.shares.update({fault: 1.0})):  # type: ignore[misc]  # an untyped lambda
            try:
                materialize(definitions, instance, "daily")
            except Exception as error:  # noqa: BLE001  # Spark raises its own errors
                failures[point] = error
            finally:
                proxy.shares.clear()
        materialize(definitions, instance, "daily", "agg")
        assert lake.rows("media.daily") == expected_daily(rows), point
        assert lake.rows("media.agg") == expected_agg(rows), point
    assert failures.keys() >= {"before:write_icdc_files", "before:write_branch", "before:publish"}
    assert isinstance(failures["before:write_icdc_files"], CatalogUnreachableError)


@pytest.mark.parametrize("point", ["before:write_branch", "before:publish"])
def test_a_run_waits_for_a_store_that_comes_back(
    faulty_lake: Lake, instance: dg.DagsterInstance, proxy: FaultyProxy, point: str
) -> None:
    lake, rows = faulty_lake, events(range(10))
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(rows)

    def go() -> None:
        proxy.shares.update({Fault.CUT: 1.0})
        threading.Timer(1.5, proxy.shares.clear).start()

    with at(point, go):
        materialize(definitions, instance, "daily")
    assert lake.rows("media.daily") == expected_daily(rows)
    assert proxy.happened[Fault.CUT] > 0


def test_requests_that_fail_at_random_are_repeated_and_duplicate_nothing(
    faulty_lake: Lake, instance: dg.DagsterInstance, proxy: FaultyProxy
) -> None:
    lake, rows = faulty_lake, events(range(10))
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(rows)
    for number in range(1, 5):
        rows += (late := events(range(10 * number, 10 * number + 5), day=number % 3))
        lake.append(late)
        for _ in range(5):
            proxy.shares.update({Fault.SLOW_DOWN: 0.04, Fault.CUT: 0.03, Fault.LOST_ANSWER: 0.03})
            try:
                materialize(definitions, instance, "daily", "agg")
                break
            except Exception:  # noqa: BLE001, S112  # as above; the loop runs it again
                continue
            finally:
                proxy.shares.clear()
        assert lake.rows("media.daily") == expected_daily(rows)
        assert lake.rows("media.agg") == expected_agg(rows)
    assert set(proxy.happened) == set(Fault)


def test_a_paused_or_ended_store_is_an_error_and_a_resumed_one_works_again(
    tmp_path: Path, spark_server: ConnectServer, spark_folder: Path, instance: dg.DagsterInstance
) -> None:
    """The server itself stops: first it is paused by a signal and resumed, then it ends for good."""
    with running_object_store() as store:
        uri = LakeCatalog.embedded("lake", tmp_path / "lake").properties["uri"]
        warehouse = {"type": "sql", "uri": uri, "warehouse": f"s3://{store.new_bucket()}/warehouse"}
        choose_catalog(tmp_path / "lake", warehouse | store.properties | QUICKLY)
        lake, rows = Lake(tmp_path / "lake", spark_folder, spark_server), events(range(10))
        lake.create_playback(rows)
        definitions = pipeline(lake.folder, lake.spark_folder)
        os.kill(store.pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(CatalogUnreachableError, match="reading s3://"):
                materialize(definitions, instance, "daily")
            assert time.monotonic() - begun < 120
        finally:
            os.kill(store.pid, signal.SIGCONT)
        materialize(definitions, instance, "daily", "agg")
        assert lake.rows("media.agg") == expected_agg(rows)
        lake.append(late := events(range(10, 20)))
    with pytest.raises(CatalogUnreachableError, match="NETWORK_CONNECTION"):
        materialize(definitions, instance, "daily")
    assert late
