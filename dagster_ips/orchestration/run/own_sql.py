"""``capture``: an asset runs its own statements on a branch, which is then published as a whole."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Mode
from dagster_ips.core.ownership import ASSET
from dagster_ips.errors import DeclarationError, IdleJobError, RemovedRowsError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.column_evolution import follow_frame, require_types_fit
from dagster_ips.exactly_once.publish.input_change import Frame, InputChange
from dagster_ips.exactly_once.publish.partitions_of_run import PartitionsOfRun
from dagster_ips.exactly_once.publish.result_publication import create_target, order_new_target
from dagster_ips.exactly_once.publish.statement_block import Block, block
from dagster_ips.exactly_once.publish.table_changes import TableChanges
from dagster_ips.local_spark.private_files import write_private
from dagster_ips.local_spark.properties_file import properties_text
from dagster_ips.orchestration.declare.asset_keys import AssetName, asset_key_of
from dagster_ips.orchestration.declare.consumers import Consumer, MetadataByKey, capturing_consumers
from dagster_ips.orchestration.declare.declarations import description_of
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import partition_expression
from dagster_ips.orchestration.platform.staged_run import staged_run
from dagster_ips.orchestration.run.audits import run_audits
from dagster_ips.orchestration.run.cascade_tag import Running
from dagster_ips.orchestration.run.data_versions import code_version, keep_versions, record_versions
from dagster_ips.orchestration.run.io_manager import IcdcIOManager, metadata_by_key
from dagster_ips.orchestration.run.job_value import job_value
from dagster_ips.orchestration.run.leftover_branches import drop_leftover_branches
from dagster_ips.orchestration.run.run_metadata import RunReport, captured_metadata, older_rows_in, run_metadata
from dagster_ips.orchestration.run.runs import Runs
from dagster_ips.progress.made_rows import MadeBy
from dagster_ips.run_view import RunView
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.changelog import removed
from dagster_ips.spark.late import errors
from dagster_ips.spark.session import classic_configuration, is_secret
from dagster_ips.spark.targets import empty_frame
from dagster_ips.view import IcdcView

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession

_FRAMES = {"icdc": Frame.CHANGES, "added": Frame.ADDED, "removed": Frame.REMOVED, "source": Frame.SOURCE}
_PLACEHOLDER = re.compile(rf"\{{(?:target|(?:([\w/-]+)\.)?({'|'.join(_FRAMES)}))\}}")
_SHOW_REMOVED = (Frame.REMOVED, Frame.WEIGHTED, Frame.CHANGELOG, Frame.AFFECTED, Frame.SCOPE)


@dataclass(frozen=True)
class OwnSql:
    """The changes of an asset's upstreams, and the branch that its statements write to.

    ``views`` are the upstreams' IcdcViews by key, with every frame; ``session`` is the Spark session. To write without
    SQL, use ``frame.writeTo(icdc.target)``.
    """

    consumer: Consumer
    views: Mapping[str, RunView]
    session: SparkSession
    _block: Block
    _files: contextlib.ExitStack = field(repr=False)

    @property
    def target(self) -> str:
        """The branch's name in Spark SQL. Rows written to it are published when the block ends."""
        return self._block.branch.sql_name

    @property
    def mode(self) -> Mode:
        """``full`` or ``incremental``. In mode ``full`` the branch starts without rows and every row is added."""
        return next(iter(self.views.values())).mode

    @property
    def view(self) -> IcdcView:
        """The upstream's IcdcView, if there is only one.

        Raises:
            DeclarationError: there are several.
        """
        return self._view(None)

    @property
    def parameters(self) -> Mapping[str, str]:
        """``IcdcView.parameters`` of the upstream, if there is only one."""
        return self.view.parameters

    @property
    def job(self) -> dict[str, Any]:
        """All of this as one JSON value, for a job in another process: a Spark on this machine or on any cluster.

        ``target`` is the branch to write. ``added``, ``removed`` and ``source`` are SQL in place of a table name, by
        table and snapshot, exact after every kind of change. ``icdc_table`` is None unless all of its rows are new. The
        others are as in ``IcdcView.parameters`` and ``IcdcView.partitions``. They are in ``inputs`` by upstream and, if
        there is only one, also here. ``partition_keys`` are those of the run, of a partitioned asset; other partitions
        must stay as they are.

        ``spark_conf`` has what the job's Spark needs: the catalog, the stamp by which its commits are known to be of
        this run, and each text above as ``spark.icdc.added`` etc. ``secrets`` are further settings of the catalog, with
        the name of the environment variable that holds the value here, None if there is none. ``environment`` says what
        a process on this machine has to ``set`` and ``unset``.

        The block ends when the job has ended. It isn't published unless the job committed something.
        """
        self._block.serves_job = True
        block = self._block
        return job_value(
            self.consumer.name,
            self.target,
            self.views,
            block.publisher.catalog,
            block.stamp,
            partition_keys=block.partitions.keys if block.partitions else None,
        )

    def spark_submit_arguments(self) -> list[str]:
        """Arguments for ``spark-submit`` or ``spark-sql`` with all settings of ``job``, the jars for Iceberg included.

        They hold no secrets. If the catalog has some, they are in a file that only this user can read, until the block
        ends. Arguments that follow take precedence, such as ``--conf spark.jars=`` for a Spark with its own jars.
        """
        from dagster_ips.local_spark.jars import spark_jars  # noqa: PLC0415  # see LocalSparkConnect.spark_session

        lake = self._block.publisher.catalog
        settings = classic_configuration(spark_jars(extras=lake.spark_extras())) | self.job["spark_conf"]
        arguments = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        secrets = {key: value for key, value in lake.spark_configuration().items() if is_secret(key)}
        if secrets:
            file = Path(self._files.enter_context(tempfile.TemporaryDirectory())) / "secrets.properties"
            write_private(file, properties_text(secrets))
            arguments = ["--properties-file", str(file), "--load-spark-defaults", *arguments]
        return arguments

    def spark_command(self, program: str, *arguments: str) -> list[str]:
        """The command that runs ``program``, ``spark-submit`` or ``spark-sql``, on this machine, for ``job``.

        The environment is as ``job`` asks for. ``arguments`` follow those of ``spark_submit_arguments``. A program that
        isn't on the ``PATH`` is the one of ``SPARK_HOME`` or of PySpark.

        Example::

            pipes.run(context=context, command=icdc.spark_command("spark-sql", "-f", "by_account.sql"))
        """
        from dagster_ips.local_spark.launch import spark_home  # noqa: PLC0415  # it imports PySpark

        found = shutil.which(program) or str(spark_home() / "bin" / program)
        environment = self.job["environment"]
        unset = [part for name in environment["unset"] for part in ("-u", name)]
        variables = [f"{name}={value}" for name, value in environment["set"].items()]
        return ["env", *unset, *variables, found, *self.spark_submit_arguments(), *arguments]

    def sql(self, statement: str) -> DataFrame:
        """Run one statement of Spark SQL.

        ``{target}`` is the branch. ``{added}`` and ``{removed}`` are exactly the rows added to and removed from the
        upstream, ``{icdc}`` is the ICDC table with every row of the added files, ``{source}`` is the upstream as of the
        capture. With several upstreams: ``{playback.added}``. Other braces are left alone.

        Raises:
            PublishError: the table or the branch was changed in the meantime.
            DirectWriteError: the statement wrote to the table itself instead of ``{target}``.
        """
        text = _PLACEHOLDER.sub(self._filled, statement)
        try:
            with effect(Effect.WRITE_BRANCH):
                result = self.session.sql(text)
        except errors.PySparkException:
            self._block.check()  # What another run published may be why: it may have dropped what the statement reads.
            raise
        self._block.check()
        return result

    def _filled(self, found: re.Match[str]) -> str:
        upstream, frame = found.groups()
        return self._view(upstream).as_sql(_FRAMES[frame]) if frame else self.target

    def _view(self, upstream: str | None) -> RunView:
        views = dict(self.views)
        if upstream is None and len(views) == 1:
            (upstream,) = views
        if upstream not in views:
            one, *_ = views
            raise DeclarationError(
                asset=self.consumer.name,
                problem=f"it captures {', '.join(views)}; it is unclear which of them {upstream or 'one'} means.",
                remedy=f'Name it, as in "{{{one}.added}}" or icdc.views["{one}"].',
            )
        return views[upstream]


