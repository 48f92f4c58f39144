"""Fixtures for the tests of every room: one warm Spark, and a new lake for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from hypothesis import settings

from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.local_spark.connect_server import WITH_UI, ConnectServer, ensure_connect_server, stop_connect_server
from dagster_ips.local_spark.jars import EXTRAS
from tests.support.backends import POSTGRES, SQLITE, dagster_home
from tests.support.lake import Lake
from tests.support.lake_catalog import choose_catalog
from tests.support.object_store import ObjectStore, running_object_store
from tests.support.postgres import Postgres, running_postgres
from tests.support.quick_spark import ensure_quick_server
from tests.support.quick_storage import make_storage_quick
from tests.support.rest_catalog import RestCatalog, running_rest_catalog
from tests.support.spark_cluster import SparkCluster, running_spark_cluster
from tests.support.spark_resource import choose_server_config

make_storage_quick()
# No test asserts a time: on a busy machine, an example may take many times as long.
settings.register_profile("unhurried", settings.default, deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The catalog and the storage of the fixture ``lake``, where its Spark runs tasks, and how much is random."""
    parser.addoption("--catalog", choices=["embedded", "postgres", "rest"], default="embedded")
    parser.addoption("--storage", choices=["local", "s3"], default="local")
    parser.addoption("--spark", choices=["local", "cluster"], default="local")
    parser.addoption("--captures", type=int, default=30, help="of random lives of what is put together")


# The soak's code server loads these, with its own environment.
collect_ignore = ["support/soak_definitions.py", "support/backfill_definitions.py"]


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of this session's own Spark Connect server, started on first use.

    Set ``WARM_SPARK`` to a folder to keep the server there from one session of tests to the next.
    """
    if kept := os.environ.get("WARM_SPARK"):
        yield Path(kept)
        return
    folder = tmp_path_factory.mktemp("spark-connect")
    yield folder
    stop_connect_server(folder)


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """This session's own cluster of two workers, started on first use."""
    with running_spark_cluster(tmp_path_factory.mktemp("spark-cluster") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark_server(request: pytest.FixtureRequest, spark_folder: Path, pytestconfig: pytest.Config) -> ConnectServer:
    """Slow tests have a Spark as users have it; all others have one that interprets their small queries.

    With ``--spark cluster``, its tasks run on a cluster.
    """
    is_slow, is_plain = pytestconfig.option.markexpr == "slow", _is_plain(pytestconfig)
    extra_jars = EXTRAS if is_slow or not is_plain else ()
    if pytestconfig.option.spark == "cluster":
        cluster: SparkCluster = request.getfixturevalue("spark_cluster")
        choose_server_config(spark_folder, cluster.server_config)
        return ensure_connect_server(spark_folder, conf=cluster.server_config, extra_jars=extra_jars)
    if is_slow:
        return ensure_connect_server(spark_folder, conf=WITH_UI, extra_jars=extra_jars)
    return ensure_quick_server(spark_folder, extra_jars)


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path, spark_server: ConnectServer, spark_folder: Path) -> Lake:
    """An empty lake and a Spark session on it: embedded, or on the servers of ``--catalog`` and ``--storage``."""
    if not _is_plain(request.config):
        choose_catalog(tmp_path / "lake", _properties(request, tmp_path / "lake"))
    return Lake(tmp_path / "lake", spark_folder, spark_server)


def _is_plain(config: pytest.Config) -> bool:
    return (config.getoption("--catalog"), config.getoption("--storage")) == ("embedded", "local")


def _properties(request: pytest.FixtureRequest, folder: Path) -> dict[str, str]:
    """The properties of the catalog that the options choose."""
    catalog, is_on_s3 = request.config.getoption("--catalog"), request.config.getoption("--storage") == "s3"
    if catalog == "rest":
        server: RestCatalog = request.getfixturevalue("rest_catalog")
        server.clear()
        return server.properties
    if catalog == "postgres":
        uri = request.getfixturevalue("postgres").new_database()
    else:
        uri = LakeCatalog.embedded("lake", folder).properties["uri"]
    storage = {"warehouse": f"file://{folder}/warehouse"}
    if is_on_s3:
        store: ObjectStore = request.getfixturevalue("object_store")
        storage = {"warehouse": f"s3://{store.new_bucket()}/warehouse", **store.properties}
    return {"type": "sql", "uri": uri, **storage}


@pytest.fixture(scope="session")
def rest_catalog(request: pytest.FixtureRequest) -> Iterator[RestCatalog]:
    """This session's own Iceberg REST catalog, started on first use."""
    is_on_s3 = request.config.getoption("--storage") == "s3"
    with running_rest_catalog(request.getfixturevalue("object_store") if is_on_s3 else None) as server:
        yield server


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """This session's own S3-compatible object store, started on first use."""
    with running_object_store() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """This session's own PostgreSQL, started on first use."""
    with running_postgres(Path(__file__).parent.parent / ".local") as server:
        yield server


@pytest.fixture(scope="session")
def blank_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for Dagster with new, empty databases: copying it takes a tenth of the time of creating one."""
    home = tmp_path_factory.mktemp("dagster") / "home"
    with dg.DagsterInstance.from_config(dagster_home(home, None)) as instance:
        instance.get_asset_keys()
        instance.get_runs(limit=1)
        instance.all_instigator_state()
    return home


@pytest.fixture
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance like a user's, without telemetry: on disk, or on the backend of ``on_every_backend``."""
    home = tmp_path / "dagster_home"
    if getattr(request, "param", SQLITE) == POSTGRES:
        dagster_home(home, request.getfixturevalue("postgres"))
    else:
        shutil.copytree(request.getfixturevalue("blank_home"), home)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance
