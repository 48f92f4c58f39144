"""A run that writes and consumes nothing doesn't count as a materialization, whatever its function returns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError, OutputTypeError
from dagster_ips.orchestration.run import io_manager, runs
from tests.support.lake import events
from tests.support.ticks import tick, told
from tests.support.without_spark import Tables, manager_of

INS, METADATA = {"playback": ips.incremental()}, ips.append() | ips.table("media.daily")
DEPS = [ips.incremental_dep("playback")]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    tables = Tables(tmp_path / "lake")
    tables.create("playback")
    tables.append(events(range(3)))
    monkeypatch.setattr(io_manager.IcdcIOManager, "_session", lambda *_: None)
    monkeypatch.setattr(runs, "count_rows", lambda *_: None)
    return tables


def defined(tables: Tables, asset: dg.AssetsDefinition) -> dg.Definitions:
    manager = manager_of(tables.folder)
    playback = ips.iceberg_asset("playback", table="media.playback")
    return ips.with_incremental(dg.Definitions(assets=[playback, asset], resources={"io_manager": manager}))


def job_of(made: dg.Definitions) -> dg.JobDefinition:
    whole = made.resolve_implicit_global_asset_job_def()
    return whole.get_subset(asset_selection=set(whole.asset_layer.executable_asset_keys), asset_check_selection=set())


def run(tables: Tables, instance: dg.DagsterInstance, asset: dg.AssetsDefinition) -> dg.Definitions:
    made = defined(tables, asset)
    job_of(made).execute_in_process(instance=instance)
    return made


def returning() -> dg.AssetsDefinition:
    @dg.asset(ins=INS, metadata=METADATA)
    def daily(playback: ips.IcdcView) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"mode": str(playback.mode)})

    return daily


def returning_unannotated() -> dg.AssetsDefinition:
    @dg.asset(ins=INS, metadata=METADATA)
    def daily(playback: ips.IcdcView):  # type: ignore[no-untyped-def]  # noqa: ANN202  # nothing says what it returns
        return dg.MaterializeResult(metadata={"mode": str(playback.mode)})

    return daily


def yielding() -> dg.AssetsDefinition:
    @dg.asset(ins=INS, metadata=METADATA)
    def daily(playback: ips.IcdcView) -> Iterator[dg.MaterializeResult[Any]]:
        yield dg.MaterializeResult(metadata={"mode": str(playback.mode)})

    return daily


def awaited() -> dg.AssetsDefinition:
    @dg.asset(ins=INS, metadata=METADATA)
    async def daily(playback: ips.IcdcView) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"mode": str(playback.mode)})

    return daily


@pytest.mark.parametrize("asset", [returning, returning_unannotated, yielding, awaited])
def test_a_result_without_rows_of_an_asset_that_should_return_them_fails(
    tables: Tables, instance: dg.DagsterInstance, asset: Callable[[], dg.AssetsDefinition]
) -> None:
    with pytest.raises(OutputTypeError):
        run(tables, instance, asset())
    assert instance.get_latest_materialization_event(dg.AssetKey("daily")) is None


def test_an_asset_that_should_capture_and_does_not_fails(tables: Tables, instance: dg.DagsterInstance) -> None:
    @dg.asset(deps=DEPS)
    def nothing() -> None: ...

    @dg.asset(deps=DEPS)
    def result() -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult()

    @dg.multi_asset(specs=[dg.AssetSpec("one", deps=DEPS, skippable=True)])
    def several() -> Iterator[dg.MaterializeResult[Any]]:
        yield dg.MaterializeResult("one")

    for asset in (nothing, result, several):
        with pytest.raises(DeclarationError, match="didn't call capture"):
            run(tables, instance, asset)


def test_an_asset_may_skip_its_capture_if_it_does_not_count_as_materialized(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.multi_asset(specs=[dg.AssetSpec("one", deps=DEPS, skippable=True)])
    def several() -> Iterator[dg.MaterializeResult[Any]]:
        yield from ()

    run(tables, instance, several)
    assert instance.get_latest_materialization_event(dg.AssetKey("one")) is None


def test_an_asset_that_yields_nothing_consumes_nothing_is_held_back_and_its_check_says_so(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins=INS, metadata=METADATA, output_required=False)
    def daily(playback: ips.IcdcView) -> Iterator[dg.Output[Any]]:
        if not playback.mode:
            yield dg.Output(playback)

    made = run(tables, instance, daily)
    assert instance.get_latest_materialization_event(daily.key) is None
    (check,), _ = told(made, instance, "ips_pending")
    assert check.metadata["rows pending"].value == 3
    assert "Its last run succeeded, but yielded nothing (run " in check.description
    assert "(/runs/" in check.metadata["without output"].value
    assert dg.evaluate_automation_conditions(made, instance).get_num_requested(daily.key) == 0


def left_out_of_several() -> dg.AssetsDefinition:
    @dg.multi_asset(ins=INS, outs={"daily": dg.AssetOut(metadata=METADATA, is_required=False)}, can_subset=True)
    def several(playback: ips.IcdcView) -> Iterator[dg.Output[Any]]:  # noqa: ARG001  # Dagster loads it
        yield from ()

    return several


def left_out_alone() -> dg.AssetsDefinition:
    @dg.asset(ins=INS, metadata=METADATA, output_required=False)
    def daily(playback: ips.IcdcView) -> Iterator[dg.Output[Any]]:  # noqa: ARG001  # Dagster loads it
        yield from ()

    return daily


def left_out_partitioned() -> dg.AssetsDefinition:
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-02")
    metadata = METADATA | {"partition_expr": "event_date"}

    @dg.asset(ins=INS, metadata=metadata, output_required=False, partitions_def=days)
    def daily(playback: ips.IcdcView) -> Iterator[dg.Output[Any]]:  # noqa: ARG001  # Dagster loads it
        yield from ()

    return daily


@pytest.mark.parametrize("asset", [left_out_of_several, left_out_alone, left_out_partitioned])
def test_an_asset_that_a_successful_run_left_out_waits_as_after_a_failure(
    tables: Tables, instance: dg.DagsterInstance, asset: Callable[[], dg.AssetsDefinition]
) -> None:
    made = defined(tables, asset())
    partition = None if asset().partitions_def is None else "2026-01-01"

    def requested(*, later: dt.timedelta = dt.timedelta(0), cursor: Any = None) -> tuple[bool, Any]:  # noqa: ANN401  # Dagster's
        now = dt.datetime.now(dt.UTC) + later
        found = dg.evaluate_automation_conditions(made, instance, evaluation_time=now, cursor=cursor)
        return found.get_num_requested(dg.AssetKey("daily")) > 0, found.cursor

    due, cursor = requested()
    assert due
    assert job_of(made).execute_in_process(instance=instance, partition_key=partition).success
    due, cursor = requested(cursor=cursor)
    assert not due
    assert requested(later=dt.timedelta(minutes=1), cursor=cursor)[0]
    events = tick(made, instance, "ips_pending").asset_events
    (check,) = [each for each in events if isinstance(each, dg.AssetCheckEvaluation)]
    assert "yielded nothing" in str(check.description)
