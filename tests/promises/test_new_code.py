"""Rows that older code wrote are reported where people look, until everything is recomputed in one step."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.cli.context import Workplace
from dagster_ips.orchestration.declare.consumers import PENDING_CHECK
from dagster_ips.orchestration.run.known_consumers import known_consumers
from dagster_ips.orchestration.watch.pending_checks import PENDING_SENSOR
from tests.support.lake import Lake, events
from tests.support.partitioned import DAYS, SENSOR, partitioned, run
from tests.support.pipeline import materialize, pipeline
from tests.support.ticks import tick
from tests.support.variants import mostly_slow

FULL = {"dagster_ips/mode": "full"}
OF_1 = "it has rows from code version 1, and the current version is 2"


def of_version(code: str, **partitioned_by: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    by_day = {"partition_expr": "event_date"} if partitioned_by else {}

    @dg.asset(
        name="coded",
        code_version=code,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | ips.table("media.coded", partition_by=["event_date"]) | by_day,
        **partitioned_by,
    )
    def coded(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    return coded


def of_sql(code: str) -> dg.AssetsDefinition:
    @dg.asset(
        name="coded", code_version=code, deps=[ips.incremental_dep("playback")], metadata=ips.table("media.coded")
    )
    def coded(context):  # noqa: ANN001, ANN202  # Dagster reads its annotation, and annotations are texts here
        with ips.capture(context, columns="event_id BIGINT") as icdc:
            icdc.sql("INSERT INTO {target} SELECT event_id FROM {added}")

    return coded


def shown(result: dg.ExecuteInProcessResult) -> list[str]:
    """What each materialization says about older rows; an empty text if it says nothing."""
    found = [each.metadata.get("older rows") for each in result.asset_materializations_for_node("coded")]
    return [str(each.value) if each else "" for each in found]


def check_says(defs: dg.Definitions, instance: dg.DagsterInstance) -> tuple[bool, str]:
    events = tick(defs, instance, PENDING_SENSOR).asset_events
    (found,) = [each for each in events if each.asset_key == dg.AssetKey("coded")]
    assert isinstance(found, dg.AssetCheckEvaluation)
    assert found.check_name == PENDING_CHECK
    return found.passed, found.description or ""


def status_says(defs: dg.Definitions, instance: dg.DagsterInstance) -> str:
    workplace = Workplace(known_consumers(defs), (), [defs], instance)
    return str(workplace.older_rows(workplace.consumer("coded")) or "")


@pytest.mark.parametrize("make", mostly_slow([of_version, of_sql]))
def test_new_code_continues_and_the_run_and_the_check_report_older_rows_until_a_full_run(
    lake: Lake, instance: dg.DagsterInstance, make: Callable[[str], dg.AssetsDefinition]
) -> None:
    old, new = (pipeline(lake.folder, lake.spark_folder, make(code)) for code in "12")
    lake.create_playback(events([1]))
    assert shown(materialize(old, instance, "coded")) == [""]
    # Nothing has run with the new code yet.
    passed, said = check_says(new, instance)
    assert passed
    assert said.startswith(f"everything is consumed. {OF_1[0].upper()}{OF_1[1:]}")
    assert said.endswith("--full; or run it in Dagster's UI with the run tag dagster_ips/mode=full.")

    lake.append(events([2]))
    for _ in range(2):  # the second run has nothing to write
        (said,) = shown(materialize(new, instance, "coded", tags=SENSOR))
        assert said.startswith(OF_1)
    assert shown(materialize(new, instance, "coded", tags=FULL)) == [""]
    assert check_says(new, instance) == (True, "everything is consumed")


def test_a_backfill_renews_the_partitions_that_it_computes(lake: Lake, instance: dg.DagsterInstance) -> None:
    old, new = (partitioned(lake.folder, lake.spark_folder, of_version(code, partitions_def=DAYS)) for code in "12")
    first, second = "2026-01-01", "2026-01-02"
    lake.create_playback([*events([1]), *events([2], day=1)])
    run(old, instance, "coded", first, second)
    assert status_says(old, instance) == ""
    assert f"{OF_1}, in 2 partitions" in status_says(new, instance)
    lake.append([*events([3]), *events([4], day=1)])
    said = shown(run(new, instance, "coded", first, second, **SENSOR))
    assert len(said) == 2
    assert all(each.startswith(f"{OF_1}, in 2 partitions ({first}, {second})") for each in said)
    assert shown(run(new, instance, "coded", first)) == [""]
    assert f"{OF_1[1:]}, in 1 partition ({second}). To recompute them, launch" in check_says(new, instance)[1]
    assert f"in 1 partition ({second})" in status_says(new, instance)
    assert shown(run(new, instance, "coded", second)) == [""]
    assert status_says(new, instance) == ""


def test_rows_older_than_a_column_are_reported_even_if_only_the_upstream_changed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = pipeline(lake.folder, lake.spark_folder, of_version("1"))
    lake.create_playback(events([1]))
    materialize(defs, instance, "coded")
    lake.sql("ALTER TABLE lake.media.playback ADD COLUMN plan string")
    lake.append(events([2]))
    (said,) = shown(materialize(defs, instance, "coded", tags=SENSOR))
    assert said.startswith("rows from before plan was added have NULL in it. To recompute everything:")
    assert shown(materialize(defs, instance, "coded", tags=FULL)) == [""]
