"""Exactly the assets with something pending run, by Dagster's own evaluation of the conditions."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_agg, materialize, pipeline
from tests.support.ticks import requested


@pytest.fixture
def definitions(lake: Lake) -> dg.Definitions:
    return pipeline(lake.folder, lake.spark_folder)


def test_nothing_runs_before_the_source_exists_or_has_rows(
    lake: Lake, instance: dg.DagsterInstance, definitions: dg.Definitions
) -> None:
    assert requested(definitions, instance)[0] == set()
    lake.create_playback()
    assert requested(definitions, instance)[0] == set()


def test_a_change_runs_stage_after_stage_and_then_nothing(
    lake: Lake, instance: dg.DagsterInstance, definitions: dg.Definitions
) -> None:
    lake.create_playback(events(range(6)))
    seen, cursor = requested(definitions, instance)
    assert seen == {"daily", "agg"}  # the run creates the table that its second stage reads
    materialize(definitions, instance, "daily")
    seen, cursor = requested(definitions, instance, cursor)
    assert seen == {"agg"}
    materialize(definitions, instance, "agg")
    assert requested(definitions, instance, cursor)[0] == set()
    lake.append(events(range(6, 9)))
    seen, cursor = requested(definitions, instance, cursor)
    assert seen == {"daily", "agg"}
    materialize(definitions, instance, "daily", "agg")
    assert lake.rows("media.agg") == expected_agg(events(range(9)))
    assert requested(definitions, instance, cursor)[0] == set()


def test_an_asset_of_two_inputs_waits_until_both_tables_exist(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(ins={"agg": ips.incremental(), "archive": ips.incremental()}, metadata=ips.table("media.both"))
    def both(agg: ips.IcdcView, archive: ips.IcdcView) -> ips.Overwrite:
        return ips.Overwrite(archive.source.join(agg.source, "account"), "TRUE")

    archive: Any = ips.iceberg_asset("archive", table="media.archive")
    definitions = pipeline(lake.folder, lake.spark_folder, archive, both)
    lake.create_playback(events(range(6)))
    seen, cursor = requested(definitions, instance)
    assert seen == {"daily", "agg"}
    lake.create_playback(events(range(3)), "media.archive")
    assert requested(definitions, instance, cursor)[0] == {"daily", "agg", "both"}


def test_a_failing_asset_waits_before_it_is_retried(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(6)))
    seen, cursor = requested(definitions, instance)
    assert seen == {"daily", "agg"}
    materialize(definitions, instance, "daily")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3")  # daily is an append and refuses removed rows
    seen, cursor = requested(definitions, instance, cursor)
    assert "daily" in seen
    job = definitions.resolve_implicit_global_asset_job_def()
    run = job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("daily")], raise_on_error=False)
    assert not run.success
    seen, cursor = requested(definitions, instance, cursor)
    assert "daily" not in seen
