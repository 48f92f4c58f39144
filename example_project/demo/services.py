"""Starts and stops everything that the demo needs: Spark, Dagster's code server, daemon and webserver."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dagster_ips.local_spark.connect_server import (
    WITH_UI,
    ConnectServer,
    connect_server_status,
    ensure_connect_server,
    stop_connect_server,
)

_BIN = Path(sys.executable).parent
_PROJECT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Job:
    """A process that ends by itself, with its command and its log."""

    command: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def is_running(self) -> bool:
        """Whether it hasn't ended yet."""
        return self.process.poll() is None

    def last_line(self) -> str:
        """The last line of its log; empty if there is none."""
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    def require_success(self) -> None:
        """Wait for its end.

        Raises:
            SystemExit: it failed; the message contains the end of its log.
        """
        if self.process.wait():
            message = f"{self.command} failed ({self.process.returncode}):\n{_tail(self.log)}"
            raise SystemExit(message)


class Services:
    """Processes with data and logs under ``folder``, each in its own process group; leaving the block ends all of them.

    ``definitions`` is the module that Dagster loads.
    """

    def __init__(self, folder: Path, definitions: str = "example_project.definitions") -> None:
        self.folder = folder
        self.lake = folder / "lake"
        self.home = folder / "dagster_home"
        self.webserver_port, self._code_port = _free_ports(2)
        self._workspace = folder / "workspace.yaml"
        self._definitions = definitions
        self._jobs: list[Job] = []
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._spark_folder = folder / "spark"
        self.environment = os.environ | {
            "DAGSTER_HOME": str(self.home),
            "PLAYBACK_LAKE": str(self.lake),
            "PLAYBACK_SPARK": str(self._spark_folder),
        }

    def __enter__(self) -> Self:
        """Prepare an empty folder: stop the Spark of an earlier demo, and delete what it left."""
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
        """End what was started, newest first, and kill what doesn't end."""
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second Ctrl-C would leave processes running.
        started = [*(process for _, process in self._running), *(job.process for job in self._jobs if job.is_running())]
        for process in reversed(started):
            _signal_group(process, signal.SIGTERM)
        for process in reversed(started):
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
            _signal_group(process, signal.SIGKILL)
        stop_connect_server(self._spark_folder)
        signal.signal(signal.SIGINT, interrupt)

    def start_spark(self) -> ConnectServer:
        """Start the warm Spark that every run uses, with the UI that is needed to count rows."""
        return ensure_connect_server(self._spark_folder, conf=WITH_UI)

    def begin_spark(self) -> Job:
        """Like ``start_spark``, but without waiting for it.

        Java's optimizing compiler is turned off, because it doesn't pay off within a few minutes. Without it, Java
        reserves only 48 MB for compiled code by default, which is full within minutes.
        """
        options = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
        start = ["-m", "dagster_ips.local_spark.connect_server", "start", "--ui", "--folder", str(self._spark_folder)]
        return self.begin("spark-start", "python", *start, JDK_JAVA_OPTIONS=options)

    def begin_dagster(self) -> None:
        """Start the code server, which takes some seconds until it answers."""
        module = ["-m", self._definitions, "-h", "127.0.0.1", "-p", str(self._code_port)]
        self._start("code-server", "dagster", "code-server", "start", *module)

    def start_dagster(self, *, automation: bool) -> None:
        """Start code server, daemon and webserver; without ``automation``, turn the automation sensor off first."""
        if not self._running:
            self.begin_dagster()
        self._await_port(self._code_port, "code-server")
        if not automation:
            self.run("dagster", "sensor", "stop", "ips_automation", "-w", str(self._workspace))
        self._start("daemon", "dagster-daemon", "run", "-w", str(self._workspace))
        address = ["-h", "127.0.0.1", "-p", str(self.webserver_port)]
        self._start("webserver", "dagster-webserver", "-w", str(self._workspace), *address)
        self._await_port(self.webserver_port, "webserver")

    @property
    def spark(self) -> ConnectServer:
        """The Spark that was started.

        Raises:
            SystemExit: it no longer answers.
        """
        if server := connect_server_status(self._spark_folder):
            return server
        message = f"Spark doesn't answer:\n{self.log_tail('spark-start')}"
        raise SystemExit(message)

    def begin(self, name: str, program: str, *arguments: str, **environment: str) -> Job:
        """Start a job in the background, with a log called ``name``."""
        log = self.folder / "logs" / f"{name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [_BIN / program, *arguments],
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._jobs.append(Job(f"{program} {' '.join(arguments)}", process, log))
        return self._jobs[-1]

    def run_on_spark(self, program: str, *arguments: str) -> str:
        """Like ``run``, with the warm Spark."""
        return self.run(program, *arguments, **self.spark.environment())

    def run(self, program: str, *arguments: str, **environment: str) -> str:
        """Run a job to its end and return what it printed. Its errors go to a log with the program's name.

        Raises:
            SystemExit: it failed; the message contains the end of its log.
        """
        known = self.environment | environment
        log = self.folder / "logs" / f"{Path(program).name}.log"
        with log.open("ab") as stream:
            done = subprocess.run(
                [_BIN / program, *arguments], check=False, env=known, stdout=subprocess.PIPE, stderr=stream
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
            SystemExit: a service has; the message contains the end of its log.
        """
        for name, process in self._running:
            if process.poll() is not None:
                message = f"{name} exited unexpectedly:\n{self.log_tail(name)}"
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
        message = f"{name} doesn't answer:\n{self.log_tail(name)}"
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
