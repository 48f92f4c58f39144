"""What Dagster's definitions say about the assets that read incrementally."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import dagster as dg

from dagster_ips.core.write_mode import OverwritePartitions, WriteMode
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declarations import (
    INCREMENTAL,
    OUTSIDE,
    description_of,
    plain,
    policies_of,
    table_of,
    write_mode_of,
)
from dagster_ips.orchestration.overwrite import Overwrite
from dagster_ips.tracking.following import TrackedInput
from dagster_ips.view import IcdcView

_BY_CAPTURE = (
    "In a multi-asset or a graph-backed asset, declare each upstream by incremental_dep() in the specs and write "
    "through capture(), a block for each table; or make it an asset of its own."
)

MetadataByKey = Mapping[dg.AssetKey, Mapping[str, Any]]


@dataclass(frozen=True)
class Consumer:
    """An asset that reads at least one upstream incrementally."""

    key: dg.AssetKey
    table: str
    inputs: Mapping[str, TrackedInput]

    @property
    def name(self) -> str:
        """The asset key as text."""
        return self.key.to_user_string()


def incremental_input_names(assets: dg.AssetsDefinition) -> tuple[str, ...]:
    """The inputs declared by ``incremental()``."""
    if not assets.is_executable:
        return ()
    return tuple(name for name, declared in _inputs(assets).items() if INCREMENTAL in declared.metadata)


def consumer_of(assets: dg.AssetsDefinition, metadata: MetadataByKey, default_namespace: str) -> Consumer | None:
    """The consumer that ``assets`` declare, checked; None if it reads nothing incrementally.

    Raises:
        DeclarationError: the declaration can't work.
    """
    _require_incremental_views(assets)
    names = incremental_input_names(assets)
    if not names:
        return None
    key = _only_key(assets)
    write_mode = write_mode_of(metadata[key], key.to_user_string())
    _require_one_write_mode(key, write_mode, returns_overwrite=_returns_overwrite(assets))
    _require_plain_partitions(key, write_mode, metadata[key])
    inputs = {}
    for name in names:
        upstream = assets.keys_by_input_name[name]
        declared = plain(_inputs(assets)[name].metadata[INCREMENTAL])
        table = table_of(upstream, metadata.get(upstream, {}), default_namespace)
        inputs[name] = TrackedInput(
            upstream.to_user_string(), table, tuple(declared["ranges"]), declared["ref"], policies_of(declared)
        )
    return Consumer(key, table_of(key, metadata[key], default_namespace), inputs)


def capturing_consumers(
    assets: dg.AssetsDefinition, metadata: MetadataByKey, default_namespace: str
) -> tuple[Consumer, ...]:
    """The consumers among ``assets`` that capture by themselves: those with an ``incremental_dep``, each on its own.

    Raises:
        DeclarationError: the declaration can't work.
    """
    return tuple(
        _capturing(assets, spec, declared, metadata, default_namespace)
        for spec in assets.specs
        if (declared := {dep.asset_key: plain(dep.metadata[INCREMENTAL]) for dep in spec.deps if _is_tracked(dep)})
    )


def captures_by_itself(assets: dg.AssetsDefinition, key: dg.AssetKey) -> bool:
    """Whether ``key`` is written by statements of its own: it has an ``incremental_dep``."""
    return any(_is_tracked(dep) for dep in assets.specs_by_key[key].deps)


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
            "it has both incremental() inputs and incremental_dep() upstreams, which are consumed by different writes.",
            "Declare all of them by incremental_dep() and read them through capture(), or all by incremental().",
        )
    if assets.partitions_def is not None:
        _refuse(
            key,
            "it is partitioned in Dagster, and capture() doesn't know partitions.",
            "Leave out partitions_def; the Iceberg table may be partitioned by table(partition_by=...).",
        )
    if write_mode_of(metadata[key], key.to_user_string()) is not None:
        _refuse(
            key,
            "it declares a write mode, but what it reads by incremental_dep() is written by its own statements.",
            "Leave the write mode out of its metadata.",
        )
    inputs = {
        upstream.to_user_string(): TrackedInput(
            upstream.to_user_string(),
            table_of(upstream, metadata.get(upstream, {}), default_namespace),
            tuple(each["ranges"]),
            each["ref"],
            policies_of(each),
        )
        for upstream, each in declared.items()
    }
    return Consumer(key, table_of(key, metadata[key], default_namespace), inputs)


def check_consumer(
    assets: dg.AssetsDefinition, consumer: Consumer, known: MetadataByKey, io_managers: set[str]
) -> None:
    """What can only be seen with all definitions at hand.

    Raises:
        DeclarationError: an upstream isn't there, or another IO manager would write the result.
    """
    for name, tracked in consumer.inputs.items():
        upstream = dg.AssetKey.from_user_string(tracked.upstream)
        if upstream not in known:
            _refuse(
                consumer.key,
                f"its incremental input {name} reads {upstream.to_user_string()}, which no definition describes.",
                f'Add iceberg_asset("{upstream.to_user_string()}", table="...") to the definitions.',
            )
    key = assets.get_io_manager_key_for_asset_key(consumer.key)
    if key not in io_managers:
        _refuse(
            consumer.key,
            f"it reads incrementally, but its result goes to the IO manager {key!r}, which knows nothing of captures.",
            "Give the asset the io_manager_key of an IcdcIOManager.",
        )


def outside_tables(specs: Sequence[dg.AssetSpec]) -> dict[dg.AssetKey, str]:
    """The tables declared by ``iceberg_asset``."""
    return {spec.key: table_of(spec.key, spec.metadata, "") for spec in specs if plain(spec.metadata.get(OUTSIDE))}


def _inputs(assets: dg.AssetsDefinition) -> Mapping[str, Any]:
    return assets.node_def.input_dict


def _require_incremental_views(assets: dg.AssetsDefinition) -> None:
    if not assets.is_executable:
        return
    for name, declared in _inputs(assets).items():
        if declared.dagster_type.typing_type is IcdcView and INCREMENTAL not in declared.metadata:
            _refuse(
                next(iter(assets.keys)),
                f"its parameter {name} is an IcdcView, but the input isn't declared incremental.",
                f'Declare it: ins={{"{name}": incremental()}}.'
                if isinstance(assets.node_def, dg.OpDefinition)
                else _BY_CAPTURE,
            )


def _only_key(assets: dg.AssetsDefinition) -> dg.AssetKey:
    key, *others = sorted(assets.keys)
    if others or not isinstance(assets.node_def, dg.OpDefinition):
        _refuse(
            key,
            "it is a multi-asset or a graph-backed asset, whose incremental inputs can't be tracked.",
            _BY_CAPTURE,
        )
    if assets.partitions_def is not None:
        _refuse(
            key,
            "it is partitioned in Dagster, and incremental inputs of partitioned assets can't be tracked yet.",
            "Leave out partitions_def; the Iceberg table may be partitioned by table(partition_by=...).",
        )
    returned = inspect.signature(assets.node_def.compute_fn.decorated_fn).return_annotation  # type: ignore[union-attr]
    if returned in (None, "None"):
        _refuse(
            key,
            "it reads incrementally but returns nothing, so nothing would ever be written or consumed.",
            "Return the DataFrame to be written.",
        )
    return key


def _returns_overwrite(assets: dg.AssetsDefinition) -> bool:
    (output,) = assets.node_def.output_defs
    return output.dagster_type.typing_type is Overwrite


def _require_one_write_mode(key: dg.AssetKey, write_mode: WriteMode | None, *, returns_overwrite: bool) -> None:
    if write_mode is None and not returns_overwrite:
        _refuse(
            key,
            "it reads incrementally but doesn't say how its rows join the rows that are already there.",
            "Add a write mode to its metadata: append(), merge(on=...), overwrite_partitions() or replace(); or return "
            "an Overwrite and annotate the function so.",
        )
    if write_mode is not None and returns_overwrite:
        _refuse(
            key,
            "it returns an Overwrite, which says itself what is replaced, and declares another write mode as well.",
            "Leave the write mode out of its metadata, or return a DataFrame.",
        )


def _require_plain_partitions(key: dg.AssetKey, write_mode: WriteMode | None, metadata: Mapping[str, Any]) -> None:
    if not isinstance(write_mode, OverwritePartitions):
        return
    columns = description_of(metadata).partition_by
    if not columns or any("(" in column for column in columns):
        _refuse(
            key,
            f"overwrite_partitions needs a table partitioned by plain columns, not by {list(columns)}.",
            'Say so: overwrite_partitions() | table(partition_by=["event_date"]).',
        )


def _refuse(key: dg.AssetKey, problem: str, remedy: str) -> NoReturn:
    raise DeclarationError(asset=key.to_user_string(), problem=problem, remedy=remedy)


def executable_assets(definitions: Sequence[Any]) -> Iterator[dg.AssetsDefinition]:
    """The assets among ``definitions`` that run."""
    return (item for item in definitions if isinstance(item, dg.AssetsDefinition) and item.is_executable)
