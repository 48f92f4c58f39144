"""The IO manager: it captures when inputs load, and writes, publishes and commits when outputs are handled.

No ``from __future__ import annotations`` here: Dagster reads ``ResourceDependency`` when the class is created.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import PrivateAttr

from dagster_ips.core.capture import Mode
from dagster_ips.core.plan_version import PlanVersion, with_plan
from dagster_ips.core.ranges import Bound, Predicate
from dagster_ips.core.retention import Retention
from dagster_ips.core.write_mode import ByQuery, Combine, OverwriteWhere, Replace, WriteMode
from dagster_ips.errors import DeclarationError, IpsError, OutputTypeError, PlanChangedError
from dagster_ips.errors.remedies import full_run
from dagster_ips.exactly_once.publish.publisher import Publication
from dagster_ips.exactly_once.publish.result_publication import AssetTable, publish_result
from dagster_ips.exactly_once.publish.result_version import result_version
from dagster_ips.exactly_once.publish.result_writer import Result
from dagster_ips.exactly_once.snapshot_rows import current_rows
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.consumers import (
    MetadataByKey,
    captures_by_itself,
    consumers_of,
    incremental_input_names,
    keys_of_step,
    require_form,
    require_replacing,
    takes_all,
)
from dagster_ips.orchestration.declare.declarations import (
    INCREMENTAL,
    description_of,
    table_of,
    trusted_because,
    write_mode_of,
)
from dagster_ips.orchestration.declare.maintained_rows import MaintainedRows
from dagster_ips.orchestration.declare.overwrite_result import Overwrite
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import (
    partition_expression,
    rows_of_keys,
)
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.platform.markdown_text import escaped
from dagster_ips.orchestration.platform.resources import KNOWN_SETTINGS, IcebergCatalog, SparkResource, setting
from dagster_ips.orchestration.platform.staged_run import StagedRun, staged_run
from dagster_ips.orchestration.run.audits import run_audits
from dagster_ips.orchestration.run.cascade_tag import cascade_of_run, follow_head
from dagster_ips.orchestration.run.data_versions import (
    TableRead,
    code_version,
    keep_versions,
    record_input,
    record_versions,
)
from dagster_ips.orchestration.run.run_metadata import RunReport, captured_metadata, older_rows_in, run_metadata
from dagster_ips.orchestration.run.runs import RunInputs, Runs
from dagster_ips.orchestration.run.starting_over import start_over
from dagster_ips.orchestration.run.step_try import StepTries, StepTry
from dagster_ips.orchestration.run.unreadable_inputs import reads
from dagster_ips.progress.lookups import LookedUp
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.session import configure, is_frame, is_frame_class
from dagster_ips.view import IcdcView

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession


class IcdcIOManager(dg.ConfigurableIOManager):
    """Reads and writes Iceberg tables through Spark, and passes ``incremental()`` inputs as ICDC views.

    Inputs without ``incremental()`` are read as a whole, or if both assets are partitioned or there is a partition
    mapping, only the partitions that the run depends on. Outputs are Spark DataFrames, written with the write mode in
    the asset's metadata (``append``, ``merge``, …; ``replace`` by default), or an ``Overwrite``. They are written to a
    branch that is published atomically.

    ``default_namespace`` holds the tables of assets that name no table and have a single-part key, ``icdc_namespace``
    the ICDC tables. For each consumer and upstream, the ICDC tables of the newest ``icdc_keep_last`` captures are kept,
    but none longer than ``icdc_max_age_days``; a run drops the others after its commit. The table of the newest capture
    and tables that a run is using are always kept.
    """

    model_config = KNOWN_SETTINGS
    catalog: dg.ResourceDependency[IcebergCatalog]
    spark: dg.ResourceDependency[SparkResource]
    default_namespace: str = "default"
    icdc_namespace: str = "ips"
    icdc_keep_last: int = 10
    icdc_max_age_days: float = 30.0
    _retention: Retention = PrivateAttr(default_factory=Retention)
    _tries: StepTries = PrivateAttr(default_factory=StepTries)

    @property
    def namespace(self) -> str:
        """``default_namespace``, even before Dagster has resolved environment variables.

        Raises:
            DeclarationError: it is an environment variable that isn't set.
        """
        return setting(self.default_namespace)

    def with_settings(self) -> "IcdcIOManager":
        """The same with its own settings as runs see them, itself if they are plain values already.

        The catalog resolves its settings when it is opened.

        Raises:
            DeclarationError: one of them is an environment variable that isn't set.
        """
        names = ("default_namespace", "icdc_namespace", "icdc_keep_last", "icdc_max_age_days")
        seen = {name: setting(getattr(self, name)) for name in names}
        is_plain = all(value == getattr(self, name) for name, value in seen.items())
        return self if is_plain else self.model_copy(update=seen)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Check the settings and the instance before anything runs. Environment variables are resolved only now.

        Raises:
            RetentionError: the retention of ICDC tables is invalid.
            CursorStorageError: the Dagster instance would not remember what was consumed.
        """
        if context.instance is not None:
            CursorStore(context.instance).require_working()
        self._retention = Retention.of_days(self.icdc_keep_last, self.icdc_max_age_days)

    def load_input(self, context: dg.InputContext) -> Any:  # noqa: ANN401  # the asset's annotation chooses the form
        """The input in the form that the parameter's annotation asks for; outside of runs, a DataFrame of the table.

        Raises:
            IpsError: nothing was captured, and no state changed.
        """
        if not context.has_input_name:
            return self._outside_of_runs(context)
        with _logged(context):
            return self._as_annotated(context)

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:  # noqa: ANN401  # whatever the asset returned
        """Write, publish, commit.

        Raises:
            IpsError: nothing was published and nothing was consumed.
        """
        with _logged(context):
            self._handle(context, obj)

    def _as_annotated(self, context: dg.InputContext) -> Any:  # noqa: ANN401  # see load_input
        metadata = metadata_by_key(context.step_context)
        if INCREMENTAL not in (context.definition_metadata or {}) or asset_context() is None:
            return self._whole_table(context, metadata)
        captured = self._captures_of_step(context, metadata)
        view = next(iter(captured.values())).views[context.name]
        return in_form(view, context.dagster_type.typing_type, parameter=context.name, asset=_reader(context))

    def _handle(self, context: dg.OutputContext, obj: object) -> None:
        if not context.has_asset_key:
            raise _without_table(context)
        key, metadata, step = context.asset_key, context.definition_metadata, context.step_context
        running = asset_context()
        if running is not None and captures_by_itself(running.assets_def, key):
            self._require_written_by_capture(context, obj)
            return
        of_step = self._tries.of(step).captured
        if of_step is None and running is not None and incremental_input_names(running.assets_def):
            raise _read_by_another(key)
        is_consumer = of_step is not None
        staged = staged_run(step.dagster_run, step.instance)
        unread = RunInputs(cascade=staged.cascade if staged else cascade_of_run(step))
        captured = of_step.get(key.to_user_string()) if of_step is not None else unread
        if captured is None:
            _report_waiting(context, behind=list(of_step or ()))
            keep_versions(step, key)
            return
        write_mode = write_mode_of(metadata, key.to_user_string())
        result = returned(obj, write_mode, key, captured.mode, is_consumer=is_consumer)
        table = table_of(key, metadata, self.default_namespace)
        started = time.monotonic()
        # Writes through another session would lack the stamps that this one sets.
        runs = self.runs(step.instance).staged_for(staged)
        runs = replace(runs, session=lambda: self._session_of(result.frame))
        shares_views = running is not None and len(keys_of_step(running.assets_def)) > 1
        inputs = [view.change for view in captured.views.values()]
        plan = None
        if not result.is_derived:
            plan = result_version(
                result.frame,
                inputs,
                lookups=self._tries.of(step).lookups,
                keys=_partition_values(context),
                own=_module_of(running),
                where=result.write_mode.where if isinstance(result.write_mode, OverwriteWhere) else None,
                shares_views=shares_views,
            )
        with runs.writing(captured, table, self._tries.of(step).looked_up):
            # With partitions there is no stamp: runs of other partitions, which may read a later state of a lookup,
            # publish in between.
            is_told = isinstance(result.write_mode, Combine) and not context.has_asset_partitions
            read = self._tries.of(step).looked_up if is_told else {}
            try:
                publication = _publish(runs, context, table, result, replace(captured, looked_up=read), plan)
            except PlanChangedError as error:
                raise start_over(step, error) from error
        report = RunReport(
            table=table,
            captured=captured,
            publication=publication,
            write_seconds=time.monotonic() - started,
            lookups=_lookups() if is_consumer else (),
            older=older_rows_in(publication, captured, with_plan(code_version(step, key), plan)),
            plan=plan,
            staged=staged,
        )
        _show(context, report)
        partitions = context.asset_partition_keys if context.has_asset_partitions else ()
        if staged:
            keep_versions(step, key)
        else:
            record_versions(step, key, captured, publication, storage=runs.lake.storage, partitions=partitions)
        runs.drop_old_tables(captured, step.instance)

    def runs(self, instance: dg.DagsterInstance) -> Runs:
        """What runs capture and publish with, by this manager's settings."""
        lake = self.catalog.open()
        store = CursorStore(instance)
        return Runs(lake, store, lambda: self._session(lake), self.icdc_namespace, self._retention)

    def session(self) -> "SparkSession":
        """The Spark session, with the catalog configured."""
        return self._session(self.catalog.open())

    def _require_written_by_capture(self, context: dg.OutputContext, obj: object) -> None:
        if obj is not None:
            raise _not_captured(context.asset_key, f"returned a {type(obj).__name__} to be written.")
        self.require_captured(context.step_context, context.asset_key)

    def require_captured(self, step: Any, key: dg.AssetKey) -> None:  # noqa: ANN401  # see metadata_by_key
        """Fail if this attempt of the step hasn't written ``key``, which has an ``incremental_dep``, by ``capture``.

        Raises:
            DeclarationError: it hasn't.
        """
        if key not in self._tries.of(step).written_by_statements:
            raise _not_captured(key, "didn't call capture().")

    @contextlib.contextmanager
    def writing_by_capture(self, step: Any, key: dg.AssetKey) -> Iterator[None]:  # noqa: ANN401  # see metadata_by_key
        """The step's only block of own statements for ``key``; returning None for it is no error afterwards.

        If the block fails, the step may begin another one.

        Raises:
            DeclarationError: it isn't the only one.
        """
        this = self._tries.of(step)
        if key in this.capturing:
            raise _captured_twice(key, is_published=key in this.written_by_statements)
        this.capturing.add(key)
        try:
            yield
        except BaseException:
            this.capturing.discard(key)
            raise
        this.written_by_statements.add(key)

    def _captures_of_step(self, context: dg.InputContext, metadata: MetadataByKey) -> dict[str, RunInputs]:
        """The captures of this attempt of the step, by asset.

        All are taken when the first input loads, because they share a mode.
        """
        this = self._tries.of(context.step_context)
        if this.captured is None:
            running = asset_context()
            assert running is not None  # noqa: S101  # load_input has checked it
            if not running.selected_asset_keys:
                raise DeclarationError(
                    asset=_reader(context),
                    problem="the run executes only checks of its step, which reads incrementally to make its assets.",
                    remedy="Materialize an asset of the step; or declare the checks by @dg.asset_check, which reads "
                    "the asset's table.",
                )
            consumers = consumers_of(running.assets_def, metadata, self.default_namespace)
            selected = [each for each in consumers if each.key in running.selected_asset_keys]
            runs = self.runs(context.step_context.instance)
            this.captured = runs.staged_for(_staged(context)).capture_together(selected, running)
        self._reads(this)
        return this.captured

    def _reads(self, this: StepTry) -> None:
        """Remember what the function of the step that this thread is running reads."""
        views = [view for each in (this.captured or {}).values() for view in each.views.values()]
        reads([view.captured for view in views], [each.table for each in this.looked_up.values()], self.catalog.open())

    def _whole_table(self, context: dg.InputContext, metadata: MetadataByKey) -> Any:  # noqa: ANN401  # see load_input
        lake, staged = self.catalog.open(), _staged(context)
        lake = lake.on_branch(staged.branch) if staged else lake
        table = table_of(context.asset_key, metadata.get(context.asset_key, {}), self.default_namespace)
        found = lake.load(table, asset=_reader(context))
        rows = _partitions_read(context, metadata.get(context.asset_key, {}), found)
        frame = current_rows(self._session(lake), lake.name, found, storage=lake.storage)
        frame = frame if rows is None else frame.where(rows)
        if (running := asset_context()) is not None:
            this, name = self._tries.of(context.step_context), f"{lake.name}.{table}"
            this.looked_up[name] = LookedUp(found, rows)
            this.lookups[name] = frame
            self._reads(this)
            follow_head(running, found)
            record_input(context.step_context, context.asset_key, TableRead(found, found.ancestry().head, lake.storage))
        # Dagster doesn't accept input metadata for several partitions.
        if not context.has_asset_partitions or len(context.asset_partition_keys) == 1:
            context.add_input_metadata({"snapshot": dg.MetadataValue.text(str(found.head_snapshot_id()))})
        return frame

    def _outside_of_runs(self, context: dg.InputContext) -> "DataFrame":
        """The table for ``load_asset_value``; if it names partitions, only their rows."""
        name, loaded = context.asset_key.to_user_string(), context.upstream_output
        metadata = loaded.definition_metadata if loaded else {}
        lake = self.catalog.open()
        found = lake.load(table_of(context.asset_key, metadata, self.default_namespace), asset=name)
        frame = current_rows(self._session(lake), lake.name, found, storage=lake.storage)
        if not context.has_asset_partitions:
            return frame
        keys, partitions = context.asset_partition_keys, context.asset_partitions_def
        return frame.where(rows_of_keys(found, partitions, keys, metadata, context.instance, asset=name))

    def _session_of(self, frame: "DataFrame") -> "SparkSession":
        """The frame's session, which may be one that the asset created, with the catalog configured."""
        configure(frame.sparkSession, self.catalog.open().spark_configuration())
        return frame.sparkSession

    def _session(self, lake: LakeCatalog) -> "SparkSession":
        session: SparkSession = self.spark.spark_session
        configure(session, lake.spark_configuration())
        return session


