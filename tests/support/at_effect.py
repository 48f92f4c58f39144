"""What a test does at a durable effect of a run.

A point is like ``before:publish``, or like ``before:publish#2`` for the second time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from dagster_ips.exactly_once import effects


def call_at(point: str, do: Callable[[], object]) -> effects.Observer:
    """An observer that calls ``do`` at ``point``, once."""
    place, _, times = point.partition("#")
    left = int(times or 1)

    def observer(effect: effects.Effect, when: str) -> None:
        nonlocal left
        is_there = f"{when}:{effect}" == place
        left -= is_there
        if is_there and not left:
            do()

    return observer


def end_at(point: str, order: signal.Signals = signal.SIGKILL) -> None:
    """Let this process send itself the signal ``order`` at ``point``."""
    effects.observers.append(call_at(point, lambda: os.kill(os.getpid(), order)))


@contextlib.contextmanager
def at(point: str, do: Callable[[], object]) -> Iterator[None]:
    """Call ``do`` at ``point``, once; fails if the block succeeds without getting there."""
    reached = False

    def reach() -> None:
        nonlocal reached
        reached = True
        do()

    observer = call_at(point, reach)
    effects.observers.append(observer)
    try:
        yield
    finally:
        effects.observers.remove(observer)
    assert reached
