"""One configuration for all engines, whose secrets appear nowhere else."""

from __future__ import annotations

import contextlib
import errno
import logging
import pickle
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchPropertyException
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.utils.config import Config

from dagster_ips.errors import (
    CatalogUnreachableError,
    DeclarationError,
    HiveTooNewError,
    MetadataUnreadableError,
    NoRegisterError,
    UnknownTableError,
    UnsupportedTableError,
)
from dagster_ips.exactly_once.inspect.storage_probe import try_storage
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.platform.resources import IcebergCatalog
from tests.iceberg.sources import SCHEMA, TABLE, TARGET, Source

SECRET = "open-sesame"  # noqa: S105  # a password that opens nothing
UNUSABLE = {
    "a folder that can't be": {"type": "sql", "uri": f"sqlite:////dev/null/{SECRET}/catalog.db"},
    "no such driver": {"type": "sql", "uri": f"nosuchdb://ann:{SECRET}@127.0.0.1:9/lake"},
    "not a uri": {"type": "sql", "uri": f"postgresql://ann:{SECRET}@127.0.0.1:port/lake"},
    "rest": {"type": "rest", "uri": f"http://ann:{SECRET}@127.0.0.1:9", "token": SECRET},
    "unknown kind": {"type": SECRET, "uri": SECRET},
}


@pytest.mark.parametrize("properties", UNUSABLE.values(), ids=UNUSABLE)
def test_a_secret_is_in_no_error_message_traceback_log_or_repr(
    properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="dagster_ips")
    lake = LakeCatalog("lake", properties, {"token": SECRET})
    resource = IcebergCatalog(name="lake", properties=properties, spark_properties={"token": SECRET})
    said = [repr(lake), str(lake), repr(Storage(properties, "lake")), repr(resource), str(resource)]
    for call in (lambda: lake.load(TABLE, asset="daily"), lambda: lake.register(TABLE, "x"), lambda: lake.client):
        with pytest.raises((CatalogUnreachableError, DeclarationError)) as raised:
            call()
        error = raised.value
        said += [str(error), repr(error), str(pickle.loads(pickle.dumps(error)))]
        said += traceback.format_exception(error)
    assert not [text for text in [*said, caplog.text] if SECRET in text]


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"type": "rset", "uri": "http://127.0.0.1:9"}, r"doesn't know the type .*\. Set type to one of"),
        ({"warehouse": "file:///lake"}, r"show no type\. Set type to one of rest, hive, glue, dynamodb, sql"),
        ({"uri": "mysql://db.example/lake"}, r"show no type\. Set type to one of"),
        ({"type": "rest"}, "its type is rest, but it has no property uri"),
        ({"type": "sql", "uri": ""}, "its type is sql, but it has no property uri"),
        ({"type": "rest", "py-catalog-impl": "example.Catalog"}, "both the property type and py-catalog-impl"),
        ({"type": "sql", "uri": "postgres://db.example/lake"}, r"Begin uri with postgresql:// \(not postgres://\)"),
        ({"type": "sql", "uri": "postgresql+pg8000://db.example/lake"}, r"isn't installed \(.*pg8000.*pip install"),
    ],
)
def test_a_mistake_in_the_properties_is_not_taken_for_a_catalog_that_does_not_answer(
    properties: dict[str, str], said: str
) -> None:
    with pytest.raises(DeclarationError, match=f"^Catalog lake: .*{said}"):
        IcebergCatalog(properties=properties).open_for_ticks().metadata_locations([TABLE])


def test_a_catalog_on_aws_without_a_region_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: str) -> None:
        raise _NamedError

    _NamedError.__name__ = "NoRegionError"
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", refuse)
    with pytest.raises(DeclarationError, match=r"no AWS region is set for it\. Set the property client\.region\."):
        LakeCatalog("lake", {"type": "glue"}).find(TABLE)


class _NamedError(Exception):
    """Botocore's, which needn't be installed."""


