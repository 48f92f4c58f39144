"""What a person does and sees in Dagster's UI of the example project."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from example_project.demo.pipeline import Pipeline
from example_project.demo.services import Services
from example_project.lake import CATALOG, open_catalog
from example_project.lake_spark import know_lake
from tests.browser.conftest import land
from tests.browser.ui import Ui

pytestmark = pytest.mark.slow

STAGES_AFTER = (
    "playback_daily_agg",
    "playback_weekly",
    "account_running_total",
    "title_median",
    "by_title",
    "plays_per_genre",
    "daily_report",
)
TABLES = ("playback_daily", *STAGES_AFTER)


@pytest.fixture(scope="module")
def pipeline(example: Services) -> Pipeline:
    return Pipeline(example.home, example.lake)


@pytest.fixture(scope="module")
def instance(example: Services) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(example.home)) as instance:
        yield instance


def status(instance: dg.DagsterInstance, run_id: str) -> DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def total_files(example: Services) -> int:
    snapshot = open_catalog(example.lake).load_table("media.playback").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary.additional_properties["total-data-files"])


def recompute(example: Services, pipeline: Pipeline) -> None:
    """Fails if a table differs from a full recompute from the sources."""
    heads = (f"--source-snapshot={pipeline.head('playback')}", f"--plan-snapshot={pipeline.head('account_plan')}")
    example.run_on_spark("python", "-m", "example_project.recompute", *heads)


def storage_ids(instance: dg.DagsterInstance) -> dict[str, int]:
    """Each table's newest materialization so far."""
    newest = {t: instance.fetch_materializations(dg.AssetKey(t), limit=1).records for t in TABLES}
    return {table: records[0].storage_id for table, records in newest.items()}


def ran_since(before: dict[str, int], table: str, instance: dg.DagsterInstance) -> list[str]:
    """The partitions materialized after ``before``, with how often; tables without partitions have empty keys."""
    records = instance.fetch_materializations(dg.AssetKey(table), limit=1000).records
    return sorted(r.partition_key or "" for r in records if r.storage_id > before[table])


def wait_until(condition: Callable[[], bool], example: Services) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        example.require_alive()
        assert time.monotonic() < deadline, example.log_tail("daemon")
        time.sleep(0.5)


def test_an_asset_that_is_materialized_in_the_ui_shows_what_it_consumed(
    ui: Ui, example: Services, pipeline: Pipeline, instance: dg.DagsterInstance
) -> None:
    ui.launch_backfill("playback_daily", "[2026-01-01...2026-01-14]")
    wait_until(lambda: len(pipeline.materializations("playback_daily")) == 1, example)
    (made,) = pipeline.materializations("playback_daily")
    wait_until(lambda: status(instance, made.run_id) is DagsterRunStatus.SUCCESS, example)
    ui.open(f"/runs/{made.run_id}", until="Success")
    assert ui.red_things() == []
    ui.open("/assets/playback_daily?view=events", until="summary")
    shown = ui.text()
    landed = pipeline.total_records("playback")
    assert f"everything, {total_files(example):,} files, {landed:,} rows" in shown
    assert "someone selected these partitions" in shown
    ui.open("/assets/playback_daily", until="Row count")
    assert f"{landed:,}" in ui.text()
    assert "event_date" in ui.text()  # the table's columns
    assert ui.red_things() == []


def test_pending_changes_are_shown_without_an_alarm_within_the_target_lag(ui: Ui) -> None:
    ui.open("/assets/playback_daily_agg?view=checks&checkDetail=pending", until="changes that are not consumed")
    said = r"14 partitions have changes that are not consumed, within the target lag of .*: 2026-01-01, 2026-01-02"
    assert re.search(said, ui.text())
    assert ui.red_things() == []
    ui.screenshot("pending")


def test_the_sensor_brings_every_stage_up_to_date_once_it_is_switched_on(
    ui: Ui, example: Services, pipeline: Pipeline, instance: dg.DagsterInstance
) -> None:
    ui.open("/automation", until="ips_automation")
    ui.screenshot("automation")
    ui.open("/locations/playback/sensors/ips_automation", until="ips_automation")
    ui.page.locator("label:has(input[type=checkbox])").first.click()
    wait_until(pipeline.is_caught_up, example)
    before = len(pipeline.materializations("playback_daily"))
    land(example, days=1)
    wait_until(pipeline.is_caught_up, example)
    wait_until(lambda: len(pipeline.materializations("playback_daily")) > before, example)
    assert pipeline.failures() == []
    by_sensor = [r for r in instance.get_runs() if r.tags.get("dagster/sensor_name") == "ips_automation"]
    # An audit is part of its asset's step; a check would be a step of its own.
    checks = {check.name for r in by_sensor for check in r.asset_check_selection or ()}
    assert checks <= {"every_play_is_of_an_account"}
    ui.open("/assets/playback_daily?view=events", until="affected partitions")
    assert "less than a full read" in ui.text()
    assert ui.red_things() == []
    ui.screenshot("materialization")
    ui.open("/assets/playback_daily", until="Row count")
    ui.screenshot("asset")
    ui.page.get_by_text("Plots").click()
    ui.page.get_by_text("Events", exact=True).last.click()  # By partition, the page shows only the newest events.
    ui.wait_for("rows captured")
    ui.screenshot("plots")
    ui.open("/assets/playback_daily_agg?view=checks&checkDetail=pending", until="everything is consumed")
    assert ui.red_things() == []


