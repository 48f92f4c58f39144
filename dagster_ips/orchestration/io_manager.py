"""The IO manager: captures as inputs load, writes, publishes and commits as outputs are handled.

No ``from __future__ import annotations`` here: Dagster reads ``ResourceDependency`` off the class as it is made.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from dagster_ips.core.capture import Mode
from dagster_ips.core.policy import OnRemoved
from dagster_ips.core.retention import Retention
from dagster_ips.core.write_mode import OverwriteWhere, Replace, WriteMode
from dagster_ips.errors import DeclarationError, OutputTypeError
from dagster_ips.iceberg.catalog import LakeCatalog, namespace_of
from dagster_ips.orchestration.consumers import Consumer, MetadataByKey, consumer_of
from dagster_ips.orchestration.cursor_store import CursorStore
from dagster_ips.orchestration.declarations import INCREMENTAL, description_of, table_of, write_mode_of
from dagster_ips.orchestration.overwrite import Overwrite
from dagster_ips.orchestration.resources import IcebergCatalog
from dagster_ips.orchestration.run_metadata import RunReport, run_metadata
from dagster_ips.spark.frames import table_frame
from dagster_ips.spark.session import DataFrame, SparkSession, configure
from dagster_ips.spark.targets import create_table, order_table
from dagster_ips.tracking.capturing import Capturer
from dagster_ips.tracking.effects import Effect, effect
from dagster_ips.tracking.following import TrackedInput
from dagster_ips.tracking.lost_files import lost_file
from dagster_ips.tracking.publishing import Publication, Publisher
from dagster_ips.tracking.retention import drop_expired_tables
from dagster_ips.tracking.writing import Result
from dagster_ips.view import IcdcView

MODE_TAG = "dagster_ips/mode"
REMOVED_TAG = "dagster_ips/on_removed"


_Kind = TypeVar("_Kind", bound=StrEnum)


@dataclass(frozen=True)
class _Step:
    """What one try of one step captured."""

    consumer: Consumer
    views: dict[str, IcdcView]
    capture_seconds: float


class IcdcIOManager(dg.ConfigurableIOManager):
    """Reads and writes Iceberg tables through Spark; hands ``incremental()`` inputs over as ICDC views.

    Inputs without ``incremental()`` are read whole. Outputs are Spark DataFrames, written as the asset's metadata says
    (``append``, ``merge``, …; ``replace`` if it says nothing), or an ``Overwrite``; on a branch that is published at
    once or not at all.

    ``default_namespace`` holds the tables of assets whose key has one part and that name no table;
    ``icdc_namespace`` the ICDC tables. Per consumer and upstream those of the newest ``icdc_keep_last`` captures are
    kept, none longer than ``icdc_max_age_days``; a run drops the others after its commit. The newest capture's and
    those that a run is working on always stay.
    """

    catalog: dg.ResourceDependency[IcebergCatalog]
    spark: dg.ResourceDependency[LazyPySparkResource]
    default_namespace: str = "default"
    icdc_namespace: str = "ips"
    icdc_keep_last: int = 10
    icdc_max_age_days: float = 30.0
    _retention: Retention = PrivateAttr(default_factory=Retention)
    _steps: dict[tuple[str, str, int], _Step] = PrivateAttr(default_factory=dict)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002  # Dagster's signature
        """Check the settings before anything runs: environment variables among them are known only now.

        Raises:
            RetentionError: the ICDC tables can't be kept like that.
        """
        self._retention = Retention.of_days(self.icdc_keep_last, self.icdc_max_age_days)

    def load_input(self, context: dg.InputContext) -> Any:  # noqa: ANN401  # the asset's annotation chooses the form
        """The input in the form that the parameter's annotation asks for.

        Raises:
            IpsError: nothing was captured, and no state changed.
        """
        metadata = _metadata_by_key(context)
        if INCREMENTAL not in (context.definition_metadata or {}) or _asset_context() is None:
            return self._whole_table(context, metadata)
        view = self._step(context, metadata).views[context.name]
        return _in_form(view, context.dagster_type.typing_type, context)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:  # noqa: ANN401  # whatever the asset returned
        """Write, publish, commit.

        Raises:
            IpsError: nothing was published and nothing was consumed.
        """
        key, metadata = context.asset_key, context.definition_metadata
        step = self._steps.pop(_step_id(context), None)
        frame, write_mode = _returned(obj, write_mode_of(metadata, key.to_user_string()), key, is_consumer=bool(step))
        table = table_of(key, metadata, self.default_namespace)
        result = Result(
            frame=frame,
            write_mode=write_mode,
            mode=next(iter(step.views.values())).mode if step else Mode.FULL,
            inputs=[view.change for view in step.views.values()] if step else (),
        )
        started = time.monotonic()
        try:
            publication = self._publish(context, table, result, list(step.views.values()) if step else [])
        except Exception as error:
            captured = [view.captured for view in step.views.values()] if step else []
            if lost := lost_file(error, captured, self.catalog.open().storage):
                raise lost from error
            raise
        finally:
            for view in step.views.values() if step else ():
                view.release()
        report = RunReport(
            table=table,
            views=dict(step.views) if step else {},
            publication=publication,
            capture_seconds=step.capture_seconds if step else 0.0,
            write_seconds=time.monotonic() - started,
            lookups=_lookups() if step else (),
        )
        context.add_output_metadata(run_metadata(report))
        for view in step.views.values() if step else ():
            store = CursorStore(context.step_context.instance)
            drop_expired_tables(self.catalog.open(), store, view.captured.capture, self._retention)

    def _step(self, context: dg.InputContext, metadata: MetadataByKey) -> _Step:
        """The captures of this try of the step, all taken when its first input loads, so that they share a mode."""
        identity = _step_id(context)
        if identity not in self._steps:
            running = _asset_context()
            assert running is not None  # noqa: S101  # load_input asked before
            consumer = consumer_of(running.assets_def, metadata, self.default_namespace)
            assert consumer is not None  # noqa: S101  # this input is declared incremental
            started = time.monotonic()
            lake = self.catalog.open()
            captured = Capturer(lake, CursorStore(context.step_context.instance), self.icdc_namespace).capture(
                consumer.name,
                [_with_wishes(tracked, running.run.tags, consumer.name) for tracked in consumer.inputs.values()],
                target=consumer.table,
                asked_for=_mode_asked_for(running.run.tags, consumer.name),
                run_id=running.run.run_id,
            )
            session = self._session(lake)
            views = {
                name: IcdcView(found, session, lake.name) for name, found in zip(consumer.inputs, captured, strict=True)
            }
            self._steps[identity] = _Step(consumer, views, time.monotonic() - started)
        return self._steps[identity]

    def _publish(self, context: dg.OutputContext, table: str, result: Result, views: Sequence[IcdcView]) -> Publication:
        lake, asset = self.catalog.open(), context.asset_key.to_user_string()
        session = self._session(lake)
        store = CursorStore(context.step_context.instance)
        publisher = Publisher(lake, store, session, context.run_id)
        captures = [view.captured.capture for view in views]
        existing = lake.find(table)
        description = description_of(context.definition_metadata).tuned_for(result.write_mode)
        columns = existing.identity_partition_columns() if existing else description.partition_by
        result.check(table, tuple(columns))
        if existing is not None and result.changes_nothing():
            publisher.commit_without_writing(captures)
            return Publication(existing)
        if existing is None:
            with effect(Effect.CREATE_TARGET):
                lake.create_namespace(namespace_of(table))
                create_table(session, lake.name, table, result.frame, description)
        # A run killed right after it created the table left it without its order, and without a row.
        if description.sort_by and (existing is None or existing.head_snapshot_id() is None):
            with effect(Effect.ORDER_TARGET):
                order_table(session, lake.name, table, description.sort_by)
        return publisher.publish(table, captures, result.write, consumer=asset)

    def _whole_table(self, context: dg.InputContext, metadata: MetadataByKey) -> Any:  # noqa: ANN401  # see load_input
        lake = self.catalog.open()
        table = table_of(context.asset_key, metadata.get(context.asset_key, {}), self.default_namespace)
        found = lake.load(table, asset=_reader(context))
        context.add_input_metadata({"snapshot": dg.MetadataValue.text(str(found.head_snapshot_id()))})
        return table_frame(self._session(lake), lake.name, table, snapshot_id=found.head_snapshot_id())

    def _session(self, lake: LakeCatalog) -> SparkSession:
        session: SparkSession = self.spark.spark_session
        configure(session, lake.spark_configuration())
        return session


def _in_form(view: IcdcView, annotation: object, context: dg.InputContext) -> Any:  # noqa: ANN401  # see load_input
    if annotation is str:
        return view.table
    if isinstance(annotation, type) and issubclass(annotation, DataFrame):
        return view.added
    if annotation is IcdcView or annotation is Any or annotation is None:
        return view
    raise DeclarationError(
        asset=_reader(context),
        problem=f"its incremental input {context.name} is annotated {annotation!r}, which it can't be handed over as.",
        remedy="Annotate it as IcdcView, pyspark.sql.DataFrame or str (the ICDC table's SQL name).",
    )


def _returned(
    obj: object, declared: WriteMode | None, key: dg.AssetKey, *, is_consumer: bool
) -> tuple[DataFrame, WriteMode]:
    """The frame that an asset returned, and how it is to be written."""
    asset = key.to_user_string()
    if isinstance(obj, DataFrame):
        return obj, declared or Replace()
    if not isinstance(obj, Overwrite):
        raise OutputTypeError(asset=asset, found=f"a {type(obj).__name__}")
    parts: tuple[object, object] = (obj.frame, obj.where)
    if not isinstance(parts[0], DataFrame) or not isinstance(parts[1], str):
        kinds = " where a ".join(type(part).__name__ for part in parts)
        raise OutputTypeError(asset=asset, found=f"an Overwrite of a {kinds}, not of a DataFrame where a SQL text")
    if declared is not None or not is_consumer:
        raise DeclarationError(
            asset=asset,
            problem="it returned an Overwrite, which replaces what an incremental input's change affects, but "
            + ("it declares another write mode." if declared else "it has no incremental input.")
            + " Nothing was written and nothing was consumed.",
            remedy="Return the DataFrame, or leave out the other write mode and declare the input by incremental().",
        )
    return obj.frame, OverwriteWhere(obj.where)


def _metadata_by_key(context: dg.InputContext) -> MetadataByKey:
    graph = context.step_context.job_def.asset_layer.asset_graph
    return {key: graph.get(key).metadata for key in graph.get_all_asset_keys()}


def _asset_context() -> dg.AssetExecutionContext | None:
    """The asset that is being materialised; None in an asset check or outside a run, where nothing is captured."""
    try:
        return dg.AssetExecutionContext.get()
    except dg.DagsterInvariantViolationError:
        return None


def _reader(context: dg.InputContext) -> str:
    running = _asset_context()
    keys = running.selected_asset_keys if running else ()
    return ", ".join(sorted(key.to_user_string() for key in keys)) or context.step_context.step.key


def _lookups() -> tuple[str, ...]:
    """The inputs that were read whole beside incremental ones: their own changes drove nothing."""
    running = _asset_context()
    if running is None:
        return ()
    declared = running.assets_def.node_def.input_dict
    keys = running.assets_def.keys_by_input_name
    return tuple(keys[name].to_user_string() for name, each in declared.items() if INCREMENTAL not in each.metadata)


def _step_id(context: dg.InputContext | dg.OutputContext) -> tuple[str, str, int]:
    step = context.step_context
    return step.run_id, step.step.key, step.previous_attempt_count


def _mode_asked_for(tags: Mapping[str, str], asset: str) -> Mode | None:
    return _wish(Mode, tags, MODE_TAG, asset)


def _with_wishes(tracked: TrackedInput, tags: Mapping[str, str], asset: str) -> TrackedInput:
    """The input with what the run's tags ask for in this run alone."""
    on_removed = _wish(OnRemoved, tags, REMOVED_TAG, asset)
    return replace(tracked, policies=replace(tracked.policies, on_removed=on_removed)) if on_removed else tracked


def _wish(kind: type[_Kind], tags: Mapping[str, str], tag: str, asset: str) -> _Kind | None:
    wish = tags.get(tag)
    if wish is None:
        return None
    if wish not in set(kind):
        problem = f"the run tag {tag}={wish!r} isn't one that is known."
        raise DeclarationError(asset=asset, problem=problem, remedy=f"Use one of {', '.join(kind)}.")
    return kind(wish)