def test_a_driver_that_puts_the_password_into_its_message_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str, **properties: str) -> None:
        message = f"could not connect to {properties['uri']}"
        raise ConnectionError(message)

    monkeypatch.setattr("pyiceberg.catalog.load_catalog", refuse)
    lake = LakeCatalog("lake", {"type": "sql", "uri": f"postgresql://ann:{SECRET}@127.0.0.1:9/lake"})
    with pytest.raises(
        CatalogUnreachableError, match=r"Catalog lake .* connecting to it \(ConnectionError\)"
    ) as raised:
        lake.load(TABLE, asset="daily")
    assert SECRET not in "".join(traceback.format_exception(raised.value))


class TApplicationException(Exception):  # noqa: N818  # Thrift's, which needn't be installed
    """A metastore says that it lacks a method."""


class _Loads:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def load_table(self, _: object) -> None:
        raise self.error


def located(monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str) -> None:
    monkeypatch.setattr("pyiceberg.catalog.load_catalog", lambda *_, **__: _Loads(error))
    LakeCatalog("lake", {"type": kind, "uri": "thrift://127.0.0.1:9"}).find(TABLE)


def test_a_hive_metastore_that_pyiceberg_cannot_read_is_not_called_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HiveTooNewError, match=r"Invalid method name: 'get_table'\), as since Hive 4") as raised:
        located(monkeypatch, TApplicationException("Invalid method name: 'get_table'"), "hive")
    assert "credentials" not in str(raised.value)


@pytest.mark.parametrize(
    "error", [ValueError("Glue table is missing Parameters property"), NoSuchPropertyException("Property table_type")]
)
def test_a_table_of_glue_that_is_none_of_iceberg_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(UnsupportedTableError, match=r"media\.playback.*names no Iceberg metadata"):
        located(monkeypatch, error, "glue")


