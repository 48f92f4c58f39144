"""``with_incremental``: turns plain definitions into definitions whose incremental assets run automatically."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_ips._compat import asset_graph, note_partitions_that_do_not_exist, wrap_function
from dagster_ips.core.table_name import parts_of
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.automate.automation_sensors import automation_sensors
from dagster_ips.orchestration.automate.conditions import bind, check_conditions_of_checks, on_change
from dagster_ips.orchestration.automate.hygiene import HYGIENE_JOB, hygiene_job
from dagster_ips.orchestration.automate.pending_sensor import PendingSensor
from dagster_ips.orchestration.automate.valid_through_condition import bind_valid_through
from dagster_ips.orchestration.backfill.backfill_job import backfill_job
from dagster_ips.orchestration.declare.consumers import (
    WATCHED,
    MetadataByKey,
    WrittenTable,
    capturing_consumers,
    check_consumer,
    check_loaders,
    consumers_of,
    executable_assets,
    io_manager_keys,
    mapped_inputs,
    outside_tables,
    tables_written,
)
from dagster_ips.orchestration.declare.declarations import event_time_of
from dagster_ips.orchestration.declare.partition_definitions import columns_of
from dagster_ips.orchestration.declare.partition_mappings import (
    MISSING_PARTITIONS,
    partition_expression,
    require_partitions_to_map,
)
from dagster_ips.orchestration.platform.resources import IcebergCatalog
from dagster_ips.orchestration.prove.proofs import bind_proofs, proofs_of_trusted
from dagster_ips.orchestration.run.audits import check_audits
from dagster_ips.orchestration.run.io_manager import IcdcIOManager
from dagster_ips.orchestration.run.results_without_rows import refusing_results_without_rows
from dagster_ips.orchestration.run.unreadable_inputs import saying_what_is_unreadable
from dagster_ips.orchestration.watch.asset_completeness import Completeness, OutsideWatch
from dagster_ips.orchestration.watch.killed_runs import killed_runs_sensor
from dagster_ips.orchestration.watch.outside_changes import OutsideTable
from dagster_ips.orchestration.watch.outside_sensor import outside_tables_sensor
from dagster_ips.orchestration.watch.pending_checks import pending_checks, pending_checks_sensor
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs, WatchedTables

_INTERVAL_SECONDS = 5
_LONGEST_WAIT_SECONDS = 30
"""Dagster allows a tick 60 seconds, and evaluates the sensors one after the other."""


def with_incremental(
    definitions: dg.Definitions, *, interval_seconds: int = _INTERVAL_SECONDS, wait_seconds: float = 0
) -> dg.Definitions:
    """Check ``definitions`` and add what triggers their incremental assets.

    This adds: the condition ``on_change()`` to each incremental asset that has no condition of its own and isn't driven
    by a ``pending_sensor``; an automation sensor for all assets with a condition that no sensor of yours covers; a
    check ``pending`` for each incremental asset, with a sensor that keeps it up to date; a sensor that reports what
    killed runs have published; and one that watches outside tables. The sensors tick every ``interval_seconds``. It
    also adds the jobs ``ips_hygiene`` and ``ips_backfill``, which only you start. Everything else is unchanged.

    If a tick of the automation sensor finds nothing to run, it waits up to ``wait_seconds`` for a table to change or a
    run to start or end, then checks again. Dagster's daemon starts a round of ticks at most every five seconds and
    sleeps in between: with 4, changes are picked up at once and no other sensor is delayed, unless another code
    location also waits. Must be less than 30.

    Raises:
        DeclarationError: a declaration can't work. Raised before anything runs.
    """
    _require_definitions(definitions)
    _require_short_wait(wait_seconds)
    _require_first_pass(definitions)
    items, own_checks = definitions.assets or (), list(definitions.asset_checks or ())
    managers = _managers(definitions)
    specs = _specs(items)
    metadata = {spec.key: spec.metadata for spec in specs}
    check_audits(own_checks, items, set(managers))
    together = {key: WatchedTables(manager.catalog) for key, manager in managers.items()}
    watched = _watched(items, metadata, managers, together)
    outside = _outside(specs, managers)
    written = tables_written(list(items), metadata, {key: each.namespace for key, each in managers.items()})
    _require_own_tables(written, managers, outside)
    _require_mapped(items, watched, outside)
    note_partitions_that_do_not_exist(MISSING_PARTITIONS)
    completeness = Completeness(watched, _outside_watches(specs, outside, together))
    own, bound = _bound_sensors(definitions.sensors or (), watched)
    driven = _driven_assets(definitions.sensors or (), watched)
    assets = [_with_conditions(item, watched, driven, completeness) for item in items]
    _require_evaluated(own, assets)
    check_conditions_of_checks([*own_checks, *assets])
    consumers = list(watched.values())
    automation = automation_sensors(
        assets, own, consumers, interval_seconds=interval_seconds, wait_seconds=wait_seconds
    )
    sensors: list[Any] = [*own, *bound, *automation]
    checks = bind_proofs([*own_checks, *proofs_of_trusted(own_checks, metadata)], items, metadata, managers)
    if consumers:
        checks.append(pending_checks(consumers))
        sensors.append(pending_checks_sensor(consumers, interval_seconds=interval_seconds))
        sensors.append(killed_runs_sensor(consumers, interval_seconds=interval_seconds))
    if outside:
        sensors.append(outside_tables_sensor(outside, interval_seconds=interval_seconds))
    made = dg.Definitions(
        assets=assets,
        asset_checks=checks,
        schedules=definitions.schedules,
        sensors=sensors,
        jobs=[
            *(definitions.jobs or ()),
            hygiene_job(written, consumers, managers, lambda: made),
            backfill_job(lambda: made),
        ],
        resources=definitions.resources,
        executor=definitions.executor,
        loggers=definitions.loggers,
        metadata=definitions.metadata,
        component_tree=definitions.component_tree,
    )
    return made


def _require_definitions(definitions: object) -> None:
    if not isinstance(definitions, dg.Definitions):
        raise DeclarationError(
            asset="with_incremental",
            problem=f"it was given a {type(definitions).__name__}.",
            remedy="Pass it a Definitions: with_incremental(dg.Definitions(assets=[...], resources={...})). In a "
            "function with @dg.definitions, return its result.",
        )


def _require_short_wait(wait_seconds: float) -> None:
    if not (isinstance(wait_seconds, int | float) and 0 <= wait_seconds < _LONGEST_WAIT_SECONDS):
        raise DeclarationError(
            asset="with_incremental",
            problem=f"wait_seconds={wait_seconds!r} is out of range: all other sensors wait that long, too.",
            remedy=f"Give at least 0 and less than {_LONGEST_WAIT_SECONDS}; 4 fits the interval of Dagster's daemon.",
        )


def _require_first_pass(definitions: dg.Definitions) -> None:
    if any(job.name == HYGIENE_JOB for job in definitions.jobs or ()):
        raise DeclarationError(
            asset="with_incremental",
            problem="the definitions, or some of those that were merged into them, went through it before, so sensors, "
            "jobs and checks would exist twice.",
            remedy="Merge the plain definitions, and pass the result through with_incremental() once.",
        )


def _managers(definitions: dg.Definitions) -> dict[str, IcdcIOManager]:
    found = {key: value for key, value in (definitions.resources or {}).items() if isinstance(value, IcdcIOManager)}
    if not found:
        raise DeclarationError(
            asset="with_incremental",
            problem="the definitions have no IcdcIOManager among their resources.",
            remedy='Add one: resources={"io_manager": IcdcIOManager(catalog=..., spark=...)}. One that is '
            "configured at launch doesn't count, because sensors need its settings, too; use dg.EnvVar.",
        )
    for key, manager in found.items():
        if not isinstance(manager.catalog, IcebergCatalog):
            raise DeclarationError(
                asset="with_incremental",
                problem=f"the catalog of the IO manager {key!r} isn't an IcebergCatalog but a "
                f"{type(manager.catalog).__name__}, so sensors can't open it.",
                remedy="Give it an IcebergCatalog. Instead of configure_at_launch(), use dg.EnvVar for its settings.",
            )
        manager.catalog.require_place()
        _require_namespaces(manager)
    return found


def _require_namespaces(manager: IcdcIOManager) -> None:
    for setting in ("default_namespace", "icdc_namespace"):
        name = getattr(manager, setting)
        try:
            _ = () if isinstance(name, dg.EnvVar) else parts_of(name)
        except ValueError as error:
            remedy = "Write it as in Spark SQL: media, or media.lake, or `my.namespace`."
            problem = f"its {setting} can't be read: {error}."
            raise DeclarationError(asset="IcdcIOManager", problem=problem, remedy=remedy) from None


def _watched(
    items: Iterable[Any],
    metadata: MetadataByKey,
    managers: Mapping[str, IcdcIOManager],
    together: Mapping[str, WatchedTables],
) -> dict[dg.AssetKey, WatchedInputs]:
    """Every consumer's inputs, checked. Consumers with the same IO manager share its entry in ``together``."""
    namespaces = {key: manager.namespace for key, manager in managers.items()}
    io_managers = io_manager_keys(items)
    watched = {}
    for assets in executable_assets(list(items)):
        # As in a run, the IO manager of the step's first table also says where its upstreams are.
        namespace = namespaces.get(io_managers[min(assets.keys)], "default") if assets.keys else "default"
        reading = consumers_of(assets, metadata, namespace)
        found = reading or capturing_consumers(assets, metadata, namespace)
        for each in found:
            check_consumer(assets, each, metadata, set(managers))
            check_loaders(assets, each, io_managers)
            tables = together[assets.get_io_manager_key_for_asset_key(each.key)]
            watched[each.key] = WatchedInputs(tables, each)
        if reading:
            wrap_function(assets, saying_what_is_unreadable)
        if found:
            wrap_function(assets, refusing_results_without_rows)
    return watched


