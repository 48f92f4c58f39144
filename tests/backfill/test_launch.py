"""A launched plan is a backfill of Dagster's own, and every table's previous state is kept."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips._compat import requested_backfill
from dagster_ips.orchestration.backfill.launching import BackfillLauncher
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.spark.maintenance import expire_snapshots
from tests.backfill.three_stages import ThreeStages
from tests.support.lake import events
from tests.support.partitioned import DAYS, SENSOR

FIXED = ("--partitions", "2026-01-01..2026-01-10")


def tags(stages: ThreeStages, plan: str) -> dict[str, int]:
    found = {}
    for table in stages.TABLES:
        refs = stages.lake.catalog.load(table, asset="test").raw["refs"]
        if (ref := refs.get(f"ips-backfill-{plan}")) is not None:
            assert ref["type"] == "tag"
            found[table] = int(ref["snapshot-id"])
    return found


def heads(stages: ThreeStages) -> dict[str, int | None]:
    return {table: stages.lake.catalog.load(table, asset="test").head_snapshot_id() for table in stages.TABLES}


def test_a_launched_backfill_and_its_status_include_its_partitions_and_all_downstream_stages(
    stages: ThreeStages,
) -> None:
    stages.begin()
    assert stages.rows() == stages.right(bug=True)
    stages.deploy(bug=False)
    plan = stages.plan("day", *FIXED)
    assert "planned but not launched" in stages.refuses("status", plan)
    before = heads(stages)
    assert "is launched" in stages.says("launch", plan, "--yes")
    assert tags(stages, plan) == before
    status = stages.told("status", plan)
    assert (status["status"], status["is_open"]) == ("REQUESTED", True)
    assert set(status["stages"][0]["parts"].values()) == {"pending"}
    assert set(status["stages"][2]["parts"].values()) == {"to come"}

    stages.backfill(plan)
    assert set(stages.told("status", plan)["stages"][2]["parts"].values()) == {"pending"}
    stages.follow()
    assert stages.rows() == stages.right(bug=False)
    status = stages.told("status", plan, "--watch")
    assert not status["is_open"]
    assert [set(stage["parts"].values()) for stage in status["stages"]] == [{"done"}] * 3
    read = {stage["asset"]: stage["rows"] for stage in status["stages"]}
    assert read == {stage["asset"]: stage["planned_rows"] for stage in status["stages"]}
    assert len(status["runs"]) == 3
    assert "day" in stages.says("status", plan)
    bad = [row for row in stages.events if row[2] == "a1" and row[3]]
    differences = [each["total"] for each in stages.told("diff", plan)["stages"]]
    assert [each["columns"] for each in differences[:2]] == [{"seconds": len(bad)}, {"seconds": 1}]
    assert [each["added"] for each in differences] == [each["removed"] for each in differences] == [0, 0, 2]
    # A second launch changes nothing: nothing is tagged or started again.
    assert "is launched" in stages.says("launch", plan, "--yes")
    assert tags(stages, plan) == before


@pytest.mark.slow
def test_partitions_that_change_no_row_cause_no_downstream_changes(stages: ThreeStages) -> None:
    stages.begin()
    plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-02")
    stages.says("launch", plan, "--yes")
    stages.backfill(plan)
    stages.follow()
    week = stages.told("status", plan)["stages"][2]
    assert set(week["parts"].values()) <= {"done", "unchanged"}
    assert stages.rows() == stages.right(bug=True)


def test_a_plan_whose_source_or_code_changed_is_refused(stages: ThreeStages) -> None:
    stages.lake.create_playback(events(range(3)))
    plan = stages.plan("day", "--partition", "2026-01-01")
    stages.land(*events([100], day=1))
    stages.deploy(bug=False)
    said = stages.refuses("launch", plan, "--yes")
    assert "media.playback moved from snapshot" in said
    assert "day's code version changed from buggy to fixed" in said


@pytest.mark.slow
def test_a_plan_whose_tables_or_code_changed_is_refused_and_the_changes_are_named(stages: ThreeStages) -> None:
    stages.begin()
    plan = stages.plan("day", "--partition", "2026-01-01")
    stages.arrive(*events([100], day=1))
    said = stages.refuses("launch", plan, "--yes")
    assert "media.playback moved from snapshot" in said
    assert "media.week moved from snapshot" in said
    assert stages.instance.get_backfill(plan) is None
    assert tags(stages, plan) == {}
    assert "is launched" in stages.says("launch", plan, "--yes", "--although-moved")
    other = stages.plan("day", "--partition", "2026-01-01")
    stages.deploy(bug=False)
    assert "day's code version changed from buggy to fixed" in stages.refuses("launch", other, "--yes")


def test_a_plan_is_launched_from_its_reviewed_file(stages: ThreeStages, tmp_path: Path) -> None:
    stages.lake.create_playback(events(range(3)))
    file = tmp_path / "plan.json"
    plan = stages.plan("day", "--partition", "2026-01-01", "--out", str(file))
    assert "is launched" in stages.says("launch", str(file), "--yes")
    assert stages.instance.get_backfill(plan) is not None
    file.write_text("{}")
    assert "can't be read as a backfill plan" in stages.refuses("launch", str(file), "--yes")
    assert "has no plan" in stages.refuses("launch", "nothing", "--yes")


@pytest.mark.slow
def test_the_previous_state_survives_snapshot_expiry_however_old_it_is(
    stages: ThreeStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg expires a tag by the age of its snapshot, not by the age of the tag."""
    stages.begin()
    before = stages.rows()["media.day"]
    at = heads(stages)["media.day"]
    plan = stages.plan("day", "--partition", "2026-01-01")
    sixty_days = 60 * 86_400_000
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + sixty_days * 1_000_000)
    stages.says("launch", plan, "--yes", "--keep-days", "2")
    monkeypatch.undo()
    refs = stages.lake.catalog.load("media.day", asset="test").raw["refs"]
    assert refs[f"ips-backfill-{plan}"]["max-ref-age-ms"] >= sixty_days + 2 * 86_400_000
    stages.arrive(*events([100], day=0))
    expire_snapshots(stages.lake.session, "lake", "media.day", before_ms=now() // 1_000_000 + 1000)
    assert at in stages.lake.catalog.load("media.day", asset="test").snapshots
    there = stages.lake.sql(f"SELECT * FROM lake.media.day VERSION AS OF 'ips-backfill-{plan}'").collect()
    assert sorted(map(tuple, there)) == sorted(before.elements())


def test_cancel_ends_the_backfill_and_the_runs_that_it_caused(stages: ThreeStages) -> None:
    stages.lake.create_playback(events(range(3)))
    plan = stages.plan("day", "--partition", "2026-01-01")
    stages.says("launch", plan, "--yes")
    job = stages.definitions.resolve_implicit_global_asset_job_def()
    queued = stages.instance.create_run_for_job(
        job_def=job, asset_selection=frozenset([dg.AssetKey("week")]), tags={"dagster_ips/cascade": plan, **SENSOR}
    )
    assert queued.run_id in stages.says("cancel", plan, "--yes") or queued.status.value == "NOT_STARTED"
    backfill = stages.instance.get_backfill(plan)
    assert backfill is not None
    assert backfill.status.value == "CANCELING"
    assert CursorStore(stages.instance).get_backfill(plan) is not None


@pytest.mark.slow
def test_a_reexecution_of_failed_partitions_belongs_to_the_backfill(stages: ThreeStages) -> None:
    stages.begin()
    stages.deploy(bug=False)
    plan = stages.plan("day", "--partitions", "2026-01-01..2026-01-04")
    stages.says("launch", plan, "--yes")
    backfill = stages.instance.get_backfill(plan)
    assert backfill is not None
    stages.run("day", "2026-01-01", "2026-01-03", **{**backfill.tags, "dagster/backfill": plan})
    job = stages.definitions.resolve_implicit_global_asset_job_def()
    tags = {**backfill.tags, "dagster/backfill": plan, "dagster/partition": "2026-01-04"}
    failed = stages.instance.create_run_for_job(job, asset_selection=frozenset([dg.AssetKey("day")]), tags=tags)
    stages.instance.report_run_failed(failed)
    stages.instance.update_backfill(backfill.with_status(type(backfill.status).COMPLETED_FAILED))
    assert "day: failed: 2026-01-04" in stages.says("status", plan)

    # What Dagster does for "Re-execute from failure": a second backfill of what isn't materialized, with all tags.
    again = requested_backfill(
        stages.instance,
        "againaga",
        {dg.AssetKey("day"): DAYS.subset_with_partition_keys(["2026-01-04"])},
        tags={**backfill.tags, "dagster/parent_backfill_id": plan},
        title="again",
        description="again",
        at=time.time(),
    )
    stages.instance.add_backfill(again)
    stages.run("day", "2026-01-04", **{**backfill.tags, "dagster/backfill": "againaga"})
    stages.instance.update_backfill(again.with_status(type(again.status).COMPLETED_SUCCESS))
    stages.follow()
    done = [set(stage["parts"].values()) for stage in stages.told("status", plan)["stages"]]
    assert done == [{"done"}, {"done"}, {"done"}]
    assert "Reverted: 4: 2026-01-01 … 2026-01-04" in stages.says("revert", plan, "--yes")
    stages.instance.update_backfill(again)
    stages.says("cancel", plan, "--yes")
    ended = stages.instance.get_backfill("againaga")
    assert ended is not None
    assert ended.status.value == "CANCELING"


@pytest.mark.parametrize("staged", [(), ("--staged",)], ids=["live", "staged"])
def test_a_launch_that_is_given_up_because_a_table_kept_changing_leaves_nothing_behind(
    stages: ThreeStages, monkeypatch: pytest.MonkeyPatch, staged: tuple[str, ...]
) -> None:
    """A backfill that is only planned can't be cancelled or released."""
    stages.begin()
    plan = stages.plan("day", "--partition", "2026-01-01")
    heads = count()
    monkeypatch.setattr(BackfillLauncher, "_head", lambda *_: next(heads))
    assert "kept changing" in stages.refuses("launch", plan, "--yes", *staged)
    assert tags(stages, plan) == {}
    assert not any("ips-staged" in ref for table in stages.TABLES for ref in stages.lake.branches(table))


def test_two_launches_of_one_plan_at_once_launch_it_once(stages: ThreeStages, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.begin()
    stages.deploy(bug=False)
    plan = stages.plan("day", *FIXED)
    add, said = stages.instance.add_backfill, list[str]()

    def add_after_another(backfill: object) -> None:
        monkeypatch.setattr(dg.DagsterInstance, "add_backfill", lambda _, found: add(found))
        said.append(stages.says("launch", plan, "--yes"))
        add(backfill)  # type: ignore[arg-type]  # Dagster's

    monkeypatch.setattr(dg.DagsterInstance, "add_backfill", lambda _, found: add_after_another(found))
    said.append(stages.says("launch", plan, "--yes"))
    assert all("is launched" in each for each in said)
    assert (len(said), stages.told("status", plan)["status"]) == (2, "REQUESTED")