def test_a_catalog_that_does_not_keep_branches_is_found_out_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, location = LakeCatalog.embedded("lake", tmp_path), f"file://{tmp_path}/tried"
    assert lake.keeps_branches("ips.tried", location)
    commit = SqlCatalog.commit_table

    def without_branches(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:  # noqa: ANN401  # PyIceberg's
        lost = [each for each in updates if getattr(each, "ref_name", "main") == "main"]
        return commit(self, table, requirements, tuple(lost))

    def onto_main(self: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:  # noqa: ANN401  # PyIceberg's
        written = any(isinstance(each, AddSnapshotUpdate) for each in updates)
        moved = [
            each.model_copy(update={"ref_name": "main"}) if written and hasattr(each, "ref_name") else each
            for each in updates
        ]
        return commit(self, table, requirements, tuple(moved))

    for broken in (without_branches, onto_main):
        monkeypatch.setattr(SqlCatalog, "commit_table", broken)
        assert not lake.keeps_branches("ips.tried", location)
    assert lake.find("ips.tried") is None
    assert [each for each in (tmp_path / "tried").rglob("*") if each.is_file()] == []


def test_another_catalog_that_keeps_a_table_in_the_same_folder_is_found(tmp_path: Path) -> None:
    lake, other = (LakeCatalog.embedded(name, tmp_path) for name in ("lake", "other"))
    for each in (lake, other):
        each.create_namespace("media")
        each.client.create_table(TABLE, SCHEMA)
    location = lake.load(TABLE, asset="daily").location
    assert lake.other_names_of(TABLE, location) == ["other"]
    other.drop(TABLE)
    assert lake.other_names_of(TABLE, location) == []


def test_the_error_of_a_missing_driver_shows_no_password() -> None:
    lake = LakeCatalog("lake", {"type": "sql", "uri": f"postgresql+pg8000://ann:{SECRET}@127.0.0.1:9/lake"})
    with pytest.raises(Exception) as raised:  # noqa: PT011  # PyIceberg's own says what to install
        lake.load(TABLE, asset="daily")
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_storages_error_that_quotes_a_signed_address_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        message = f"GET https://store.example/a?sig={SECRET}"
        raise FileNotFoundError(message)

    monkeypatch.setattr(Storage, "_io", fail)
    with pytest.raises(MetadataUnreadableError, match=r"\(FileNotFoundError\)") as raised:
        LakeCatalog.embedded("lake", tmp_path).storage.read("https://store.example/a", table=TABLE)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = LakeCatalog.embedded("lake", tmp_path)
    monkeypatch.setattr(Storage, "_io", lambda *_: _FullDisk())
    with pytest.raises(CatalogUnreachableError, match=r"writing file:///a \(OSError: No space left on device\)"):
        lake.storage.write("file:///a", b"content", table=TABLE)
    assert try_storage(lake.storage, "file:///a", table=TABLE) == "OSError: No space left on device"


def test_a_locked_database_is_named(tmp_path: Path) -> None:
    lake = LakeCatalog.embedded("lake", tmp_path)
    lake.create_namespace("media")
    hasty = LakeCatalog("lake", {**lake.properties, "uri": lake.properties["uri"].replace("=30", "=0.1")})
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CatalogUnreachableError, match=r"\(OperationalError: SQLITE_BUSY\)"):
            hasty.create_namespace("more")


class _FullDisk:
    """A FileIO that can't write."""

    def new_output(self, _: str) -> _FullDisk:
        return self

    def create(self, *, overwrite: bool) -> None:
        raise OSError(errno.ENOSPC, f"Error writing bytes to {SECRET}, overwrite {overwrite}")


def test_an_embedded_catalog_makes_its_folder(tmp_path: Path) -> None:
    lake = LakeCatalog.embedded("lake", tmp_path / "not" / "there")
    lake.create_namespace("media")
    assert lake.find(TABLE) is None


def test_tables_that_do_not_exist_are_left_out_of_the_answer(tmp_path: Path) -> None:
    lake = Source(tmp_path).lake
    found = lake.metadata_locations([TABLE, TARGET, "media.nowhere", "nowhere.playback"])
    assert found.keys() == {TABLE, TARGET}
    assert found[TABLE] == lake.client.load_table(TABLE).metadata_location


def test_a_table_with_a_dot_in_its_name_differs_from_a_table_in_a_nested_namespace(tmp_path: Path) -> None:
    lake = LakeCatalog.embedded("lake", tmp_path)
    lake.create_namespace("media")
    lake.create_namespace("media.my")
    dotted = lake.client.create_table(("media", "my.table"), SCHEMA).metadata.table_uuid
    nested = lake.client.create_table(("media", "my", "table"), SCHEMA).metadata.table_uuid
    assert lake.load("media.`my.table`", asset="daily").uuid == str(dotted)
    assert lake.load("media.my.table", asset="daily").uuid == str(nested)
    assert lake.metadata_locations_by_prefix("media", "my").keys() == {"media.`my.table`"}
    lake.drop("media.`my.table`")
    assert lake.find("media.`my.table`") is None
    assert lake.find("media.my.table") is not None


def test_a_commit_of_another_engine_is_seen_at_once(tmp_path: Path) -> None:
    source = Source(tmp_path)
    before = source.lake.load(TABLE, asset="daily").head_snapshot_id()
    LakeCatalog.embedded("lake", tmp_path).client.load_table(TABLE).append(source.table.scan().to_arrow())
    assert source.lake.load(TABLE, asset="daily").head_snapshot_id() != before


def test_a_connection_that_the_database_has_closed_meanwhile_is_opened_again(tmp_path: Path) -> None:
    lake = Source(tmp_path).lake
    assert lake.find(TABLE) is not None
    client = lake.client
    assert isinstance(client, SqlCatalog)
    with client.engine.connect() as connection:
        held = connection.connection.dbapi_connection
    assert held is not None
    held.close()
    assert lake.find(TABLE) is not None


def test_a_missing_table_is_named_with_its_consumer(tmp_path: Path) -> None:
    with pytest.raises(UnknownTableError, match=r"^daily: catalog lake has no table media\.nowhere\."):
        Source(tmp_path).lake.load("media.nowhere", asset="daily")


def test_a_view_is_named_as_a_view_if_the_catalog_stores_views_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Source(tmp_path).lake
    monkeypatch.setattr(lake.client, "view_exists", lambda identifier: identifier == ("media", "seen"))
    with pytest.raises(UnsupportedTableError, match=r"^media\.seen: it is a view"):
        lake.load("media.seen", asset="daily")


def test_spark_gets_the_login_of_a_database_separately_from_its_address() -> None:
    uri = "postgresql+psycopg2://ann:p%40ss@db.example:5433/lake"
    conf = LakeCatalog("lake", {"type": "sql", "uri": uri, "warehouse": "s3://w"}).spark_configuration()
    prefix = "spark.sql.catalog.lake"
    assert conf[f"{prefix}.uri"] == "jdbc:postgresql://db.example:5433/lake"
    assert (conf[f"{prefix}.jdbc.user"], conf[f"{prefix}.jdbc.password"]) == ("ann", "p@ss")
    assert conf[f"{prefix}.warehouse"] == "s3://w"


def test_spark_connects_to_a_database_as_securely_and_in_the_same_schema_as_pyiceberg() -> None:
    uri = "postgresql://ann:p/a?s@[::1]:5433/lake?sslmode=verify-full&options=-csearch_path%3Dice"
    said = LakeCatalog("lake", {"type": "sql", "uri": uri}).spark_configuration()
    told = {key.removeprefix("spark.sql.catalog.lake."): value for key, value in said.items()}
    assert told["uri"] == "jdbc:postgresql://[::1]:5433/lake"
    assert (told["jdbc.user"], told["jdbc.password"]) == ("ann", "p/a?s")
    assert (told["jdbc.sslmode"], told["jdbc.options"]) == ("verify-full", "-csearch_path=ice")


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("postgresql:///lake?host=db.example&port=5433", "jdbc:postgresql://db.example:5433/lake"),
        ("postgresql:///lake?host=one:1&host=two:2", "jdbc:postgresql://one:1,two:2/lake"),
        ("mysql+pymysql://ann@db.example/lake", "jdbc:mysql://db.example/lake"),
        ("sqlite+pysqlite:////lake/catalog.db?timeout=30", "jdbc:sqlite:/lake/catalog.db?busy_timeout=30000"),
    ],
)
def test_spark_finds_the_database_that_pyiceberg_uses(uri: str, address: str) -> None:
    assert (
        LakeCatalog("lake", {"type": "sql", "uri": uri}).spark_configuration()["spark.sql.catalog.lake.uri"] == address
    )


