"""``python -m dagster_ips.orchestration.launch.run_forker [MODULE …]``: imports what runs need, and forks for each.

Each line of standard input is one run; the answer, on standard output, is the id of its process. Once the input ends it
goes on until its last run has ended.
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

# What every incremental run imports, but for its definitions.
_USUAL = (
    "dagster_ips.public",
    "dagster_ips.local_spark.connect_server",
    "pyiceberg.catalog.sql",
    "pyiceberg.table",
    "pyspark.sql.connect.session",
    "pyspark.sql.functions",
)


def main(preload: Sequence[str]) -> None:
    """Fork for runs until the input ends; in a fork, do the run."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What is printed is no answer.
    for name in (*_USUAL, *preload):
        try:
            importlib.import_module(name)
        except ImportError as error:
            logging.getLogger(__name__).warning("%s isn't preloaded: %s", name, error)
    gc.collect()
    gc.freeze()  # What is there now stays shared between the processes.
    Forks(sys.stdin.fileno(), answers).serve()()


class Forks:
    """The processes forked for the runs that ``inputs`` asks for, one a line; ``answers`` gets their ids."""

    def __init__(self, inputs: int, answers: int) -> None:
        self._inputs, self._answers = inputs, answers
        self._woken, self._wakes = os.pipe()
        self._running: dict[int, str] = {}
        self._asked: bytes = b""
        self._is_open = True

    def serve(self) -> Callable[[], None]:
        """Fork until the input and the last run have ended; returns, in each process, what is left for it to do."""
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
        """In a fork, its run."""
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
        """In a fork, what Dagster is told of a run whose process failed: it may not have told it itself."""
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
            # A run that ignored it, as all that is started behind nohup does, would to Dagster ignore SIGTERM as well.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for each in (self._woken, self._wakes, self._answers):
                os.close(each)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, self._inputs)
            os.close(nothing)
        return pid


def _nothing() -> None:
    pass


def _ended() -> Iterator[tuple[int, int]]:
    """The forks that have ended since, with how they did."""
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