def _require_own_tables(
    written: Iterable[WrittenTable], managers: Mapping[str, IcdcIOManager], outside: Sequence[OutsideTable]
) -> None:
    """Refuse an asset whose table another asset or an outside job writes: they would delete each other's rows."""
    owners = {each.catalog.name_of(each.table): each.key for each in outside}
    for each in written:
        other = owners.setdefault(managers[each.manager].catalog.name_of(each.table), each.key)
        if other != each.key:
            name = other.to_user_string()
            raise DeclarationError(
                asset=each.key.to_user_string(),
                problem=f"it writes {each.table}, which is the table of {name}; they would delete each other's rows.",
                remedy='Give one of them its own table, with table("...") or Dagster\'s "dagster/table_name"; '
                f"or read {name} as an upstream.",
            )


def _require_mapped(
    items: Iterable[Any], watched: Mapping[dg.AssetKey, WatchedInputs], outside: Sequence[OutsideTable]
) -> None:
    """Refuse partition mappings that have no effect, and those to outside tables that don't fit.

    Dagster checks the latter only between assets that it runs. With such a mapping, each tick fails for all assets.
    """
    mapped = [
        (key, upstream, is_divided)
        for assets in executable_assets(list(items))
        for key in sorted(assets.keys & watched.keys())
        for upstream, is_divided in mapped_inputs(assets)
    ]
    partitioned = {each.key: each.partitions_def for each in outside if each.partitions_def is not None}
    consumers = [each.consumer.key for each in watched.values() if each.consumer.is_partitioned]
    if not mapped and not (partitioned and consumers):
        return
    graph = asset_graph(items)
    for key, upstream, is_divided in mapped:
        require_partitions_to_map(graph, key, upstream, all_rows=not is_divided)
    for consumer in consumers:
        for upstream in sorted(partitioned.keys() & graph.get(consumer).parent_keys):
            mapping, own = graph.get_partition_mapping(consumer, upstream), graph.get(consumer).partitions_def
            try:
                mapping.validate_partition_mapping(partitioned[upstream], own)
            except Exception as error:
                why = str(error).rstrip(".")
                raise DeclarationError(
                    asset=consumer.to_user_string(),
                    problem=f"its partitions can't be mapped to those of {upstream.to_user_string()}: {why}.",
                    remedy="Give it another partition mapping or time zone; or leave partitions_def out of the outside "
                    "table, whose rows are then assigned by their own values.",
                ) from error