def test_a_password_in_an_address_that_cannot_be_parsed_is_not_shown() -> None:
    lake = LakeCatalog("lake", {"type": "sql", "uri": f"postgresql://ann:{SECRET}"})
    with pytest.raises(CatalogUnreachableError, match=r"reading its address \(ValueError\)") as raised:
        lake.spark_configuration()
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_spark_gets_the_settings_of_the_object_store_that_pyiceberg_uses() -> None:
    login = {"s3.access-key-id": "key", "client.secret-access-key": "secret"}
    store = {"s3.endpoint": "http://store", "s3.region": "eu", **login}
    uri, prefix = "sqlite:////lake/catalog.db", "spark.sql.catalog.lake."
    catalog = LakeCatalog("lake", {"type": "sql", "uri": uri, "warehouse": "s3://lake/warehouse", **store})
    told = {key.removeprefix(prefix): value for key, value in catalog.spark_configuration().items()}
    assert told["client.region"] == "eu"
    assert (told["s3.access-key-id"], told["s3.secret-access-key"]) == ("key", "secret")
    assert (told["s3.endpoint"], told["s3.path-style-access"]) == ("http://store", "true")
    assert told["io-impl"] == "org.apache.iceberg.io.ResolvingFileIO"
    assert catalog.spark_extras() == ("aws",)


def test_spark_gets_no_settings_of_object_stores_if_tables_are_local(tmp_path: Path) -> None:
    catalog = LakeCatalog.embedded("lake", tmp_path)
    assert not [key for key in catalog.spark_configuration() if "s3" in key or "io-impl" in key or "region" in key]
    assert catalog.spark_extras() == ()