LOST = ("2026-01-05", "2026-01-06", "2026-01-12")
THEIR_WEEKS = ("2026-01-04", "2026-01-11")


def test_a_backfill_repairs_its_days_and_automation_exactly_what_depends_on_them(
    ui: Ui, example: Services, pipeline: Pipeline, instance: dg.DagsterInstance
) -> None:
    days = ", ".join(f"DATE '{day}'" for day in LOST)
    spark = example.start_spark().session()
    know_lake(spark, example.lake)
    # Rows are lost in the middle of the pipeline, so nothing upstream announces that.
    spark.sql(f"DELETE FROM {CATALOG}.media.playback_daily WHERE event_date IN ({days}) AND event_id % 3 = 0")
    spark.stop()
    wait_until(pipeline.is_caught_up, example)
    with pytest.raises(SystemExit, match="recompute"):
        recompute(example, pipeline)
    before, by_people = storage_ids(instance), set(pipeline.runs_not_by_sensor())

    ui.launch_backfill("playback_daily", "[2026-01-05...2026-01-06], 2026-01-12")
    wait_until(lambda: ran_since(before, "playback_daily", instance) == sorted(LOST), example)
    wait_until(pipeline.is_caught_up, example)

    assert ran_since(before, "playback_daily_agg", instance) == sorted(LOST)
    assert ran_since(before, "playback_weekly", instance) == sorted(THEIR_WEEKS)
    assert {t: len(ran_since(before, t, instance)) > 0 for t in STAGES_AFTER} == dict.fromkeys(STAGES_AFTER, True)
    by_person = [instance.get_run_by_id(run_id) for run_id in set(pipeline.runs_not_by_sensor()) - by_people]
    assert {key for run in by_person if run for key in run.asset_selection or ()} == {dg.AssetKey("playback_daily")}
    assert pipeline.failures() == []
    recompute(example, pipeline)
    ui.open("/runs?view=backfills", until="3 partitions")
    assert ui.red_things() == []
    ui.screenshot("backfills")
    ui.open("/assets/playback_weekly?view=events", until="affected partitions")
    assert ui.red_things() == []
    ui.screenshot("weekly")


def test_a_backfill_that_changes_nothing_changes_nothing_downstream(
    ui: Ui, example: Services, pipeline: Pipeline, instance: dg.DagsterInstance
) -> None:
    before, heads = storage_ids(instance), {table: pipeline.head(table) for table in STAGES_AFTER}

    ui.launch_backfill("playback_daily", "[2026-01-05...2026-01-06], 2026-01-12")
    wait_until(lambda: ran_since(before, "playback_daily", instance) == sorted(LOST), example)
    wait_until(pipeline.is_caught_up, example)

    assert set(ran_since(before, "playback_daily_agg", instance)) <= set(LOST)
    assert ran_since(before, "playback_weekly", instance) == []
    assert {table: pipeline.head(table) for table in STAGES_AFTER if table != "daily_report"} == {
        table: head for table, head in heads.items() if table != "daily_report"
    }
    assert pipeline.failures() == []


def test_sensors_show_their_ticks(ui: Ui) -> None:
    for sensor in ("ips_outside_tables", "ips_automation", "ips_pending"):
        ui.open(f"/locations/playback/sensors/{sensor}", until=sensor)
        ui.wait_for("Tick")
        ui.page.wait_for_timeout(3000)
        assert ui.red_things() == [], sensor
        if (
            sensor == "ips_automation"
        ):  # The pages of the other sensors mostly show their cursor, which names folders of this machine.
            ui.screenshot(sensor)


def test_the_lineage_of_a_group_has_nothing_red(ui: Ui) -> None:
    ui.open("/locations/playback/asset-groups/viewing/lineage", until="playback_daily_agg")
    ui.page.wait_for_timeout(5000)
    assert ui.red_things() == []
    ui.screenshot("lineage")


_LAUNCH = """async () => {
    const execution = {
        selector: {
            repositoryLocationName: 'playback', repositoryName: '__repository__', jobName: '__ASSET_JOB',
            assetSelection: [{path: ['title_median']}], assetCheckSelection: [],
        },
        executionMetadata: {tags: [{key: 'dagster_ips/mode', value: 'sometimes'}]},
        mode: 'default', runConfigData: {},
    };
    const query = `mutation($execution: ExecutionParams!) {
        launchRun(executionParams: $execution) { ... on LaunchRunSuccess { run { runId } } } }`;
    const answer = await fetch('/graphql', {
        method: 'POST', headers: {'content-type': 'application/json'},
        body: JSON.stringify({query, variables: {execution}}),
    });
    return (await answer.json()).data.launchRun.run.runId;
}"""


def test_a_failure_is_red_and_says_what_to_do(ui: Ui, example: Services, instance: dg.DagsterInstance) -> None:
    ui.open("/runs", until="Success")
    run_id = ui.page.evaluate(_LAUNCH)
    wait_until(lambda: status(instance, run_id) is DagsterRunStatus.FAILURE, example)
    ui.open(f"/runs/{run_id}", until="Failure")
    ui.wait_for("Use one of full, incremental")
    assert ui.red_things() != []
