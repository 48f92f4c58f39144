"""A command shows its progress to a person who watches, and to nobody else."""

from __future__ import annotations

import io
import sys

import pytest
from click.testing import CliRunner

from dagster_ips.cli import backfills
from dagster_ips.cli.main import main
from dagster_ips.cli.shown_progress import shown_before_each, shown_while
from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage
from dagster_ips.core.backfill_progress import PartState, StageProgress
from dagster_ips.orchestration.backfill.following import BackfillFollower
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.cli.idle_lake import IdleLake


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


def test_a_watched_backfill_is_shown_again_only_after_a_change(
    idle_lake: IdleLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = BackfillPlan("planned1", 0, (PlannedStage("daily", "media.daily", ("playback",), None),), ())
    CursorStore(idle_lake.instance).set_backfill(LaunchedBackfill(plan, "me", 0, {}))
    states = iter([PartState.PENDING, PartState.PENDING, PartState.RUNNING, PartState.RUNNING, PartState.DONE])
    monkeypatch.setattr(BackfillFollower, "progress", lambda _: [StageProgress("daily", {"": next(states)})])
    monkeypatch.setattr(backfills, "_LOOK_SECONDS", 0)
    result = CliRunner().invoke(main, ["backfill", "status", "-f", str(idle_lake.file), plan.id, "--watch"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Backfill planned1") == 3
    assert next(states, None) is None