def test_spark_looks_into_the_region_of_glue_that_pyiceberg_uses() -> None:
    conf = LakeCatalog("lake", {"type": "glue", "glue.region": "eu-west-1"}).spark_configuration()
    assert conf["spark.sql.catalog.lake.client.region"] == "eu-west-1"


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"uri": "https://catalog.example"}, "rest"),
        ({"uri": "thrift://metastore.example:9083"}, "hive"),
        ({"uri": "postgresql://db.example/lake"}, "jdbc"),
        ({"uri": "https://catalog.example", "type": "REST"}, "rest"),
        ({"type": "glue"}, "glue"),
    ],
)
def test_spark_gets_the_type_that_pyiceberg_infers(properties: dict[str, str], kind: str) -> None:
    conf = LakeCatalog("lake", {"warehouse": "s3://lake", **properties}).spark_configuration()
    assert conf["spark.sql.catalog.lake.type"] == kind
    assert ("spark.sql.catalog.lake.io-impl" in conf) == (kind in {"hive", "jdbc"})


@pytest.mark.parametrize("where", ["properties", "spark_properties"])
def test_a_catalog_that_spark_knows_by_its_implementation_has_no_type(where: str) -> None:
    """Iceberg refuses a catalog with both."""
    properties, spark = {"type": "glue", "warehouse": "s3://lake"}, {"catalog-impl": "com.example.Catalog"}
    if where == "properties":
        properties, spark = {"py-catalog-impl": "example.Catalog", "uri": "https://c", **spark}, {}
    found = LakeCatalog("lake", properties, spark).spark_configuration()
    assert found["spark.sql.catalog.lake.catalog-impl"] == "com.example.Catalog"
    assert "spark.sql.catalog.lake.type" not in found


@pytest.mark.parametrize(
    "more", [{"rest.sigv4-enabled": "true"}, {"warehouse": "arn:aws:s3tables:eu-central-1:1:bucket/b"}]
)
def test_spark_gets_the_jars_of_aws_for_rest_catalogs_of_aws(more: dict[str, str]) -> None:
    assert LakeCatalog("lake", {"type": "rest", "uri": "https://c", **more}).spark_extras() == ("aws",)


def test_spark_properties_take_precedence_over_derived_ones() -> None:
    lake = LakeCatalog("lake", {"type": "rest", "uri": "http://a"}, {"uri": "http://b"})
    assert lake.spark_configuration()["spark.sql.catalog.lake.uri"] == "http://b"


@pytest.mark.parametrize("kind", ["one query", "one by one"])
def test_tables_are_found_by_the_beginning_of_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lake = Source(tmp_path).lake
    lake.create_namespace("media.old")
    for name in ("media.play_back", "media.Play", "media.old.playback"):
        lake.client.create_table(name, SCHEMA)
    if kind == "one by one":
        monkeypatch.setattr("pyiceberg.catalog.sql.SqlCatalog", type(None))
    assert lake.metadata_locations_by_prefix("media", "play") == lake.metadata_locations(["media.play_back", TABLE])
    assert lake.metadata_locations_by_prefix("media", "play_").keys() == {"media.play_back"}
    assert lake.metadata_locations_by_prefix("media.old", "p").keys() == {"media.old.playback"}
    assert not lake.metadata_locations_by_prefix("media", "x")
    assert not lake.metadata_locations_by_prefix("nowhere", "")


def test_dropping_a_table_leaves_its_files_and_may_be_done_twice(tmp_path: Path) -> None:
    source = Source(tmp_path)
    before = source.files()
    folder = Path(urlsplit(source.table.location()).path)
    for _ in range(2):
        source.lake.drop(TABLE)
        assert source.lake.find(TABLE) is None
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("mark", "#?")
def test_a_file_is_never_taken_for_another_one_whose_path_its_own_begins_with(tmp_path: Path, mark: str) -> None:
    storage = LakeCatalog.embedded("lake", tmp_path).storage
    (tmp_path / "plays").write_text("other")
    (tmp_path / f"plays{mark}2").write_text("own")
    location = f"file://{tmp_path}/plays{mark}2"
    calls: list[Callable[[], object]] = [
        lambda: storage.read(location, table=TABLE),
        lambda: storage.open(location, table=TABLE),
        lambda: storage.exists(location, table=TABLE),
        lambda: storage.delete(location, table=TABLE),
    ]
    for call in calls:
        with pytest.raises(UnsupportedTableError, match=r"contains # or \?, from where on PyIceberg ignores it"):
            call()
    assert (tmp_path / "plays").read_text() == "other"


