"""Limits the time that is spent on a server that may not answer."""

from __future__ import annotations

import threading

import pytest

from dagster_ips.iceberg.answer_deadline import NoAnswerError, Patience


def test_a_server_that_did_not_answer_is_asked_again_only_after_a_pause() -> None:
    patience, asked, silent = Patience(0.05), [], threading.Event()

    def answer() -> bool:
        asked.append(threading.current_thread())
        return silent.wait()

    for says in ("no answer within 0.05 seconds", "the next attempt is in 60 seconds"):
        with pytest.raises(NoAnswerError, match=says):
            patience.ask(answer)
    assert len(asked) == 1
    silent.set()
    patience._resting_until = 0.0
    assert patience.ask(answer)


def test_an_error_is_raised_unchanged_and_a_quick_one_causes_no_pause() -> None:
    patience = Patience(5)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            patience.ask(lambda: 1 // 0)
