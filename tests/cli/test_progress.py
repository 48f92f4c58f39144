"""What a command is at is shown to who looks on, and to nobody else."""

from __future__ import annotations

import io
import sys

import pytest

from dagster_ips.cli.progress import shown_before_each, shown_while


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_is_shown_on_a_terminal_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with shown_while("Loading"):
        assert terminal.getvalue() == "Loading …"
    assert terminal.getvalue().endswith("\r\033[K")


def test_it_is_gone_before_each_thing_that_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    found = []
    for each in shown_before_each(iter("ab"), "Comparing"):
        found.append(each)
        assert terminal.getvalue().endswith("\r\033[K")
    assert found == ["a", "b"]
    assert terminal.getvalue().count("Comparing") == 3  # the third time there was nothing more


def test_where_nobody_looks_on_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with shown_while("Loading"):
        pass
    assert stream.getvalue() == ""
