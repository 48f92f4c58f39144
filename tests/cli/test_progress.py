"""A command shows its progress to a person who watches, and to nobody else."""

from __future__ import annotations

import io
import sys

import pytest

from dagster_ips.cli.progress import shown_before_each, shown_while


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_erased_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with shown_while("Loading"):
        assert terminal.getvalue() == "Loading …"
    assert terminal.getvalue().endswith("\r\033[K")


def test_progress_is_erased_before_each_result(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    found = []
    for each in shown_before_each(iter("ab"), "Comparing"):
        found.append(each)
        assert terminal.getvalue().endswith("\r\033[K")
    assert found == ["a", "b"]
    assert terminal.getvalue().count("Comparing") == 3  # at the third time there was nothing more


def test_progress_is_not_written_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with shown_while("Loading"):
        pass
    assert stream.getvalue() == ""
