"""Whether the Dagster instance works: it keeps cursors, its daemon runs, and its sensors are on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ips.cli.context import Workplace
from dagster_ips.cli.doctor.finding import Finding
from dagster_ips.core.time_text import moment
from dagster_ips.errors import CursorStorageError
from dagster_ips.orchestration.run.run_story import causes

_DAEMONS = ("SENSOR", "QUEUED_RUN_COORDINATOR")
_AS_DECLARED = "DECLARED_IN_CODE"


def cursors(instance: dg.DagsterInstance, workplace: Workplace) -> Iterator[Finding]:
    """Whether the instance stores cursors and can read them back."""
    try:
        workplace.store.require_working()
    except CursorStorageError as error:
        fix = "Use an instance on SQLite, PostgreSQL or MySQL: see storage in its dagster.yaml."
        yield Finding("cursor storage", instance.root_directory, str(error), fix)


def daemon(instance: dg.DagsterInstance) -> Iterator[Finding]:
    """Whether the daemons that evaluate sensors and launch runs are running."""
    found = {kind: each for kind, each in instance.get_daemon_statuses().items() if kind in _DAEMONS and each.required}
    if ill := {kind: each.last_heartbeat for kind, each in found.items() if not each.healthy}:
        beats = [beat.timestamp for beat in ill.values() if beat]
        seen = f"last sent a heartbeat at {moment(round(max(beats) * 1000))}" if beats else "has never run"
        yield Finding(
            "daemon",
            instance.root_directory,
            f"Dagster's daemon ({', '.join(sorted(ill))}) {seen}, so nothing runs when data changes.",
            "Start `dagster dev`, or `dagster-daemon run` alongside the webserver, with the same DAGSTER_HOME.",
        )


def sensors(instance: dg.DagsterInstance, definitions: Sequence[dg.Definitions]) -> Iterator[Finding]:
    """Whether automation sensors and those that ``with_incremental`` added are on, and their last ticks succeeded."""
    states: dict[str, list[Any]] = defaultdict(list)  # Their class isn't public.
    for state in instance.all_instigator_state():
        states[state.name].append(state)
    for sensor in {each.name: each for each in _watching(definitions)}.values():
        # Sensors of several code locations have the same name, and which of these was loaded here is unknown.
        for state in states[sensor.name] or [None]:
            location = state.origin.repository_origin.code_location_origin.location_name if state else None
            where = f"{sensor.name} of {location}" if len(states[sensor.name]) > 1 else sensor.name
            is_on = sensor.default_status is dg.DefaultSensorStatus.RUNNING
            if state is not None and state.status.value != _AS_DECLARED:
                is_on = state.is_running
            if not is_on:
                yield Finding(
                    "sensors",
                    where,
                    "it is turned off, so nothing follows the changes that it watches.",
                    f"Turn it on in the UI (Automation), or: dagster sensor start {sensor.name}",
                )
            elif state and (error := _error_of_last_tick(instance, state)):
                yield Finding(
                    "sensors", where, f"its last tick failed: {error}", "Fix the cause; the next tick continues."
                )


def triggers(warnings: Mapping[str, str]) -> Iterator[Finding]:
    """Whether anything triggers the assets that read incrementally."""
    for asset, warning in warnings.items():
        what, _, fix = warning.partition(". ")
        yield Finding("with_incremental", asset, f"{what}.", fix)


def _watching(definitions: Sequence[dg.Definitions]) -> Iterator[dg.SensorDefinition]:
    for each in definitions:
        for sensor in each.get_repository_def().sensor_defs:
            is_automation = isinstance(sensor, dg.AutomationConditionSensorDefinition)
            if is_automation or sensor.name.startswith("ips_"):
                yield sensor


def _error_of_last_tick(instance: dg.DagsterInstance, state: Any) -> str | None:  # noqa: ANN401  # its class isn't public
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
    return next(causes(ticks[0].tick_data.error), None) if ticks else None
