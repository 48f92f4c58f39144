"""From a planted bug to its fix and back, with the command line and a real daemon, while rows keep arriving."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from tests.backfill.three_stages import ThreeStages
from tests.support.daemon import Daemon
from tests.support.lake import events

pytestmark = pytest.mark.slow

_SECONDS = 600


def wait(until: Callable[[], bool], daemon: Daemon) -> None:
    deadline = time.monotonic() + _SECONDS
    while not until():
        assert time.monotonic() < deadline, daemon.log("daemon")
        time.sleep(2)


def served(stages: ThreeStages, instance: dg.DagsterInstance, bug: Path) -> Daemon:
    """The pipeline in a code server. The code has the bug as long as the file ``bug`` exists."""
    places = {"SOAK_LAKE": stages.lake.folder, "SOAK_SPARK": stages.lake.spark_folder, "SOAK_BUG": bug}
    environment = {name: str(place) for name, place in places.items()}
    return Daemon(Path(instance.root_directory), "tests.support.backfill_definitions", environment)


def test_a_bug_is_fixed_and_the_fix_is_reverted_while_rows_arrive(
    stages: ThreeStages, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    stages.begin()
    bug = tmp_path / "bug"
    bug.touch()
    with served(stages, instance, bug) as daemon:
        assert stages.rows() == stages.right(bug=True)
        bug.unlink()
        stages.deploy(bug=False)
        daemon.reload()
        plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-10")
        stages.says("launch", plan, "--yes")
        stages.land(*events([100, 101], day=4))
        wait(lambda: not stages.told("status", plan)["is_open"], daemon)
        assert stages.told("status", plan)["status"] == "COMPLETED_SUCCESS"
        wait(lambda: stages.rows() == stages.right(bug=False), daemon)
        day = stages.told("diff", plan)["stages"][0]
        assert set(day["total"]["columns"]) == {"seconds"}

        bug.touch()
        stages.deploy(bug=True)
        daemon.reload()
        stages.land(*events([102, 103], day=5))
        while stages.command("revert", plan, "--yes").exit_code:
            time.sleep(2)  # while a run is at work on the table
        wait(lambda: stages.rows() == stages.right(bug=True), daemon)
        assert "nothing is left to revert" in stages.says("revert", plan, "--yes")


def test_a_staged_backfill_is_run_by_the_daemon_and_visible_only_after_publishing(
    stages: ThreeStages, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    stages.begin()
    stages.deploy(bug=False)
    with served(stages, instance, tmp_path / "none") as daemon:
        plan = stages.plan("day", "--partitions", "2026-01-03..2026-01-10")
        stages.says("launch", plan, "--staged", "--yes")
        assert "isn't finished" in stages.refuses("publish", plan, "--yes")
        wait(lambda: not stages.told("status", plan)["is_open"], daemon)
        assert len(stages.told("status", plan)["runs"]) == 3
        assert stages.rows() == stages.right(bug=True)
        stages.says("publish", plan, "--yes")
        stages.land(*events([100, 101], day=4))
        fixed, buggy = (stages.right(bug=bug)["media.day"] for bug in (False, True))
        early = [row for row in buggy if row[1].day < 3]
        expected = {row: count for row, count in fixed.items() if row[1].day >= 3} | dict.fromkeys(early, 1)
        wait(lambda: stages.lake.rows("media.day") == expected, daemon)


def test_a_daemon_that_is_killed_midway_continues_a_live_backfill_while_rows_arrive(
    stages: ThreeStages, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    stages.begin()
    stages.deploy(bug=False)
    with served(stages, instance, tmp_path / "none") as daemon:
        plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-10")
        stages.says("launch", plan, "--yes")
        wait(lambda: bool(daemon.workers()), daemon)
        stages.land(*events([100, 101], day=4))
        daemon.restart(signal.SIGKILL)
        stages.land(*events([102], day=7))
        wait(lambda: not stages.told("status", plan)["is_open"], daemon)
        assert stages.told("status", plan)["status"] == "COMPLETED_SUCCESS"
        wait(lambda: stages.rows() == stages.right(bug=False), daemon)
    assert stages.follow() == []


def test_a_daemon_that_is_killed_midway_continues_a_staged_backfill_and_nobody_sees_half_of_it(
    stages: ThreeStages, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    stages.begin()
    before = stages.rows()
    stages.deploy(bug=False)
    with served(stages, instance, tmp_path / "none") as daemon:
        daemon.automation("stop")
        plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-10")
        stages.says("launch", plan, "--staged", "--yes")
        wait(lambda: bool(daemon.workers()), daemon)
        stages.land(*events([100, 101], day=4))
        daemon.restart(signal.SIGKILL)
        assert "isn't finished" in stages.refuses("publish", plan, "--yes")
        wait(lambda: not stages.told("status", plan)["is_open"], daemon)
        assert stages.rows() == before
        stages.says("publish", plan, "--yes")
        stages.land(*events([102], day=7))
        daemon.automation("start")
        wait(lambda: stages.rows() == stages.right(bug=False), daemon)
    assert stages.follow() == []
