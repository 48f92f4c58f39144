"""Everything that the demo starts, and the end of it: Spark, Dagster's code server, daemon and webserver."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dagster_ips.spark.connect_server import ConnectServer, ensure_connect_server, stop_connect_server

_BIN = Path(sys.executable).parent
_PROJECT = Path(__file__).parents[1]


class Services:
    """Processes under ``folder``, each in a group of its own with a log; leaving the block ends all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = folder / "lake"
        self.home = folder / "dagster_home"
        self.webserver_port, self._code_port = _free_ports(2)
        self._workspace = folder / "workspace.yaml"
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._spark_folder = folder / "spark"
        self.environment = os.environ | {
            "DAGSTER_HOME": str(self.home),
            "PLAYBACK_LAKE": str(self.lake),
            "PLAYBACK_SPARK": str(self._spark_folder),
        }

    def __enter__(self) -> Self:
        """An empty folder, whatever an earlier demo left or still runs."""
        stop_connect_server(self._spark_folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.lake, self.home, self.folder / "logs"):
            folder.mkdir(parents=True)
        shutil.copy(_PROJECT / "dagster.yaml", self.home)
        location = f"grpc_server: {{host: 127.0.0.1, port: {self._code_port}, location_name: playback}}"
        self._workspace.write_text(f"load_from:\n  - {location}\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End what was started, the newest first; what doesn't go is killed."""
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second Ctrl-C would leave some of it running.
        for _, process in reversed(self._running):
            _signal_group(process, signal.SIGTERM)
        for _, process in reversed(self._running):
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
            _signal_group(process, signal.SIGKILL)
        stop_connect_server(self._spark_folder)
        signal.signal(signal.SIGINT, interrupt)

    def start_spark(self) -> ConnectServer:
        """The warm Spark that every run uses."""
        return ensure_connect_server(self._spark_folder)

    def start_dagster(self, *, automation: bool) -> None:
        """Code server, daemon and webserver; without ``automation`` its sensor is off from the start."""
        module = ["-m", "example_project.definitions", "-h", "127.0.0.1", "-p", str(self._code_port)]
        self._start("code-server", "dagster", "code-server", "start", *module)
        self._await_port(self._code_port, "code-server")
        if not automation:
            self.run("dagster", "sensor", "stop", "ips_automation", "-w", str(self._workspace))
        self._start("daemon", "dagster-daemon", "run", "-w", str(self._workspace))
        address = ["-h", "127.0.0.1", "-p", str(self.webserver_port)]
        self._start("webserver", "dagster-webserver", "-w", str(self._workspace), *address)
        self._await_port(self.webserver_port, "webserver")

    def run(self, program: str, *arguments: str) -> str:
        """A job of its own, to its end; what it printed. Its errors go to the log of its name.

        Raises:
            SystemExit: it failed; the message holds the end of its log.
        """
        log = self.folder / "logs" / f"{Path(program).name}.log"
        with log.open("ab") as stream:
            done = subprocess.run(
                [_BIN / program, *arguments], check=False, env=self.environment, stdout=subprocess.PIPE, stderr=stream
            )
        if done.returncode:
            message = (
                f"{program} {' '.join(arguments)} failed ({done.returncode}):\n{done.stdout.decode()}\n{_tail(log)}"
            )
            raise SystemExit(message)
        return done.stdout.decode()

    def log_tail(self, name: str) -> str:
        """The last lines of a service's log."""
        return _tail(self.folder / "logs" / f"{name}.log")

    def require_alive(self) -> None:
        """Fail if a service has ended.

        Raises:
            SystemExit: one has; the message holds the end of its log.
        """
        for name, process in self._running:
            if process.poll() is not None:
                message = f"{name} ended by itself:\n{self.log_tail(name)}"
                raise SystemExit(message)

    def _start(self, name: str, program: str, *arguments: str) -> None:
        with (self.folder / "logs" / f"{name}.log").open("ab") as stream:
            process = subprocess.Popen(
                [_BIN / program, *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append((name, process))

    def _await_port(self, port: int, name: str) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            self.require_alive()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.2)
        message = f"{name} does not answer:\n{self.log_tail(name)}"
        raise SystemExit(message)


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-25:]) if log.exists() else "(no log)"
