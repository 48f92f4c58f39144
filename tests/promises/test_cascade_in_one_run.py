"""Stages that one run computes together are as exact as in runs of their own, and each says what it did."""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.core import retry
from dagster_ips.core.cascade import short
from dagster_ips.core.edge import Edge
from dagster_ips.orchestration.run.cascade_tag import CASCADE_TAG
from tests.support.daemon import Daemon
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_agg, materialize, pipeline
from tests.support.progress import copied_state
from tests.support.ticks import tick

AGG = Edge("agg", "daily")
LONGEST_SECONDS = 300


def requested(
    definitions: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None
) -> tuple[list[set[str]], str | None]:
    """The assets of each run that a tick requests, and the cursor for the next."""
    data = tick(definitions, instance, cursor=cursor)
    return [
        {key.to_user_string() for key in each.asset_selection or ()} for each in data.run_requests or ()
    ], data.cursor


def test_a_stage_whose_upstream_published_nothing_after_all_writes_nothing_and_says_so(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(6)))
    materialize(definitions, instance, "daily", "agg")
    commits = lake.commits("media.daily"), lake.commits("media.agg")
    result = materialize(definitions, instance, "daily", "agg", tags={"dagster/sensor_name": "ips_automation"})
    for stage in ("daily", "agg"):
        (made,) = result.asset_materializations_for_node(stage)
        assert "**no change**, so nothing was written" in str(made.metadata["summary"].value)
    assert (lake.commits("media.daily"), lake.commits("media.agg")) == commits


def test_a_stage_after_a_failed_one_consumes_nothing_and_is_requested_again_with_it(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(6)))
    materialize(definitions, instance, "daily", "agg")
    before = copied_state(instance, AGG)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3")  # daily is an append and refuses removed rows
    both, cursor = requested(definitions, instance, None)
    assert both == [{"daily", "agg"}]
    job = definitions.resolve_implicit_global_asset_job_def()
    selection = [dg.AssetKey("daily"), dg.AssetKey("agg")]
    assert not job.execute_in_process(instance=instance, asset_selection=selection, raise_on_error=False).success
    assert copied_state(instance, AGG) == before

    nothing, cursor = requested(definitions, instance, cursor)
    assert nothing == []
    monkeypatch.setattr(retry, "_FIRST_WAIT_SECONDS", 0.0)
    again, cursor = requested(definitions, instance, cursor)
    assert again == [{"daily", "agg"}]


@pytest.mark.slow
def test_an_outside_commit_starts_a_single_run_of_both_stages_in_a_real_daemon(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(6)))
    materialize(definitions, instance, "daily", "agg")
    known = set(instance.get_run_ids())
    environment = {"SOAK_LAKE": str(lake.folder), "SOAK_SPARK": str(lake.spark_folder)}
    with Daemon(Path(instance.root_directory), "tests.support.soak_definitions", environment) as daemon:
        lake.append(events(range(6, 9)))
        outside = str(lake.catalog.load("media.playback", asset="test").head_snapshot_id())
        deadline = time.monotonic() + LONGEST_SECONDS
        while not (new := [run for run in instance.get_runs() if run.run_id not in known and run.is_finished]):
            assert time.monotonic() < deadline, daemon.log("daemon")
            time.sleep(1)
        time.sleep(5)  # No second run follows.
    (run,) = [run for run in instance.get_runs() if run.run_id not in known]
    assert run == new[0]
    assert run.is_success
    assert run.asset_selection == {dg.AssetKey("daily"), dg.AssetKey("agg")}
    assert run.tags[CASCADE_TAG] == short(outside)
    assert lake.rows("media.agg") == expected_agg(events(range(9)))
