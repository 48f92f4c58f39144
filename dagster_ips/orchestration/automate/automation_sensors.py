"""The sensors that evaluate the conditions of all assets that the user's own sensors don't cover."""

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
"""The most assets of one sensor.

Dagster evaluates at most 500 conditions in a tick, and the check of an incremental asset has a condition, too.
"""


def automation_sensors(
    items: Iterable[Any],
    own: Iterable[Any],
    watched: Sequence[WatchedInputs],
    *,
    interval_seconds: int,
    wait_seconds: float,
) -> list[dg.AutomationConditionSensorDefinition]:
    """One sensor per 200 assets of ``items`` that have a condition, without the assets that sensors of ``own`` cover.

    The first sensor also covers everything else, such as the conditions of checks. Only the first one waits for
    changes, because the others have their ticks after it.
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
        # Conditions are evaluated in the user's code server, because Dagster's daemon silently skips conditions that it
        # doesn't know. This option is still beta, but the user didn't choose it, so the warning is suppressed.
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
    """Evaluate the conditions and request few runs; if there is nothing to run, wait for changes and evaluate again."""
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