def _bound_sensors(
    sensors: Iterable[Any], watched: Mapping[dg.AssetKey, WatchedInputs]
) -> tuple[list[Any], list[dg.SensorDefinition]]:
    """The user's own sensors unchanged, and the ``pending_sensor`` ones, bound to what they watch."""
    own, bound = [], []
    for sensor in sensors:
        if not isinstance(sensor, PendingSensor):
            own.append(sensor)
            continue
        if unknown := sorted(key.to_user_string() for key in sensor.driven_assets - watched.keys()):
            raise DeclarationError(
                asset=sensor.name,
                problem=f"it should request runs of {', '.join(unknown)}, which reads nothing incrementally.",
                remedy="Name assets with an incremental() input from the same definitions.",
            )
        bound.append(sensor.bind([watched[key] for key in sorted(_keys_of_steps(sensor, watched) & watched.keys())]))
    return own, bound


def _driven_assets(sensors: Iterable[Any], watched: Mapping[dg.AssetKey, WatchedInputs]) -> set[dg.AssetKey]:
    """The assets that ``pending_sensor`` ones request."""
    return {key for each in sensors if isinstance(each, PendingSensor) for key in _keys_of_steps(each, watched)}


def _keys_of_steps(sensor: PendingSensor, watched: Mapping[dg.AssetKey, WatchedInputs]) -> set[dg.AssetKey]:
    """The assets that a sensor's runs compute: those that it names, and all others of their steps."""
    return {key for named in sensor.driven_assets for key in watched[named].consumer.step}