@contextlib.contextmanager
def capture(
    context: dg.AssetExecutionContext | dg.OpExecutionContext,
    *upstreams: AssetName,
    writes: str | None = None,
    columns: str | None = None,
) -> Iterator[OwnSql]:
    """Capture what changed, run the block's statements on the asset's table, and publish when the block ends.

    The asset declares each upstream with ``deps=[incremental_dep(...)]`` and returns nothing. All statements write to a
    branch; when the block ends, the branch becomes the table's ``main`` and the change is consumed. If the block fails,
    neither happens. In a graph-backed asset, use it in the op whose output is the asset.

    Args:
        context: The context of the asset or the op.
        upstreams: The keys of the upstreams. Default: all that the asset declares.
        writes: The asset's table; required in a step that computes several assets.
        columns: The table's columns in SQL, for example ``"day DATE, plays BIGINT"``. A table that doesn't exist yet is
            created with them, laid out as ``table(...)`` in the asset's metadata says. Missing columns are added to an
            existing table.

    Raises:
        DeclarationError: the asset doesn't declare this, or its table doesn't exist and ``columns`` aren't given.
        IpsError: nothing was published and nothing was consumed.

    Example:
        >>> from dagster_ips import incremental_dep, table
        >>> @dg.asset(deps=[incremental_dep("playback")], metadata=table("media.by_title"))
        ... def by_title(context):
        ...     with capture(context, columns="title STRING, plays BIGINT") as icdc:
        ...         icdc.sql("INSERT INTO {target} SELECT title, count(*) FROM {added} GROUP BY title")
    """
    step = context.get_step_execution_context()
    metadata = metadata_by_key(step)
    manager, consumer = _consumer(context, metadata, writes)
    _require_declared(consumer, upstreams)
    staged = staged_run(context.run, context.instance)
    partitions = _partitions(context, consumer, metadata)
    keys = partitions.keys if partitions else ()
    with manager.writing_by_capture(step, consumer.key):
        runs = manager.runs(context.instance).staged_for(staged)
        captured = runs.capture(consumer, context)
        started = time.monotonic()
        publisher = runs.publisher(context.run, consumer.key, captured, table=consumer.table, log=context.log.info)
        code = code_version(step, consumer.key)
        target = runs.lake.find(consumer.table)
        if target is not None:
            drop_leftover_branches(target, runs.lake.name, publisher.session, context.instance)
        publisher = replace(publisher, origin=MadeBy(code, captured.declared))

        def audit(branch: Branch) -> None:
            run_audits(step, consumer.key, consumer.table, lambda: publisher.rows_of(branch))

        with runs.writing(captured, consumer.table), contextlib.ExitStack() as files:
            changes = TableChanges(runs.lake, publisher.session, consumer.table, runs.lake.find(consumer.table))
            with changes.taken_back_on_error():
                _create(runs, consumer, columns, metadata, changes)
                captures, name = captured.captures, consumer.name
                with block(
                    publisher, consumer.table, captures, consumer=name, check=audit, partitions=partitions
                ) as written:
                    yield OwnSql(consumer, captured.views, publisher.session, written, files)
                    commits = written.commits() if written.serves_job else None
                    changed = [view.change for view in captured.views.values()]
                    if commits == [] and (upstreams := tuple(each.upstream for each in changed if not each.is_empty)):
                        raise IdleJobError(consumer.table, written.branch.sql_name, upstreams)
                    for each in changed:
                        _require_followed(consumer.table, each, commits)
        assert written.publication is not None  # noqa: S101  # the block has succeeded
        report = RunReport(
            table=consumer.table,
            captured=captured,
            publication=written.publication,
            write_seconds=time.monotonic() - started,
            older=older_rows_in(written.publication, captured, code),
            staged=staged,
        )
        if report.older:
            context.log.warning("%s: %s", consumer.table, report.older)
        step.add_asset_metadata(run_metadata(report), asset_key=consumer.key)
        for key, count in captured.by_partition.items():
            step.add_asset_metadata(captured_metadata(count), asset_key=consumer.key, partition_key=key)
        if staged:
            keep_versions(step, consumer.key)
        else:
            storage = runs.lake.storage
            record_versions(step, consumer.key, captured, written.publication, storage=storage, partitions=keys)
        runs.drop_old_tables(captured, context.instance)


