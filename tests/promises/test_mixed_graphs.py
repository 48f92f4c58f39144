"""Incremental assets among the other parts of a Dagster project: each part works as it does elsewhere.

No ``from __future__ import annotations`` here: Dagster reads the annotation of ``context`` as it is.
"""

import asyncio
import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
from dagster._core.loader import LoadingContextForTest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from tests.support.lake import Lake, events
from tests.support.lake_definitions import manager_on
from tests.support.partitioned import SENSOR
from tests.support.pipeline import agg, daily, expected_agg, expected_daily, materialize
from tests.support.progress import copied_state
from tests.support.ticks import requested, tick

PLAYBACK = ips.iceberg_asset("playback", table="media.playback")
Asset = dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset


def definitions(
    lake: Lake, *assets: Asset, checks: tuple[dg.AssetChecksDefinition, ...] = (), source: dg.AssetSpec = PLAYBACK
) -> dg.Definitions:
    manager = manager_on(lake.folder, lake.spark_folder)
    files = dg.FilesystemIOManager(base_dir=str(lake.folder / "files"))
    return ips.with_incremental(
        dg.Definitions(assets=[source, *assets], asset_checks=checks, resources={"io_manager": manager, "files": files})
    )


def run_with_checks(defs: dg.Definitions, instance: dg.DagsterInstance, *assets: str) -> dg.ExecuteInProcessResult:
    """One run of ``assets`` with their checks, as the UI launches it."""
    selection = dg.AssetSelection.assets(*assets)
    merged = dg.Definitions.merge(defs, dg.Definitions(jobs=[dg.define_asset_job("some", selection)]))
    return merged.resolve_job_def("some").execute_in_process(instance=instance, raise_on_error=False)


def number(instance: dg.DagsterInstance, consumer: str, upstream: str) -> int:
    """The number of captures that the edge has consumed."""
    return copied_state(instance, Edge(consumer, upstream)).number


@pytest.mark.slow
def test_assets_of_other_io_managers_work_upstream_and_downstream_of_incremental_ones(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(io_manager_key="files")
    def accounts() -> list[str]:
        return ["a0", "a1"]

    @dg.asset(ins={"accounts": dg.AssetIn(input_manager_key="files")}, metadata=ips.table("media.known"))
    def known(accounts: list[str]) -> DataFrame:
        # A Spark session that isn't the IO manager's.
        return lake.session.createDataFrame([(account,) for account in accounts], "account STRING")

    @dg.asset(ins={"known": ips.incremental(), "playback": ips.incremental()}, metadata=ips.table("media.of_known"))
    def of_known(known: ips.IcdcView, playback: ips.IcdcView) -> ips.Overwrite:
        return ips.Overwrite(playback.source.join(known.source, "account").select("event_id"), "TRUE")

    @dg.asset(io_manager_key="files", automation_condition=dg.AutomationCondition.eager())
    def exported(of_known: DataFrame) -> list[int]:
        return sorted(row.event_id for row in of_known.collect())

    defs = definitions(lake, accounts, known, of_known, exported)
    lake.create_playback(events(range(6)))
    materialize(defs, instance, "accounts", "known", "of_known", "exported")
    assert defs.load_asset_value("exported", instance=instance) == [0, 1, 3, 4]
    _, cursor = requested(defs, instance)
    lake.append(events(range(6, 9)))
    seen, cursor = requested(defs, instance, cursor)
    assert seen == {"of_known", "exported"}, "eager runs with what it reads"
    materialize(defs, instance, "of_known", "exported")
    assert defs.load_asset_value("exported", instance=instance) == [0, 1, 3, 4, 6, 7]
    assert requested(defs, instance, cursor)[0] == set()


@dg.asset_check(asset="daily", blocking=True)
def few(daily: DataFrame) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=daily.count() < 8)


@dg.asset_check(asset="daily")
def very_few(daily: DataFrame) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=daily.count() < 4)


CHECKS_OF_DAILY = dg.AssetSelection.checks(few, very_few)


@ips.audit(asset="daily")
def few_before_anyone_sees_them(rows: DataFrame) -> bool:
    return rows.count() < 8


