"""A revert restores the rows of all stages, and neither loses nor doubles rows that came later."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ips.core.capture import Mode
from dagster_ips.errors import ForeignWriteError
from dagster_ips.orchestration.run.runs import ACCEPT_TAG, MODE_TAG
from dagster_ips.spark.maintenance import expire_snapshots
from tests.backfill.three_stages import ThreeStages
from tests.histories.handmade import add_column_with_default
from tests.support.at_effect import at
from tests.support.lake import events

ALL = ("--partitions", "2026-01-01..2026-01-10")


@pytest.fixture
def fixed(stages: ThreeStages) -> str:
    """A backfill of all days by code without the bug. All stages have followed it."""
    stages.begin()
    stages.deploy(bug=False)
    plan = stages.plan("day", *ALL)
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.follow()
    assert stages.rows() == stages.right(bug=False)
    return plan


def test_a_revert_restores_equal_rows_in_all_stages(stages: ThreeStages, fixed: str) -> None:
    stages.deploy(bug=True)
    before = stages.lake.commits("media.day")
    assert "restores the previous rows" in stages.says("revert", fixed, "--dry-run")
    assert stages.lake.commits("media.day") == before
    assert "Reverted: 10:" in stages.says("revert", fixed, "--yes")
    assert stages.lake.rows("media.day") == stages.right(bug=True)["media.day"]
    stages.follow()
    assert stages.rows() == stages.right(bug=True)
    diff = stages.told("diff", fixed)["stages"]
    assert [(each["total"]["added"], each["total"]["removed"], each["total"]["changed"]) for each in diff] == [
        (0, 0, 0)
    ] * 3
    assert "nothing is left to revert" in stages.says("revert", fixed, "--yes")
    stages.arrive(*events([100, 101], day=3))
    assert stages.rows() == stages.right(bug=True)


@pytest.mark.slow
def test_rows_that_arrived_since_the_backfill_are_neither_lost_nor_doubled(stages: ThreeStages) -> None:
    """Rows arrive before the backfill, consumed by the backfill, by a run after it, and after the revert."""
    stages.begin()
    stages.arrive(*events([100], day=2))
    stages.land(*events([101, 102], day=3))
    stages.deploy(bug=False)
    plan = stages.plan("day", *ALL)
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.follow()
    stages.arrive(*events([103, 104], day=3), *events([105], day=4))
    assert stages.rows() == stages.right(bug=False)
    stages.land(*events([106], day=5))
    stages.deploy(bug=True)
    assert "later commits of day" in stages.says("revert", plan, "--yes")
    assert stages.pending_days() >= {"2026-01-03", "2026-01-04"}
    stages.follow()
    assert stages.rows() == stages.right(bug=True)
    stages.arrive(*events([107], day=3))
    assert stages.rows() == stages.right(bug=True)
    assert stages.follow() == []


@pytest.mark.slow
def test_a_revert_restores_only_what_the_backfill_computed(stages: ThreeStages) -> None:
    stages.begin()
    stages.deploy(bug=False)
    plan = stages.plan("day", "--partitions", "2026-01-02..2026-01-05")
    stages.says("launch", plan, "--yes")
    # As if the backfill was cancelled midway.
    stages.run("day", "2026-01-02", "2026-01-03", **{"dagster/backfill": plan})
    backfill = stages.instance.get_backfill(plan)
    assert backfill is not None
    stages.instance.update_backfill(backfill.with_status(type(backfill.status).CANCELED))
    stages.follow()
    half = stages.rows()
    stages.deploy(bug=True)
    assert "Reverted: 2026-01-02, in" in stages.says("revert", plan, "--partition", "2026-01-02", "--yes")
    stages.follow()
    assert stages.rows() != half
    assert "Reverted: 2026-01-03, in" in stages.says("revert", plan, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)


@pytest.mark.slow
def test_overlapping_backfills_can_be_reverted_one_after_the_other_the_later_one_first(
    stages: ThreeStages, fixed: str
) -> None:
    later = stages.plan("day", "--partitions", "2026-01-03..2026-01-05")
    stages.says("launch", later, "--yes")
    stages.backfill(later)
    assert "2026-01-04: it has been recomputed since" in stages.refuses("revert", fixed, "--yes")
    stages.says("revert", later, "--yes")
    assert stages.lake.rows("media.day") == stages.right(bug=False)["media.day"]
    stages.deploy(bug=True)
    assert "Reverted: 10:" in stages.says("revert", fixed, "--yes")
    assert stages.lake.rows("media.day") == stages.right(bug=True)["media.day"]
    stages.arrive(*events([100, 101], day=3))
    assert stages.rows() == stages.right(bug=True)


@pytest.mark.slow
def test_later_changes_by_others_are_named_and_not_lost(stages: ThreeStages, fixed: str) -> None:
    stages.deploy(bug=True)
    stages.run("day", "2026-01-04")
    stages.lake.sql("DELETE FROM lake.media.day WHERE event_date = DATE '2026-01-06' AND account = 'a0'")
    said = stages.refuses("revert", fixed, "--yes")
    assert "2026-01-04: it has been recomputed since" in said
    assert "2026-01-06: someone else changed it" in said
    there = stages.lake.rows("media.day")
    assert "Reverted: 8:" in stages.says("revert", fixed, "--yes", "--leave-out-changed")
    left = {row for row in stages.lake.rows("media.day") if str(row[1]) in ("2026-01-04", "2026-01-06")}
    assert left == {row for row in there if str(row[1]) in ("2026-01-04", "2026-01-06")}


@pytest.mark.slow
def test_a_partition_that_was_first_computed_by_the_backfill_stays_and_is_named(stages: ThreeStages) -> None:
    stages.lake.create_playback(events(range(3)))
    stages.events += events(range(3))
    stages.land(*events([10, 11], day=1))
    stages.run("day", "2026-01-01")
    plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-02")
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    assert "First computed by this backfill" in stages.says("revert", plan, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)


@pytest.mark.slow
def test_a_partition_whose_first_rows_the_backfill_read_has_none_after_the_revert_and_reads_them_again(
    stages: ThreeStages,
) -> None:
    stages.lake.create_playback(events(range(3)))
    stages.events += events(range(3))
    stages.run("day", "2026-01-01")
    stages.land(*events([10, 11], day=1))
    plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-02")
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    assert "Reverted: 2026-01-01, 2026-01-02" in stages.says("revert", plan, "--yes")
    assert {str(row[1]) for row in stages.lake.rows("media.day")} == {"2026-01-01"}
    stages.follow()
    assert stages.rows() == stages.right(bug=True)


@pytest.mark.slow
def test_a_partition_is_restored_although_the_snapshots_it_consumed_are_expired(stages: ThreeStages) -> None:
    stages.begin()
    for number in range(3):
        stages.arrive(*events([100 + number], day=7))
    expire_snapshots(stages.lake.session, "lake", "media.playback", before_ms=time.time_ns() // 1_000_000)
    assert stages.lake.commits("media.playback") == 1
    stages.deploy(bug=False)
    plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-02")
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.arrive(*events([110], day=1))
    stages.deploy(bug=True)
    assert "Reverted: 2026-01-01, 2026-01-02" in stages.says("revert", plan, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)
    assert "media.day" in stages.says("release", plan, "--yes")
    assert f"ips-backfill-{plan}" not in stages.lake.branches("media.day")
    assert "is no longer kept" in stages.refuses("revert", plan, "--yes")


@pytest.mark.slow
def test_the_hygiene_job_keeps_what_a_revert_needs(stages: ThreeStages, fixed: str) -> None:
    stages.arrive(*events([100], day=0))
    job = stages.definitions.resolve_job_def("ips_hygiene")
    settings = {"ops": {"tidy_up": {"config": {"keep_days": 0, "compact": False}}}}
    assert job.execute_in_process(instance=stages.instance, run_config=settings).success
    stages.deploy(bug=True)
    assert "Reverted: 10:" in stages.says("revert", fixed, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)


@pytest.mark.slow
def test_a_revert_is_refused_while_the_partitions_are_redefined(stages: ThreeStages, fixed: str) -> None:
    """The key of a Sunday is also the key of a week, which has other rows."""
    stages.deploy(bug=False, by_week=True)
    before = stages.lake.commits("media.day")
    assert "have since been redefined" in stages.refuses("revert", fixed, "--yes")
    assert stages.lake.commits("media.day") == before
    stages.deploy(bug=True)
    assert "Reverted: 10:" in stages.says("revert", fixed, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)


@pytest.mark.slow
def test_restored_rows_have_the_default_of_a_column_that_was_added_since(stages: ThreeStages, fixed: str) -> None:
    stages.lake.sql("ALTER TABLE lake.media.day SET TBLPROPERTIES ('format-version' = '3')")
    raw = stages.lake.catalog.load("media.day", asset="test").raw
    day: Any = SimpleNamespace(lake=stages.lake, name="media.day", raw=raw)
    add_column_with_default(day, "rating", "int", 5)
    stages.says("revert", fixed, "--yes")
    rated = stages.lake.rows("media.day")
    assert {row[-1] for row in rated} == {5}
    assert Counter(row[:-1] for row in rated.elements()) == stages.right(bug=True)["media.day"]


def test_a_change_by_others_from_before_the_backfill_is_not_hidden_by_a_revert(stages: ThreeStages) -> None:
    """Runs of the asset refuse to go on with such rows. Once restored, they would count as the asset's own."""
    stages.begin()
    stages.lake.sql("DELETE FROM lake.media.day WHERE event_date = DATE '2026-01-03' AND account = 'a0'")
    stages.deploy(bug=False)
    plan = stages.plan("day", "--partitions", "2026-01-02..2026-01-03")
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    assert "2026-01-03: someone else changed it before" in stages.refuses("revert", plan, "--yes")
    assert "Reverted: 2026-01-02, in" in stages.says("revert", plan, "--yes", "--leave-out-changed")
    stages.land(*events([100], day=2))
    with pytest.raises(ForeignWriteError) as refused:
        stages.follow()
    accept = str(refused.value.newest)
    stages.run("day", "2026-01-03", **{MODE_TAG: str(Mode.INCREMENTAL), ACCEPT_TAG: accept})
    stages.follow()
    there = {row for row in stages.lake.rows("media.day") if str(row[1]) == "2026-01-03"}
    assert there == {row for row in stages.right(bug=False)["media.day"] if str(row[1]) == "2026-01-03"}


@pytest.mark.slow
def test_what_someone_else_writes_while_rows_are_restored_is_not_lost(stages: ThreeStages, fixed: str) -> None:
    write = "DELETE FROM lake.media.day WHERE event_date = DATE '2026-01-06' AND account = 'a0'"
    with at("before:publish", lambda: stages.lake.sql(write)):
        assert "someone else has changed the table in the meantime" in stages.refuses("revert", fixed, "--yes")
    assert not any(row[2] == "a0" for row in stages.lake.rows("media.day") if str(row[1]) == "2026-01-06")
    assert "2026-01-06: someone else changed it in" in stages.refuses("revert", fixed, "--yes")