def _without_table(context: dg.OutputContext) -> DeclarationError:
    return DeclarationError(
        asset=context.step_context.step.key,
        problem=f"its output {context.name!r} is passed between ops and has no table, so an IcdcIOManager can't write "
        "it.",
        remedy='Give it another IO manager: @dg.op(out=dg.Out(io_manager_key="files")), with '
        'resources={"files": dg.FilesystemIOManager()}.',
    )


def _read_by_another(key: dg.AssetKey) -> DeclarationError:
    return DeclarationError(
        asset=key.to_user_string(),
        problem="its incremental inputs and its table use different IO managers, so the one that writes doesn't know "
        "what was captured. Nothing was written and nothing was consumed.",
        remedy="Give the asset and its upstreams the same io_manager_key.",
    )


def _not_captured(key: dg.AssetKey, did: str) -> DeclarationError:
    return DeclarationError(
        asset=key.to_user_string(),
        problem=f"it declares an incremental_dep(), which must be published through capture(), but it {did}",
        remedy="Write inside the `with capture(...)` block and return nothing; or declare the input with "
        "ins={...: incremental()} and return the frame.",
    )


def _captured_twice(key: dg.AssetKey, *, is_published: bool) -> DeclarationError:
    asset = key.to_user_string()
    published = (
        "The first block was published and has consumed the change, so this one would find none; its statements didn't "
        f"run. Put all statements into one block, which publishes them together. Then recompute it: {full_run(asset)}."
    )
    nested = "Nothing was written and nothing was consumed. Put all statements into the outer block."
    return DeclarationError(
        asset=asset,
        problem="one of its steps calls capture() twice, but a change is consumed by a single block.",
        remedy=published if is_published else nested,
    )