def _consumer(context: Running, metadata: MetadataByKey, writes: str | None) -> tuple[IcdcIOManager, Consumer]:
    """The IO manager, which knows where the asset's table is, and the asset that the block writes."""
    step, assets = context.get_step_execution_context(), context.assets_def
    running = sorted(context.selected_asset_keys)
    if not running:
        name = ", ".join(sorted(key.to_user_string() for key in assets.keys))
        problem = "it calls capture(), but this run executes only its checks."
        remedy = "Check context.selected_asset_keys before calling capture()."
        raise DeclarationError(asset=name, problem=problem, remedy=remedy)
    manager = getattr(step.resources, assets.get_io_manager_key_for_asset_key(running[0]), None)
    name = ", ".join(key.to_user_string() for key in running)
    if not isinstance(manager, IcdcIOManager):
        problem = "it calls capture(), but its IO manager isn't an IcdcIOManager, which provides the catalog and Spark."
        raise DeclarationError(asset=name, problem=problem, remedy="Give it the io_manager_key of an IcdcIOManager.")
    consumers = capturing_consumers(assets, metadata, manager.default_namespace)
    found = [each for each in consumers if writes in (None, each.table)]
    if len(found) != 1:
        tables = ", ".join(f"{each.name} ({each.table})" for each in consumers) or "none"
        raise DeclarationError(
            asset=name,
            problem=f"it calls capture(writes={writes!r}), but its assets with an incremental_dep() are {tables}.",
            remedy='Name one of their tables in capture(writes=...) and in the metadata: table("media.by_title").',
        )
    if found[0].key not in running:
        problem = f"it isn't part of this run, which computes {name}."
        remedy = "Check context.selected_asset_keys before calling capture()."
        raise DeclarationError(asset=found[0].name, problem=problem, remedy=remedy)
    return manager, found[0]


