"""Waits for a server's answer for a limited time: its own drivers may wait forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")
_SLOW_FAILURE_SECONDS = 1.0
_FIRST_REST_SECONDS = 60.0
_LONGEST_REST_SECONDS = 600.0


class NoAnswerError(Exception):
    """There was no answer in time, or none shortly before; its text contains nothing secret."""


@dataclass(eq=False)
class Patience:
    """Waits ``seconds`` for an answer. A server that gave none, or failed slowly, rests for a minute or more.

    While it rests, it isn't asked. So many requests to a server that doesn't answer take that time once in all, and not
    once each.

    Example:
        >>> patience = Patience(0.05)
        >>> patience.ask(lambda: 42)
        42
        >>> patience.ask(threading.Event().wait)
        Traceback (most recent call last):
        ...
        dagster_ips.iceberg.answer_deadline.NoAnswerError: no answer within 0.05 seconds (patience_seconds)
    """

    seconds: float
    _resting_until: float = 0.0
    _rest_seconds: float = _FIRST_REST_SECONDS

    def ask(self, call: Callable[[], _Answer]) -> _Answer:
        """What ``call`` returns or raises.

        Raises:
            NoAnswerError: it does neither in time. It continues in its own thread, which may never end.
        """
        if (left := self._resting_until - time.monotonic()) > 0:
            message = f"it recently failed to answer in time; the next attempt is in {left:.0f} seconds"
            raise NoAnswerError(message)
        started, outcome = time.monotonic(), _Outcome()
        # Not a pool's thread: Python waits for those when it exits.
        thread = threading.Thread(target=outcome.fill, args=(call,), daemon=True)
        thread.start()
        thread.join(self.seconds)
        failed = thread.is_alive() or outcome.error is not None
        if failed and time.monotonic() - started > min(self.seconds, _SLOW_FAILURE_SECONDS):
            self._resting_until = time.monotonic() + self._rest_seconds
            self._rest_seconds = min(2 * self._rest_seconds, _LONGEST_REST_SECONDS)
        elif not failed:
            self._rest_seconds = _FIRST_REST_SECONDS
        if thread.is_alive():
            message = f"no answer within {self.seconds:g} seconds (patience_seconds)"
            raise NoAnswerError(message)
        if outcome.error is not None:
            raise outcome.error
        answer: _Answer = outcome.answer
        return answer


@dataclass(eq=False)
class _Outcome:
    answer: Any = None
    error: BaseException | None = None

    def fill(self, call: Callable[[], object]) -> None:
        try:
            self.answer = call()
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self.error = error
