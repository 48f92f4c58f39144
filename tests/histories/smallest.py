"""Reduces a failing history to the smallest one that still fails, by leaving out steps and rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tests.histories.checks import WrongCaptureError
from tests.histories.history import History, Step
from tests.histories.table import Shape
from tests.support.lake import Lake

Failure = tuple[type[Exception], str]


def failure_of(error: Exception) -> Failure:
    """Two failures with the same value are the same: the broken promise, or the kind of error."""
    return type(error), error.promise if isinstance(error, WrongCaptureError) else str(error)[:40]


def run(lake: Lake, shape: Shape, steps: Sequence[Step]) -> tuple[History, Exception | None]:
    """Take ``steps`` on a new table."""
    history = History(lake, shape)
    try:
        for step in steps:
            step.take(history)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the result
        return history, error
    else:
        return history, None
    finally:
        history.close()


def smallest(lake: Lake, history: History, error: Exception, *, seconds: float = 180) -> tuple[History, Exception]:
    """The smallest history found within ``seconds`` that fails like ``error``, and its failure.

    If the history doesn't fail again, it is returned unchanged, with ``error``.
    """
    until = time.monotonic() + seconds
    best, found = history, error
    candidates = iter([(history.shape, history.steps)])
    while (candidate := next(candidates, None)) and time.monotonic() < until:
        tried, again = run(lake, *candidate)
        if again is not None and failure_of(again) == failure_of(error):
            best, found = tried, again
            candidates = _smaller(best.shape, best.steps)
    return best, found


def _smaller(shape: Shape, steps: Sequence[Step]) -> Iterator[tuple[Shape, Sequence[Step]]]:
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            yield shape, [*steps[:start], *steps[start + size :]]
        size //= 2
    for simpler in (replace(shape, variant=False), replace(shape, merging=False), replace(shape, partitioned_by=())):
        if simpler != shape:
            yield simpler, steps
    for place, step in enumerate(steps):
        for name, value in step.arguments:
            if name in ("rows", "between") and len(value) > 1:
                for left_out in range(len(value)):
                    fewer = (*value[:left_out], *value[left_out + 1 :])
                    arguments = tuple((k, fewer if k == name else v) for k, v in step.arguments)
                    yield shape, [*steps[:place], replace(step, arguments=arguments), *steps[place + 1 :]]
