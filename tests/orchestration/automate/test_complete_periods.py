"""An asset that waits for a complete period runs once for it: not while it runs, nor at once after it has failed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.core.retry import MOST_FAILURES
from tests.support.lake import FIRST_DAY, events
from tests.support.without_spark import Tables, manager_of

DAY = dt.timedelta(days=1)
DAYS = dg.DailyPartitionsDefinition(start_date=str(FIRST_DAY))


@dg.asset(deps=["playback"], automation_condition=ips.valid_through("playback", every=DAY))
def mailed() -> None: ...


@dg.asset(
    deps=["playback"],
    partitions_def=DAYS,
    automation_condition=ips.valid_through("playback") & dg.AutomationCondition.missing(),
)
def mailed_days() -> None: ...


@dg.asset(
    deps=["playback"],
    partitions_def=dg.StaticPartitionsDefinition(["DE", "FR"]),
    automation_condition=ips.valid_through("playback", every=DAY),
)
def mailed_countries() -> None: ...


class Ticks:
    """Dagster's evaluation of an asset's condition, tick after tick, and the asset's runs."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, asset: dg.AssetsDefinition) -> None:
        self.tables, self.instance, self.key = Tables(folder), instance, asset.key
        self.tables.create("playback")
        manager = manager_of(folder)
        playback = ips.iceberg_asset("playback", table="media.playback", valid_through="event_date")
        self.defs = ips.with_incremental(dg.Definitions([playback, asset], resources={"io_manager": manager}))
        self.now, self.cursor = dt.datetime.now(dt.UTC), None

    def arrive(self, *days: int) -> None:
        self.tables.append([event for day in days for event in events([day], day=day)])

    def requested(self, *, later: dt.timedelta = dt.timedelta(0)) -> set[str | None]:
        result = dg.evaluate_automation_conditions(
            self.defs, self.instance, cursor=self.cursor, evaluation_time=self.now + later
        )
        self.cursor = result.cursor
        return set(result.get_requested_partitions(self.key))

    def start(self, partition: str | None) -> dg.DagsterRun:
        return self.instance.create_run_for_job(
            self.defs.resolve_implicit_global_asset_job_def(),
            asset_selection=frozenset([self.key]),
            tags={"dagster/partition": partition} if partition else {},
            status=dg.DagsterRunStatus.STARTED,
        )


@pytest.mark.parametrize(("asset", "due"), [(mailed, None), (mailed_days, "2026-01-01")])
def test_nothing_is_requested_while_its_run_works_and_a_failed_one_is_retried_a_few_times(
    tmp_path: Path, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, due: str | None
) -> None:
    ticks = Ticks(tmp_path / "lake", instance, asset)
    ticks.arrive(0, 1)
    assert ticks.requested() == {due}
    for _ in range(MOST_FAILURES):
        run = ticks.start(due)
        assert ticks.requested() == set()
        instance.report_run_failed(run)
        assert ticks.requested() == set()
        waited = ticks.requested(later=dt.timedelta(hours=3))
    assert waited == set()

    ticks.arrive(2)
    assert ticks.requested(later=dt.timedelta(minutes=1)) == ({None} if due is None else {"2026-01-02"})


@pytest.mark.parametrize(("asset", "due"), [(mailed, None), (mailed_days, "2026-01-01")])
def test_a_failed_run_is_retried(
    tmp_path: Path, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, due: str | None
) -> None:
    ticks = Ticks(tmp_path / "lake", instance, asset)
    ticks.arrive(0, 1)
    assert ticks.requested() == {due}
    instance.report_run_failed(ticks.start(due))
    assert ticks.requested() == set()
    assert ticks.requested(later=dt.timedelta(minutes=1)) == {due}


def test_a_partition_that_failed_is_retried_even_if_another_one_was_made(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(tmp_path / "lake", instance, mailed_countries)
    ticks.arrive(0, 1)
    assert ticks.requested() == {"DE", "FR"}
    ticks.start("DE")
    instance.report_runless_asset_event(dg.AssetMaterialization(mailed_countries.key, partition="DE"))
    instance.report_run_failed(ticks.start("FR"))
    assert ticks.requested() == set()
    assert ticks.requested(later=dt.timedelta(minutes=1)) == {"FR"}
    instance.report_runless_asset_event(dg.AssetMaterialization(mailed_countries.key, partition="FR"))
    assert ticks.requested(later=dt.timedelta(minutes=2)) == set()