def _partitions(context: Running, consumer: Consumer, metadata: MetadataByKey) -> PartitionsOfRun | None:
    """The run's partitions; None if the asset has none."""
    definition, expression = context.assets_def.partitions_def, partition_expression(metadata[consumer.key])
    if definition is None:
        return None
    divided = partition_keys(definition, expression, context.instance, asset=consumer.name)
    return PartitionsOfRun(divided, tuple(context.partition_keys))


def _require_declared(consumer: Consumer, upstreams: tuple[AssetName, ...]) -> None:
    """Refuse other upstreams than those declared.

    Changes of an upstream that isn't captured would stay pending; one that isn't declared has no table and no policies.
    """
    named = dict.fromkeys(asset_key_of(each).to_user_string() for each in upstreams)
    if named and named.keys() != consumer.inputs.keys():
        raise DeclarationError(
            asset=consumer.name,
            problem=f"it captures {', '.join(named)}, but declares {', '.join(consumer.inputs)}.",
            remedy="Declare captured upstreams with deps=[incremental_dep(...)], and capture all of them in one block.",
        )


def _create(
    runs: Runs, consumer: Consumer, columns: str | None, metadata: MetadataByKey, changes: TableChanges
) -> None:
    existing, session = changes.before, runs.session()
    if existing is None and columns is None:
        raise DeclarationError(
            asset=consumer.name,
            problem=f"its table {consumer.table} doesn't exist.",
            remedy='Create it, or give its columns: capture(context, columns="day DATE, plays BIGINT").',
        )
    description = description_of(metadata[consumer.key]).with_property(ASSET, consumer.name)
    declared = empty_frame(session, columns) if columns is not None else None
    if existing is not None and declared is not None:
        require_types_fit(declared, existing, catalog=runs.lake.name)
        follow_frame(declared, runs.lake, consumer.table, changes)
    if existing is None and declared is not None:
        create_target(runs.lake, session, consumer.table, declared, description)
    order_new_target(session, runs.lake.name, consumer.table, existing, description)


def _require_followed(table: str, change: InputChange, commits: Sequence[Snapshot] | None) -> None:
    """Refuse statements that don't read removed rows if there are any. What else the SQL does is unknown.

    ``commits`` are given if a job wrote some of them. What it read is unknown, but rows that were only added don't
    follow removed ones.
    """
    taken = {each.frame for each in change.taken}
    if not change.may_remove_rows:
        return
    if Frame.CHANGES in taken:
        raise RemovedRowsError(
            table=table,
            upstream=change.upstream,
            problem="{icdc} also holds existing rows that were only rewritten",
            remedy="Read {added} and {removed} instead, which are exact.",
        )
    if commits is None:
        follows, problem = Frame.ADDED not in taken or bool(taken & set(_SHOW_REMOVED)), "no statement uses {removed}"
    else:
        follows, problem = not all(each.only_adds for each in commits), "the job only added rows to the table"
    if not (change.ignores_removed or follows) and not removed(change.net()).isEmpty():
        raise RemovedRowsError(
            table=table,
            upstream=change.upstream,
            problem=problem,
            remedy="Use {removed} to remove the results of those rows, or recompute the groups that occur in {added} "
            "or {removed} from {source}.",
        )
