"""Launch and revert killed at each durable effect: done again they end as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence

import pytest

from dagster_ips.cli.main import main
from dagster_ips.exactly_once import effects
from dagster_ips.exactly_once.effects import Effect
from tests.backfill.three_stages import ThreeStages
from tests.support.lake import events

pytestmark = pytest.mark.slow

# Forks from a process that has imported everything, and shares nothing with Spark's client in this one.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.backfill.three_stages"])
DAYS = ("--partitions", "2026-01-02..2026-01-04")


def _command(words: Sequence[str], home: str, at: str) -> None:
    os.environ["DAGSTER_HOME"] = home
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    point, _, times = at.partition("#")
    left = int(times or 1)

    def observer(effect: Effect, when: str) -> None:
        nonlocal left
        left -= f"{when}:{effect}" == point
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    effects.observers.append(observer)
    main(["backfill", *words])


def killed(stages: ThreeStages, name: str, *words: str, at: str) -> None:
    """A command in a process of its own, which is killed at the effect ``at``."""
    command = (name, "-f", str(stages.file), *words)
    process = _PROCESSES.Process(target=_command, args=(command, stages.instance.root_directory, at))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, at


OF_LAUNCH = [
    "before:tag_before",
    "after:tag_before",
    "after:tag_before#2",
    "before:record_backfill",
    "after:record_backfill",
    "before:launch_backfill",
    "after:launch_backfill",
]


def test_a_launch_that_is_killed_anywhere_is_launched_again(stages: ThreeStages) -> None:
    stages.begin()
    for point in OF_LAUNCH:
        plan = stages.plan("day", *DAYS)
        killed(stages, "launch", plan, "--yes", at=point)
        # What came since, before Dagster knew of the backfill, is part of the state before it.
        is_launched = stages.instance.get_backfill(plan) is not None
        assert is_launched == (point == "after:launch_backfill")
        stages.arrive(*events([200 + OF_LAUNCH.index(point)], day=2))
        again = () if is_launched else ("--although-moved",)
        heads = {t: stages.lake.catalog.load(t, asset="test").head_snapshot_id() for t in stages.TABLES}
        assert "is launched" in stages.says("launch", plan, "--yes", *again)
        assert stages.instance.get_backfill(plan) is not None
        for table, head in heads.items():
            refs = stages.lake.catalog.load(table, asset="test").raw["refs"]
            tagged = refs[f"ips-backfill-{plan}"]["snapshot-id"]
            assert (tagged == head) or is_launched


OF_REVERT = [
    "before:announce",
    "after:announce",
    "before:create_branch",
    "after:create_branch",
    "before:write_branch",
    "after:write_branch",
    "before:announce#2",
    "after:announce#2",
    "before:publish",
    "after:publish",
    "before:commit",
    "after:commit",
    "after:commit#2",
    "before:drop_branch",
    "after:drop_branch",
    "before:report_event",
    "after:report_event",
]


@pytest.mark.parametrize("point", OF_REVERT)
def test_a_revert_that_is_killed_anywhere_loses_and_doubles_nothing(stages: ThreeStages, point: str) -> None:
    """Rows come before the backfill, between it and the revert, and after the kill; automation runs in between."""
    stages.begin()
    stages.land(*events([100], day=2))
    stages.deploy(bug=False)
    plan = stages.plan("day", *DAYS)
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.arrive(*events([101], day=1), *events([102], day=3))
    stages.deploy(bug=True)
    killed(stages, "revert", plan, "--yes", at=point)
    stages.follow()
    ids = [row[0] for row in stages.lake.rows("media.day").elements()]
    assert sorted(ids) == sorted(row[0] for row in stages.events), "before it is done again"
    stages.land(*events([103], day=3))
    stages.says("revert", plan, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)
