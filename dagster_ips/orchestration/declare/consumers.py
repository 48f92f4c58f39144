"""The assets that read incrementally, as Dagster's definitions declare them."""

from __future__ import annotations

import datetime as dt
import difflib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import dagster as dg
from dagster import DagsterInstance

from dagster_ips.core.ancestry import MAIN
from dagster_ips.core.code_of_rows import FROM_A_START, UNDECLARED, Maker
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import Everywhere
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.policy import OnRemoved, OnUnmapped
from dagster_ips.core.write_mode import Append, ByQuery, Combine, Merge, OverwritePartitions, Replace, WriteMode
from dagster_ips.errors import DeclarationError
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.orchestration.declare.asset_keys import as_declared
from dagster_ips.orchestration.declare.declarations import (
    INCREMENTAL,
    IO_MANAGER_KEY,
    OUTSIDE,
    USUAL_LAG,
    code_of,
    description_of,
    event_time_of,
    limits_of,
    plain,
    policies_of,
    start_of,
    table_of,
    target_lag_of,
    write_mode_of,
)
from dagster_ips.orchestration.declare.overwrite_result import Overwrite
from dagster_ips.orchestration.declare.partition_definitions import columns_of
from dagster_ips.orchestration.declare.partition_mappings import (
    mapping_text,
    partition_expression,
    slicing,
)
from dagster_ips.spark.session import is_frame_class
from dagster_ips.view import IcdcView

_BY_CAPTURE = (
    "In a graph-backed asset, declare each upstream with incremental_dep() in the specs and write through capture(), "
    "one block per table; or make it a separate asset."
)

PENDING_CHECK = "pending"
WATCHED = "dagster_ips/watched"
"""Set in the metadata of every incremental asset that went through ``with_incremental``."""

MetadataByKey = Mapping[dg.AssetKey, Mapping[str, Any]]


