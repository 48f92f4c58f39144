"""How long a run will take, estimated from how long others took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, median

_FEW = 3


@dataclass(frozen=True, slots=True)
class PastRun:
    """How much a run of an asset read, and how many seconds it worked."""

    size_bytes: int
    seconds: float


def seconds_of_run(size_bytes: int, past: Sequence[PastRun]) -> float | None:
    """How many seconds a run that reads ``size_bytes`` will take; None without past runs.

    With three or more different sizes, a line is fitted through the runs, and the result is never below the quickest
    of them. Otherwise, or if the line doesn't rise, it is the median.

    Example:
        >>> seconds_of_run(300, [PastRun(100, 2.0), PastRun(200, 3.0), PastRun(400, 5.0)])
        4.0
        >>> seconds_of_run(300, [PastRun(100, 2.0)]), seconds_of_run(300, [])
        (2.0, None)
    """
    if not past:
        return None
    if len({run.size_bytes for run in past}) < _FEW:
        return float(median(run.seconds for run in past))
    slope, start = linear_regression([run.size_bytes for run in past], [run.seconds for run in past])
    line = start + slope * size_bytes if slope > 0 else median(run.seconds for run in past)
    return float(max(line, min(run.seconds for run in past)))
