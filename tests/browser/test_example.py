"""What a person does and sees in Dagster's UI, on the example project."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from example_project.demo.pipeline import Pipeline
from example_project.demo.services import Services
from example_project.lake import open_catalog
from tests.browser.conftest import land
from tests.browser.ui import Ui

pytestmark = pytest.mark.slow


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


def wait_until(condition: Callable[[], bool], example: Services, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        example.require_alive()
        assert time.monotonic() < deadline, example.log_tail("daemon")
        time.sleep(0.5)


def test_an_asset_materialized_in_the_ui_says_what_it_consumed(
    ui: Ui, example: Services, pipeline: Pipeline, instance: dg.DagsterInstance
) -> None:
    ui.open("/assets/playback_daily", until="Never materialized")
    ui.page.locator("button:has-text('Materialize')").first.click()
    ui.wait_for("Launched run")
    wait_until(lambda: len(pipeline.materializations("playback_daily")) == 1, example)
    (made,) = pipeline.materializations("playback_daily")
    wait_until(lambda: status(instance, made.run_id) is DagsterRunStatus.SUCCESS, example)
    ui.open(f"/runs/{made.run_id}", until="Success")
    assert ui.red_things() == []
    ui.open("/assets/playback_daily?view=events", until="summary")
    shown = ui.text()
    landed = pipeline.total_records("playback")
    assert f"everything, {total_files(example):,} files, {landed:,} rows" in shown
    assert "nothing of playback was consumed before" in shown
    ui.open("/assets/playback_daily", until="Row count")
    assert f"{landed:,}" in ui.text()
    assert "event_date" in ui.text()  # of the columns
    assert ui.red_things() == []


def test_what_is_pending_is_a_warning(ui: Ui, pipeline: Pipeline) -> None:
    landed = pipeline.total_records("playback")
    ui.open("/assets/playback_daily_agg?view=checks&checkDetail=pending", until="playback_daily not consumed")
    assert f"{landed:,} rows" in ui.text()
    assert ui.red_things() == []
    ui.screenshot("pending")


def test_switched_on_the_sensor_brings_every_stage_up_to_date(
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
    assert [r.asset_check_selection for r in by_sensor if r.asset_check_selection] == []
    ui.open("/assets/playback_daily?view=events", until="affected partitions")
    assert "less than everything" in ui.text()
    assert ui.red_things() == []
    ui.screenshot("materialization")
    ui.open("/assets/playback_daily", until="Row count")
    ui.screenshot("asset")
    ui.page.get_by_text("Plots").click()
    ui.wait_for("rows captured")
    ui.screenshot("plots")
    ui.open("/assets/playback_daily_agg?view=checks&checkDetail=pending", until="everything is consumed")
    assert ui.red_things() == []


def test_sensors_show_their_ticks(ui: Ui) -> None:
    for sensor in ("ips_outside_tables", "ips_automation", "ips_pending"):
        ui.open(f"/locations/playback/sensors/{sensor}", until=sensor)
        ui.wait_for("Tick")
        ui.page.wait_for_timeout(3000)
        assert ui.red_things() == [], sensor
        if sensor == "ips_automation":  # The others' pages are mostly cursor, which names folders of this machine.
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
