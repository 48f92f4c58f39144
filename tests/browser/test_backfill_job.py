"""In Dagster's UI, a person plans, stages, compares, publishes and reverts a fix."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus

from example_project.demo.services import Services
from tests.backfill.three_stages import DAYS_OF, ThreeStages
from tests.browser.ui import Ui
from tests.support.lake import Lake, events

pytestmark = pytest.mark.slow

_TYPE = "text => document.querySelector('.CodeMirror').CodeMirror.setValue(text)"
_RELOAD = """async () => {
    const query = `mutation { reloadRepositoryLocation(repositoryLocationName: "playback") { __typename } }`;
    const answer = await fetch('/graphql', {
        method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify({query}),
    });
    return (await answer.json()).data.reloadRepositoryLocation.__typename;
}"""


@dataclass
class Person:
    """Deploys code, and runs the job ``ips_backfill`` from the launchpad."""

    ui: Ui
    services: Services
    stages: ThreeStages
    bug: Path

    def deploy(self, *, bug: bool) -> None:
        if bug:
            self.bug.touch()
        else:
            self.bug.unlink()
        self.stages.deploy(bug=bug)
        self.ui.open("/locations", until="playback")
        assert self.ui.page.evaluate(_RELOAD) == "WorkspaceLocationEntry"

    def runs(self, config: str, shot: str = "") -> str:
        """Run the job with this config, which must succeed; returns the text of the run's page."""
        self.ui.open("/locations/playback/jobs/ips_backfill/playground", until="Launch Run")
        self.ui.wait_for("ASSET")
        yaml = f"ops:\n  backfill:\n    config:\n      {config}\n"
        self.ui.page.evaluate(_TYPE, yaml)
        self.ui.page.wait_for_timeout(1500)
        if shot:
            self.ui.screenshot(f"{shot}_launchpad")
        before = {run.run_id for run in self.jobs()}
        self.ui.page.get_by_role("button", name="Launch Run").last.click()
        self.wait_until(lambda: len(self.jobs()) > len(before))
        (run,) = [run.run_id for run in self.jobs() if run.run_id not in before]
        self.wait_until(lambda: self.is_finished(run))
        self.ui.open(f"/runs/{run}", until="Success")
        self.ui.wait_for("ASSET_OBSERVATION")
        self.ui.page.wait_for_timeout(2000)
        if shot:
            self.ui.screenshot(f"{shot}_run")
            self.ui.open("/assets/day?view=events", until=f"backfill {config.split(':', maxsplit=1)[0]}")
            self.ui.page.wait_for_timeout(2000)
            self.ui.screenshot(f"{shot}_asset")
        assert self.ui.red_things() == []
        return self.said(run)

    def jobs(self) -> list[dg.DagsterRun]:
        return list(self.stages.instance.get_runs(dg.RunsFilter(job_name="ips_backfill")))

    def is_finished(self, run_id: str) -> bool:
        run = self.stages.instance.get_run_by_id(run_id)
        assert run is not None
        assert run.status is not DagsterRunStatus.FAILURE
        return run.is_finished

    def said(self, run_id: str) -> str:
        """The whole observation of the run, as text."""
        (seen,) = self.stages.instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_OBSERVATION)
        event = seen.get_dagster_event()
        metadata = event.asset_observation_data.asset_observation.metadata
        return "\n".join(f"{name}: {value.value!r}" for name, value in metadata.items())

    def wait_until(self, condition: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.services.require_alive()
            assert time.monotonic() < deadline, self.services.log_tail("daemon")
            time.sleep(1)


@pytest.fixture
def person(page: Any, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:  # noqa: ANN401  # Playwright's type
    bug = tmp_path / "bug"
    bug.touch()
    places = {"SOAK_LAKE": lake.folder, "SOAK_SPARK": lake.spark_folder, "SOAK_BUG": bug}
    for name, place in places.items():
        monkeypatch.setenv(name, str(place))
    with Services(tmp_path / "ui", "tests.support.backfill_definitions") as services:
        monkeypatch.setenv("DAGSTER_HOME", str(services.home))
        with dg.DagsterInstance.from_config(str(services.home)) as instance:
            stages = ThreeStages(lake, instance, tmp_path)
            lake.create_playback()
            stages.land(*[event for number, ids in DAYS_OF.items() for event in events(ids, day=number)])
            services.start_dagster(automation=True)
            folder = os.environ.get("SCREENSHOTS")
            ui = Ui(page, f"http://127.0.0.1:{services.webserver_port}", Path(folder) if folder else None)
            yield Person(ui, services, stages, bug)


def planned(said: str) -> str:
    return said.split("Plan ")[1].split(",", maxsplit=1)[0]


def test_a_fix_is_staged_and_published_and_a_bug_that_went_live_is_reverted(person: Person) -> None:
    stages = person.stages
    wrong, right = stages.right(bug=True), stages.right(bug=False)
    person.wait_until(lambda: all(map(stages.lake.catalog.find, stages.TABLES)) and stages.rows() == wrong)
    person.deploy(bug=False)
    plan = planned(person.runs("plan: {asset: day, partitions: [2026-01-01..2026-01-10]}", "backfill_plan"))
    person.runs(f"launch: {{id: {plan}, staged: true}}")
    person.wait_until(lambda: not stages.told("status", plan)["is_open"])
    assert "It is staged on branches" in person.runs(f"status: {{id: {plan}}}")
    bad = [row for row in stages.events if row[2] == "a1" and row[3]]
    said = person.runs(f"diff: {{id: {plan}}}", "backfill_diff")
    assert f"day (by event_date, event_id): 0 rows added, 0 removed, {len(bad)} changed." in said
    assert "by_account (by account): 0 rows added, 0 removed, 1 changed." in said
    assert "2 rows added, 2 removed, 0 changed." in said
    assert stages.rows() == wrong
    person.runs(f"publish: {{id: {plan}}}")
    assert stages.rows() == right

    person.deploy(bug=True)
    live = planned(person.runs("plan: {asset: day, partitions: [2026-01-03..2026-01-06]}"))
    person.runs(f"launch: {{id: {live}, staged: false}}")
    person.wait_until(lambda: not stages.told("status", live)["is_open"])
    assert stages.rows() != right
    person.deploy(bug=False)
    said = person.runs(f"diff: {{id: {live}, against: full}}")
    days = {str(row[1]) for row in bad if 3 <= row[1].day <= 6}
    assert all(f"'partition': '{day}'" in said for day in days)
    assert said.count("'columns that differ': 'seconds (") == len(days)
    assert "by_account: no rows differ from a full recompute." in said
    assert "Reverted: 4" in person.runs(f"revert: {{id: {live}}}")
    person.wait_until(lambda: stages.rows() == right)
