"""An Iceberg REST catalog for the tests: the server of Iceberg's own tests, on a free port, with SQLite.

Maven downloads its jars once. The server is stopped at the end. It listens on every address of the machine, because
Iceberg's server can't be restricted to one, so it holds only what the tests write.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyiceberg.catalog import load_catalog

from dagster_ips.local_spark.launch import cache_folder, exclusive_lock
from tests.support.object_store import REGION, ObjectStore
from tests.support.ports import free_port

_POM = Path(__file__).with_suffix(".xml")
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
_START_SECONDS = 120


@dataclass(frozen=True)
class RestCatalog:
    """A running server of the REST catalog."""

    port: int
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def properties(self) -> dict[str, str]:
        """The properties that PyIceberg and Spark need."""
        return {"type": "rest", "uri": f"http://127.0.0.1:{self.port}", **self.storage}

    def clear(self) -> None:
        """Drop every table and namespace."""
        catalog = load_catalog("lake", **self.properties)
        for namespace in catalog.list_namespaces():
            for table in catalog.list_tables(namespace):
                catalog.drop_table(table)
            catalog.drop_namespace(namespace)

    def answers(self) -> bool:
        """Whether the server answers."""
        try:
            urllib.request.urlopen(f"{self.properties['uri']}/v1/config", timeout=5).close()  # noqa: S310  # http, ours
        except (OSError, urllib.error.URLError):
            return False
        return True


@contextlib.contextmanager
def running_rest_catalog(store: ObjectStore | None = None) -> Iterator[RestCatalog]:
    """A new, empty catalog, with tables in a new bucket of ``store``, or in a new folder that is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="rest-catalog-") as folder, rest_catalog_in(folder, store) as server:
        yield server


@contextlib.contextmanager
def rest_catalog_in(folder: str, store: ObjectStore | None = None, *, port: int = 0) -> Iterator[RestCatalog]:
    """A catalog that keeps its state in ``folder``. The next server on that folder continues from it."""
    classpath = _classpath()
    server = RestCatalog(port or free_port(), store.properties if store else {})
    settings = {
        "CATALOG_REST_PORT": str(server.port),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
    }
    if store:
        settings |= _on_s3(store)
    else:
        settings["CATALOG_WAREHOUSE"] = f"file://{folder}/warehouse"
    command = ["java", "-Xmx400m", "-cp", classpath, "org.apache.iceberg.rest.RESTCatalogServer"]
    log = Path(folder, "log")
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=os.environ | settings, stdout=output, stderr=output) as process,
    ):
        try:
            _await(server, process, log)
            yield server
        finally:
            process.kill()  # The server may ignore a request to end, for example where the tests run under nohup.


def _on_s3(store: ObjectStore) -> dict[str, str]:
    return {
        "CATALOG_WAREHOUSE": f"s3://{store.new_bucket()}/warehouse",
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_CLIENT_REGION": REGION,
        "CATALOG_S3_ENDPOINT": store.endpoint,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_S3_ACCESS__KEY__ID": store.key,
        "CATALOG_S3_SECRET__ACCESS__KEY": store.secret,
    }


def _classpath() -> str:
    """The class path of the server's jars, which Maven downloads into its own repository."""
    known = cache_folder() / "rest-catalog.classpath"
    with exclusive_lock(cache_folder() / "rest-catalog.lock"):
        if not known.exists() or known.stat().st_mtime < _POM.stat().st_mtime:
            command = ["mvn", "-q", "-B", "-f", str(_POM), _PLUGIN, f"-Dmdep.outputFile={known}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                message = f"Maven did not bring the REST catalog's jars:\n{done.stdout}{done.stderr}"
                raise RuntimeError(message)
    return known.read_text()


def _await(server: RestCatalog, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not server.answers():
        if process.poll() is not None or time.monotonic() > deadline:
            message = f"The REST catalog did not start:\n{log.read_text()}"
            raise RuntimeError(message)
        time.sleep(0.1)