@pytest.mark.slow
def test_a_failed_blocking_check_stops_downstream_assets_and_they_consume_nothing(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = definitions(lake, daily, agg, checks=(few, very_few))
    rows = events(range(6))
    lake.create_playback(rows)
    assert run_with_checks(defs, instance, "daily", "agg").success
    assert lake.rows("media.agg") == expected_agg(rows), "very_few failed and blocks nothing"

    lake.append(events(range(6, 9)))
    result = run_with_checks(defs, instance, "daily", "agg")
    assert not result.success
    assert lake.rows("media.daily") == expected_daily(rows + events(range(6, 9))), (
        "it was published when it was checked"
    )
    assert lake.rows("media.agg") == expected_agg(rows)
    assert (number(instance, "daily", "playback"), number(instance, "agg", "daily")) == (2, 1)


@pytest.mark.slow
def test_while_a_blocking_check_fails_the_sensor_runs_nothing_downstream(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = definitions(lake, daily, agg, checks=(few, very_few))
    rows = events(range(9))
    lake.create_playback(rows)
    assert not run_with_checks(defs, instance, "daily").success
    seen, cursor = requested(defs, instance)
    assert "agg" not in seen
    # Someone repairs the table, and the check passes.
    lake.sql("DELETE FROM lake.media.daily WHERE event_id IN (0, 1)")
    merged = dg.Definitions.merge(defs, dg.Definitions(jobs=[dg.define_asset_job("again", CHECKS_OF_DAILY)]))
    assert merged.resolve_job_def("again").execute_in_process(instance=instance).success
    assert "agg" in requested(defs, instance, cursor)[0], "very_few fails, and doesn't block"
    assert run_with_checks(defs, instance, "agg").success
    assert lake.rows("media.agg") == expected_agg(rows[2:])


@pytest.mark.slow
def test_a_failed_audit_leaves_nothing_to_consume_downstream(lake: Lake, instance: dg.DagsterInstance) -> None:
    defs = definitions(lake, daily, agg, checks=(few_before_anyone_sees_them,))
    rows = events(range(6))
    lake.create_playback(rows)
    assert run_with_checks(defs, instance, "daily", "agg").success
    lake.append(events(range(6, 9)))
    assert not run_with_checks(defs, instance, "daily", "agg").success
    assert (lake.rows("media.daily"), lake.rows("media.agg")) == (expected_daily(rows), expected_agg(rows))
    assert (number(instance, "daily", "playback"), number(instance, "agg", "daily")) == (1, 1)


ACCOUNTS = dg.DynamicPartitionsDefinition(name="accounts")


@dg.asset(
    partitions_def=ACCOUNTS,
    ins={"daily": ips.incremental()},
    metadata=ips.append() | ips.table("media.by_account") | {"partition_expr": "account"},
)
def by_account(daily: ips.IcdcView) -> DataFrame:
    return daily.added.select("account", "event_id")


@dg.asset(partitions_def=ACCOUNTS, io_manager_key="files")
def letters(context: dg.AssetExecutionContext, daily: DataFrame) -> list[int]:
    """A normal asset for each account: it reads the whole table."""
    return sorted(row.event_id for row in daily.where(f"account = '{context.partition_key}'").collect())


@pytest.mark.slow
def test_each_dynamic_partition_takes_its_own_rows_of_an_upstream_without_partitions(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = definitions(lake, daily, by_account, letters)
    job = defs.resolve_implicit_global_asset_job_def()
    instance.add_dynamic_partitions("accounts", ["a0", "a1", "a2"])
    rows = events(range(6))
    lake.create_playback(rows)
    for late in ([], events([7, 10])):
        if late:
            lake.append(late)
        rows = rows + late
        materialize(defs, instance, "daily")
        result = dg.evaluate_automation_conditions(defs, instance)
        pending = result.get_requested_partitions(dg.AssetKey("by_account"))
        assert pending == {row[2] for row in late or rows}
        for account in sorted(key for key in pending if key):
            for asset in ("by_account", "letters"):
                job.execute_in_process(
                    instance=instance, asset_selection=[dg.AssetKey(asset)], partition_key=account, tags=SENSOR
                )
            expected = [row[0] for row in rows if row[2] == account]
            assert defs.load_asset_value("letters", instance=instance, partition_key=account) == expected
        assert lake.rows("media.by_account") == Counter((row[2], row[0]) for row in rows)


@dg.op(out=dg.DynamicOut(io_manager_key="files"))
def each_account(daily: DataFrame) -> Iterator[dg.DynamicOutput[str]]:
    for row in daily.select("account").distinct().collect():
        yield dg.DynamicOutput(row.account, mapping_key=row.account)


@dg.op(out=dg.Out(io_manager_key="files"))
def shouted(account: str) -> str:
    return account.upper()


@dg.op(out=dg.Out(io_manager_key="files"))
def collected(accounts: list[str]) -> list[str]:
    return sorted(accounts)


@dg.graph_asset
def fanned_out(daily: DataFrame) -> list[str]:
    return collected(each_account(daily).map(shouted).collect())


def test_a_graph_with_dynamic_outputs_reads_an_incremental_asset(lake: Lake, instance: dg.DagsterInstance) -> None:
    defs = definitions(lake, daily, fanned_out)
    lake.create_playback(events(range(6)))
    materialize(defs, instance, "daily", "fanned_out")
    assert defs.load_asset_value("fanned_out", instance=instance) == ["A0", "A1", "A2"]


def test_observable_sources_and_a_users_own_conditions_stay_as_they_are(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.observable_source_asset(automation_condition=dg.AutomationCondition.cron_tick_passed("* * * * *"))
    def exchange_rates() -> dg.DataVersion:
        return dg.DataVersion("today's")

    own = ips.pending() & dg.AutomationCondition.cron_tick_passed("@hourly")

    @dg.asset(
        ins={"playback": ips.incremental()},
        deps=["exchange_rates"],
        metadata=ips.append() | ips.table("media.hourly"),
        automation_condition=own,
    )
    def hourly(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    eager = dg.AutomationCondition.eager()

    @dg.asset(deps=["exchange_rates", "hourly"], io_manager_key="files", automation_condition=eager)
    def converted() -> str:
        return "done"

    defs = definitions(lake, exchange_rates, hourly, converted)
    graph = defs.resolve_asset_graph()
    kept = graph.get(dg.AssetKey("hourly")).automation_condition
    assert kept is not None
    assert [type(child).__name__ for child in kept.children] == [type(child).__name__ for child in own.children]
    assert graph.get(dg.AssetKey("converted")).automation_condition == eager
    assert graph.get(dg.AssetKey("exchange_rates")).is_observable

    lake.create_playback(events(range(3)))
    materialize(defs, instance, "exchange_rates")
    assert "hourly" not in requested(defs, instance)[0], "not before the hour"
    materialize(defs, instance, "hourly", "converted")
    assert lake.rows("media.hourly") == Counter(events(range(3)))


def test_a_run_that_finds_no_change_keeps_an_asset_fresh_by_its_freshness_policy(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    window = dg.FreshnessPolicy.time_window(fail_window=dt.timedelta(hours=1))
    fresh = daily.map_asset_specs(lambda spec: spec.replace_attributes(freshness_policy=window))
    source = ips.iceberg_asset("playback", table="media.playback", freshness_policy=window)
    defs = definitions(lake, fresh, source=source)

    def state(asset: str, *, in_minutes: int = 0) -> FreshnessState:
        node = defs.resolve_asset_graph().get(dg.AssetKey(asset))
        with pytest.MonkeyPatch.context() as patch:
            later = dt.datetime.now(dt.UTC).timestamp() + 60 * in_minutes
            patch.setattr("dagster._core.definitions.freshness_evaluator.get_current_timestamp", lambda: later)
            evaluator = TimeWindowFreshnessPolicyEvaluator()
            found = evaluator.evaluate_freshness(LoadingContextForTest(instance), node)  # type: ignore[arg-type]
            return asyncio.run(found)

    def look() -> None:
        data = tick(defs, instance, "ips_outside_tables", cursors.get("outside"))
        cursors["outside"] = data.cursor or ""
        for event in data.asset_events:
            instance.report_runless_asset_event(event)

    cursors: dict[str, str] = {}
    lake.create_playback(events(range(3)))
    assert state("daily") is state("playback") is FreshnessState.UNKNOWN
    look()
    materialize(defs, instance, "daily")
    assert state("daily", in_minutes=59) is state("playback", in_minutes=59) is FreshnessState.PASS
    assert state("daily", in_minutes=61) is state("playback", in_minutes=61) is FreshnessState.FAIL
    before = instance.get_latest_materialization_event(dg.AssetKey("daily"))
    commits = lake.commits("media.daily")
    look()
    materialize(defs, instance, "daily")
    after = instance.get_latest_materialization_event(dg.AssetKey("daily"))
    assert before is not None
    assert after is not None
    assert (lake.commits("media.daily"), after.timestamp > before.timestamp) == (commits, True)
    assert state("daily", in_minutes=59) is FreshnessState.PASS
    newest = instance.get_latest_materialization_event(dg.AssetKey("playback"))
    assert newest is not None
    assert newest.timestamp < after.timestamp, "a source is as fresh as what arrived in it"


STANDARD = ("dagster/table_name", "dagster/uri", "dagster/column_schema", "dagster/row_count")


def test_a_materialization_says_in_words_what_it_read_and_then_in_numbers_and_small_tables(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = definitions(
        lake, daily, source=ips.iceberg_asset("playback", table="media.playback", valid_through="event_date")
    )
    lake.create_playback(events(range(40)))
    materialize(defs, instance, "daily")
    lake.append(events(range(40, 42), day=1) + events(range(42, 44), day=2))
    (made,) = materialize(defs, instance, "daily").asset_materializations_for_node("daily")
    shown = made.metadata
    names = list(shown)
    assert names[0] == "summary"
    assert "less than a full read" in str(shown["summary"].value)
    numbers = [name for name, value in shown.items() if isinstance(value.value, int | float)]
    assert {"files captured", "rows captured", "bytes captured", "source bytes", "rows added"} <= set(numbers)
    tables = [value for value in shown.values() if isinstance(value, dg.TableMetadataValue)]
    assert len(tables) == 2
    assert all(len(value.records[0].data) <= 5 for value in tables)
    assert str(shown["playback: ICDC table"].value).startswith("ips.daily__playback")
    assert isinstance(shown["valid through"], dg.TimestampMetadataValue)
    assert isinstance(shown["cascade"], dg.MarkdownMetadataValue)
    assert set(STANDARD) <= set(names)
    assert shown["dagster/row_count"].value == 44
    json.dumps({name: str(value.value) for name, value in shown.items()})
