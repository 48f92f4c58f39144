"""Measures a Spark on this machine: rows from Spark's REST API, bytes and CPU from the operating system.

Spark's own count of input bytes leaves out most of what Iceberg reads, but its count of input rows is right.
"""

import datetime as dt
import json
import os
import threading
import time
import urllib.request
from bisect import bisect_right
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NamedTuple

_SAMPLE_SECONDS = 0.1
_SETTLE_SECONDS = 1.5
# Their positions in /proc/PID/stat, counted from after the process name.
_USER_TICKS, _SYSTEM_TICKS = 11, 12


@dataclass(frozen=True)
class Read:
    """What was read in a span of time. ``size_bytes`` is everything that the process read: tables, shuffles, metadata.

    ``written_bytes`` is everything that it wrote, and ``cpu_seconds`` is the CPU time of all its threads.
    """

    seconds: float
    rows: int
    size_bytes: int
    written_bytes: int = 0
    cpu_seconds: float = 0.0

    def plus(self, other: "Read") -> "Read":
        """The sum of both."""
        return Read(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


class SparkMeter:
    """Watches the Spark process ``pid`` whose UI is at ``ui`` (``http://host:port``) from now on.

    A span can be queried later, as long as nothing else ran on that Spark within it.
    """

    def __init__(self, ui: str, pid: int) -> None:
        self._ui = ui
        self._process = Path(f"/proc/{pid}")
        self._times: list[float] = []
        self._totals: list[_Total] = []
        self._sample()
        threading.Thread(target=self._keep_sampling, daemon=True).start()

    def read_between(self, start: float, end: float) -> Read:
        """What was read from ``start`` to ``end``, in seconds since the epoch, both after the meter was created."""
        # The counter must be sampled after the end, and the UI shows a stage's counts some time after the stage ended.
        time.sleep(max(0.0, end + _SETTLE_SECONDS - time.time()))
        rows = sum(count for submitted, count in self._stages() if start <= submitted <= end)
        before, after = self._total_at(start), self._total_at(end)
        return Read(
            end - start,
            rows,
            after.read_bytes - before.read_bytes,
            after.written_bytes - before.written_bytes,
            after.cpu_seconds - before.cpu_seconds,
        )

    def tasks(self) -> int:
        """How many tasks Spark has run or is running."""
        (application,) = self._get("applications")
        executors = self._get(f"applications/{application['id']}/executors")
        return sum(int(each["totalTasks"]) for each in executors)

    def _stages(self) -> list[tuple[float, int]]:
        """When each stage was submitted, and the rows that it read from tables."""
        (application,) = self._get("applications")
        stages = self._get(f"applications/{application['id']}/stages")
        return [(_seconds(s["submissionTime"]), int(s["inputRecords"])) for s in stages if "submissionTime" in s]

    def _get(self, path: str) -> list[dict[str, str]]:
        with urllib.request.urlopen(f"{self._ui}/api/v1/{path}", timeout=30) as answer:  # noqa: S310  # a local server
            found: list[dict[str, str]] = json.load(answer)
            return found

    def _total_at(self, moment: float) -> "_Total":
        return self._totals[max(0, bisect_right(self._times, moment) - 1)]

    def _keep_sampling(self) -> None:
        while self._process.exists():
            time.sleep(_SAMPLE_SECONDS)
            try:
                self._sample()
            except OSError:  # The process has ended.
                return

    def _sample(self) -> None:
        counts = dict(line.split(": ") for line in (self._process / "io").read_text().splitlines())
        # The process name, the second field, may contain spaces; only numbers follow it.
        fields = (self._process / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        self._totals.append(_Total(int(counts["rchar"]), int(counts["wchar"]), ticks / os.sysconf("SC_CLK_TCK")))
        self._times.append(time.time())


class _Total(NamedTuple):
    """The process's totals since its start."""

    read_bytes: int
    written_bytes: int
    cpu_seconds: float


def _seconds(written: str) -> float:
    """Seconds since the epoch of a time from Spark's REST API, such as ``2026-01-31T12:00:00.000GMT``."""
    return dt.datetime.strptime(written, "%Y-%m-%dT%H:%M:%S.%fGMT").replace(tzinfo=dt.UTC).timestamp()
