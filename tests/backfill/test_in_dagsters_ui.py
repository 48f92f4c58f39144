"""The job in Dagster's UI does what the command line does, and shows the result as tables."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from dagster_ips.errors import BackfillError, DeclarationError
from tests.backfill.three_stages import ThreeStages
from tests.support.lake import events


def told(stages: ThreeStages, act: str, **config: object) -> dict[str, Any]:
    """The observation of a run of the job: sentences under ``says``, and each table as its rows."""
    job = stages.definitions.resolve_job_def("ips_backfill")
    result = job.execute_in_process(
        instance=stages.instance, run_config={"ops": {"backfill": {"config": {act: config}}}}
    )
    (seen,) = [each for each in result.all_events if each.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    observation = seen.asset_observation_data.asset_observation
    assert observation.asset_key == dg.AssetKey("day")
    return {
        name: [record.data for record in value.records] if isinstance(value, dg.TableMetadataValue) else value.value
        for name, value in observation.metadata.items()
    }


def plan_id(said: dict[str, Any]) -> str:
    return str(said["says"].split(",")[0].removeprefix("Plan "))


@pytest.mark.slow
def test_a_bug_is_fixed_in_the_ui_from_the_plan_to_the_revert(stages: ThreeStages) -> None:
    stages.begin()
    wrong = stages.rows()
    stages.deploy(bug=False)

    said = told(stages, "plan", asset="day", partitions=["2026-01-01..2026-01-09", "2026-01-10"])
    plan = plan_id(said)
    assert [(row["stage"], row["partitions"]) for row in said["plan"]] == [
        ("day", "10: 2026-01-01 … 2026-01-10"),
        ("by_account", "all of it"),
        ("week", "2025-12-28, 2026-01-04"),
    ]
    assert "main doesn't change" in told(stages, "launch", id=plan, staged=True)["says"]
    assert [row["pending"] for row in told(stages, "status", id=plan)["stages"]] == ["10", "0", "0"]
    stages.stage(plan, "day", "by_account", "week")
    assert [row["done"] for row in told(stages, "status", id=plan)["stages"]] == ["10", "1", "2"]

    bad = [row for row in stages.events if row[2] == "a1" and row[3]]
    differs = told(stages, "diff", id=plan, examples=2)
    assert sum(int(row["changed"]) for row in differs["day by partition"]) == len(bad)
    sums = [str(sum(row[3] for row in rows["media.day"])) for rows in (stages.right(bug=True), stages.right(bug=False))]
    assert differs["day by column"] == [
        {"column": "seconds", "sum before": sums[0], "sum after": sums[1], "nulls before": "0", "nulls after": "0"}
    ]
    assert {(row["for example"], row["column"]) for row in differs["day for example"]} == {("changed", "seconds")}
    assert len(differs["by_account by partition"]) == 1
    assert len(differs["week by partition"]) == 2
    says = told(stages, "diff", id=plan, against="full")["says"]
    assert says.count("no rows differ from a full recompute") == 3

    assert stages.rows() == wrong
    assert "is published" in told(stages, "publish", id=plan)["says"]
    assert stages.rows() == stages.right(bug=False)

    stages.deploy(bug=True)
    would = told(stages, "revert", id=plan, dry_run=True)["says"]
    assert "restores the previous rows" in would
    assert stages.rows() == stages.right(bug=False)
    assert "Reverted: 10" in told(stages, "revert", id=plan)["says"]
    stages.follow()
    assert stages.rows() == wrong
    assert "media.day, media.by_account, media.week" in told(stages, "release", id=plan)["says"]


@pytest.mark.slow
def test_a_backfill_staged_on_the_command_line_is_cancelled_in_the_ui(stages: ThreeStages) -> None:
    stages.begin()
    stages.deploy(bug=False)
    plan = stages.staged("day", "--partition", "2026-01-05")
    assert "nothing was published" in told(stages, "cancel", id=plan)["says"]
    assert "Nothing of it is staged" in stages.says("status", plan)
    assert plan_id(told(stages, "plan", asset="day", older_code=True)) != plan


def test_a_plan_and_what_became_of_it_are_shown_as_tables(stages: ThreeStages) -> None:
    stages.lake.create_playback(events(range(3)))
    said = told(stages, "plan", asset="day", partitions=["2026-01-01..2026-01-09", "2026-01-10"])
    assert [(row["stage"], row["partitions"]) for row in said["plan"]] == [
        ("day", "10: 2026-01-01 … 2026-01-10"),
        ("by_account", "all of it"),
        ("week", "2025-12-28, 2026-01-04"),
    ]
    assert "is launched" in told(stages, "launch", id=plan_id(said), staged=False)["says"]
    assert [row["pending"] for row in told(stages, "status", id=plan_id(said))["stages"]] == ["10", "0", "0"]


def test_an_invalid_run_config_is_refused(stages: ThreeStages) -> None:
    stages.lake.create_playback(events(range(3)))
    with pytest.raises(dg.DagsterInvalidConfigError, match="asset"):
        told(stages, "plan", partitions=["2026-01-01"])
    with pytest.raises(dg.DagsterInvalidConfigError, match="staged"):
        told(stages, "launch", id="qwertyui")
    with pytest.raises(DeclarationError, match="Leave out one of them"):
        told(stages, "plan", asset="day", partitions=["2026-01-01"], older_code=True)
    plan = stages.plan("day", "--partition", "2026-01-05")
    with pytest.raises(BackfillError, match="planned but not launched"):
        told(stages, "diff", id=plan)
    with pytest.raises(DeclarationError, match="Give 1 or more"):
        told(stages, "launch", id=plan, staged=False, keep_days=0)