@pytest.mark.parametrize("name", ["C#", "what?"])
def test_a_folder_that_pyiceberg_would_cut_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeclarationError, match="another folder"):
        IcebergCatalog(folder=str(tmp_path / name / "lake")).open()


@pytest.mark.parametrize("folder", ["", "~/lake", "s3://bucket/lake", "file:///data/lake"])
def test_a_folder_that_is_no_path_on_this_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeclarationError, match="isn't a path on this machine"):
        IcebergCatalog(folder=folder).open().find(TABLE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["my lake", "50% off", "a%20b", "l\u00e4ke", "a+b&c=d;e"])
def test_a_folder_may_have_any_other_name(tmp_path: Path, name: str) -> None:
    source = Source(tmp_path / name)
    lake = IcebergCatalog(folder=str(tmp_path / name)).open()
    assert lake.load(TABLE, asset="daily").uuid == source.lake.load(TABLE, asset="daily").uuid
    assert lake.spark_configuration()["spark.sql.catalog.lake.uri"].startswith(f"jdbc:sqlite:{tmp_path}/{name}/")


def test_a_file_may_be_deleted_twice_and_a_folder_is_removed_only_if_it_is_empty(tmp_path: Path) -> None:
    storage = LakeCatalog.embedded("lake", tmp_path).storage
    folder = f"file://{tmp_path}/a/folder"
    for name in ("one", "two"):
        storage.write(f"{folder}/{name}", b"content", table=TABLE)
    for _ in range(2):
        storage.delete(f"{folder}/one", table=TABLE)
    storage.remove_empty_folder(folder, table=TABLE)
    assert [path.name for path in (tmp_path / "a" / "folder").iterdir()] == ["two"]
    storage.delete(f"{folder}/two", table=TABLE)
    for _ in range(2):
        storage.remove_empty_folder(folder, table=TABLE)
    assert not list((tmp_path / "a").iterdir())


def test_what_pyiceberg_is_configured_with_elsewhere_reaches_spark_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ("s3.endpoint: http://store", "type: rest", "uri: http://another", "auth:", "  type: noop")
    (tmp_path / ".pyiceberg.yaml").write_text("\n    ".join(("catalog:\n  prod:", *there)))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", "s3://lake/warehouse")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__PY_CATALOG_IMPL", "no.such.class")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    own = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    lake = LakeCatalog("prod", own)
    prefix = "spark.sql.catalog.prod."
    spark = {key.removeprefix(prefix): value for key, value in lake.spark_configuration().items()}
    for told in (spark, lake.client.properties, lake.storage.properties):
        assert (told["warehouse"], told["s3.endpoint"]) == ("s3://lake/warehouse", "http://store")
    assert (spark["type"], spark["uri"]) == ("jdbc", f"jdbc:sqlite:{tmp_path}/catalog.db?busy_timeout=30000")
    assert "auth" not in spark
    assert not {"warehouse", "s3.endpoint"} & LakeCatalog("lake", own).properties.keys()


@pytest.mark.parametrize("kind", ["glue", "Glue"])
def test_spark_gets_the_jars_of_aws_for_glue(kind: str) -> None:
    assert LakeCatalog("lake", {"type": kind}).spark_extras() == ("aws",)


def test_a_catalog_that_turns_out_not_to_register_tables_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(SqlCatalog, "register_table", refuse)
    with pytest.raises(NoRegisterError):
        LakeCatalog.embedded("lake", tmp_path).register(TABLE, "file:///nowhere")


def test_a_catalog_that_allows_no_new_namespaces_takes_tables_in_those_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(tmp_path)
    source.lake.create_namespace("ips")

    def refuse(*_: object) -> None:
        raise ForbiddenError

    monkeypatch.setattr(SqlCatalog, "create_namespace", refuse)
    source.lake.register("ips.copy", source.table.metadata_location)
    assert source.lake.find("ips.copy") is not None
    source.lake.create_namespace("ips")
    with pytest.raises(CatalogUnreachableError, match="ForbiddenError"):
        source.lake.create_namespace("other")
