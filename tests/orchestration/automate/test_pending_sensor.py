"""A plain sensor requests what is pending, each change once, and says what it couldn't determine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest

import dagster_ips as ips
from tests.orchestration.watch.test_pending import Tables
from tests.support.lake import events
from tests.support.partitioned import DAYS


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

    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(folder=str(tables.folder)), spark=ips.LocalSparkConnect(server_folder="unused")
    )
    specs = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("playback", "late")]
    sensor = ips.pending_sensor("by_sensor", ["daily", "by_day"])
    return ips.with_incremental(
        dg.Definitions(assets=[*specs, daily, by_day], sensors=[sensor], resources={"io_manager": manager})
    )


def requested(defined: dg.Definitions, instance: dg.DagsterInstance) -> Sequence[dg.RunRequest]:
    return tick(defined, instance)[0]


def tick(defined: dg.Definitions, instance: dg.DagsterInstance) -> tuple[Sequence[dg.RunRequest], str | None]:
    """The run requests of one tick, and why it has none."""
    with dg.build_sensor_context(instance=instance, definitions=defined) as context:
        result = defined.resolve_sensor_def("by_sensor").evaluate_tick(context)
    return result.run_requests or (), result.skip_message


def test_a_partitioned_asset_whose_upstream_has_no_table_yet_holds_up_no_other_asset(
    tables: Tables, instance: dg.DagsterInstance
) -> None:
    tables.create("playback")
    tables.append(events(range(3)))
    requests = requested(definitions(tables), instance)
    assert [request.asset_selection for request in requests] == [[dg.AssetKey("daily")]]