@contextlib.contextmanager
def _logged(context: dg.InputContext | dg.OutputContext) -> Iterator[None]:
    """Log an ``IpsError`` in the run's log separately: in the step's failure it is hidden below Dagster's own error."""
    try:
        yield
    except IpsError as error:
        context.log.error(str(error))  # noqa: TRY400  # the stack trace is in the step's failure
        raise


def _publish(  # noqa: PLR0913, PLR0917  # all are independent
    runs: Runs,
    context: dg.OutputContext,
    table: str,
    result: Result,
    captured: RunInputs,
    plan: PlanVersion | None,
) -> Publication:
    step, key, metadata = context.step_context, context.asset_key, context.definition_metadata
    name, running = key.to_user_string(), asset_context()
    because = trusted_because(metadata)
    if because is not None:
        context.add_output_metadata({"trusted, not proved by the plan": because})
    changes = [view.change for view in captured.views.values()]
    result = replace(
        result,
        inputs=[each for each in changes if each.upstream not in captured.unrelated],
        unrelated=[each for each in changes if each.upstream in captured.unrelated],
        is_trusted=because is not None,
    )
    target = AssetTable(
        name,
        table,
        description_of(metadata),
        write_mode_of(metadata, name) or result.write_mode,
        with_plan(code_version(step, key), plan),
        captured.declared,
        plan,
        shares_views=running is not None and len(keys_of_step(running.assets_def)) > 1,
    )
    if context.has_asset_partitions:
        expression = partition_expression(metadata)
        divided = partition_keys(context.asset_partitions_def, expression, step.instance, asset=name)
        target = replace(target, divided=divided, partitions=context.asset_partition_keys)
    publisher = runs.publisher(step.dagster_run, key, captured, table=table, log=context.log.info)

    def audit(branch: Branch) -> None:
        run_audits(step, key, table, lambda: publisher.rows_of(branch))

    return publish_result(publisher, target, result, captured.captures, looked_up=captured.looked_up, check=audit)


