"""Rows that fail an audit are never visible: nothing is published or consumed, and the checks say why."""

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.errors import AuditError, DeclarationError
from tests.support.lake import Lake, events
from tests.support.pipeline import daily, expected_daily, pipeline
from tests.support.progress import copied_state

FEW = 8
SEEN: list[int] = []


@ips.audit(asset="daily")
def few_rows(rows: DataFrame) -> dg.AssetCheckResult:
    """The table stays small."""
    count = rows.count()
    SEEN.append(count)
    return dg.AssetCheckResult(passed=count < FEW, metadata={"rows": count}, description="counted")


@ips.audit(asset="daily", blocking=False)
def no_long_plays(rows: DataFrame) -> bool:
    return rows.where("seconds > 5").isEmpty()


@ips.audit(asset="daily")
def broken(rows: DataFrame) -> bool:
    return rows.where("no_such_column > 5").isEmpty()


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def run(
    lake: Lake,
    instance: dg.DagsterInstance,
    *checks: dg.AssetChecksDefinition,
    asset: dg.AssetsDefinition = daily,
    with_checks: bool = True,
) -> dg.ExecuteInProcessResult:
    plain = pipeline(lake.folder, lake.spark_folder)
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = ips.with_incremental(
        dg.Definitions(assets=[playback, asset], asset_checks=checks, resources=plain.resources)
    )
    selection = dg.AssetSelection.assets(asset.key)
    if not with_checks:
        selection = selection - dg.AssetSelection.all_asset_checks()
    job = dg.define_asset_job("one", selection=selection)
    job_def = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job])).resolve_job_def("one")
    return job_def.execute_in_process(instance=instance, raise_on_error=False)


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    (failed,) = result.get_step_failure_events()
    error = failed.step_failure_data.error
    while error is not None and error.cls_name != AuditError.__name__:
        error = error.cause
    assert error is not None
    return str(error.message)


def newest(instance: dg.DagsterInstance, check: dg.AssetChecksDefinition) -> dg.AssetCheckEvaluation:
    (spec,) = check.check_specs
    (record,) = instance.event_log_storage.get_asset_check_execution_history(spec.key, limit=1)
    assert record.event is not None
    assert record.event.dagster_event is not None
    return record.event.dagster_event.asset_check_evaluation_data


@pytest.mark.parametrize("with_checks", [True, False], ids=["checks selected", "checks not selected"])
def test_rows_that_fail_an_audit_are_neither_published_nor_consumed_and_show_as_a_failed_check(
    lake: Lake, instance: dg.DagsterInstance, *, with_checks: bool
) -> None:
    rows = events(range(5))
    lake.create_playback(rows)
    assert run(lake, instance, few_rows, no_long_plays, with_checks=with_checks).success
    assert SEEN == [5], "the check of the same run reads the table once more"
    assert newest(instance, few_rows).passed
    before, commits = copied_state(instance, Edge("daily", "playback")), lake.commits("media.daily")

    lake.append(events(range(5, 9)))
    result = run(lake, instance, few_rows, no_long_plays, with_checks=with_checks)

    assert not result.success
    assert "few_rows (counted; rows: 9)" in failure_of(result)
    assert lake.rows("media.daily") == expected_daily(rows)
    assert (lake.commits("media.daily"), lake.branches("media.daily")) == (commits, {"main"})
    after = copied_state(instance, Edge("daily", "playback"))
    assert (after.committed, after.number) == (before.committed, before.number)
    found = newest(instance, few_rows)
    assert (found.passed, found.blocking, found.metadata["rows"].value) == (False, True, 9)
    assert not result.get_asset_materialization_events()


def test_an_audit_that_only_warns_publishes_and_warns(lake: Lake, instance: dg.DagsterInstance) -> None:
    rows = events(range(7))
    lake.create_playback(rows)
    assert run(lake, instance, no_long_plays).success
    found = newest(instance, no_long_plays)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert found.description == "It is false of the rows that the run would publish."
    assert lake.rows("media.daily") == expected_daily(rows)


def test_an_audit_that_raises_counts_as_failed(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.create_playback(events(range(3)))
    result = run(lake, instance, broken)
    assert "no_such_column" in failure_of(result)
    assert lake.catalog.find("media.daily") is None
    assert "no_such_column" in str(newest(instance, broken).description)


def test_an_audit_of_rows_that_a_retry_no_longer_has_does_not_count(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental()},
        metadata=ips.append(remove_on=["event_id"]) | ips.table("media.retried"),
        retry_policy=dg.RetryPolicy(max_retries=1),
    )
    def retried(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    @ips.audit(asset="retried")
    def is_small(rows: DataFrame) -> bool:
        count = rows.count()
        if count > FEW:
            lake.sql("DELETE FROM lake.media.playback WHERE event_id >= 5").collect()  # someone corrects it meanwhile
        return count <= FEW

    lake.create_playback(events(range(5)))
    assert run(lake, instance, is_small, asset=retried).success
    lake.append(events(range(5, 10)))
    assert run(lake, instance, is_small, asset=retried).success
    assert newest(instance, is_small).passed
    assert sum(lake.rows("media.retried").values()) == 5


def test_own_statements_are_audited_as_a_whole(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(deps=[ips.incremental_dep("playback")], metadata=ips.table("media.ids"))
    def ids(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, columns="id BIGINT") as icdc:
            icdc.sql("INSERT INTO {target} SELECT event_id FROM {added}")
            icdc.sql("INSERT INTO {target} VALUES (-1)")

    @ips.audit(asset="ids")
    def no_negative_ids(rows: DataFrame) -> bool:
        return rows.where("id < 0").isEmpty()

    lake.create_playback(events(range(3)))
    result = run(lake, instance, no_negative_ids, asset=ids)
    assert "no_negative_ids" in failure_of(result)
    assert lake.catalog.find("media.ids") is None
    assert copied_state(instance, Edge("ids", "playback")).committed is None
    assert not newest(instance, no_negative_ids).passed


def test_an_audit_of_an_asset_that_another_io_manager_writes_is_refused() -> None:
    @dg.asset(io_manager_key="other")
    def daily() -> None: ...

    manager = ips.IcdcIOManager(catalog=ips.IcebergCatalog(folder="lake"), spark=ips.LocalSparkConnect())
    resources = {"io_manager": manager, "other": dg.mem_io_manager}
    definitions = dg.Definitions(assets=[daily], asset_checks=[no_long_plays], resources=resources)
    with pytest.raises(DeclarationError, match="no_long_plays"):
        ips.with_incremental(definitions)