@dataclass(frozen=True)
class Consumer:
    """An asset that reads at least one upstream incrementally.

    ``step`` are the assets that are computed in the same step, including itself. ``partition_columns`` are, by input,
    the upstreams' columns that hold the partition keys, where they were named explicitly. ``target_lag`` is how long a
    change may wait. ``weighs_live_rows`` is as in ``IcdcView``. ``maker`` says to which existing rows the asset can add
    changes. ``unrelated`` are upstreams of its step that only other assets are declared to be made from.
    """

    key: dg.AssetKey
    table: str
    inputs: Mapping[str, TrackedInput]
    step: tuple[dg.AssetKey, ...]
    is_partitioned: bool = False
    partition_columns: Mapping[str, str] = field(default_factory=dict)
    target_lag: dt.timedelta = USUAL_LAG
    weighs_live_rows: bool = False
    maker: Maker = UNDECLARED
    unrelated: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The asset key as text."""
        return self.key.to_user_string()

    @property
    def edges(self) -> list[Edge]:
        """The edge of each input; for a partitioned asset the lines."""
        return [Edge(self.name, tracked.upstream) for tracked in self.inputs.values()]

    def tracked(self, graph: Any, instance: DagsterInstance) -> dict[str, TrackedInput]:  # noqa: ANN401  # see slicing
        """The inputs; for a partitioned asset with the slicing, which assigns their rows to its partitions.

        Raises:
            DeclarationError: a ``partition_expr`` is missing or doesn't fit.
        """
        if not self.is_partitioned:
            return dict(self.inputs)
        return {name: replace(each, slicing=self._slicing(name, graph, instance)) for name, each in self.inputs.items()}

    def _slicing(self, name: str, graph: Any, instance: DagsterInstance) -> Slicing:  # noqa: ANN401  # see slicing
        upstream = dg.AssetKey.from_user_string(self.inputs[name].upstream)
        return slicing(graph, self.key, upstream, instance, column=self.partition_columns.get(name))


def incremental_input_names(assets: dg.AssetsDefinition) -> tuple[str, ...]:
    """The inputs declared by ``incremental()``."""
    if not assets.is_executable:
        return ()
    return tuple(name for name, declared in _inputs(assets).items() if INCREMENTAL in declared.metadata)


def consumers_of(assets: dg.AssetsDefinition, metadata: MetadataByKey, default_namespace: str) -> tuple[Consumer, ...]:
    """The consumers that ``assets`` declare with ``incremental()`` inputs, checked. Each asset reads all of the inputs.

    Raises:
        DeclarationError: the declaration can't work.
    """
    _require_incremental_views(assets)
    names = incremental_input_names(assets)
    if not names:
        _require_no_change_to_write(assets, metadata)
        return ()
    _require_frames(assets)
    return tuple(_reading(assets, key, names, metadata, default_namespace) for key in sorted(assets.keys))


def takes_all(assets: dg.AssetsDefinition, upstream: dg.AssetKey) -> bool:
    """Whether ``assets`` have no partitions and depend on the whole upstream, also on rows that are in no partition."""
    mapping = assets.get_partition_mapping_for_dep(upstream)
    return assets.partitions_def is None and (mapping is None or isinstance(mapping, dg.AllPartitionMapping))


def mapped_inputs(assets: dg.AssetsDefinition) -> Iterator[tuple[dg.AssetKey, bool]]:
    """The upstreams that an IO manager reads by a declared mapping, each with whether partitions divide its rows.

    They don't divide those of an input without ``incremental()``, if it has no partitions of its own.
    """
    names = incremental_input_names(assets)
    for name, upstream in assets.keys_by_input_name.items():
        is_captured = any(_is_tracked(dep) for spec in assets.specs for dep in spec.deps if dep.asset_key == upstream)
        is_read = is_captured or not _inputs(assets)[name].dagster_type.is_nothing
        if is_read and assets.get_partition_mapping_for_dep(upstream) is not None:
            yield upstream, (is_captured or name in names) and assets.partitions_def is not None


def keys_of_step(assets: dg.AssetsDefinition) -> tuple[dg.AssetKey, ...]:
    """All assets that the step can compute, even if a run selects only some of them."""
    return tuple(sorted(assets.node_keys_by_output_name.values()))


def _made_from(assets: dg.AssetsDefinition, key: dg.AssetKey) -> set[dg.AssetKey]:
    """The assets that ``key`` is declared to be made from, directly or by way of others of its step."""
    found, following = set[dg.AssetKey](), [key]
    while following:
        new = {dep.asset_key for dep in assets.specs_by_key[following.pop()].deps} - found
        found |= new
        following += new & assets.specs_by_key.keys()
    return found


def _reading(
    assets: dg.AssetsDefinition, key: dg.AssetKey, names: Sequence[str], metadata: MetadataByKey, default_namespace: str
) -> Consumer:
    write_mode, step = write_mode_of(metadata[key], key.to_user_string()), keys_of_step(assets)
    _require_one_write_mode(key, write_mode, returns_overwrite=_returns_overwrite(assets, key))
    _require_plain_partitions(key, write_mode, metadata[key])
    is_partitioned = assets.partitions_def is not None
    if is_partitioned:
        _require_keys_within_partitions(key, write_mode, metadata[key])
    # An input of several tables isn't split between files: some tables might be inside a split and others not.
    cut_by = write_mode if len(step) == 1 else None
    declared = {name: plain(_inputs(assets)[name].metadata[INCREMENTAL]) for name in names}
    inputs = {
        name: _tracked(assets.keys_by_input_name[name], each, cut_by, metadata, default_namespace)
        for name, each in declared.items()
    }
    columns = _partition_columns(assets, key, inputs, declared, metadata[key])
    _require_limits_that_help(key, write_mode, inputs, is_partitioned=is_partitioned)
    table = table_of(key, metadata[key], default_namespace)
    is_added_to = isinstance(write_mode, Combine | ByQuery)
    one_code = code_of(assets.code_versions_by_key.get(key), metadata[key]) if is_added_to else None
    made_from = {each.to_user_string() for each in _made_from(assets, key)}
    related = {name: each for name, each in inputs.items() if each.upstream in made_from}
    if not related:
        _refuse(
            key,
            f"none of the inputs of its step ({', '.join(names)}) is among its internal_asset_deps, so it is unknown "
            "whose changes it follows.",
            "Name the inputs that it is made from; or make it a separate asset.",
        )
    return Consumer(
        key,
        table,
        inputs,
        step,
        is_partitioned,
        columns,
        target_lag_of(metadata[key]),
        isinstance(write_mode, Combine) and write_mode.may_compute_groups_again,
        _maker(write_mode.declaration if write_mode else "Overwrite", related, one_code, _mappings(assets, key)),
        frozenset(each.upstream for each in inputs.values()) - made_from,
    )


def _partition_columns(
    assets: dg.AssetsDefinition,
    key: dg.AssetKey,
    inputs: Mapping[str, TrackedInput],
    declared: Mapping[str, Mapping[str, Any]],
    metadata: Mapping[str, Any],
) -> dict[str, str]:
    """``Consumer.partition_columns``, after it was checked that what is declared about partitions fits the asset."""
    definition = assets.partitions_def
    if definition is not None:
        _require_no_other_tables(key, keys_of_step(assets))
        columns_of(definition, partition_expression(metadata), asset=key.to_user_string())
        _require_no_start(key, inputs)
    for name, tracked in inputs.items():
        if definition is not None:
            _require_one_dimension(key, name, declared[name]["partition_column"], definition)
            continue
        if not takes_all(assets, dg.AssetKey.from_user_string(tracked.upstream)):
            _refuse(
                key,
                f"its input {name} has a partition_mapping, but it isn't partitioned, so it would get every change.",
                "Leave out partition_mapping and filter the rows; or declare partitions_def.",
            )
        _require_nothing_of_partitions(key, name, declared[name])
    return {name: column for name, each in declared.items() if (column := each["partition_column"])}


def _mappings(assets: dg.AssetsDefinition, key: dg.AssetKey) -> dict[str, str]:
    """The partition mappings of an asset's upstreams as text; none if it has no partitions."""
    mapped = {dep.asset_key: dep.partition_mapping for dep in assets.specs_by_key[key].deps if assets.partitions_def}
    return {each.to_user_string(): mapping_text(found) for each, found in mapped.items() if found is not None}