def _show(context: dg.OutputContext, report: RunReport) -> None:
    """Show in the materializations what the run did; partitions of a run of several also show what each took."""
    context.add_output_metadata(run_metadata(report))
    for partition, count in report.captured.by_partition.items():
        shown = captured_metadata(count)
        context.step_context.add_asset_metadata(shown, asset_key=context.asset_key, partition_key=partition)
    if report.older:
        context.log.warning("%s: %s", report.table, report.older)


def _report_waiting(context: dg.OutputContext, *, behind: Sequence[str]) -> None:
    """Report that the table is unchanged, because the run was for other tables of its step."""
    why = f"this run was for {', '.join(behind)}, which had fallen behind; the new changes follow in the next run"
    context.log.info("%s was not written: %s", context.asset_key.to_user_string(), why)
    context.add_output_metadata({"summary": dg.MetadataValue.md(f"- **not written**: {escaped(why)}")})


def _partitions_read(
    context: dg.InputContext, metadata: Mapping[str, Any], upstream: TableMetadata
) -> Predicate | None:
    """A condition on the upstream for the partitions that the run's partitions depend on; None to read every row."""
    running = asset_context()
    if running is None or not context.has_asset_partitions or takes_all(running.assets_def, context.asset_key):
        return None
    name = context.asset_key.to_user_string()
    keys, instance = context.asset_partition_keys, context.step_context.instance
    return rows_of_keys(upstream, context.asset_partitions_def, keys, metadata, instance, asset=name)


