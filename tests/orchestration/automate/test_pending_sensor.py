"""A plain sensor requests what is pending, each change once, and says what it couldn't determine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.orchestration.declare.consumers import consumers_of
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.support.lake import BY_DATE, SCHEMA, events
from tests.support.partitioned import DAYS, key
from tests.support.publishing import publish
from tests.support.ticks import tick
from tests.support.without_spark import Tables, manager_of

BY_DAY = dg.AssetKey("by_day")


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "lake")


def definitions(tables: Tables) -> dg.Definitions:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append())
    def daily(playback: ips.IcdcView) -> object:
        return playback.added

    @dg.asset(
        partitions_def=DAYS,
        ins={"late": ips.incremental()},
        metadata=ips.append() | ips.table("media.by_day") | {"partition_expr": "event_date"},
    )
    def by_day(late: ips.IcdcView) -> object:
        return late.added

    @dg.asset_check(asset=daily)
    def has_rows() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    specs = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("playback", "late")]
    sensor = ips.pending_sensor("by_sensor", ["daily", "by_day"])
    checks = [has_rows, ips.proof("daily"), ips.proof("by_day", with_each_run=True)]
    resources = {"io_manager": manager_of(tables.folder)}
    return ips.with_incremental(
        dg.Definitions(assets=[*specs, daily, by_day], asset_checks=checks, sensors=[sensor], resources=resources)
    )


def requested(defined: dg.Definitions, instance: dg.DagsterInstance) -> Sequence[dg.RunRequest]:
    return answer(defined, instance)[0]


def answer(defined: dg.Definitions, instance: dg.DagsterInstance) -> tuple[Sequence[dg.RunRequest], str | None]:
    """The run requests of one tick, and why it has none."""
    result = tick(defined, instance, "by_sensor")
    return result.run_requests or (), result.skip_message


def test_a_partitioned_asset_whose_upstream_has_no_table_yet_holds_up_no_other_asset(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    tables.create("playback")
    tables.append(events(range(3)))
    requests = requested(definitions(tables), instance)
    assert [request.asset_selection for request in requests] == [[dg.AssetKey("daily")]]


def test_a_run_includes_the_checks_that_belong_to_each_run_and_no_proof_on_request(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    for name in ("playback", "late"):
        tables.create(name)
        tables.append(events(range(3)), f"media.{name}")
    requests = requested(definitions(tables), instance)
    checks = {check.to_user_string() for request in requests for check in request.asset_check_keys or ()}
    assert checks == {"daily:has_rows", "by_day:proof"}


@pytest.mark.parametrize("can_subset", [False, True])
def test_a_step_is_requested_as_a_whole_even_if_only_one_of_its_assets_is_named(
    tables: Tables, instance: dg.DagsterInstance, *, can_subset: bool
) -> None:
    tables.create("playback")
    tables.append(events(range(3)))
    outs = {
        name: dg.AssetOut(metadata=ips.append() | ips.table(f"media.{name}"), is_required=not can_subset)
        for name in ("clean", "rejected")
    }

    @dg.multi_asset(ins={"playback": ips.incremental()}, outs=outs, can_subset=can_subset)
    def split(playback: ips.IcdcView) -> tuple[object, object]:
        return playback.added, playback.added

    playback, sensor = ips.iceberg_asset("playback", table="media.playback"), ips.pending_sensor("by_sensor", ["clean"])
    defined = ips.with_incremental(
        dg.Definitions(assets=[playback, split], sensors=[sensor], resources={"io_manager": manager_of(tables.folder)})
    )
    (request,) = requested(defined, instance)
    assert request.asset_selection == [dg.AssetKey("clean"), dg.AssetKey("rejected")]
    graph = defined.resolve_asset_graph()
    assert all(graph.get(key).automation_condition is None for key in request.asset_selection)


@pytest.mark.parametrize("how", ["dropped", "rolled back"])
def test_partitions_that_are_pending_again_without_a_new_snapshot_are_requested_again(
    tables: Tables, instance: dg.DagsterInstance, how: str
) -> None:
    tables.create("late")
    tables.append(events(range(3)), "media.late")
    defined = definitions(tables)
    table = tables.catalog.client.create_table("media.by_day", SCHEMA, partition_spec=BY_DATE)
    table.append(table.scan().to_arrow())
    (first,) = requested(defined, instance)
    assert first.partition_key == key(0)
    _publish(defined, tables, instance)
    assert not requested(defined, instance)
    if how == "dropped":
        tables.catalog.client.drop_table("media.by_day")
    else:
        table.refresh().manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit()
    (again,) = requested(defined, instance)
    assert again.partition_key == key(0)
    assert again.run_key != first.run_key  # Dagster launches one run per key
    assert requested(defined, instance)[0].run_key == again.run_key


def test_what_a_person_asks_for_is_requested_each_time(tables: Tables, instance: dg.DagsterInstance) -> None:
    tables.create("playback")
    tables.append(events(range(3)))
    defined, store = definitions(tables), CursorStore(instance)
    tables.catalog.create_namespace("default")
    tables.catalog.client.create_table("default.daily", SCHEMA)
    request = CaptureRequest("daily", [TrackedInput("playback", "media.playback")], target="default.daily")
    keys = []
    for _ in range(3):
        (asked,) = requested(defined, instance)
        assert requested(defined, instance)[0].run_key == asked.run_key
        keys.append(asked.run_key)
        captured = Capturer(tables.catalog, store).capture(request, run_id="run")
        publish(store, tables.catalog, "default.daily", captured)
        assert not requested(defined, instance)
        Administrator(tables.catalog, store, "default.daily").reset(Edge("daily", "playback"), who="me", why="test")
    assert len(set(keys)) == 3


def test_a_tick_that_requests_nothing_says_what_it_does_not_know_and_which_run_it_waits_for(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    tables.create("playback")
    defined = definitions(tables)
    assert answer(defined, instance) == ((), "Nothing new is pending.")
    tables.append(events(range(3)))
    location = tables.catalog.metadata_locations(["media.playback"])["media.playback"]
    file = Path(location.removeprefix("file://"))
    whole = file.read_text()
    file.write_text("")
    requests, why = answer(defined, instance)
    assert not requests
    assert why is not None
    assert why.startswith("Could not determine what is new for daily: ")
    file.write_text(whole)
    ((request,), _) = answer(defined, instance)
    job = defined.resolve_implicit_global_asset_job_def()
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=dict(request.tags))
    assert answer(defined, instance) == ((), "A run requested earlier for daily isn't finished.")


def _publish(defined: dg.Definitions, tables: Tables, instance: dg.DagsterInstance) -> None:
    """What a run of a partition of ``by_day`` leaves that had no row to write."""
    graph, store = defined.resolve_asset_graph(), CursorStore(instance)
    metadata = {asset: graph.get(asset).metadata for asset in graph.get_all_asset_keys()}
    (by_day,) = (each for each in defined.assets or () if isinstance(each, dg.AssetsDefinition) and BY_DAY in each.keys)
    (consumer,) = consumers_of(by_day, metadata, "default")
    request = CaptureRequest(
        "by_day",
        list(consumer.tracked(graph, instance).values()),
        target="media.by_day",
        partitions=RunPartitions((key(0),)),
    )
    captured = Capturer(tables.catalog, store).capture(request, run_id="run")
    publish(store, tables.catalog, "media.by_day", captured)