def _with_conditions(
    item: Any,  # noqa: ANN401  # assets come in many kinds
    watched: Mapping[dg.AssetKey, WatchedInputs],
    driven: set[dg.AssetKey],
    completeness: Completeness,
) -> Any:  # noqa: ANN401  # as above
    for assets in executable_assets([item]):
        own = assets.automation_conditions_by_key
        added = dict.fromkeys((assets.keys & watched.keys()) - driven, on_change())
        conditions = {
            key: bind_valid_through(bind(condition, key, watched), completeness, assets)
            for key, condition in {**added, **own}.items()
        }
        if assets.keys & watched.keys():
            conditioned = _conditioned(_with_backfill_policy(assets), conditions)
            return conditioned.map_asset_specs(
                lambda spec: (
                    spec.merge_attributes(metadata={WATCHED: True}, kinds={"iceberg"}) if spec.key in watched else spec
                )
            )
        if any(conditions[key] is not own[key] for key in own):
            return _conditioned(assets, conditions)
    return item


def _require_evaluated(sensors: Iterable[Any], items: Sequence[Any]) -> None:
    """Refuse automation sensors for which Dagster's daemon would silently skip this library's conditions."""
    for sensor in sensors:
        if not isinstance(sensor, dg.AutomationConditionSensorDefinition) or sensor.sensor_type.value == "AUTOMATION":
            continue
        selected = sensor.asset_selection.resolve(asset_graph(items))
        for assets in executable_assets(items):
            for key, condition in sorted(assets.automation_conditions_by_key.items()):
                if key in selected and not condition.is_serializable:
                    raise DeclarationError(
                        asset=key.to_user_string(),
                        problem=f"your sensor {sensor.name} should evaluate its automation condition, but Dagster's "
                        "daemon does that, which doesn't know conditions of other packages, so it would never run.",
                        remedy="Give the sensor use_user_code_server=True, or leave the asset out of its target.",
                    )


def _outside_watches(
    specs: Sequence[dg.AssetSpec], tables: Sequence[OutsideTable], together: Mapping[str, WatchedTables]
) -> dict[dg.AssetKey, OutsideWatch]:
    metadata = {spec.key: spec.metadata for spec in specs}
    by_catalog = {id(watched.catalog): watched for watched in together.values()}
    return {
        each.key: OutsideWatch(by_catalog[id(each.catalog)], each.table, event_time_of(metadata[each.key]))
        for each in tables
    }


def _outside(specs: Sequence[dg.AssetSpec], managers: Mapping[str, IcdcIOManager]) -> list[OutsideTable]:
    """The outside tables, each in the catalog of its own IO manager."""
    tables = outside_tables(specs)
    keys = io_manager_keys(specs)
    for asset, table in tables.items():
        if keys[asset] not in managers:
            raise DeclarationError(
                asset=asset.to_user_string(),
                problem=f"its IO manager {keys[asset]!r}, which should know the catalog of {table}, isn't an "
                "IcdcIOManager.",
                remedy='Name one: iceberg_asset(..., io_manager_key="...").',
            )
    for spec in specs:
        if spec.key in tables and spec.partitions_def is not None:
            columns_of(spec.partitions_def, partition_expression(spec.metadata), asset=spec.key.to_user_string())
    return [
        OutsideTable(
            key=spec.key,
            table=tables[spec.key],
            catalog=managers[keys[spec.key]].catalog,
            partitions_def=spec.partitions_def,
            partition_expression=partition_expression(spec.metadata),
        )
        for spec in specs
        if spec.key in tables
    ]


def _with_backfill_policy(assets: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Let one run compute all partitions by default, if the user didn't say how many: a run for each costs more."""
    if assets.partitions_def is None or assets.backfill_policy is not None:
        return assets
    return assets.with_attributes(backfill_policy=dg.BackfillPolicy.single_run())


def _conditioned(
    assets: dg.AssetsDefinition, conditions: Mapping[dg.AssetKey, dg.AutomationCondition[dg.AssetKey]]
) -> dg.AssetsDefinition:
    """``assets`` of which each that has one of ``conditions`` runs by it."""

    def with_its_own(spec: dg.AssetSpec) -> dg.AssetSpec:
        condition = conditions.get(spec.key)
        return spec.replace_attributes(automation_condition=condition) if condition else spec

    return assets.map_asset_specs(with_its_own)


def _specs(items: Iterable[Any]) -> list[dg.AssetSpec]:
    specs: list[dg.AssetSpec] = []
    for item in items:
        if isinstance(item, dg.AssetSpec):
            specs.append(item)
        elif isinstance(item, dg.AssetsDefinition):
            specs += item.specs
    return specs