def _module_of(running: dg.AssetExecutionContext | None) -> str | None:
    """The module of the asset's function, if it has one."""
    node: Any = running.assets_def.node_def if running else None
    function = getattr(getattr(node, "compute_fn", None), "decorated_fn", None)
    return getattr(function, "__module__", None)


def _partition_values(context: dg.OutputContext) -> list[tuple[Bound, str]]:
    """What an asset's function may know its partitions by: their keys, and where their time windows begin and end."""
    if not context.has_asset_partitions:
        return []
    keys = context.asset_partition_keys
    found: list[Bound] = [part for key in keys for part in dict.fromkeys([key, *key.split("|")])]
    if isinstance(definition := context.asset_partitions_def, dg.TimeWindowPartitionsDefinition):
        windows = [definition.time_window_for_partition_key(key) for key in (keys[0], keys[-1])]
        ends = [end for window in windows for end in (window.start, window.end)]
        found += [form for end in ends for form in (end, end.replace(tzinfo=None), end.date(), end.date().isoformat())]
    return [(value, "a partition") for value in dict.fromkeys(found)]


def in_form(view: IcdcView, annotation: object, *, parameter: str, asset: str) -> Any:  # noqa: ANN401  # see load_input
    """The input in the form that its parameter's annotation asks for.

    Raises:
        DeclarationError: the annotation isn't supported.
    """
    require_form(annotation, parameter=parameter, asset=asset)
    if annotation is str:
        return view.table
    return view.added if is_frame_class(annotation) else view


