"""The job that tidies tables up: it changes no rows, and each consumer still finds what it has not read yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.exactly_once.publish.publisher import Publisher
from tests.support.backends import dagster_home
from tests.support.lake import Lake, events
from tests.support.partitioned import expected_day, follow, key, partitioned, run
from tests.support.pipeline import expected_agg, expected_daily, materialize, pipeline


@dg.asset(
    ins={"daily": ips.incremental()}, metadata=ips.append() | ips.table("media.elsewhere", partition_by=["event_date"])
)
def elsewhere(daily: ips.IcdcView) -> DataFrame:
    return daily.added


def tidy_up(
    definitions: dg.Definitions, instance: dg.DagsterInstance, *, succeeds: bool = True, **config: object
) -> dict[str, dict[str, Any]]:
    """What the job reports for each asset; it is configured to keep as little as possible."""
    asked = {"keep_days": 0, "min_input_files": 2, **config}
    result = definitions.resolve_job_def("ips_hygiene").execute_in_process(
        instance=instance, run_config={"ops": {"tidy_up": {"config": asked}}}, raise_on_error=succeeds
    )
    assert result.success is succeeds
    said = [each for each in result.all_events if each.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    return {
        each.asset_key.to_user_string(): {
            name: value.value for name, value in each.asset_observation_data.asset_observation.metadata.items()
        }
        for each in said
        if each.asset_key is not None
    }


def test_files_become_fewer_and_a_consumer_that_is_behind_still_reads_its_change(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    rows = events(range(4))
    lake.create_playback(rows)
    materialize(definitions, instance, "daily", "agg")
    for number in (1, 2, 3):
        late = events(range(number * 10, number * 10 + 3), day=number % 2)
        lake.append(late)
        rows += late
        materialize(definitions, instance, "daily")
    said = tidy_up(definitions, instance)
    # agg has consumed the first run's snapshot; the one before it, from the table's creation, may expire.
    assert said["daily"] == {
        "table": "media.daily",
        "data files rewritten": 4,
        "into data files": 2,
        "snapshots expired": 1,
        "snapshots kept": 5,
        "extra snapshots kept for": "agg",
    }
    materialize(definitions, instance, "agg")
    assert lake.rows("media.agg") == expected_agg(rows)

    said = tidy_up(definitions, instance)
    assert said["daily"]["snapshots expired"] > 0
    assert said["daily"]["data files rewritten"] == 0
    published = lake.commits("media.agg")
    materialize(definitions, instance, "daily", "agg")
    assert lake.commits("media.agg") == published
    lake.append(late := events(range(100, 103)))
    materialize(definitions, instance, "daily", "agg")
    assert lake.rows("media.daily") == expected_daily(rows + late)
    assert lake.rows("media.agg") == expected_agg(rows + late)


@pytest.mark.slow
def test_a_branch_that_keeps_snapshots_for_too_short_a_time_loses_none_that_a_consumer_still_reads(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    rows = events(range(4))
    lake.create_playback(rows)
    materialize(definitions, instance, "daily", "agg")
    with lake.catalog.client.load_table("media.daily").manage_snapshots() as change:
        head = lake.catalog.load("media.daily", asset="test").head_snapshot_id()
        assert head is not None
        change.create_branch(head, "main", max_snapshot_age_ms=1, min_snapshots_to_keep=1)
    for number in (1, 2, 3):
        late = events(range(number * 10, number * 10 + 3))
        lake.append(late)
        rows += late
        materialize(definitions, instance, "daily")
    said = tidy_up(definitions, instance, compact=False, keep_days=7)
    assert said["daily"]["extra snapshots kept for"] == "agg"
    assert lake.branches("media.daily") == {"main"}
    materialize(definitions, instance, "agg")
    assert lake.rows("media.agg") == expected_agg(rows)

    said = tidy_up(definitions, instance, compact=False, keep_days=7)
    assert said["daily"]["snapshots kept"] == 1  # the branch's own setting holds again
    assert "extra snapshots kept for" not in said["daily"]


@pytest.mark.slow
@pytest.mark.parametrize("shares_instance", [False, True])
def test_a_consumer_of_another_code_location_keeps_what_it_needs(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, *, shares_instance: bool
) -> None:
    here = pipeline(lake.folder, lake.spark_folder)
    there = pipeline(lake.folder, lake.spark_folder, elsewhere)
    rows = events(range(4))
    lake.create_playback(rows)
    with dg.DagsterInstance.from_config(dagster_home(tmp_path / "theirs", None)) as other:
        theirs = instance if shares_instance else other
        materialize(here, instance, "daily", "agg")
        materialize(there, theirs, "elsewhere")
        for number in (1, 2):
            late = events(range(number * 10, number * 10 + 3))
            lake.append(late)
            rows += late
            materialize(here, instance, "daily", "agg")
        assert tidy_up(here, instance)["daily"]["extra snapshots kept for"] == "elsewhere"
        materialize(there, theirs, "elsewhere")
        assert lake.rows("media.elsewhere") == expected_daily(rows)


@pytest.mark.slow
def test_partitions_find_their_late_rows_after_everything_was_tidied_up(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder)
    rows = events(range(4)) + events(range(4, 8), day=1)
    lake.create_playback(rows)
    follow(definitions, instance)
    for number in (1, 2):
        late = events(range(number * 100, number * 100 + 3), day=number)
        lake.append(late)
        rows += late
        follow(definitions, instance)
    lake.append(late := events([500], day=0))
    rows += late
    day = definitions.resolve_implicit_global_asset_job_def()
    day.execute_in_process(
        instance=instance, asset_selection=[dg.AssetKey("day")], tags={"dagster/partition": "2026-01-01"}
    )
    said = tidy_up(definitions, instance)
    assert said["day"]["snapshots expired"] > 0
    lake.append(late := events([600], day=1))
    follow(definitions, instance)
    assert lake.rows("media.day") == expected_day(rows + late)
    assert lake.rows("media.day_agg") == expected_agg(rows + late)


@pytest.mark.slow
def test_a_partition_whose_run_was_ended_by_an_error_keeps_no_snapshots_for_good(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no change, so nothing runs it again."""
    definitions = partitioned(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(4)) + events(range(4, 8), day=1))
    follow(definitions, instance)
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", None)
        with pytest.raises(TypeError):
            run(definitions, instance, "day_agg", key(0))
    for number in (1, 2):
        lake.append(events(range(number * 100, number * 100 + 3), day=1))
        follow(definitions, instance)
    assert tidy_up(definitions, instance, compact=False)["day"]["snapshots kept"] == 1


def test_a_table_that_cannot_be_tidied_up_does_not_hold_up_the_others(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(4)))
    materialize(definitions, instance, "daily", "agg")
    for path in Path(lake.folder).glob("**/agg/metadata/*.metadata.json"):
        path.write_text("{")
    said = tidy_up(definitions, instance, succeeds=False)
    assert said.keys() == {"daily"}
    refused = tidy_up(definitions, instance, assets=["daily"])
    assert refused.keys() == {"daily"}


def test_an_asset_that_writes_no_table_is_refused(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    with pytest.raises(Exception, match="it has no table in these definitions; known are agg, daily, report"):
        tidy_up(definitions, instance, assets=["playback"])