def capturing_consumers(
    assets: dg.AssetsDefinition, metadata: MetadataByKey, default_namespace: str
) -> tuple[Consumer, ...]:
    """The consumers among ``assets`` that call ``capture()``: those with an ``incremental_dep``.

    Raises:
        DeclarationError: the declaration can't work.
    """
    return tuple(
        _capturing(assets, spec, declared, metadata, default_namespace)
        for spec in assets.specs
        if (declared := {dep.asset_key: plain(dep.metadata[INCREMENTAL]) for dep in spec.deps if _is_tracked(dep)})
    )


def captures_by_itself(assets: dg.AssetsDefinition, key: dg.AssetKey) -> bool:
    """Whether ``key`` is written by its own statements, inside ``capture()``: it has an ``incremental_dep``."""
    return any(_is_tracked(dep) for dep in assets.specs_by_key[key].deps)


def reads_incrementally(assets: dg.AssetsDefinition) -> bool:
    """Whether any of ``assets`` consumes changes."""
    return bool(incremental_input_names(assets)) or any(captures_by_itself(assets, key) for key in assets.keys)


def _is_tracked(dep: dg.AssetDep) -> bool:
    return INCREMENTAL in (dep.metadata or {})


def _capturing(
    assets: dg.AssetsDefinition,
    spec: dg.AssetSpec,
    declared: Mapping[dg.AssetKey, Mapping[str, Any]],
    metadata: MetadataByKey,
    default_namespace: str,
) -> Consumer:
    key = spec.key
    if incremental_input_names(assets):
        _refuse(
            key,
            "it has both incremental() inputs and incremental_dep() upstreams, which can't be combined.",
            "Declare all of them with incremental_dep() and read them through capture(), or all with incremental().",
        )
    if write_mode_of(metadata[key], key.to_user_string()) is not None:
        _refuse(
            key,
            "it declares a write mode, but an asset with incremental_dep() writes with its own statements.",
            "Leave the write mode out of its metadata.",
        )
    inputs = {
        upstream.to_user_string(): _tracked(upstream, each, None, metadata, default_namespace)
        for upstream, each in declared.items()
    }
    is_partitioned = assets.partitions_def is not None
    _require_limits_that_help(key, None, inputs, is_partitioned=is_partitioned)
    by_name = {upstream.to_user_string(): each for upstream, each in declared.items()}
    columns = _partition_columns(assets, key, inputs, by_name, metadata[key])
    return Consumer(
        key,
        table_of(key, metadata[key], default_namespace),
        inputs,
        keys_of_step(assets),
        is_partitioned,
        columns,
        target_lag_of(metadata[key]),
        maker=_maker("statements of its own", inputs, mappings=_mappings(assets, key)),
    )


