"""The example's assets, run as Dagster runs them: they follow late days, and their check can be trusted."""

from __future__ import annotations

import dagster as dg
import pytest

import dagster_ips as ips
from example_project import assets
from example_project.events import Workload
from example_project.ingest import ingest
from example_project.recompute import compare
from tests.example_project.test_recompute import ALL_SAME, source_snapshots
from tests.support.lake import Lake
from tests.support.partitioned import SENSOR, run
from tests.support.pipeline import materialize

SMALL = Workload(rows_per_day=600, late=0.1)
STAGES = ("account_running_total", "title_median", "by_title", "plays_per_genre", "daily_report")
DAILY = ("playback_daily", "playback_daily_agg")
ALL = (*DAILY, "playback_weekly", *STAGES)
CHECK = dg.AssetCheckKey(dg.AssetKey("playback_daily_agg"), "equals_full_recompute")


@pytest.fixture
def definitions(lake: Lake) -> dg.Definitions:
    """The definitions of example_project.definitions, on the test's own lake."""
    catalog = ips.IcebergCatalog(folder=str(lake.folder))
    spark = ips.LocalSparkConnect(server_folder=str(lake.spark_folder))
    return ips.with_incremental(
        dg.Definitions(
            assets=[assets.playback, assets.title, assets.account_plan, *(getattr(assets, stage) for stage in ALL)],
            asset_checks=[assets.equals_full_recompute, assets.every_play_is_of_an_account],
            resources={"io_manager": ips.IcdcIOManager(catalog=catalog, spark=spark)},
        )
    )


def follow(definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
    """Run every stage, as the sensor does."""
    for stage in DAILY:
        run(definitions, instance, stage, "2026-01-01", "2026-01-12", **SENSOR)
    run(definitions, instance, "playback_weekly", "2025-12-28", "2026-01-04", **SENSOR)
    materialize(definitions, instance, *STAGES)


def passes(definitions: dg.Definitions, instance: dg.DagsterInstance) -> bool:
    """The result of the asset check, run alone as a person runs it from the UI."""
    job = definitions.resolve_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection=set(), asset_check_selection={CHECK})
    (evaluation,) = subset.execute_in_process(instance=instance).get_asset_check_evaluations()
    return evaluation.passed


@pytest.mark.slow
def test_every_table_equals_a_full_recompute_after_late_days(
    lake: Lake, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    for days in (7, 1, 1):
        ingest(lake.folder, days, SMALL)
        follow(definitions, instance)
        assert compare(lake.session, *source_snapshots(lake)) == ALL_SAME


@pytest.mark.slow
def test_every_table_equals_a_full_recompute_after_events_and_plans_are_deleted_and_updated(
    lake: Lake, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    ingest(lake.folder, 8, SMALL)
    follow(definitions, instance)
    for statement in (
        "DELETE FROM lake.media.playback WHERE account_id = 3",
        "UPDATE lake.media.playback SET play_seconds = play_seconds + 60 WHERE event_id % 97 = 5",
        "UPDATE lake.media.account_plan SET valid_on = valid_on + 2 WHERE account_id < 9",
        "DELETE FROM lake.media.account_plan WHERE change_id >= 7000000000",
    ):
        lake.sql(statement)
    follow(definitions, instance)
    assert compare(lake.session, *source_snapshots(lake)) == ALL_SAME


@pytest.mark.slow
def test_the_asset_check_finds_a_wrong_row_and_is_not_fooled_by_rows_that_are_only_pending(
    lake: Lake, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    ingest(lake.folder, 2, SMALL)
    follow(definitions, instance)
    assert passes(definitions, instance)
    ingest(lake.folder, 1, SMALL)
    run(definitions, instance, "playback_daily", "2026-01-01", "2026-01-12", **SENSOR)
    assert passes(definitions, instance)
    lake.sql("UPDATE lake.media.playback_daily_agg SET plays = plays + 1 WHERE account_id = 0")
    assert not passes(definitions, instance)
