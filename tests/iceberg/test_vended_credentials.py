"""A table whose REST server vends credentials is read, captured and tidied up with these."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from dagster_ips.errors import CatalogUnreachableError, MetadataUnreadableError, NoRegisterError
from dagster_ips.exactly_once.capture.interval_tables import IntervalTables
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.vended import Vended
from tests.support.object_store import ObjectStore
from tests.support.vending_catalog import VendingCatalog, running_vending_catalog

TABLE = "media.playback"
WRONG = {"s3.access-key-id": "nobody", "s3.secret-access-key": "a-wrong-secret"}
PREFIX = "s3://"


@pytest.fixture
def bucket(object_store: ObjectStore) -> str:
    return object_store.new_bucket()


@pytest.fixture
def server(object_store: ObjectStore, bucket: str, tmp_path: Path) -> Iterator[VendingCatalog]:
    """A catalog with one table of three rows."""
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{bucket}/warehouse"}
    writer = load_catalog("writer", type="sql", **properties, **object_store.properties)
    writer.create_namespace("media")
    rows = pa.table({"number": [1, 2, 3]})
    writer.create_table(TABLE, rows.schema).append(rows)
    with running_vending_catalog(object_store, lambda *_: {}) as catalog:
        catalog.tables[TABLE] = writer.load_table(TABLE).metadata_location
        yield catalog


def login(store: ObjectStore) -> dict[str, str]:
    return {"s3.access-key-id": store.key, "s3.secret-access-key": store.secret}


def lake_of(server: VendingCatalog, own: dict[str, str], icdc_location: str | None = None) -> LakeCatalog:
    place = {"s3.endpoint": server.store.endpoint, "s3.region": "eu-central-1"}
    return LakeCatalog("lake", {"type": "rest", "uri": server.uri, **place, **own}, icdc_location=icdc_location)


def in_config(key: dict[str, str]) -> dict[str, Any]:
    return {"config": key}


def in_credentials(key: dict[str, str], prefix: str = PREFIX) -> dict[str, Any]:
    return {"config": WRONG, "storage-credentials": [{"prefix": prefix, "config": key}]}


@pytest.mark.parametrize("own", [{}, WRONG], ids=["none", "wrong"])
@pytest.mark.parametrize("vended", [in_config, in_credentials])
def test_a_table_is_captured_and_its_icdc_table_is_dropped_with_what_the_server_vends(
    server: VendingCatalog,
    own: dict[str, str],
    vended: Callable[[dict[str, str]], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    bucket: str,
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    lake = lake_of(server, own)
    with pytest.raises((CatalogUnreachableError, MetadataUnreadableError)):
        lake.load(TABLE, asset="daily")
    server.vend = lambda *_: vended(login(server.store))
    tables = IntervalTables(lake)
    made = tables.make(TABLE, start=None, end=None)
    assert [file.record_count for file in made.changes.added] == [3]
    assert tables.names(TABLE) == [made.name]
    assert tables.remove(made.name) == TABLE
    assert not [key for key in server.store.objects(bucket) if "/_ips/" in key and not key.endswith("/")]


def test_a_credential_counts_only_for_locations_with_its_prefix(server: VendingCatalog) -> None:
    """A login for the table's folder isn't one for the folder beside it, where the client's own is used."""
    server.vend = lambda name, location: in_credentials(WRONG if name == TABLE else {}, location)
    lake = lake_of(server, login(server.store))
    with pytest.raises((CatalogUnreachableError, MetadataUnreadableError)):
        lake.load(TABLE, asset="daily")
    beside = server.tables[TABLE].partition("/playback/")[0] + "/_ips/file"
    lake.storage.write(beside, b"ours", table=TABLE)
    assert lake.storage.read(beside, table=TABLE) == b"ours"


def test_what_is_written_under_icdc_location_is_the_clients_own(server: VendingCatalog, bucket: str) -> None:
    lake = lake_of(server, login(server.store), f"s3://{bucket}/ours")
    server.vend = lambda *_: in_config(WRONG)
    lake.storage.write(f"s3://{bucket}/ours/file", b"ours", table=TABLE)
    with pytest.raises((CatalogUnreachableError, FileNotFoundError, PermissionError)):
        lake.storage.write(f"s3://{bucket}/ours-not/file", b"ours", table=TABLE)


def test_credentials_that_have_ended_are_asked_for_again_and_each_load_brings_its_own(server: VendingCatalog) -> None:
    ended, later = (str(int((time.time() + seconds) * 1000)) for seconds in (-1, 3600))
    ends = "s3.session-token-expires-at-ms"
    server.vend = lambda *_: in_config(WRONG | {ends: ended} if len(server.loads) == 1 else login(server.store))
    lake = lake_of(server, {})
    location = lake.metadata_locations([TABLE])[TABLE]
    assert lake.storage.read(location, table=TABLE)
    assert server.loads == [TABLE, TABLE]

    server.vend = lambda *_: in_config(WRONG | {ends: later})
    lake.metadata_locations([TABLE])
    with pytest.raises((CatalogUnreachableError, MetadataUnreadableError)):
        lake.storage.read(location, table=TABLE)


def test_no_vended_secret_is_shown_or_stored(
    server: VendingCatalog, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = login(server.store)
    server.vend = lambda *_: in_credentials(key)
    lake = lake_of(server, {})
    made = IntervalTables(lake).make(TABLE, start=None, end=None)
    shown = [repr(lake), repr(lake.storage), repr(Vended(key, {PREFIX: key})), str(made), caplog.text]
    server.vend = lambda *_: in_config(key | {"s3.endpoint": "http://127.0.0.1:1", "s3.connect-timeout": "1"})
    with pytest.raises(CatalogUnreachableError) as unreachable:
        lake.load(TABLE, asset="daily")
    error: BaseException | None = unreachable.value
    while error is not None:
        shown.append(repr(error))
        error = error.__cause__
    stored = [server.store.content(bucket, path) for path in server.store.objects(bucket)]
    secret = key["s3.secret-access-key"]
    assert not [text for text in shown if secret in text]
    assert not [content for content in stored if secret.encode() in content]


def test_nothing_is_written_if_a_server_does_not_offer_to_register_tables(server: VendingCatalog, bucket: str) -> None:
    server.endpoints = [
        f"GET /v1/{{prefix}}/namespaces/{{namespace}}{each}" for each in ("", "/tables", "/tables/{table}")
    ]
    before = server.store.objects(bucket)
    with pytest.raises(NoRegisterError):
        IntervalTables(lake_of(server, login(server.store))).make(TABLE, start=None, end=None)
    assert server.store.objects(bucket) == before