def _maker(
    writes: str, inputs: Mapping[str, TrackedInput], code: str | None = None, mappings: Mapping[str, str] | None = None
) -> Maker:
    """The maker of an asset that ``writes`` this way; the inputs it follows also decide which rows it can add to.

    ``mappings`` has the partition mappings of upstreams, as text; upstreams with the default mapping have none.
    """
    followed = sorted(_followed(each, (mappings or {}).get(each.upstream)) for each in inputs.values())
    has_start = any(each.start is not Everywhere.ALL for each in inputs.values())
    keeps = has_start or any(each.policies.on_removed is OnRemoved.IGNORE for each in inputs.values())
    return Maker(f"{writes} of {', '.join(followed)}{FROM_A_START if has_start else ''}", code, keeps)


def _followed(tracked: TrackedInput, mapping: str | None) -> str:
    branch = "" if tracked.ref == MAIN else f" on {tracked.ref}"
    branch += f" by {mapping}" if mapping else ""
    return f"{tracked.upstream}{branch}{' without removals' * (tracked.policies.on_removed is OnRemoved.IGNORE)}"


def _tracked(
    upstream: dg.AssetKey,
    declared: Mapping[str, Any],
    write_mode: WriteMode | None,
    metadata: MetadataByKey,
    default_namespace: str,
) -> TrackedInput:
    return TrackedInput(
        upstream.to_user_string(),
        table_of(upstream, metadata.get(upstream, {}), default_namespace),
        tuple(declared["ranges"]),
        declared["ref"],
        policies_of(declared),
        limits_of(declared, write_mode),
        start_of(declared),
        event_time=event_time_of(metadata.get(upstream, {})),
    )


def check_consumer(
    assets: dg.AssetsDefinition, consumer: Consumer, known: MetadataByKey, io_managers: set[str]
) -> None:
    """Check what can only be checked with all definitions at hand.

    Raises:
        DeclarationError: an upstream is missing, or the asset's IO manager isn't an ``IcdcIOManager``.
    """
    for name, tracked in consumer.inputs.items():
        upstream = assets.keys_by_input_name.get(name) or dg.AssetKey.from_user_string(tracked.upstream)
        if upstream not in known:
            names = sorted(key.to_user_string() for key in known)
            meant = difflib.get_close_matches(upstream.to_user_string(), names, 1)
            _refuse(
                consumer.key,
                f"its incremental input {name} reads {upstream.to_user_string()}, which isn't in the definitions."
                + (f" Did you mean {meant[0]}?" if meant else ""),
                f'Add iceberg_asset({as_declared(upstream)}, table="...") to the definitions, '
                "instead of a SourceAsset if there is one. load_assets_from_modules() and its like skip it, unless "
                "they are called with include_specs=True.",
            )
    key = assets.get_io_manager_key_for_asset_key(consumer.key)
    if key not in io_managers:
        _refuse(
            consumer.key,
            f"it reads incrementally, but its IO manager {key!r} isn't an IcdcIOManager.",
            "Give the asset the io_manager_key of an IcdcIOManager.",
        )


def io_manager_keys(items: Iterable[Any]) -> dict[dg.AssetKey, str]:
    """The key of the IO manager of each asset among ``items``: it writes the asset, and loads it for others."""
    found = {}
    for item in items:
        if isinstance(item, dg.AssetSpec):
            found[item.key] = str(plain(item.metadata.get(IO_MANAGER_KEY, "io_manager")))
        elif isinstance(item, dg.AssetsDefinition):
            found |= {key: item.get_io_manager_key_for_asset_key(key) for key in item.keys}
    return found


