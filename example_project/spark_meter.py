"""What a Spark on this machine has read: rows as its REST API counts them, bytes as the operating system does.

Spark's own count of input bytes leaves out most of what Iceberg reads; its count of input rows is right.
"""

import datetime as dt
import json
import threading
import time
import urllib.request
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_SECONDS = 0.1
_SETTLE_SECONDS = 1.5


@dataclass(frozen=True)
class Read:
    """What was read in a span of time. ``size_bytes`` counts everything the process read: tables, shuffle, metadata."""

    seconds: float
    rows: int
    size_bytes: int

    def plus(self, other: "Read") -> "Read":
        """Both, one after the other."""
        return Read(self.seconds + other.seconds, self.rows + other.rows, self.size_bytes + other.size_bytes)


class SparkMeter:
    """Watches the Spark process ``pid`` whose UI is at ``ui`` (``http://host:port``) from now on.

    Spans may be asked for later, as long as nothing else ran on that Spark in them.
    """

    def __init__(self, ui: str, pid: int) -> None:
        self._ui = ui
        self._counter = Path(f"/proc/{pid}/io")
        self._times: list[float] = []
        self._totals: list[int] = []
        self._sample()
        threading.Thread(target=self._keep_sampling, daemon=True).start()

    def read_between(self, start: float, end: float) -> Read:
        """What was read from ``start`` to ``end``, in seconds since the epoch, both after the meter was made."""
        # The counter has to pass the end, and the UI shows a stage's counts some time after it ended.
        time.sleep(max(0.0, end + _SETTLE_SECONDS - time.time()))
        rows = sum(count for submitted, count in self._stages() if start <= submitted <= end)
        return Read(end - start, rows, self._total_at(end) - self._total_at(start))

    def tasks(self) -> int:
        """How many tasks it has run, or is running."""
        (application,) = self._get("applications")
        executors = self._get(f"applications/{application['id']}/executors")
        return sum(int(each["totalTasks"]) for each in executors)

    def _stages(self) -> list[tuple[float, int]]:
        """When each stage was submitted, and the rows that it read from tables."""
        (application,) = self._get("applications")
        stages = self._get(f"applications/{application['id']}/stages")
        return [(_seconds(s["submissionTime"]), int(s["inputRecords"])) for s in stages if "submissionTime" in s]

    def _get(self, path: str) -> list[dict[str, str]]:
        with urllib.request.urlopen(f"{self._ui}/api/v1/{path}", timeout=30) as answer:  # noqa: S310  # our own server
            found: list[dict[str, str]] = json.load(answer)
            return found

    def _total_at(self, moment: float) -> int:
        return self._totals[max(0, bisect_right(self._times, moment) - 1)]

    def _keep_sampling(self) -> None:
        while self._counter.exists():
            time.sleep(_SAMPLE_SECONDS)
            try:
                self._sample()
            except OSError:  # The process has ended.
                return

    def _sample(self) -> None:
        fields = dict(line.split(": ") for line in self._counter.read_text().splitlines())
        self._totals.append(int(fields["rchar"]))
        self._times.append(time.time())


def _seconds(written: str) -> float:
    """Spark's REST API writes times as ``2026-01-31T12:00:00.000GMT``."""
    return dt.datetime.strptime(written, "%Y-%m-%dT%H:%M:%S.%fGMT").replace(tzinfo=dt.UTC).timestamp()