def returned(obj: object, declared: WriteMode | None, key: dg.AssetKey, mode: Mode, *, is_consumer: bool) -> Result:
    """What an asset returned in a run of that ``mode``, without what the run read for it.

    Raises:
        OutputTypeError: it is neither a DataFrame nor an Overwrite.
        DeclarationError: it is an Overwrite of an asset that can't return one, or its write mode needs a change.
    """
    asset = key.to_user_string()
    if isinstance(obj, MaintainedRows) and isinstance(declared, ByQuery):
        return Result(
            obj.frame,
            obj.write_mode,
            mode,
            is_derived=True,
            affected=obj.affected,
            may_cancel=obj.may_cancel,
            is_due=obj.is_due,
        )
    if is_frame(obj) and not isinstance(declared, ByQuery):
        if not is_consumer:
            require_replacing(key, declared)
        return Result(obj, declared or Replace(), mode)
    if not isinstance(obj, Overwrite):
        raise OutputTypeError(asset=asset, found="nothing" if obj is None else f"a {_type_name(obj)}")
    parts: tuple[object, object] = (obj.frame, obj.where)
    if not is_frame(parts[0]) or not isinstance(parts[1], str):
        kinds = ", ".join(map(_type_name, parts))
        found = f"Overwrite({kinds}), which takes a Spark DataFrame and a condition as SQL text"
        raise OutputTypeError(asset=asset, found=found)
    if declared is not None or not is_consumer:
        raise DeclarationError(
            asset=asset,
            problem="it returned an Overwrite, which replaces the rows affected by an incremental input's change, but "
            + ("it declares another write mode." if declared else "it has no incremental input.")
            + " Nothing was written and nothing was consumed.",
            remedy="Return the DataFrame, or remove the other write mode and declare the input with incremental().",
        )
    return Result(obj.frame, OverwriteWhere(obj.where), mode)


def _type_name(obj: object) -> str:
    """The type's name, with its library, because several libraries have a DataFrame."""
    library = type(obj).__module__.partition(".")[0]
    return type(obj).__name__ if library == "builtins" else f"{library} {type(obj).__name__}"


def metadata_by_key(step: Any) -> MetadataByKey:  # noqa: ANN401  # Dagster's class for it isn't public
    """The metadata of every asset in the asset graph."""
    graph = step.job_def.asset_layer.asset_graph
    return {key: graph.get(key).metadata for key in graph.get_all_asset_keys()}


def asset_context() -> dg.AssetExecutionContext | None:
    """The running asset's context; None in an asset check or outside a run, where nothing is captured."""
    try:
        return dg.AssetExecutionContext.get()
    except dg.DagsterInvariantViolationError:
        return None


def _staged(context: dg.InputContext) -> StagedRun | None:
    """What the input's run is staged for; None if it isn't staged."""
    step: Any = context.step_context
    return staged_run(step.dagster_run, step.instance)


def _reader(context: dg.InputContext) -> str:
    running = asset_context()
    keys = running.selected_asset_keys if running else ()
    return ", ".join(sorted(key.to_user_string() for key in keys)) or context.step_context.step.key


def _lookups() -> tuple[str, ...]:
    """The inputs that were read as a whole beside incremental ones, and whose own changes had no effect."""
    running = asset_context()
    if running is None:
        return ()
    declared = running.assets_def.node_def.input_dict
    keys = running.assets_def.keys_by_input_name
    return tuple(keys[name].to_user_string() for name, each in declared.items() if INCREMENTAL not in each.metadata)
