"""Passwords, keys and tokens of a catalog are nowhere in what a run leaves behind, whether it works or not."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import sqlite3
import threading
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.lake_catalog import choose_catalog
from tests.support.pipeline import agg, daily, materialize, report
from tests.support.rest_catalog import RestCatalog

pytestmark = pytest.mark.slow

TOKEN, KEY, PASSWORD = "planted-token-8a1f", "planted-key-77b2", "planted-password-3c9d"  # the tests search for these
PLANTED = (TOKEN, KEY, PASSWORD)


class Refusing(http.server.BaseHTTPRequestHandler):
    """A catalog that refuses everybody, and echoes to PyIceberg the headers that it got."""

    def do_GET(self) -> None:  # the base class's name
        told = str(self.headers) if "PyIceberg" in self.headers.get("User-Agent", "") else "who are you?"
        said = json.dumps({"error": {"message": told, "type": "NotAuthorized", "code": 401}})
        self.send_response(401)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(said.encode())

    do_POST = do_HEAD = do_GET  # noqa: N815  # as above

    def log_message(self, *_: object) -> None:  # the base class would write to stderr
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    """The address of a catalog that refuses everybody."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def definitions(properties: dict[str, str], spark_folder: Path) -> dg.Definitions:
    catalog = ips.IcebergCatalog(properties=properties, spark_properties={"header.X-Key": KEY})
    assert not any(planted in repr(catalog) + str(catalog) for planted in PLANTED)
    spark = ips.LocalSparkConnect(server_folder=str(spark_folder))
    manager = ips.IcdcIOManager(catalog=catalog, spark=spark, icdc_keep_last=3)
    playback = ips.iceberg_asset("playback", table="media.playback")
    return ips.with_incremental(
        dg.Definitions(assets=[playback, daily, agg, report], resources={"io_manager": manager})
    )


def secret_properties(uri: str) -> dict[str, str]:
    return {
        "type": "rest",
        "uri": uri,
        "token": TOKEN,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": KEY,
        "jdbc.password": PASSWORD,
    }


def require_clean(where: str, *texts: str | bytes) -> None:
    for text in texts:
        content = text if isinstance(text, bytes) else text.encode()
        for planted in PLANTED:
            assert planted.encode() not in content, f"{planted} is in {where}"


def require_folder_clean(folder: Path) -> None:
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert files
    for file in files:
        require_clean(str(file), file.read_bytes())
        if file.suffix == ".db":
            require_clean(f"compressed values of {file}", *compressed_values(file))


def compressed_values(database: Path) -> Iterator[bytes]:
    """What Dagster stores in a form that doesn't show it, such as snapshots of jobs with their resources' settings."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                for value in row:
                    with contextlib.suppress(zlib.error, TypeError):
                        yield zlib.decompress(value)


def all_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))


def test_what_dagster_stores_of_a_job_is_searched(tmp_path: Path) -> None:
    """A setting that Dagster does store is found."""

    class Server(dg.ConfigurableResource):
        token: str

    @dg.op(required_resource_keys={"server"})
    def work() -> None: ...

    @dg.job(resource_defs={"server": Server(token=TOKEN)})
    def job() -> None:
        work()

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job.execute_in_process(instance=instance)
    with pytest.raises(AssertionError, match="compressed values"):
        require_folder_clean(tmp_path)


def test_a_successful_run_leaves_no_secret_anywhere(  # noqa: PLR0913, PLR0917  # each is a fixture
    rest_catalog: RestCatalog,
    lake: Lake,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    rest_catalog.clear()
    choose_catalog(tmp_path / "elsewhere", rest_catalog.properties)
    other = Lake(tmp_path / "elsewhere", lake.spark_folder, lake.server)
    other.create_playback(events(range(10)))
    defs = definitions(secret_properties(rest_catalog.properties["uri"]), lake.spark_folder)
    materialize(defs, instance, "daily", "agg", "report")
    other.append(events(range(10, 20), day=1))
    materialize(defs, instance, "daily", "agg", "report")
    assert len(other.rows("media.daily")) == 20
    require_folder_clean(Path(instance.root_directory))
    for table in other.catalog.client.list_tables("ips") + other.catalog.client.list_tables("media"):
        location = other.catalog.client.load_table(table).metadata_location
        require_folder_clean(Path(location.removeprefix("file:").removeprefix("//")).parent)
    require_clean("Spark's log", (lake.spark_folder / "server.log").read_bytes())
    require_clean("output", *capfd.readouterr(), caplog.text)


@pytest.mark.parametrize("problem", ["refused", "unreachable"])
def test_a_failed_run_shows_no_secret(  # noqa: PLR0913, PLR0917  # as above
    problem: str,
    refusing: str,
    lake: Lake,
    instance: dg.DagsterInstance,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    uri = refusing if problem == "refused" else "http://127.0.0.1:9"
    defs = definitions(secret_properties(uri), lake.spark_folder)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # any error will do
        materialize(defs, instance, "daily")
    require_clean("the error", all_of(caught.value))
    require_folder_clean(Path(instance.root_directory))
    require_clean("output", *capfd.readouterr(), caplog.text)


@pytest.mark.parametrize("problem", ["refused", "unreachable"])
def test_sparks_own_error_shows_no_secret(problem: str, refusing: str, lake: Lake) -> None:
    uri = refusing if problem == "refused" else "http://127.0.0.1:9"
    catalog = ips.IcebergCatalog(name="far", properties=secret_properties(uri)).open()
    session = lake.server.session(catalog.spark_configuration())
    with pytest.raises(Exception) as caught:  # noqa: PT011  # as above
        session.sql("SELECT * FROM far.media.playback").collect()
    require_clean("the error", all_of(caught.value))
