"""``python -m dagster_ips.orchestration.launch.run_forker [MODULE …]``: imports what runs need, and forks for each.

Once all is imported, it says ``ready`` on standard output. Each line of standard input describes one run; the answer on
standard output is the id of the run's process. After the input ends, the forker continues until its last run has ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dagster_ips._compat import execute_run, report_ended

READY = b"ready\n"
# What every incremental run imports, except its definitions.
_USUAL = (
    "dagster._cli.api",
    "dagster_ips.public",
    "dagster_ips.local_spark.connect_server",
    "pyiceberg.catalog.sql",
    "pyiceberg.table",
    "pyspark.sql.connect.session",
    "pyspark.sql.functions",
    "upath.core",
)


def main(preload: Sequence[str]) -> None:
    """Fork for runs until the input ends; in a fork, execute the run."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # So that printed text doesn't count as an answer.
    for name in (*_USUAL, *preload):
        try:
            importlib.import_module(name)
        except ImportError as error:
            logging.getLogger(__name__).warning("%s isn't preloaded: %s", name, error)
    gc.collect()
    gc.freeze()  # Keeps the memory of existing objects shared between the processes.
    os.write(answers, READY)
    Forks(sys.stdin.fileno(), answers).serve()()


class Forks:
    """The processes forked for the runs that are read from ``inputs``, one per line; ``answers`` gets their ids."""

    def __init__(self, inputs: int, answers: int) -> None:
        self._inputs, self._answers = inputs, answers
        self._woken, self._wakes = os.pipe()
        self._running: dict[int, str] = {}
        self._asked: bytes = b""
        self._is_open = True

    def serve(self) -> Callable[[], None]:
        """Fork until the input and the last run have ended; returns, in each process, what it must do next."""
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._inputs, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while self._is_open or self._running:
                ready = {key.fd for key, _ in selector.select()}
                if self._woken in ready:
                    os.read(self._woken, 4096)
                if work := self._report_ended() or (self._fork_for_runs() if self._inputs in ready else None):
                    return work
                if not self._is_open and self._inputs in ready:
                    selector.unregister(self._inputs)
        return _nothing

    def _fork_for_runs(self) -> Callable[[], None] | None:
        """Fork for the runs that can be read now; in a fork, returns its run."""
        more = os.read(self._inputs, 65536)
        self._is_open = bool(more)
        *lines, self._asked = (self._asked + more).split(b"\n")
        for line in lines:
            arguments = json.loads(line)
            if (pid := self._fork()) == 0:
                return partial(execute_run, arguments)
            self._running[pid] = arguments
            os.write(self._answers, f"{pid}\n".encode())
        return None

    def _report_ended(self) -> Callable[[], None] | None:
        """Fork for each run whose process failed; in the fork, returns the report of it to Dagster.

        The failed process may not have reported it.
        """
        for pid, status in _ended():
            arguments = self._running.pop(pid, None)
            if arguments is not None and status and self._fork() == 0:
                return partial(report_ended, arguments, f"The run's process {pid} ended {_how(status)}.")
        return None

    def _fork(self) -> int:
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Processes started in the background, such as with nohup, may ignore SIGINT. Dagster would then make the
            # run ignore SIGTERM as well.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for each in (self._woken, self._wakes, self._answers):
                os.close(each)
            if (shared := sys.modules.get("numpy.random")) is not None:
                shared.seed()  # Python's own generator does this itself. Otherwise all runs draw the same numbers.
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, self._inputs)
            os.close(nothing)
        return pid


def _nothing() -> None:
    pass


def _ended() -> Iterator[tuple[int, int]]:
    """The process ids and exit statuses of the forks that have ended since the last call."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"with exit code {os.waitstatus_to_exitcode(status)}"


if __name__ == "__main__":
    main(sys.argv[1:])