def check_loaders(assets: dg.AssetsDefinition, consumer: Consumer, io_managers: Mapping[dg.AssetKey, str]) -> None:
    """Check that the IO manager of the consumer also loads its ``incremental()`` inputs.

    Otherwise the one that writes wouldn't know what was captured. Inputs of ``capture`` aren't loaded.

    Raises:
        DeclarationError: another one loads an input.
    """
    own = io_managers[consumer.key]
    for name in incremental_input_names(assets):
        upstream = assets.keys_by_input_name[name]
        loader = _inputs(assets)[name].input_manager_key or io_managers[upstream]
        if loader != own:
            _refuse(
                consumer.key,
                f"its incremental input {name} is loaded by the IO manager {loader!r}, but the asset is written by "
                f"{own!r}, which wouldn't know what was captured.",
                f"Give {upstream.to_user_string()} and the asset the same io_manager_key, of an IcdcIOManager. To read "
                "what another one writes, load it as a plain input, without incremental().",
            )


def without_triggers(key: dg.AssetKey, graph: Any) -> str | None:  # noqa: ANN401  # Dagster's asset graph has no public type
    """The warning for an incremental asset that nothing triggers; None if it went through ``with_incremental``."""
    # The asset's check can't tell: a run that a sensor requested has only the checks that it includes.
    if WATCHED in graph.get(key).metadata:
        return None
    return (
        f"{key.to_user_string()} reads incrementally, but its definitions didn't go through with_incremental, so "
        "nothing runs it when its inputs change. Load them with defs = ips.with_incremental(dg.Definitions(...))."
    )


@dataclass(frozen=True)
class WrittenTable:
    """A table that an asset writes, and the key of the IO manager in whose catalog it is."""

    key: dg.AssetKey
    manager: str
    table: str


def tables_written(
    definitions: Sequence[Any], metadata: MetadataByKey, namespaces: Mapping[str, str]
) -> list[WrittenTable]:
    """The tables that the assets among ``definitions`` write.

    ``namespaces`` are the default namespaces by IO manager key; assets with other IO managers are left out. An asset
    that returns nothing and doesn't call ``capture()`` writes no table.
    """
    found = []
    for assets in executable_assets(definitions):
        for key, output in sorted(_outputs(assets).items(), key=lambda each: each[0]):
            manager = assets.get_io_manager_key_for_asset_key(key)
            writes = captures_by_itself(assets, key) or not output.dagster_type.is_nothing
            if manager in namespaces and writes:
                found.append(WrittenTable(key, manager, table_of(key, metadata[key], namespaces[manager])))
    return found


def outside_tables(specs: Sequence[dg.AssetSpec]) -> dict[dg.AssetKey, str]:
    """The tables declared by ``iceberg_asset``."""
    return {spec.key: table_of(spec.key, spec.metadata, "") for spec in specs if plain(spec.metadata.get(OUTSIDE))}


def _inputs(assets: dg.AssetsDefinition) -> Mapping[str, Any]:
    return assets.node_def.input_dict


def _require_incremental_views(assets: dg.AssetsDefinition) -> None:
    if not assets.is_executable:
        return
    for name, declared in _inputs(assets).items():
        if INCREMENTAL in declared.metadata:
            require_form(declared.dagster_type.typing_type, parameter=name, asset=min(assets.keys).to_user_string())
        if declared.dagster_type.typing_type is IcdcView and INCREMENTAL not in declared.metadata:
            if name not in assets.keys_by_input_name:  # Dagster keeps only one of several parameters for an asset.
                _refuse(
                    next(iter(assets.keys)),
                    f"its parameter {name} gets nothing, because another parameter reads the same asset.",
                    "Take both frames from one parameter; to read another branch of the table, declare it as a "
                    "separate asset.",
                )
            _refuse(
                next(iter(assets.keys)),
                f"its parameter {name} is an IcdcView, but the input isn't declared incremental.",
                f'Declare it: ins={{"{name}": incremental()}}.'
                if isinstance(assets.node_def, dg.OpDefinition)
                else _BY_CAPTURE,
            )


