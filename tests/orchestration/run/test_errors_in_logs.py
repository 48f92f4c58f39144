"""A run's log says what is wrong and what to do about it, where people see it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import DeclarationError, UnknownTableError
from tests.support.lake import Lake, events
from tests.support.pipeline import pipeline


@dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.daily"))
def daily(playback: ips.IcdcView) -> DataFrame:
    return playback.added


def test_an_error_of_the_library_is_a_log_line_and_not_only_part_of_a_stack_trace(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder=str(tmp_path)), spark=ips.LocalSparkConnect())
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = ips.with_incremental(dg.Definitions(assets=[playback, daily], resources={"io_manager": manager}))
    job = definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("daily")], raise_on_error=False)
    assert not result.success
    said = [entry.user_message for entry in instance.all_logs(result.run_id) if entry.level == logging.ERROR]
    start = str(UnknownTableError(table="media.playback", catalog="lake", asset="daily"))
    assert any(each.startswith(start) for each in said)


@dg.op
def one() -> list[int]:
    return [1]


@dg.op
def counted(numbers: list[int]) -> int:
    return len(numbers)


@dg.graph_asset
def graph() -> int:
    found: int = counted(one())
    return found


OK = dg.AssetCheckSpec("ok", asset="daily")


@dg.multi_asset(
    outs={"daily": dg.AssetOut(metadata=ips.append() | ips.table("media.daily"), is_required=False)},
    ins={"playback": ips.incremental()},
    check_specs=[OK],
    can_subset=True,
)
def daily_and_its_check(playback: ips.IcdcView):  # type: ignore[no-untyped-def]  # noqa: ANN201  # a generator of results
    yield dg.Output(playback.added, "daily")
    yield dg.AssetCheckResult(asset_key="daily", check_name="ok", passed=True)


@dg.multi_asset(
    specs=[
        dg.AssetSpec("daily", deps=[ips.incremental_dep("playback")], metadata=ips.table("media.daily"), skippable=True)
    ],
    check_specs=[OK],
    can_subset=True,
)
def own_sql_and_its_check(context):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  # Dagster reads it at run time
    with ips.capture(context, columns="id BIGINT"):
        yield dg.AssetCheckResult(asset_key="daily", check_name="ok", passed=True)


@pytest.mark.parametrize(
    ("asset", "selected", "said"),
    [
        (graph, {"asset_selection": {graph.key}}, "passed between ops"),
        (daily_and_its_check, {"asset_selection": set(), "asset_check_selection": {OK.key}}, "executes only checks"),
        (own_sql_and_its_check, {"asset_selection": set(), "asset_check_selection": {OK.key}}, "only its checks"),
    ],
    ids=["an output that is no asset", "a check alone", "a check alone, beside own statements"],
)
def test_what_has_no_table_to_write_is_refused_with_advice(
    instance: dg.DagsterInstance, tmp_path: Path, asset: dg.AssetsDefinition, selected: dict[str, Any], said: str
) -> None:
    manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder=str(tmp_path)), spark=ips.LocalSparkConnect())
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = ips.with_incremental(dg.Definitions(assets=[playback, asset], resources={"io_manager": manager}))
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(**selected)
    with pytest.raises(DeclarationError, match=said):
        job.execute_in_process(instance=instance)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_run_warns_if_its_definitions_did_not_go_through_with_incremental(
    lake: Lake, instance: dg.DagsterInstance, *, is_wrapped: bool
) -> None:
    lake.create_playback(events([1]))
    playback = ips.iceberg_asset("playback", table="media.playback")
    resources = pipeline(lake.folder, lake.spark_folder).resources
    definitions = dg.Definitions(assets=[playback, daily], resources=resources)
    if is_wrapped:
        definitions = ips.with_incremental(definitions)
    # A sensor requests the asset without its checks.
    job = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection={dg.AssetKey("daily")}, asset_check_selection=set()
    )
    result = job.execute_in_process(instance=instance)
    warned = [entry.user_message for entry in instance.all_logs(result.run_id) if entry.level == logging.WARNING]
    assert is_wrapped is not any("its definitions didn't go through with_incremental" in said for said in warned)
