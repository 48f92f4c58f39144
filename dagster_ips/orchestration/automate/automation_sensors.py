"""The sensors that evaluate the conditions of all assets that no sensor of the user's covers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import dagster as dg

from dagster_ips._compat import evaluate_by, knowing_partitions
from dagster_ips.orchestration.automate.run_requests import in_few_runs, in_order_of_stages_below
from dagster_ips.orchestration.automate.wait_for_change import ChangeWait
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs

AUTOMATION_SENSOR = "ips_automation"
MOST_ASSETS = 200
"""In one sensor: Dagster evaluates 500 conditions in a tick at most, and an incremental asset's check has one, too."""


def automation_sensors(
    items: Iterable[Any],
    own: Iterable[Any],
    watched: Sequence[WatchedInputs],
    *,
    interval_seconds: int,
    wait_seconds: float,
) -> list[dg.AutomationConditionSensorDefinition]:
    """One sensor for all assets of ``items`` with a condition, or one for each 200 of them; without those of ``own``.

    The first one covers what comes without a name, such as the conditions of checks. It alone waits for news: those
    after it have their ticks when it has had its own.
    """
    free: dg.AssetSelection = dg.AssetSelection.all()
    for sensor in own:
        if isinstance(sensor, dg.AutomationConditionSensorDefinition):
            free -= sensor.asset_selection
    keys = sorted(
        key for item in items if isinstance(item, dg.AssetsDefinition) for key in item.automation_conditions_by_key
    )
    parts = [dg.AssetSelection.assets(*keys[n : n + MOST_ASSETS]) for n in range(MOST_ASSETS, len(keys), MOST_ASSETS)]
    rest = free
    for part in parts:
        rest -= part
    named = {f"{AUTOMATION_SENSOR}_{number}": part & free for number, part in enumerate(parts, start=2)}
    return [
        _sensor(name, each, watched, interval_seconds, wait_seconds if name == AUTOMATION_SENSOR else 0)
        for name, each in ({AUTOMATION_SENSOR: rest} | named).items()
    ]


def _sensor(
    name: str,
    selection: dg.AssetSelection,
    watched: Sequence[WatchedInputs],
    interval_seconds: int,
    wait_seconds: float,
) -> dg.AutomationConditionSensorDefinition:
    with warnings.catch_warnings():
        # Evaluated where the user's code is: Dagster's daemon silently skips conditions that it doesn't know. That
        # choice is ours and still beta, so the warning about it is no news for the user.
        warnings.simplefilter("ignore", dg.BetaWarning)
        sensor = dg.AutomationConditionSensorDefinition(
            name,
            target=selection,
            default_status=dg.DefaultSensorStatus.RUNNING,
            minimum_interval_seconds=interval_seconds,
            use_user_code_server=True,
            emit_backfills=False,
            description="Runs the assets whose incremental inputs have changes, and other assets with conditions.",
        )
    evaluate_by(sensor, partial(_tick, watched, ChangeWait.of(each.watched for each in watched), wait_seconds))
    return sensor


def _tick(
    watched: Sequence[WatchedInputs],
    wait: ChangeWait,
    wait_seconds: float,
    context: dg.SensorEvaluationContext,
    evaluate: Callable[[], dg.SensorResult],
) -> dg.SensorResult:
    """What the conditions ask for, in few runs. Where that is nothing, they are asked again as long as news come."""
    until = time.monotonic() + wait_seconds
    while True:
        if wait_seconds:
            wait.look(context.instance, until=until)
        result = evaluate()
        if result.run_requests or not wait.came(context.instance, until=until):
            return result._replace(run_requests=_in_few_runs(watched, context, result.run_requests or ()))


def _in_few_runs(
    watched: Sequence[WatchedInputs], context: dg.SensorEvaluationContext, requests: Sequence[dg.RunRequest]
) -> list[dg.RunRequest]:
    assert context.repository_def is not None  # noqa: S101  # the sensor runs where the definitions are
    for each in watched:
        if error := each.watched.errors.pop(each.name, None):
            context.log.error("could not determine what %s has to consume: %s", each.name, error)
    failed = {each.consumer.key: each.watched.failed.get(each.name, {}) for each in watched}
    with knowing_partitions(context.instance):
        graph = context.repository_def.asset_graph
        return in_order_of_stages_below(in_few_runs(requests, graph, failed), graph)
