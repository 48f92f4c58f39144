"""A real dagster-daemon and code server that a test can kill, restart and reload while runs continue."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dagster._grpc.client import DagsterGrpcClient

from tests.support.ports import free_port

_BIN = Path(sys.executable).parent
_ROOT = Path(__file__).parents[2]
_START_SECONDS = 120
_SETTINGS = """
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {max_concurrent_runs: 2, dequeue_interval_seconds: 1}
run_monitoring: {enabled: true, poll_interval_seconds: 2}
"""


class Daemon:
    """Serves ``module`` to a daemon on the instance in ``home``. Leaving the block ends both and all their runs."""

    def __init__(self, home: Path, module: str, environment: Mapping[str, str]) -> None:
        self._home, self._module = home, module
        self._environment = os.environ | {"DAGSTER_HOME": str(home), "PYTHONPATH": str(_ROOT), **environment}
        self._port = free_port()
        self._workspace = home / "workspace.yaml"
        self._code: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._home / "dagster.yaml").open("a") as settings:
            settings.write(_SETTINGS)
        location = f"{{host: 127.0.0.1, port: {self._port}, location_name: soak}}"
        self._workspace.write_text(f"load_from:\n  - grpc_server: {location}\n")
        address = ("-h", "127.0.0.1", "-p", str(self._port))
        self._code = self._start("code-server", "dagster", "code-server", "start", "-m", self._module, *address)
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert time.monotonic() < deadline, self.log("code-server")
            time.sleep(0.2)
        self.restart(signal.SIGTERM)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in (self._daemon, self._code):
            if process:
                _end(process, signal.SIGTERM)

    def restart(self, order: signal.Signals) -> None:
        """End the daemon with the signal ``order`` and start another; runs continue."""
        if self._daemon:
            _end(self._daemon, order)
        self._daemon = self._start("daemon", "dagster-daemon", "run", "-w", str(self._workspace))

    def reload(self) -> None:
        """Load the code again, as a deployment of a new version does."""
        DagsterGrpcClient(host="127.0.0.1", port=self._port).reload_code(_START_SECONDS)

    def automation(self, order: str) -> None:
        """``start`` or ``stop`` the sensor that launches what is pending."""
        command = [_BIN / "dagster", "sensor", order, "ips_automation", "-w", str(self._workspace)]
        subprocess.run(command, env=self._environment, cwd=_ROOT, check=True, capture_output=True)

    def workers(self) -> list[int]:
        """The ids of the processes that execute runs now."""
        listing = subprocess.run(
            ["/bin/ps", "-eo", "pid=,pgid=,args="], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        rows = [line.split(None, 2) for line in listing.splitlines()]
        return [
            int(pid)
            for pid, group, command in rows
            if self._code and int(group) == self._code.pid and "multiprocessing.spawn" in command
        ]

    def log(self, name: str) -> str:
        """The end of a service's log."""
        return "\n".join((self._home / f"{name}.log").read_text(errors="replace").splitlines()[-40:])

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [_BIN / program, *arguments],
                env=self._environment,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _end(process: subprocess.Popen[bytes], order: signal.Signals) -> None:
    """End the process with the signal ``order``, then kill the rest of its process group."""
    process.send_signal(order)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
