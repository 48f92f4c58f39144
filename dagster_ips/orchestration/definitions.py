"""with_incremental: from plain definitions to ones whose incremental assets run by themselves."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg

from dagster_ips._compat import change_run_requests
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.audits import check_audits
from dagster_ips.orchestration.automation import WatchedInputs, bind, on_change
from dagster_ips.orchestration.consumers import (
    MetadataByKey,
    capturing_consumers,
    check_consumer,
    consumer_of,
    executable_assets,
    outside_tables,
)
from dagster_ips.orchestration.io_manager import IcdcIOManager
from dagster_ips.orchestration.range_runs import in_few_runs
from dagster_ips.orchestration.sensors import outside_tables_sensor

AUTOMATION_SENSOR = "ips_automation"
_INTERVAL_SECONDS = 5


def with_incremental(definitions: dg.Definitions, *, interval_seconds: int = _INTERVAL_SECONDS) -> dg.Definitions:
    """``definitions`` checked, with the triggers of their incremental assets.

    Added are: the condition ``on_change()`` where an incremental asset has none of its own, one automation sensor for
    every asset with a condition that no sensor of the user's covers, and one sensor that watches outside tables. Both
    tick every ``interval_seconds``. Everything else stays as it is.

    Raises:
        DeclarationError: a declaration can't work; said before anything runs.
    """
    managers = {key: value for key, value in (definitions.resources or {}).items() if isinstance(value, IcdcIOManager)}
    if not managers:
        raise DeclarationError(
            asset="with_incremental",
            problem="the definitions have no IcdcIOManager among their resources.",
            remedy='Add one: resources={"io_manager": IcdcIOManager(catalog=..., spark=...)}.',
        )
    manager = next(iter(managers.values()))
    specs = _specs(definitions.assets or ())
    metadata = {spec.key: spec.metadata for spec in specs}
    check_audits(definitions.asset_checks or (), definitions.assets or (), set(managers))
    assets = [_with_condition(item, metadata, managers) for item in definitions.assets or ()]
    sensors: list[Any] = [_automation_sensor(definitions.sensors or (), interval_seconds)]
    if outside := outside_tables(specs):
        sensors.append(outside_tables_sensor(manager.catalog, outside, interval_seconds=interval_seconds))
    return dg.Definitions(
        assets=assets,
        asset_checks=definitions.asset_checks,
        schedules=definitions.schedules,
        sensors=[*(definitions.sensors or ()), *sensors],
        jobs=definitions.jobs,
        resources=definitions.resources,
        executor=definitions.executor,
        loggers=definitions.loggers,
        metadata=definitions.metadata,
    )


def _with_condition(item: Any, metadata: MetadataByKey, managers: Mapping[str, IcdcIOManager]) -> Any:  # noqa: ANN401  # assets come in many kinds
    for assets in executable_assets([item]):
        namespace = next(iter(managers.values())).default_namespace
        consumer = consumer_of(assets, metadata, namespace)
        consumers = (consumer,) if consumer else capturing_consumers(assets, metadata, namespace)
        conditions = {}
        for each in consumers:
            check_consumer(assets, each, metadata, set(managers))
            catalog = managers[assets.get_io_manager_key_for_asset_key(each.key)].catalog
            watched = WatchedInputs(catalog, each)
            conditions[each.key] = bind(assets.automation_conditions_by_key.get(each.key) or on_change(), watched)
        if conditions:
            return _with_backfill_policy(assets).map_asset_specs(partial(_with_own_condition, conditions=conditions))
    return item


def _with_backfill_policy(assets: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Its function needn't know how many partitions a run computes: what it reads and writes is theirs."""
    if assets.partitions_def is None or assets.backfill_policy is not None:
        return assets
    return assets.with_attributes(backfill_policy=dg.BackfillPolicy.single_run())


def _with_own_condition(
    spec: dg.AssetSpec, conditions: Mapping[dg.AssetKey, dg.AutomationCondition[dg.AssetKey]]
) -> dg.AssetSpec:
    condition = conditions.get(spec.key)
    return spec.replace_attributes(automation_condition=condition) if condition else spec


def _specs(items: Iterable[Any]) -> list[dg.AssetSpec]:
    specs: list[dg.AssetSpec] = []
    for item in items:
        if isinstance(item, dg.AssetSpec):
            specs.append(item)
        elif isinstance(item, dg.AssetsDefinition):
            specs += item.specs
    return specs


def _automation_sensor(sensors: Iterable[Any], interval_seconds: int) -> dg.AutomationConditionSensorDefinition:
    selection: dg.AssetSelection = dg.AssetSelection.all()
    for sensor in sensors:
        if isinstance(sensor, dg.AutomationConditionSensorDefinition):
            selection -= sensor.asset_selection
    with warnings.catch_warnings():
        # Evaluated where the user's code is: Dagster's daemon silently skips conditions that it doesn't know. That
        # choice is ours and still beta, so the warning about it is no news for the user.
        warnings.simplefilter("ignore", dg.BetaWarning)
        sensor = dg.AutomationConditionSensorDefinition(
            AUTOMATION_SENSOR,
            target=selection,
            default_status=dg.DefaultSensorStatus.RUNNING,
            minimum_interval_seconds=interval_seconds,
            use_user_code_server=True,
            emit_backfills=False,
            description="Runs the assets whose incremental inputs have changes, and other assets with conditions.",
        )
    change_run_requests(sensor, _in_few_runs)
    return sensor


def _in_few_runs(context: dg.SensorEvaluationContext, requests: Sequence[dg.RunRequest]) -> list[dg.RunRequest]:
    assert context.repository_def is not None  # noqa: S101  # the sensor runs where the definitions are
    return in_few_runs(requests, context.repository_def.asset_graph)
