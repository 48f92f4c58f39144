"""A Spark that runs tasks on a cluster, by configuration alone; and executors, workers and drivers that die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.local_spark.connect_server import (
    ConnectServer,
    SparkEndedError,
    connect_server_status,
    ensure_connect_server,
    stop_connect_server,
)
from tests.support.at_effect import at
from tests.support.lake import Event, Lake, events
from tests.support.partitioned import SENSOR
from tests.support.pipeline import expected_agg, expected_daily, materialize, pipeline
from tests.support.ports import descendants
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_resource import choose_server_config

pytestmark = pytest.mark.slow
_SOON = 5


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory: pytest.TempPathFactory, spark_cluster: SparkCluster) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("driver") / "spark"
    choose_server_config(folder, spark_cluster.server_config)
    yield folder
    stop_connect_server(folder)


@pytest.fixture
def driver(driver_folder: Path, spark_cluster: SparkCluster) -> ConnectServer:
    """A driver on this machine, with executors on the cluster."""
    return ensure_connect_server(driver_folder, conf=spark_cluster.server_config)


@pytest.fixture
def cluster_lake(tmp_path: Path, driver_folder: Path, driver: ConnectServer) -> Lake:
    return Lake(tmp_path / "lake", driver_folder, driver)


def require_equal(lake: Lake, rows: list[Event]) -> None:
    assert lake.rows("media.daily") == expected_daily(rows)
    assert lake.rows("media.agg") == expected_agg(rows)


def test_a_pipeline_runs_on_a_cluster_by_configuration_alone(
    cluster_lake: Lake, instance: dg.DagsterInstance, spark_cluster: SparkCluster
) -> None:
    defs, rows = pipeline(cluster_lake.folder, cluster_lake.spark_folder), events(range(20))
    cluster_lake.create_playback(rows)
    for start in (20, 40, 60):
        materialize(defs, instance, "daily", "agg", tags=SENSOR)
        late = [event for day in range(4) for event in events(range(start + 5 * day, start + 5 * day + 5), day=day)]
        cluster_lake.append(late)
        rows += late
    materialize(defs, instance, "daily", "agg", tags=SENSOR)
    require_equal(cluster_lake, rows)
    (application,) = spark_cluster.state()["activeapps"]
    assert (application["name"], application["cores"]) == ("dagster_ips", 2)


@pytest.mark.parametrize("lost", ["an executor", "all executors", "all workers, for a while"])
def test_executors_and_workers_that_die_during_a_write_are_replaced_and_no_row_is_duplicated_or_lost(
    cluster_lake: Lake, instance: dg.DagsterInstance, spark_cluster: SparkCluster, lost: str
) -> None:
    defs, rows = pipeline(cluster_lake.folder, cluster_lake.spark_folder), events(range(20))
    cluster_lake.create_playback(rows)
    materialize(defs, instance, "daily", "agg", tags=SENSOR)
    more = events(range(20, 30)) + events(range(30, 40), day=1)
    cluster_lake.append(more)
    workers = [worker for worker in spark_cluster.workers if worker.poll() is None]

    def die() -> None:
        if lost == "all workers, for a while":
            for worker in workers:
                worker.kill()
                worker.wait()
                threading.Timer(_SOON, spark_cluster.start_worker).start()
            return
        executors = [pid for worker in workers for pid in descendants(worker.pid)]
        for pid in executors[: 1 if lost == "an executor" else None]:
            os.kill(pid, signal.SIGKILL)

    for asset in ("daily", "agg"):
        with at("before:write_branch", die if asset == "daily" else lambda: None):
            materialize(defs, instance, asset, tags=SENSOR)
    require_equal(cluster_lake, rows + more)


def test_a_driver_that_dies_during_a_write_fails_the_run_and_the_next_run_starts_another(
    cluster_lake: Lake, instance: dg.DagsterInstance, driver: ConnectServer
) -> None:
    defs, rows = pipeline(cluster_lake.folder, cluster_lake.spark_folder), events(range(20))
    cluster_lake.create_playback(rows)
    materialize(defs, instance, "daily", "agg", tags=SENSOR)
    more = events(range(20, 30), day=1)
    cluster_lake.append(more)
    with (
        at("before:write_branch", lambda: os.kill(driver.pid, signal.SIGKILL)),
        pytest.raises(SparkEndedError, match=str(driver.pid)),
    ):
        materialize(defs, instance, "daily", tags=SENSOR)

    materialize(defs, instance, "daily", "agg", tags=SENSOR)
    now = connect_server_status(cluster_lake.spark_folder)
    assert now is not None
    assert now.pid != driver.pid
    require_equal(Lake(cluster_lake.folder, cluster_lake.spark_folder, now), rows + more)
