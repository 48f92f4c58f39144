"""A plan names the stages and partitions that follow, what they read, and what is unknown."""

from __future__ import annotations

from tests.backfill.three_stages import ThreeStages
from tests.support.lake import events


def test_a_plan_names_stages_partitions_sizes_and_unknowns(stages: ThreeStages) -> None:
    stages.begin()
    before = stages.rows()
    plan = stages.told("plan", "day", "--partitions", "2026-01-03..2026-01-06")
    day, by_account, week = plan["stages"]
    assert day["partitions"] == [f"2026-01-0{n}" for n in (3, 4, 5, 6)]
    (read,) = day["reads"]
    assert (read["table"], read["rows"], read["at_most"]) == ("media.playback", 20, False)
    assert by_account["partitions"] is None
    assert (by_account["reads"][0]["rows"], by_account["reads"][0]["at_most"]) == (20, True)
    assert week["partitions"] == ["2025-12-28", "2026-01-04"]
    assert day["seconds"] > 0
    assert (day["past_runs"], day["code_version"]) == (1, "buggy")
    assert plan["not_started"] == {"week": ["report"]}
    assert any("upper limits" in each for each in week["unknown"])
    assert stages.rows() == before
    text = stages.says("plan", "day", "--partition", "2026-01-03")
    assert "report: reads all of week" in text
    assert "≤ 5" in text


def test_a_plan_has_no_seconds_for_stages_that_never_ran_and_no_snapshots_for_missing_tables(
    stages: ThreeStages,
) -> None:
    stages.lake.create_playback(events(range(3)))
    plan = stages.told("plan", "day", "--partition", "2026-01-01")
    assert [stage["seconds"] for stage in plan["stages"]] == [None, None, None]
    assert all(any("no past run" in each for each in stage["unknown"]) for stage in plan["stages"])
    assert plan["stages"][0]["reads"][0]["rows"] == 3
    assert plan["tables"][0]["snapshot_id"] is None


def test_unknown_partitions_and_assets_are_refused(stages: ThreeStages) -> None:
    stages.lake.create_playback(events(range(3)))
    assert "no partition 2025-01-01" in stages.refuses("plan", "day", "--partition", "2025-01-01")
    assert "has no partitions in Dagster" in stages.refuses("plan", "by_account", "--partition", "x")
    assert "written outside of Dagster" in stages.refuses("plan", "playback")
    assert "has no table" in stages.refuses("plan", "nothing")
    assert "only one of" in stages.refuses("plan", "day", "--partition", "x", "--older-code")


def test_a_plan_can_select_the_partitions_made_by_older_code(stages: ThreeStages) -> None:
    stages.begin()
    assert "older code version" in stages.refuses("plan", "day", "--older-code")
    stages.deploy(bug=False)
    plan = stages.told("plan", "day", "--older-code")
    assert plan["stages"][0]["partitions"] == [f"2026-01-{n:02}" for n in range(1, 11)]
