"""A standalone Spark cluster for the tests: a master and two workers with one core each, on free ports.

It comes with PySpark. Its processes authenticate with a shared secret, as in a real cluster, and are stopped at the
end.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_ips.local_spark.launch import spark_environment, spark_home
from dagster_ips.local_spark.private_files import write_private
from tests.support.ports import free_port

_START_SECONDS = 90
_DEPLOY = "org.apache.spark.deploy"


@dataclass(frozen=True)
class SparkCluster:
    """A running master and the processes of its workers. ``folder`` holds their logs."""

    port: int
    ui_port: int
    secret: str
    folder: Path
    workers: list[subprocess.Popen[bytes]]
    executor_mb: int

    @property
    def master(self) -> str:
        """The address for ``spark.master``."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def server_config(self) -> dict[str, str]:
        """A user's settings for `LocalSparkConnect`: the driver stays local, and tasks run on the cluster."""
        return {
            "spark.master": self.master,
            "spark.authenticate.secret": self.secret,
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": f"{self.executor_mb}m",
        }

    def state(self) -> dict[str, Any]:
        """The master's report on its workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ui_port}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def start_worker(self) -> None:
        """Start another worker, as an operator does after one has died."""
        number = len(self.workers)
        resources = ("-c", "1", "-m", f"{self.executor_mb}m", "-d", str(self.folder / "work"))
        self.workers.append(self._start("worker.Worker", f"worker-{number}", *resources, self.master))

    def _start(self, name: str, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        properties = str(self.folder / "spark.properties")
        command = [
            *(str(spark_home() / "bin" / "spark-class"), f"{_DEPLOY}.{name}"),
            *("--host", "127.0.0.1", "--properties-file", properties),
            *arguments,
        ]
        with (self.folder / log).open("wb") as output:
            environment = spark_environment({"SPARK_DAEMON_MEMORY": "256m"})
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def _await(self, workers: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if self.state()["aliveworkers"] >= workers:
                    return
            if time.monotonic() > deadline:
                logs = "\n".join(log.read_text()[-2000:] for log in self.folder.iterdir() if log.is_file())
                message = f"The Spark cluster did not start:\n{logs}"
                raise RuntimeError(message)
            time.sleep(0.2)


@contextlib.contextmanager
def running_spark_cluster(folder: Path, *, executor_mb: int = 900) -> Iterator[SparkCluster]:
    """A new cluster with two workers. It keeps its files in ``folder``."""
    folder.mkdir()
    cluster = SparkCluster(free_port(), free_port(), secrets.token_hex(16), folder, [], executor_mb)
    write_private(folder / "spark.properties", f"spark.authenticate true\nspark.authenticate.secret {cluster.secret}\n")
    started: list[subprocess.Popen[bytes]] = []
    try:
        ports = ("--port", str(cluster.port), "--webui-port", str(cluster.ui_port))
        started.append(cluster._start("master.Master", "master", *ports))
        for _ in range(2):
            cluster.start_worker()
        cluster._await(2)
        yield cluster
    finally:
        for process in (*cluster.workers, *started):
            process.kill()  # The process may ignore a request to end, for example where the tests run under nohup.
        for process in (*cluster.workers, *started):
            process.wait(_START_SECONDS)
