"""Every condition is evaluated by exactly one sensor, however many assets there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.automate import automation_sensors
from tests.support.lake import events
from tests.support.partitioned import DAYS, key
from tests.support.ticks import tick
from tests.support.without_spark import Tables, manager_of


def reader(number: int) -> dg.AssetsDefinition:
    @dg.asset(name=f"reads_{number}", ins={"playback": ips.incremental()}, metadata=ips.append())
    def read(playback: ips.IcdcView) -> object:
        return playback.added

    return read


def of(tables: Tables, *assets: dg.AssetsDefinition, sensors: Sequence[dg.SensorDefinition] = ()) -> dg.Definitions:
    playback = ips.iceberg_asset("playback", table="media.playback")
    return ips.with_incremental(
        dg.Definitions(assets=[playback, *assets], sensors=sensors, resources={"io_manager": manager_of(tables.folder)})
    )


def definitions(tables: Tables, assets: int, *, by_daemon: bool = False) -> dg.Definitions:
    own = dg.AutomationConditionSensorDefinition("own", target=["reads_1"], use_user_code_server=not by_daemon)

    @dg.asset(automation_condition=dg.AutomationCondition.missing())
    def normal() -> None: ...

    return of(tables, normal, *[reader(number) for number in range(assets)], sensors=[own])


@pytest.mark.parametrize(("assets", "most"), [(5, 200), (5, 2), (260, 200)])
def test_many_assets_are_divided_among_sensors_and_each_is_requested_by_one(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, assets: int, most: int
) -> None:
    monkeypatch.setattr(automation_sensors, "MOST_ASSETS", most)
    tables = Tables(tmp_path / "lake")
    tables.create("playback")
    tables.append(events(range(3)))
    defined = definitions(tables, assets)
    sensors = defined.get_repository_def().sensor_defs
    found = [each for each in sensors if isinstance(each, dg.AutomationConditionSensorDefinition)]
    names = ["ips_automation", *[f"ips_automation_{number}" for number in range(2, -(-(assets + 1) // most) + 1)]]
    assert sorted(each.name for each in found) == sorted([*names, "own"])
    requested: Counter[str] = Counter()
    for sensor in found:
        for request in tick(defined, instance, sensor.name).run_requests or ():
            requested.update(key.to_user_string() for key in request.asset_selection or ())
            assert not request.asset_check_keys
    assert requested == dict.fromkeys([*[f"reads_{number}" for number in range(assets)], "normal"], 1)


def test_a_sensor_that_would_skip_the_conditions_of_its_assets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"reads_1.*use_user_code_server"):
        definitions(Tables(tmp_path / "lake"), 2, by_daemon=True)


def test_the_sensor_requests_few_runs_also_if_a_component_loads_it(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    tables = Tables(tmp_path / "lake")
    tables.create("playback")
    tables.append([row for day in range(3) for row in events(range(day * 10, day * 10 + 3), day=day)])

    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | {"partition_expr": "event_date"},
    )
    def by_day(playback: ips.IcdcView) -> object:
        return playback.added

    # As Dagster changes what a component loads.
    loaded = of(tables, by_day).with_definition_metadata_update(lambda metadata: {**metadata, "loaded": True})
    (request,) = tick(loaded, instance).run_requests or ()
    assert request.tags["dagster/asset_partition_range_end"] == key(2)
