"""Launch, stage, publish and revert, killed at each durable effect and repeated, end as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
from collections.abc import Callable, Mapping, Sequence

import dagster as dg
import pytest

from dagster_ips.cli.main import main
from dagster_ips.orchestration.watch.failed_runs import failed_runs
from tests.backfill.three_stages import ThreeStages
from tests.support.at_effect import end_at
from tests.support.lake import events

pytestmark = pytest.mark.slow

# Processes fork from one that has imported everything and shares nothing with this process's Spark client.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.backfill.three_stages"])
DAYS = ("--partitions", "2026-01-02..2026-01-04")


def _command(words: Sequence[str], home: str, at: str) -> None:
    _kill_at(at, home)
    main(["backfill", *words])


def _run(file: str, asset: str, tags: Mapping[str, str], home: str, at: str) -> None:
    _kill_at(at, home)
    job = runpy.run_path(file)["defs"].resolve_implicit_global_asset_job_def()
    job.execute_in_process(instance=dg.DagsterInstance.get(), asset_selection=[dg.AssetKey(asset)], tags=tags)


def _kill_at(at: str, home: str) -> None:
    os.environ["DAGSTER_HOME"] = home
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    end_at(at)


def killed(stages: ThreeStages, name: str, *words: str, at: str) -> None:
    """Run a command in its own process, which is killed at the effect ``at``."""
    command = (name, "-f", str(stages.file), *words)
    _until_killed(_command, command, stages.instance.root_directory, at)


def killed_run(stages: ThreeStages, asset: str, tags: Mapping[str, str], *, at: str) -> None:
    """Like ``killed``, for a run of an asset without partitions. Monitoring then reports the run as failed."""
    _until_killed(_run, str(stages.file), asset, tags, stages.instance.root_directory, at)
    (run,) = stages.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    stages.instance.report_run_failed(run)


def _until_killed(target: Callable[..., None], *words: object) -> None:
    process = _PROCESSES.Process(target=target, args=words)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, words


OF_LAUNCH = [
    "before:tag_before",
    "after:tag_before",
    "after:tag_before#2",
    "before:record_backfill",
    "after:record_backfill",
    "before:launch_backfill",
    "after:launch_backfill",
]


def test_a_launch_that_is_killed_anywhere_can_be_launched_again(stages: ThreeStages) -> None:
    stages.begin()
    for point in OF_LAUNCH:
        plan = stages.plan("day", *DAYS)
        killed(stages, "launch", plan, "--yes", at=point)
        # Rows that arrive before Dagster knows the backfill belong to the state before it.
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
    "before:create_branch",
    "after:create_branch",
    "before:write_branch",
    "after:write_branch",
    "before:publish",
    "after:publish",
    "before:copy_progress",
    "after:copy_progress",
    "before:report_event",
    "after:report_event",
]


@pytest.mark.parametrize("point", OF_REVERT)
def test_a_revert_that_is_killed_anywhere_loses_and_doubles_nothing(stages: ThreeStages, point: str) -> None:
    """Rows arrive before the backfill, between it and the revert, and after the kill; automation runs in between."""
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


def test_what_follows_a_revert_that_was_killed_knows_that_it_took_partitions_back(stages: ThreeStages) -> None:
    """No sensor looks in between. A comparison finds no difference, and another backfill can be reverted as well."""
    stages.begin()
    stages.land(*events([100], day=2))
    plan = stages.plan("day", *DAYS)
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.arrive(*events([101], day=1), *events([102], day=3))
    killed(stages, "revert", plan, "--yes", at="after:publish")
    assert "day: no rows differ from a full recompute." in stages.says("diff", plan, "--against", "full")
    again = stages.plan("day", *DAYS)
    stages.says("launch", again, "--yes")
    stages.backfill(again)
    stages.says("revert", again, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)


def test_what_a_killed_revert_took_back_is_pending_although_nothing_else_was_done(stages: ThreeStages) -> None:
    stages.begin()
    plan = stages.plan("day", *DAYS)
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.arrive(*events([101], day=1))
    killed(stages, "revert", plan, "--yes", at="after:publish")
    assert stages.pending_days() == {"2026-01-02", "2026-01-03", "2026-01-04"}


ALL_DAYS = ("day", "--partitions", "2026-01-01..2026-01-10")
OF_STAGING = ["before:create_branch", "after:create_branch#2", "before:launch_backfill"]
OF_STAGED_RUN = ["after:register_icdc_table", "after:write_branch", "before:publish", "after:publish"]


def test_a_staging_that_is_killed_anywhere_can_be_staged_again(stages: ThreeStages) -> None:
    stages.begin()
    stages.deploy(bug=False)
    plan = stages.plan(*ALL_DAYS)
    for point in OF_STAGING:
        killed(stages, "launch", plan, "--staged", "--yes", "--although-moved", at=point)
        stages.arrive(*events([300 + OF_STAGING.index(point)], day=2))
    stages.says("launch", plan, "--staged", "--yes", "--although-moved")
    before = stages.rows()
    launched = stages.instance.get_backfill(plan)
    assert launched is not None
    stages.stage(plan, "day")
    for point in OF_STAGED_RUN:
        killed_run(stages, "by_account", {**launched.tags, "dagster/backfill": plan}, at=point)
    assert failed_runs(stages.instance, dg.AssetKey("by_account"), is_partitioned=False) == {}
    assert "isn't finished" in stages.refuses("publish", plan, "--yes")
    assert (stages.rows(), stages.follow()) == (before, [])
    stages.stage(plan, "by_account", "week")
    stages.says("publish", plan, "--yes")
    stages.arrive(*events([310], day=2))
    assert stages.rows() == stages.right(bug=False)


OF_PUBLISH = [
    ("before:publish", 0, "cancel"),
    ("after:publish", 1, "automation"),
    ("before:publish#2", 1, "cancel"),
    ("after:publish#2", 2, "publish"),
    ("after:publish#3", 3, "automation"),
    ("after:copy_progress", 3, "publish"),
    ("before:report_event", 3, "publish"),
    ("after:drop_branch#2", 3, "publish"),
]
"""Where the command is killed, the number of tables published by then, and the next action."""


def test_a_publication_that_is_killed_anywhere_can_be_finished_cancelled_or_followed(stages: ThreeStages) -> None:
    """Rows arrive during staging and after the kill; no row is lost, doubled, or left as the other code made it."""
    stages.begin()
    had_bug = True
    for number, (point, published, further) in enumerate(OF_PUBLISH):
        stages.deploy(bug=not had_bug)
        plan = stages.staged(*ALL_DAYS)
        stages.land(*events([400 + 10 * number], day=number))
        killed(stages, "publish", plan, "--yes", at=point)
        assert ("Publishing is incomplete" in stages.says("status", plan)) == (published > 0)
        if further == "automation":
            stages.follow()
        stages.says("cancel" if further == "cancel" else "publish", plan, "--yes")
        had_bug = had_bug if further == "cancel" and not published else not had_bug
        stages.deploy(bug=had_bug)
        stages.arrive(*events([401 + 10 * number], day=9))
        assert stages.rows() == stages.right(bug=had_bug), point
        refs = [stages.lake.catalog.load(table, asset="test").raw["refs"] for table in stages.TABLES]
        assert not any(f"ips-staged-{plan}" in each for each in refs)


def test_a_publication_that_was_killed_half_way_can_be_reverted(stages: ThreeStages) -> None:
    """This holds whether or not automation has followed the tables that are already published."""
    stages.begin()
    for number, point in enumerate(("after:publish", "after:publish#2")):
        stages.deploy(bug=False)
        plan = stages.staged(*ALL_DAYS)
        killed(stages, "publish", plan, "--yes", at=point)
        assert "Publishing is incomplete" in stages.says("status", plan)
        stages.land(*events([500 + number], day=number))
        if number:
            stages.follow()
        stages.deploy(bug=True)
        assert "Reverted: 10" in stages.says("revert", plan, "--yes")
        stages.follow()
        assert stages.rows() == stages.right(bug=True), point
        refs = [stages.lake.catalog.load(table, asset="test").raw["refs"] for table in stages.TABLES]
        assert not any(f"ips-staged-{plan}" in each for each in refs)
