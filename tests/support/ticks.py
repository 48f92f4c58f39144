"""Ticks of sensors, as Dagster's daemon evaluates them."""

from __future__ import annotations

from typing import Any

import dagster as dg
from dagster._core.definitions.sensor_definition import SensorExecutionData

from dagster_ips.orchestration.automate.automation_sensors import AUTOMATION_SENSOR


def tick(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    sensor: str = AUTOMATION_SENSOR,
    cursor: str | None = None,
) -> SensorExecutionData:
    """What a tick of the sensor returns; ``cursor`` is that of the tick before."""
    repository = definitions.get_repository_def()
    with dg.build_sensor_context(instance, cursor=cursor, repository_def=repository, sensor_name=sensor) as context:
        return repository.get_sensor_def(sensor).evaluate_tick(context)


def told(
    definitions: dg.Definitions, instance: dg.DagsterInstance, sensor: str, cursor: str | None = None
) -> tuple[list[Any], str | None]:
    """The events and run requests of one tick of a sensor, and its cursor for the next tick."""
    found = tick(definitions, instance, sensor, cursor)
    return [*found.asset_events, *found.run_requests], found.cursor


def requested(
    definitions: dg.Definitions, instance: dg.DagsterInstance, cursor: object = None
) -> tuple[set[str], object]:
    """The assets whose conditions request a run now, and the cursor for the next evaluation."""
    result = dg.evaluate_automation_conditions(defs=definitions, instance=instance, cursor=cursor)  # type: ignore[arg-type]
    return {r.key.to_user_string() for r in result.results if result.get_num_requested(r.key)}, result.cursor
