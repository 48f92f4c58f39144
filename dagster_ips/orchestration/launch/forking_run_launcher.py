"""A run launcher that forks each run from a process that has already imported the large libraries."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import dagster as dg
from dagster import DagsterRun, Field
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._serdes import ConfigurableClassData

from dagster_ips._compat import code_server_host, run_arguments
from dagster_ips.local_spark.process import ProcessIdentity, identity_of

PROCESS_TAG = ".dagster/dagster_ips_process"  # Dagster hides tags with this prefix.
_MODULE = "dagster_ips.orchestration.launch.run_forker"


class ForkingRunLauncher(dg.DefaultRunLauncher):
    """Launches each run as a separate process that has Dagster, PySpark and PyIceberg imported from its start.

    A process that imports them takes seconds to start; a fork of such a process takes a fraction of a second. The fork
    imports your definitions itself, so new code takes effect with the next run. This works on Linux, on the daemon's
    host; on other systems, for code servers on other hosts, and for code locations whose Python doesn't have this
    library, runs are launched as by Dagster's default launcher.

    In ``dagster.yaml``, with ``preload`` for other large libraries that your assets import::

        run_launcher:
          module: dagster_ips.orchestration.launch
          class: ForkingRunLauncher
          config:
            preload: [sklearn]
    """

    def __init__(self, preload: Sequence[str] = (), inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(inst_data)
        self._preload = tuple(preload)
        self._forkers: dict[str, _Forker] = {}
        self._lock = threading.Lock()

    @classmethod
    def config_type(cls) -> Mapping[str, Any]:
        """The configuration that ``dagster.yaml`` may contain."""
        return {"preload": Field([str], is_required=False, default_value=[])}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]) -> Self:
        """Create the launcher of an instance."""
        return cls(inst_data=inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Fork a process for the run."""
        run = context.dagster_run
        if not sys.platform.startswith("linux") or run.job_code_origin is None or not _is_code_here(run):
            super().launch_run(context)
            return
        python, arguments = run_arguments(self._instance, run)
        try:
            with self._lock:
                forker = self._forkers.get(python)
                if forker is None or not forker.is_alive():
                    forker = self._forkers[python] = _Forker(python, [*self._storages(), *self._preload])
                process = forker.fork(arguments)
        except NotReadyError as error:
            message = f"{error} The run is launched by Dagster's default launcher instead."
            self._instance.report_engine_event(message, run, cls=type(self))
            super().launch_run(context)
            return
        where = {"run": run.run_id, "host": socket.gethostname(), "pid": process.pid, "started": process.started}
        self._instance.add_run_tags(run.run_id, {PROCESS_TAG: json.dumps(where)})
        self._run_ids.add(run.run_id)

    def _storages(self) -> list[str]:
        """The modules of the instance's storages, which import their database's libraries."""
        of, known = self._instance, (self._instance.run_storage, self._instance.event_log_storage)
        return [type(each).__module__ for each in (*known, of.schedule_storage) if each is not None]

    def terminate(self, run_id: str) -> bool:
        """Ask the run's process to end, as when a run is canceled in the UI; returns whether it could be asked."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or not _where(run):
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]  # Dagster's
        if run.is_finished:
            return False
        self._instance.report_run_canceling(run)
        process = _process_of(run)
        if process is None:
            message = f"The run's process is on another host: {run.tags[PROCESS_TAG]}. It could not be asked to end."
            self._instance.report_engine_event(message, run, cls=type(self))
            return False
        if not process.is_alive():
            return False
        os.kill(process.pid, signal.SIGTERM)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: run monitoring can detect a process that is gone."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Whether the run's process is alive; assumed so if it is on another host or another launcher started it."""
        process = _process_of(run)
        if process is None or process.is_alive():
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"process {process.pid} is gone")

    def dispose(self) -> None:
        """Release the forking processes; each ends with the last run that it forked."""
        with self._lock:
            for forker in self._forkers.values():
                forker.let_go()
            self._forkers.clear()


def _is_code_here(run: DagsterRun) -> bool:
    """Whether the run's definitions can be imported on this host; assumed so if their host is unknown."""
    return code_server_host(run) in {None, "localhost", "127.0.0.1", "::1", socket.gethostname()}


def _where(run: DagsterRun) -> Mapping[str, Any]:
    """Where the run's process is; empty if it has none. A re-executed run has the tags of the run before."""
    where: Mapping[str, Any] = json.loads(run.tags.get(PROCESS_TAG, "{}"))
    return where if where.get("run", run.run_id) == run.run_id else {}


def _process_of(run: DagsterRun) -> ProcessIdentity | None:
    """The run's process; None if it is on another host, or unknown."""
    where = _where(run)
    return ProcessIdentity(where["pid"], where["started"]) if where.get("host") == socket.gethostname() else None


class NotReadyError(RuntimeError):
    """There is no process to fork from: its interpreter isn't on this host, has no ``dagster_ips``, or can't import."""


class _Forker:
    """A ``run_forker`` process of the interpreter ``python``, connected by two pipes.

    Raises:
        NotReadyError: it has ended before it was ready to fork.
    """

    def __init__(self, python: str, preload: Sequence[str]) -> None:
        self._command = [python, "-m", _MODULE, *preload]
        if shutil.which(python) is None:
            message = f"No process could be forked for the run: there is no {python} on this host."
            raise NotReadyError(message)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # So that Ctrl-C in the daemon's terminal doesn't reach the runs.
        )
        assert self._process.stdout is not None  # noqa: S101  # a pipe
        if not self._process.stdout.readline():
            raise NotReadyError(self._ended())

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, arguments: str) -> ProcessIdentity:
        """Fork a process that executes a run.

        Raises:
            RuntimeError: the process to fork from has ended; its output says why.
        """
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018, S101  # pipes
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(arguments)}\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(self._ended())
        pid = int(answer)
        return identity_of(pid) or ProcessIdentity(pid, "ended at once")

    def _ended(self) -> str:
        return (
            f"No process could be forked for the run: {' '.join(self._command)} ended with {self._process.wait()}. "
            "Its output is in the daemon's."
        )

    def let_go(self) -> None:
        assert self._process.stdin is not None  # noqa: S101  # a pipe
        with suppress(BrokenPipeError):
            self._process.stdin.close()