def require_form(annotation: object, *, parameter: str, asset: str) -> None:
    """Fail unless an incremental input has a form that its parameter's annotation asks for.

    Raises:
        DeclarationError: the annotation isn't supported.
    """
    if annotation in (IcdcView, str, Any, None) or is_frame_class(annotation):
        return
    raise DeclarationError(
        asset=asset,
        problem=f"its incremental input {parameter} has an unsupported annotation {annotation!r}.",
        remedy="Annotate it as IcdcView, pyspark.sql.DataFrame or str (the ICDC table's SQL name).",
    )


def _require_frames(assets: dg.AssetsDefinition) -> None:
    key = min(assets.keys)
    if not isinstance(assets.node_def, dg.OpDefinition):
        _refuse(key, "it is a graph-backed asset, whose incremental inputs can't be tracked.", _BY_CAPTURE)
    returned = inspect.signature(assets.node_def.compute_fn.decorated_fn).return_annotation  # type: ignore[union-attr]
    if returned in (None, "None") or any(output.dagster_type.is_nothing for output in _outputs(assets).values()):
        _refuse(
            key,
            "it reads incrementally but returns nothing, so nothing would ever be written or consumed.",
            "Return the DataFrame to write; for several assets, one for each of outs={...}.",
        )
    left_out = [key for key, output in _outputs(assets).items() if not output.is_required]
    if len(_outputs(assets)) > 1 and left_out and not assets.can_subset:
        _refuse(
            left_out[0],
            "its function may leave it out, and then it is unclear whether its changes count as consumed.",
            "Return an empty DataFrame if there is nothing to write, and leave out is_required=False.",
        )


def _outputs(assets: dg.AssetsDefinition) -> Mapping[dg.AssetKey, dg.OutputDefinition]:
    keys = assets.node_keys_by_output_name
    return {keys[output.name]: output for output in assets.node_def.output_defs if output.name in keys}


def _returns_overwrite(assets: dg.AssetsDefinition, key: dg.AssetKey) -> bool:
    return _outputs(assets)[key].dagster_type.typing_type is Overwrite


def _require_no_other_tables(key: dg.AssetKey, step: Sequence[dg.AssetKey]) -> None:
    if len(step) > 1:
        _refuse(
            key,
            f"it is partitioned and computed in one step with other assets ({len(step)} in all), so its partitions "
            "can't be tracked.",
            "Make each a separate asset; or leave out partitions_def: to partition the Iceberg tables, use "
            "table(partition_by=...).",
        )


def _require_one_write_mode(key: dg.AssetKey, write_mode: WriteMode | None, *, returns_overwrite: bool) -> None:
    if write_mode is None and not returns_overwrite:
        _refuse(
            key,
            "it reads incrementally, but has no write mode, which says how its rows join the existing ones.",
            "Add a write mode to its metadata: append(), merge(on=...), combine(on=..., aggregates=...), "
            "overwrite_partitions() or replace(); or return an Overwrite and annotate the function with it.",
        )
    if write_mode is not None and returns_overwrite:
        _refuse(
            key,
            "it returns an Overwrite, which already says what to replace, but also declares another write mode.",
            "Leave the write mode out of its metadata, or return a DataFrame.",
        )


def require_replacing(key: dg.AssetKey, write_mode: WriteMode | None) -> None:
    """Check the write mode of an asset without incremental inputs.

    Raises:
        DeclarationError: it writes a change, of which there is none.
    """
    if isinstance(write_mode, Append | Merge | OverwritePartitions):
        _refuse(
            key,
            f"it declares {write_mode.declaration}, which writes what changed in an input, but none of its inputs is "
            "incremental(), so each run would replace all of its rows.",
            "Declare an input with incremental(). If each run returns the whole table, leave the write mode out. If "
            "the rows come from elsewhere, write them with your own code, and declare the table with iceberg_asset().",
        )


def _require_no_change_to_write(assets: dg.AssetsDefinition, metadata: MetadataByKey) -> None:
    """Without a change, each run computes all rows, or all of its partitions, and replaces what is there."""
    for key in sorted(assets.keys if assets.is_executable else ()):
        write_mode = write_mode_of(metadata.get(key, {}), key.to_user_string())
        if not captures_by_itself(assets, key):
            require_replacing(key, write_mode)


