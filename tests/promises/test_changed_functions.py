"""A changed function is noticed by the plan of what it returns, without a declared version."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.retries import RetryMode
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it
from pyspark.sql.types import LongType

import dagster_ips as ips
from dagster_ips.errors import PlanChangedError
from dagster_ips.orchestration.run.starting_over import start_over
from tests.promises.test_new_code import check_says, shown, status_says
from tests.support.lake import Lake, events
from tests.support.partitioned import DAYS, SENSOR, partitioned, run
from tests.support.pipeline import materialize, pipeline

Compute = Callable[[ips.IcdcView], DataFrame]
TOTALS = ips.combine(on=["account"], aggregates={"seconds": "sum(seconds)"})
OTHER = "it has rows that another version of its function made, whose plan was another than now"


def asset(compute: Compute, write: dict[str, Any], **attributes: Any) -> dg.AssetsDefinition:  # noqa: ANN401  # of an asset
    by_day = {"partition_expr": "event_date"} if "partitions_def" in attributes else {}
    layout = ips.table("media.coded", partition_by=["event_date"] if by_day else [])

    @dg.asset(name="coded", ins={"playback": ips.incremental()}, metadata=write | layout | by_day, **attributes)
    def coded(playback: ips.IcdcView) -> DataFrame:
        return compute(playback)

    return coded


def filtered(playback: ips.IcdcView) -> DataFrame:
    return playback.weighted.where("seconds < 6")


def everything(playback: ips.IcdcView) -> DataFrame:
    return playback.weighted


def totals(lake: Lake) -> Counter[tuple[Any, ...]]:
    query = "SELECT account, sum(seconds) FROM lake.media.playback GROUP BY account"
    return Counter(tuple(row) for row in lake.sql(query).collect())


def held(lake: Lake) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in lake.sql("SELECT account, seconds FROM lake.media.coded").collect())


def test_a_row_that_a_filter_hid_before_is_not_subtracted_once_the_filter_is_gone(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    old, new = (pipeline(lake.folder, lake.spark_folder, asset(each, TOTALS)) for each in (filtered, everything))
    lake.create_playback(events(range(14)))
    materialize(old, instance, "coded")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 6")
    result = materialize(new, instance, "coded", tags=SENSOR)
    assert held(lake) == totals(lake)
    (event,) = result.asset_materializations_for_node("coded")
    assert event.metadata["mode"].value == "full"
    assert "another plan produced its rows (gone: filter" in str(event.metadata["summary"].value)
    assert status_says(new, instance) == ""
    lake.append(events([20, 21]))
    result = materialize(new, instance, "coded", tags=SENSOR)
    (event,) = result.asset_materializations_for_node("coded")
    assert event.metadata["mode"].value == "incremental"
    assert held(lake) == totals(lake)


WRITES: dict[str, tuple[dict[str, Any], Compute, Compute]] = {
    "append": (ips.append(), lambda p: p.added.where("seconds < 6"), lambda p: p.added),
    "merge": (
        ips.merge(on=["event_id"]),
        lambda p: p.added.withColumn("n", F.lit(1)),
        lambda p: p.added.withColumn("n", F.lit(2)),
    ),
}


@pytest.mark.parametrize("how", ["append", "merge"])
def test_rows_of_an_earlier_plan_are_reported_until_a_full_run(
    lake: Lake, instance: dg.DagsterInstance, how: str
) -> None:
    write, before, after = WRITES[how]
    old, new = (pipeline(lake.folder, lake.spark_folder, asset(each, write)) for each in (before, after))
    lake.create_playback(events([1]))
    assert shown(materialize(old, instance, "coded")) == [""]
    lake.append(events([2]))
    assert shown(materialize(old, instance, "coded", tags=SENSOR)) == [""]
    assert status_says(new, instance) == ""  # Nothing has run with the new code yet.
    lake.append(events([3]))
    for _ in range(2):  # the second run has nothing to write
        (said,) = shown(materialize(new, instance, "coded", tags=SENSOR))
        assert said.startswith(f"{OTHER}. To recompute everything: dagster-ips run ")
    assert check_says(new, instance)[1].startswith("everything is consumed. It has rows that another version of")
    assert status_says(new, instance).startswith(OTHER)
    assert shown(materialize(new, instance, "coded", tags={"dagster_ips/mode": "full"})) == [""]
    assert status_says(new, instance) == ""


def replacing(more: str) -> dg.AssetsDefinition:
    layout = ips.table("media.coded", partition_by=["event_date"])

    @dg.asset(name="coded", ins={"playback": ips.incremental(ranges=["event_date"])}, metadata=layout)
    def coded(playback: ips.IcdcView) -> ips.Overwrite:
        scope = playback.range("event_date").since("event_date")
        return ips.Overwrite(playback.source.where(scope), where=f"({scope}){more}")

    return coded


def test_another_condition_of_an_overwrite_is_other_code(lake: Lake, instance: dg.DagsterInstance) -> None:
    old, new = (pipeline(lake.folder, lake.spark_folder, replacing(more)) for more in ("", " AND seconds >= 0"))
    lake.create_playback(events([1]))
    for day in (1, 2):
        assert shown(materialize(old, instance, "coded", tags=SENSOR)) == [""]
        lake.append(events([1 + day], day=day))
    (said,) = shown(materialize(new, instance, "coded", tags=SENSOR))
    assert said.startswith(f"{OTHER}. To recompute everything: dagster-ips run ")


def test_partitions_of_an_earlier_plan_are_reported_until_they_are_computed_again(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    def of_key(day: str) -> Compute:
        return lambda p: p.added.where(F.col("event_date") >= day)

    parts = [asset(of_key(day), ips.append(), partitions_def=DAYS) for day in ("2020-01-01", "2021-01-01")]
    old, new = (partitioned(lake.folder, lake.spark_folder, each) for each in parts)
    first, second = "2026-01-01", "2026-01-02"
    lake.create_playback([*events([1]), *events([2], day=1)])
    run(old, instance, "coded", first)
    run(old, instance, "coded", second)
    assert status_says(new, instance) == ""
    assert shown(run(new, instance, "coded", first)) == [""]
    assert f"{OTHER}, in 1 partition ({second}). To recompute them, launch" in status_says(new, instance)
    assert shown(run(new, instance, "coded", second)) == [""]
    assert status_says(new, instance) == ""


CALLS = itertools.count()


def never_twice(playback: ips.IcdcView) -> DataFrame:
    return playback.weighted.where(F.col("seconds") > -1 - next(CALLS))


def test_a_function_that_computes_something_else_at_each_call_is_recomputed_once_in_each_run(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, asset(never_twice, TOTALS))
    lake.create_playback(events(range(5)))
    for number in range(2):
        lake.append(events([10 + number]))
        result = materialize(definitions, instance, "coded", tags=SENSOR)
        assert held(lake) == totals(lake)
    assert [each.event_type_value for each in result.all_events].count("STEP_RESTARTED") == 1


def test_where_retries_are_disabled_the_error_says_what_to_do() -> None:
    step = SimpleNamespace(retry_mode=RetryMode.DISABLED)
    with pytest.raises(PlanChangedError, match=r"another plan.*Nothing was written.*dagster-ips run .*--full"):
        start_over(step, PlanChangedError("media.coded", "another plan produced its rows"))


def by_unknown(playback: ips.IcdcView) -> DataFrame:
    known = {"one": 1}.keys()
    scaled = F.udf(lambda value: value * len(known), LongType())
    return playback.weighted.withColumn("seconds", scaled("seconds"))


def test_code_that_no_plan_shows_recomputes_in_each_run_unless_a_code_version_vouches_for_it(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    def modes(definitions: dg.Definitions) -> list[tuple[object, bool]]:
        found = []
        for number in range(2):
            lake.append(events([next(CALLS) * 10 + number]))
            (event,) = materialize(definitions, instance, "coded", tags=SENSOR).asset_materializations_for_node("coded")
            found.append((event.metadata["mode"].value, "not shown by the plan" in event.metadata))
            assert held(lake) == totals(lake)
        return found

    lake.create_playback(events(range(5)))
    unknown = pipeline(lake.folder, lake.spark_folder, asset(by_unknown, TOTALS))
    assert modes(unknown) == [("full", True), ("full", True)]
    vouched = pipeline(lake.folder, lake.spark_folder, asset(by_unknown, TOTALS, code_version="1"))
    assert modes(vouched) == [("full", True), ("incremental", True)]


@dg.multi_asset(
    name="both",
    ins={"playback": ips.incremental()},
    outs={
        "coded": dg.AssetOut(metadata=TOTALS | ips.table("media.coded")),
        "kept": dg.AssetOut(metadata=ips.append(remove_on=["event_id"]) | ips.table("media.kept")),
    },
)
def both(playback: ips.IcdcView):  # noqa: ANN201  # Dagster reads its annotation
    return COMPUTE["coded"](playback), playback.added


COMPUTE: dict[str, Compute] = {"coded": filtered}


def test_tables_of_one_step_are_right_if_the_plan_of_one_changes(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, both)
    lake.create_playback(events(range(14)))
    materialize(definitions, instance, "coded", "kept")
    monkeypatch.setitem(COMPUTE, "coded", everything)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 6")
    materialize(definitions, instance, "coded", "kept", tags=SENSOR)
    assert held(lake) == totals(lake)
    assert lake.rows("media.kept") == lake.rows("media.playback")


def job_of(lake_folder: str, spark_folder: str, which: str) -> dg.JobDefinition:
    made = asset({"filtered": filtered, "everything": everything}[which], TOTALS)
    definitions = pipeline(Path(lake_folder), Path(spark_folder), made)
    job = dg.define_asset_job("alone", [made], executor_def=dg.multiprocess_executor)
    return dg.Definitions.merge(definitions, dg.Definitions(jobs=[job])).resolve_job_def("alone")


@pytest.mark.slow
def test_a_step_in_a_process_of_its_own_starts_over_too(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(14)))

    def run_of(which: str) -> None:
        folders = (str(lake.folder), str(lake.spark_folder), which)
        job = dg.build_reconstructable_job(
            "tests.promises.test_changed_functions", "job_of", reconstructable_args=folders
        )
        with dg.execute_job(job, instance=instance, tags=SENSOR) as result:
            assert result.success

    run_of("filtered")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 6")
    run_of("everything")
    assert held(lake) == totals(lake)
