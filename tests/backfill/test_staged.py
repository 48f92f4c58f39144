"""Nobody sees a staged backfill before it is published; then everybody sees what a full recompute would produce."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DirectWriteError, StagedBranchGoneError
from dagster_ips.exactly_once import effects
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import Cursor
from dagster_ips.progress.table_progress import PIN
from tests.backfill.three_stages import ThreeStages
from tests.support.lake import events

ALL_DAYS = ("day", "--partitions", "2026-01-01..2026-01-10")


def refs(stages: ThreeStages) -> dict[str, set[str]]:
    return {table: set(stages.lake.catalog.load(table, asset="test").raw["refs"]) for table in stages.TABLES}


def check_that_it_follows_and_can_be_reverted(stages: ThreeStages, plan: str) -> None:
    stages.arrive(*events([100, 101], day=2), *events([102], day=9))
    assert stages.rows() == stages.right(bug=False)
    stages.deploy(bug=True)
    assert "Reverted" in stages.says("revert", plan, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=True)


def heads(stages: ThreeStages) -> dict[str, int | None]:
    return {table: stages.lake.catalog.load(table, asset="test").head_snapshot_id() for table in stages.TABLES}


def cursors(stages: ThreeStages) -> dict[str, Cursor]:
    return CursorStore(stages.instance).get_many(["day", "by_account", "week"])


def versions(stages: ThreeStages) -> list[str | None]:
    found = [stages.instance.get_latest_materialization_event(dg.AssetKey(a)) for a in ("day", "by_account", "week")]
    told = [each.asset_materialization for each in found if each]
    return [(each.tags or {}).get("dagster/data_version") for each in told if each]


@pytest.mark.slow
@pytest.mark.everywhere
def test_a_fix_is_staged_compared_published_and_reverted(stages: ThreeStages, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.begin()
    wrong = stages.right(bug=True)
    stages.deploy(bug=False)
    before = heads(stages), cursors(stages), versions(stages)
    plan = stages.staged(*ALL_DAYS)

    assert (heads(stages), cursors(stages), versions(stages)) == before
    assert stages.rows() == wrong
    assert stages.follow() == []
    status = stages.told("status", plan)
    assert set(status["staged"].values()) == {"staged"}
    assert [set(stage["parts"].values()) for stage in status["stages"]] == [{"done"}] * 3
    assert "and not published" in stages.says("status", plan)

    bad = [row for row in stages.events if row[2] == "a1" and row[3]]
    differences = stages.told("diff", plan)["stages"]
    day, by_account, week = (each["total"] for each in differences)
    assert (day["added"], day["removed"], day["changed"], day["columns"]) == (0, 0, len(bad), {"seconds": len(bad)})
    assert (by_account["changed"], by_account["columns"]) == (1, {"seconds": 1})
    assert (week["added"], week["removed"]) == (2, 2)

    validated = stages.told("diff", plan, "--against", "full")["stages"]
    assert [each["total"]["changed"] + each["total"]["added"] for each in validated] == [0, 0, 0]
    assert validated[0]["total"]["before"]["rows"] == len(stages.events)
    assert "day: no rows differ from a full recompute." in stages.says("diff", plan, "--against", "full")

    done: list[Effect] = []
    monkeypatch.setattr(effects, "observers", [lambda now, when: done.append(now) if when == "after" else None])
    assert "media.week: published." in stages.says("publish", plan, "--yes")
    assert done.count(Effect.PUBLISH) == (1 if stages.lake.catalog.commits_tables_together() else 3)
    stages.deploy(bug=True)
    day, *after_it = stages.told("diff", plan, "--against", "full")["stages"]
    by_day = Counter(str(row[1]) for row in bad)
    assert {part: each["changed"] for part, each in day["partitions"].items() if each["changed"]} == by_day
    assert day["total"]["columns"] == {"seconds": len(bad)}
    assert [each["total"]["changed"] for each in after_it] == [0, 0]
    stages.deploy(bug=False)
    right = stages.right(bug=False)
    assert stages.rows() == right
    assert [each["total"] for each in stages.told("diff", plan)["stages"]] == [each["total"] for each in differences]
    assert not any(f"ips-staged-{plan}" in each for each in refs(stages).values())
    assert stages.follow() == []
    published = [stages.lake.catalog.load(t, asset="test").ancestry().newest_change for t in stages.TABLES]
    assert versions(stages) == [str(each.snapshot_id) for each in published if each]
    assert "It is fully published." in stages.says("status", plan)

    check_that_it_follows_and_can_be_reverted(stages, plan)


@pytest.mark.slow
def test_rows_that_arrive_during_staging_wait_or_prevent_publishing_and_are_never_lost(stages: ThreeStages) -> None:
    stages.begin()
    stages.deploy(bug=False)
    plan, overlapping = (stages.staged(*ALL_DAYS) for _ in range(2))
    stages.land(*events([100, 101], day=3))
    as_little = {"ops": {"tidy_up": {"config": {"keep_days": 0, "min_input_files": 2}}}}
    stages.definitions.resolve_job_def("ips_hygiene").execute_in_process(instance=stages.instance, run_config=as_little)
    stages.says("publish", plan, "--yes")
    assert "changed since it was staged" in stages.refuses("publish", overlapping, "--yes")
    stages.follow()
    assert stages.rows() == stages.right(bug=False)

    stages.deploy(bug=True)
    plan = stages.staged(*ALL_DAYS)
    stages.arrive(*events([102], day=3))
    mixed = stages.rows()
    said = stages.refuses("publish", plan, "--yes")
    assert "media.day, media.by_account, media.week changed since it was staged" in said
    assert "can no longer be published" in stages.says("status", plan)
    assert "nothing was published" in stages.says("cancel", plan, "--yes")
    assert all(each.isdisjoint((f"ips-staged-{plan}", f"ips-backfill-{plan}")) for each in refs(stages).values())
    assert stages.rows() == mixed
    plan = stages.staged(*ALL_DAYS)
    stages.says("publish", plan, "--yes")
    stages.arrive(*events([103], day=4))
    assert stages.rows() == stages.right(bug=True)


@pytest.mark.slow
@pytest.mark.everywhere
def test_stages_of_own_statements_are_staged_compared_published_and_reverted(stages: ThreeStages) -> None:
    stages.is_of_statements = True
    stages.begin()
    wrong = stages.right(bug=True)
    assert stages.rows() == wrong
    stages.deploy(bug=False)
    before = heads(stages), cursors(stages), versions(stages)
    plan = stages.staged(*ALL_DAYS)
    assert (heads(stages), cursors(stages), versions(stages)) == before
    assert stages.rows() == wrong
    assert stages.follow() == []
    bad = [row for row in stages.events if row[2] == "a1" and row[3]]
    day, by_account, week = (each["total"] for each in stages.told("diff", plan)["stages"])
    assert (day["added"], day["removed"]) == (len(bad), len(bad))
    assert (by_account["added"], week["added"]) == (1, 2)

    assert "media.week: published." in stages.says("publish", plan, "--yes")
    assert stages.rows() == stages.right(bug=False)
    assert stages.follow() == []
    tags = {PIN, f"ips-backfill-{plan}", f"ips-backfill-{plan}-progress"}
    assert all(refs(stages)[table] <= {"main", *tags} for table in stages.TABLES)
    check_that_it_follows_and_can_be_reverted(stages, plan)


@pytest.mark.slow
def test_a_staged_block_that_writes_to_the_table_itself_or_lost_its_branch_stages_nothing(
    stages: ThreeStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages.is_of_statements = True
    stages.begin()
    stages.deploy(bug=False)
    before = stages.rows()
    plan = stages.plan(*ALL_DAYS)
    stages.says("launch", plan, "--staged", "--yes")
    branch = f"ips-staged-{plan}"
    sql = ips.OwnSql.sql

    def instead(text: str) -> None:
        monkeypatch.setattr(ips.OwnSql, "sql", lambda icdc, own: sql(icdc, text if "INSERT" in own else own))

    instead("INSERT INTO lake.media.day VALUES (1, DATE '2026-01-01', 'direct', 1)")
    with pytest.raises(DirectWriteError) as raised:
        stages.stage(plan, "day")
    stages.lake.sql(raised.value.undo).collect()
    assert stages.rows() == before
    instead(f"ALTER TABLE lake.media.day DROP BRANCH `{branch}`")
    with pytest.raises(StagedBranchGoneError):
        stages.stage(plan, "day")
    assert stages.rows() == before
    assert branch not in refs(stages)["media.day"]