def _require_keys_within_partitions(
    key: dg.AssetKey, write_mode: WriteMode | None, metadata: Mapping[str, Any]
) -> None:
    """Refuse keys without the partition columns: partitions are computed separately, so a key must be within one."""
    match write_mode:
        case Append(dedup_on, remove_on):
            keys, parameter = dedup_on or remove_on, "dedup_on" if dedup_on else "remove_on"
        case Merge(on) | Combine(on):
            keys, parameter = on, "on"
        case _:
            return
    expression = partition_expression(metadata)
    columns = list(expression.values()) if isinstance(expression, Mapping) else [expression]
    if keys and (missing := [column for column in columns if column not in keys]):
        _refuse(
            key,
            f"it is partitioned by {missing[0]}, which {parameter}={list(keys)} lacks, so a row could match one in "
            "another partition, which is computed separately.",
            f"Add {missing[0]!r} to {parameter}.",
        )


def _require_plain_partitions(key: dg.AssetKey, write_mode: WriteMode | None, metadata: Mapping[str, Any]) -> None:
    if not isinstance(write_mode, OverwritePartitions):
        return
    columns = description_of(metadata).partition_by
    if not columns or any("(" in column for column in columns):
        _refuse(
            key,
            f"overwrite_partitions needs a table partitioned by plain columns, not by {list(columns)}.",
            'Declare them: overwrite_partitions() | table(partition_by=["event_date"]).',
        )


def _require_nothing_of_partitions(key: dg.AssetKey, name: str, declared: Mapping[str, Any]) -> None:
    usual = {"partition_column": None, "on_unmapped": OnUnmapped.ERROR}
    if without_effect := [f"{each}={declared[each]!r}" for each, value in usual.items() if declared[each] != value]:
        _refuse(
            key,
            f"its input {name} has {without_effect[0]}, which has no effect, because the asset isn't partitioned.",
            "Leave it out; or declare partitions_def.",
        )


def _require_one_dimension(
    key: dg.AssetKey, name: str, column: object, partitions: dg.PartitionsDefinition[str] | None
) -> None:
    if isinstance(column, str) and isinstance(partitions, dg.MultiPartitionsDefinition):
        _refuse(
            key,
            f"its input {name} has partition_column={column!r}, but its partitions have several dimensions.",
            "Leave it out, and declare the upstream with its own partitions_def and a partition_expr that names a "
            "column for each dimension.",
        )


def _require_no_start(key: dg.AssetKey, inputs: Mapping[str, TrackedInput]) -> None:
    if begins := [name for name, tracked in inputs.items() if tracked.start is not Everywhere.ALL]:
        _refuse(
            key,
            f"its input {begins[0]} has a start, but it is partitioned, and a partition starts with all of its rows.",
            "Leave out start, and let the partitions definition start where the asset should start.",
        )


def _require_limits_that_help(
    key: dg.AssetKey, write_mode: WriteMode | None, inputs: Mapping[str, TrackedInput], *, is_partitioned: bool
) -> None:
    limited = [name for name, tracked in inputs.items() if tracked.limits.is_set]
    if limited and is_partitioned:
        _refuse(
            key,
            f"its input {limited[0]} has a limit, but it is partitioned, and a partition's change is always consumed "
            "whole.",
            "Leave out max_bytes and max_files; to limit the partitions per run, use BackfillPolicy.multi_run(...).",
        )
    if limited and isinstance(write_mode, Replace):
        _refuse(
            key,
            f"its input {limited[0]} has a limit, but replace() computes the whole table in every run, so splitting a "
            "backlog into several runs would only cost more.",
            "Leave out max_bytes and max_files, or use append or merge.",
        )


def _refuse(key: dg.AssetKey, problem: str, remedy: str) -> NoReturn:
    raise DeclarationError(asset=key.to_user_string(), problem=problem, remedy=remedy)


def executable_assets(definitions: Sequence[Any]) -> Iterator[dg.AssetsDefinition]:
    """The assets among ``definitions`` that Dagster can execute."""
    return (item for item in definitions if isinstance(item, dg.AssetsDefinition) and item.is_executable)
