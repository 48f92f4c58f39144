"""Calls an asset's function outside a run, with the inputs of a full run; captures and writes nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ips._compat import select_every_output, takes_config
from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.write_mode import Append, Combine, Merge, WriteMode
from dagster_ips.errors import OutputTypeError, UnprovableError
from dagster_ips.exactly_once.capture.partition_captures import rows_of
from dagster_ips.exactly_once.inspect.claims import ClaimedPart
from dagster_ips.exactly_once.publish.frame_fitness import require_columns
from dagster_ips.exactly_once.snapshot_rows import current_rows
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.consumers import Consumer, takes_all
from dagster_ips.orchestration.declare.declarations import table_of, write_mode_of
from dagster_ips.orchestration.declare.partition_mappings import rows_of_keys, slicing
from dagster_ips.orchestration.run.data_versions import input_version
from dagster_ips.orchestration.run.io_manager import IcdcIOManager, in_form, returned
from dagster_ips.run_view import RunView
from dagster_ips.spark.session import configure
from dagster_ips.spark.writes.group_parts import Aggregates
from dagster_ips.spark.writes.merge import latest_rows

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession


@dataclass(frozen=True)
class Asset:
    """One asset of an assets definition, its consumer, and the key of the IO manager that writes it."""

    definition: dg.AssetsDefinition
    consumer: Consumer
    manager: str

    @property
    def resources(self) -> Collection[str]:
        """The keys of the resources that its function needs."""
        node: Any = self.definition.node_def
        return sorted(node.required_resource_keys)

    @property
    def sees_one_partition(self) -> bool:
        """Whether its function may rely on a single partition: its context tells which, or each run has only one."""
        node: Any = self.definition.node_def
        policy = self.definition.backfill_policy
        return bool(node.compute_fn.has_context_arg()) or (policy is not None and policy.max_partitions_per_run == 1)


@dataclass(frozen=True)
class Recomputed:
    """The rows that a full run would write, and its write mode.

    ``lookups`` say of each input that was read as a whole whether it changed since the last run, and of the asset's
    config what was used.
    """

    frame: DataFrame
    write_mode: WriteMode
    views: Sequence[RunView]
    lookups: Mapping[str, str]

    @property
    def keeps_any_row(self) -> bool:
        """Whether any one of several rows with the same key may be kept."""
        return isinstance(self.write_mode, Append) and bool(self.write_mode.dedup_on)

    def release(self) -> None:
        """Release what Spark has cached for the views."""
        for view in self.views:
            view.release()


@dataclass(frozen=True)
class Surroundings:
    """What calling a function requires: Dagster's asset graph, the instance, and ``resources`` as attributes.

    ``lake`` is the catalog of the tables that the function reads as a whole.
    """

    graph: Any  # Dagster's asset graph has no public type
    instance: dg.DagsterInstance
    resources: Any
    lake: LakeCatalog


def graph_of(context: dg.AssetCheckExecutionContext) -> Any:  # noqa: ANN401  # as above
    """The graph of all assets: a job that has only checks knows little about the assets that the checks read."""
    return context.job_def.asset_layer.asset_graph.source_asset_graph


def recompute(asset: Asset, part: ClaimedPart, manager: IcdcIOManager, around: Surroundings) -> Recomputed:
    """The result of ``asset``'s function for the inputs of ``part`` in mode ``full``; lookups are read as they are now.

    Raises:
        UnprovableError: an input isn't available here.
        IpsError: a table can't be read, or what the function returned can't be written.
        Exception: what the function raises.
    """
    consumer, lake = asset.consumer, around.lake
    session = manager.session()
    names = list(consumer.inputs)
    views = {
        name: RunView(each, session, lake.name, storage=lake.storage)
        for name, each in zip(names, part.inputs, strict=True)
    }
    values: dict[str, Any] = {}
    lookups: dict[str, str] = {}
    for name, declared in asset.definition.node_def.input_dict.items():
        kind = declared.dagster_type
        if name in views:
            values[name] = in_form(views[name], kind.typing_type, parameter=name, asset=consumer.name)
        elif not kind.is_nothing:
            upstream = asset.definition.keys_by_input_name[name]
            values[name], lookups[upstream.to_user_string()] = _lookup(
                asset, upstream, part, (session, manager), around
            )
    if takes_config(asset.definition):
        lookups["its config"] = "its defaults were used, and not what the runs were given"
    made = _called(asset, values, part.partitions, around)
    metadata = around.graph.get(consumer.key).metadata
    found = returned(made, write_mode_of(metadata, consumer.name), consumer.key, Mode.FULL, is_consumer=True)
    frame, write_mode = found.frame, found.write_mode
    configure(frame.sparkSession, lake.spark_configuration())
    require_columns(frame, write_mode, table=consumer.table, partition_columns=())
    if isinstance(write_mode, Merge):
        frame = latest_rows(frame, write_mode.on, write_mode.latest_by)
    if isinstance(write_mode, Combine):
        aggregates = Aggregates.over(frame, write_mode, table=consumer.table)
        groups = aggregates.groups(frame)
        frame = aggregates.folded(groups) if write_mode.keeps_partials else groups
    return Recomputed(frame, write_mode, list(views.values()), lookups)


def _lookup(
    asset: Asset,
    upstream: dg.AssetKey,
    part: ClaimedPart,
    reading: tuple[SparkSession, IcdcIOManager],
    around: Surroundings,
) -> tuple[DataFrame, str]:
    """An input that is read as a whole, as it is now, and a text on whether it changed since the last run."""
    session, manager = reading
    graph, lake = around.graph, around.lake
    table = table_of(upstream, graph.get(upstream).metadata, manager.default_namespace)
    found = lake.find(table)
    if found is None:
        problem = f"its input {upstream.to_user_string()} isn't a table of the catalog {lake.name}"
        remedy = "A proof can read only Iceberg tables: prove the asset without that input, or remove its proof."
        raise UnprovableError(consumer=asset.consumer.name, problem=problem, remedy=remedy)
    frame = current_rows(session, lake.name, found, storage=lake.storage)
    if (rows := _rows_read(asset, upstream, found, part, around)) is not None:
        frame = frame.where(rows)
    now = found.ancestry().newest_change
    before = input_version(around.instance, asset.consumer.key, upstream)
    if before is None or now is None:
        return frame, "it is unknown whether it changed since the last run"
    moved = before != str(now.snapshot_id)
    return (
        frame,
        f"changed since the last run, {before} → {now.snapshot_id}" if moved else "unchanged since the last run",
    )


def _rows_read(
    asset: Asset, upstream: dg.AssetKey, table: TableMetadata, part: ClaimedPart, around: Surroundings
) -> Predicate | None:
    """A condition on the rows of ``upstream`` that a run would read; None if it reads all of them."""
    graph, instance, node = around.graph, around.instance, around.graph.get(upstream)
    definition: dg.PartitionsDefinition[str] | None = node.partitions_def
    if definition is None or takes_all(asset.definition, upstream):
        return None
    if part.partitions:
        return rows_of(table, slicing(graph, asset.consumer.key, upstream, instance, column=None), part.partitions)
    mapping: Any = asset.definition.get_partition_mapping_for_dep(upstream)
    result = mapping.get_upstream_mapped_partitions_result_for_partitions(
        None, None, definition, dynamic_partitions_store=instance
    )
    keys = result.partitions_subset.get_partition_keys()
    return rows_of_keys(table, definition, keys, node.metadata, instance, asset=upstream.to_user_string())


def _called(asset: Asset, values: Mapping[str, Any], partitions: Sequence[str], around: Surroundings) -> object:
    """The value that the function returned for the asset."""
    built = dg.build_asset_context(
        resources={key: getattr(around.resources, key) for key in asset.resources},
        instance=around.instance,
        partition_key=partitions[0] if len(partitions) == 1 else None,
    )
    with built as running:
        select_every_output(running, asset.definition)
        result = _awaited(asset.definition(running, **values))
        outputs = dict(_outputs(asset.definition, result))
    if asset.consumer.key not in outputs:
        raise OutputTypeError(asset=asset.consumer.name, found="nothing")
    return outputs[asset.consumer.key]


def _awaited(result: Any) -> object:  # noqa: ANN401  # whatever the function returned
    """The result of a function, also of an async one; what an async generator yields is a tuple."""
    if inspect.isasyncgen(result):
        return asyncio.run(_all_of(result))
    return asyncio.run(result) if inspect.iscoroutine(result) else result


async def _all_of(results: AsyncIterator[object]) -> tuple[object, ...]:
    return tuple([each async for each in results])


def _outputs(assets: dg.AssetsDefinition, result: object) -> Iterator[tuple[dg.AssetKey, object]]:
    """What was returned for each asset; results of checks, which may stand anywhere among them, are left out."""
    keys = assets.node_keys_by_output_name
    names = [output.name for output in assets.node_def.output_defs if output.name in keys]
    is_tuple = isinstance(result, tuple) and not isinstance(result, dg.MaterializeResult)  # It is a tuple, too.
    several = is_tuple or inspect.isgenerator(result)
    items: list[Any] = list(result) if several else [result]  # type: ignore[call-overload]  # just checked
    for index, item in enumerate(each for each in items if not isinstance(each, dg.AssetCheckResult)):
        match item:
            case dg.Output():
                yield keys[item.output_name], item.value
            case dg.MaterializeResult():
                yield item.asset_key or keys[names[index]], item.value
            case _:
                yield keys[names[index]], item
