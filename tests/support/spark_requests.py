"""What a piece of work asks of Spark: each request, who made it, and the jobs that it ran.

The client and Spark's own REST API do the counting, so the result doesn't depend on how busy the machine is.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

from pyspark.sql.connect.client.core import SparkConnectClient

from dagster_ips.local_spark.connect_server import ConnectServer

_LIBRARY = str(Path(__file__).parents[2] / "dagster_ips")
_HELPERS = ("_compat.py", "spark/frames.py", "spark/session.py", "spark/targets.py", "spark/writes/partition_filter.py")
_SETTLE_SECONDS = 10


@dataclass(frozen=True)
class Request:
    """One request: its kind, where in the library it was made, and what Spark did for it.

    ``kind`` is ``execute``, ``analyze`` or ``config``; only ``execute`` runs jobs. ``caller`` is a file and a function.
    """

    kind: str
    caller: str
    seconds: float
    tag: str = ""
    jobs: int = 0
    stages: int = 0
    tasks: int = 0
    cpu_seconds: float = 0.0

    @property
    def purpose(self) -> str:
        """The name of the function that made the request."""
        return self.caller.rpartition(":")[2]


class Requests(list[Request]):
    """Requests in the order in which they were made."""

    def with_jobs(self) -> Requests:
        """The requests that made Spark compute something, one query each."""
        return Requests(each for each in self if each.jobs)


@contextlib.contextmanager
def watched(server: ConnectServer) -> Iterator[Requests]:
    """The requests that this process makes inside the block. Their jobs are known after the block."""
    found, lock, tags = Requests(), threading.Lock(), iter(range(sys.maxsize))
    start = f"watched-{time.time_ns()}"

    def note(request: Request) -> None:
        with lock:
            found.append(request)

    def timed(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: object, **more: object) -> object:
            began, who = time.perf_counter(), _caller()
            try:
                return original(*arguments, **more)
            finally:
                note(Request(kind, who, time.perf_counter() - began))

        return wrapped

    def executing(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(
            client: object,
            request: Any,  # noqa: ANN401  # a message of Spark's protocol
            *arguments: object,
            **more: object,
        ) -> Iterator[object]:
            began, who, tag = time.perf_counter(), _caller(), f"{start}-{next(tags)}"
            request.tags.append(tag)
            try:
                yield from original(client, request, *arguments, **more)
            finally:
                note(Request("execute", who, time.perf_counter() - began, tag))

        return wrapped

    fetch = SparkConnectClient._execute_and_fetch_as_iterator
    with (
        mock.patch.object(SparkConnectClient, "_execute_and_fetch_as_iterator", executing(fetch)),
        mock.patch.object(SparkConnectClient, "_analyze", timed("analyze", SparkConnectClient._analyze)),
        mock.patch.object(SparkConnectClient, "config", timed("config", SparkConnectClient.config)),
    ):
        yield found
    found[:] = _with_jobs(found, server)


def _caller() -> str:
    """Where the request was made: in the library, or else in the asset's own code."""
    frame, other = sys._getframe(2), "?"
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_LIBRARY) and not path.endswith(_HELPERS):
            return f"{Path(path).relative_to(_LIBRARY)}:{frame.f_code.co_name}"
        if "site-packages" not in path and other == "?" and not path.startswith((_LIBRARY, __file__)):
            other = f"{Path(path).name}:{frame.f_code.co_name}"
        frame = cast("Any", frame.f_back)
    return other


def _with_jobs(requests: Requests, server: ConnectServer) -> list[Request]:
    tags = {each.tag for each in requests if each.tag}
    jobs = _finished_jobs(server, tags)
    stages = {(s["stageId"]): s for s in _get(server, "stages")}
    shown = []
    for each in requests:
        own = (
            [job for job in jobs if any(tag.endswith(f"_Tag_{each.tag}") for tag in job["jobTags"])] if each.tag else []
        )
        ran = [stages[i] for job in own for i in job["stageIds"] if i in stages and stages[i]["status"] == "COMPLETE"]
        cpu = sum(stage["executorCpuTime"] for stage in ran) / 1e9
        tasks = sum(stage["numCompleteTasks"] for stage in ran)
        shown.append(replace(each, jobs=len(own), stages=len(ran), tasks=tasks, cpu_seconds=cpu))
    return shown


def _finished_jobs(server: ConnectServer, tags: set[str]) -> list[dict[str, Any]]:
    """The jobs of ``tags``, once Spark's UI, which is informed with a delay, shows that all have ended."""
    deadline, before = time.monotonic() + _SETTLE_SECONDS, -1
    while True:
        jobs = [job for job in _get(server, "jobs") if any(t.rpartition("_Tag_")[2] in tags for t in job["jobTags"])]
        is_done = len(jobs) == before and all(job["status"] != "RUNNING" for job in jobs)
        if is_done or time.monotonic() > deadline:
            return jobs
        before = len(jobs)
        time.sleep(0.3)


def _get(server: ConnectServer, path: str) -> list[dict[str, Any]]:
    address = f"{server.ui}/api/v1/applications"
    with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310  # http, ours
        (application,) = json.load(answer)
    address = f"{address}/{application['id']}/{path}"
    with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310  # as above
        found: list[dict[str, Any]] = json.load(answer)
        return found
