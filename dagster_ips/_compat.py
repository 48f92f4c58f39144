"""Private names of other packages, one function each, with the version it was checked on."""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from http import HTTPStatus
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import dagster as dg
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import StagedTable, Table
    from pyspark.sql import DataFrame, SparkSession

RANGE_START_TAG, RANGE_END_TAG = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"

_MOST_PARAMETERS = 1000
_KEPT: list[SparkSession] = []
_RELEASE_SECONDS = 2
_TRANSACTION = "transactions/commit"
_ENDINGS: dict[SparkSession, Callable[[], Exception | None]] = {}


def never_collect(session: SparkSession) -> None:
    """Keep a Spark Connect session for as long as the process lives (pyspark 4.1.4).

    A session that is garbage-collected shuts down a thread pool that all sessions of the process share. Python may
    collect it at any time. If that happens during another session's request, the process deadlocks with itself.
    """
    _KEPT.append(session)


def release_at_exit(session: SparkSession) -> None:
    """Make a Spark Connect client end its session on the server when the process exits (pyspark 4.1.4).

    Otherwise the server keeps it for an hour, with the database connections of its catalogs. The client asks once and
    waits at most two seconds. PySpark's own exit handler, which frees machine-learning models, is removed: if the
    server is gone, it retries for ten minutes, and the process hangs.
    """
    client: Any = getattr(session, "client")  # noqa: B009  # typed as the classic session, which has none
    for name in ("_cleanup_ml_cache", "_cleanup_ml"):  # PySpark 4.0 calls it by the second name.
        if hasattr(client, name):
            atexit.unregister(getattr(client, name))
    atexit.register(_release, client, os.getpid())


def _release(client: Any, owner: int) -> None:  # noqa: ANN401  # as above
    if os.getpid() != owner:  # A forked process: its parent still uses the session.
        return
    from pyspark.sql.connect import proto  # noqa: PLC0415  # as in session_with_token

    asked = proto.ReleaseSessionRequest(session_id=client._session_id, client_type=client._builder.userAgent)  # noqa: SLF001  # there is no public way
    if client._user_id:  # noqa: SLF001  # as above
        asked.user_context.user_id = client._user_id  # noqa: SLF001  # as above
    # If this fails, the server drops the session by itself, only later.
    with contextlib.suppress(Exception):
        client._stub.ReleaseSession(asked, metadata=client._builder.metadata(), timeout=_RELEASE_SECONDS)  # noqa: SLF001  # as above


def fail_once(session: SparkSession, ended: Callable[[], Exception | None]) -> None:
    """Make a Spark Connect client fail with the error that ``ended`` returns, once it returns one (pyspark 4.1.4).

    Otherwise every call to a server that doesn't answer is retried for ten minutes, even if the server is known to have
    ended.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415  # as in session_with_token

    class _UntilEnded(DefaultPolicy):
        def can_retry(self, e: BaseException) -> bool:
            if not super().can_retry(e):
                return False
            if error := ended():
                raise error from e
            return True

    client: Any = getattr(session, "client")  # noqa: B009  # as above
    client.set_retry_policies([_UntilEnded()])
    _ENDINGS[session] = ended


def forget_ended_sessions() -> None:
    """Stop PySpark's functions from using a session whose server has ended as the process's own (pyspark 4.1.4).

    The first session is the process's own until it is stopped, and a session without a server can't be stopped.
    """
    from pyspark.sql.connect.session import SparkSession as ConnectSession  # noqa: PLC0415  # as in session_with_token

    def has_ended(session: Any) -> bool:  # noqa: ANN401  # typed as the classic session elsewhere
        return session in _ENDINGS and _ENDINGS[session]() is not None

    own, active = cast("Any", ConnectSession), ConnectSession._active_session  # noqa: SLF001  # there is no public way
    with own._lock:  # noqa: SLF001  # as above
        if has_ended(own._default_session):  # noqa: SLF001  # as above
            own._default_session = None  # noqa: SLF001  # as above
    if has_ended(getattr(active, "session", None)):
        active.session = None


def session_with_token(remote: str, token: str) -> SparkSession:
    """A new Spark Connect session on this machine, at ``sc://127.0.0.1:port``, without TLS (pyspark 4.1.4).

    PySpark itself sends a token without TLS only to the host ``localhost``. That name also means ``::1``, where another
    user of the machine can listen on the same port and receive the token. PySpark also has gRPC add the token to each
    call in a new thread, which Python 3.12 can't start when the process exits: the session couldn't be released.
    """
    import grpc  # noqa: PLC0415  # needed only if a session is opened
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415  # as above
    from pyspark.sql.connect.session import SparkSession as ConnectSession  # noqa: PLC0415  # as above

    class _WithToken(DefaultChannelBuilder):
        def toChannel(self) -> grpc.Channel:  # noqa: N802  # PySpark's name
            return self._secure_channel(self.endpoint, grpc.local_channel_credentials())

        def metadata(self) -> Iterable[tuple[str, str]]:
            return [*super().metadata(), ("authorization", f"Bearer {token}")]

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # PySpark sets it too, for functions that both modes share.
    return cast("SparkSession", ConnectSession.builder.channelBuilder(_WithToken(remote)).create())


def on_commands(
    session: SparkSession, hear: Callable[[Any], None], hear_function: Callable[[str, object], None]
) -> bool:
    """Pass on what a Spark Connect session has executed that isn't a query, and the functions that were registered.

    False for a classic session (pyspark 4.1.4).
    """
    client: Any = getattr(session, "_client", None)
    if client is None:
        return False
    execute, define, define_table = client.execute_command, client.register_udf, client.register_udtf

    def execute_command(command: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # PySpark's own classes
        result = execute(command, *arguments, **options)
        hear(command)
        return result

    def register_udf(function: Any, return_type: Any, name: str | None = None, *rest: Any, **options: Any) -> str:  # noqa: ANN401  # as above
        made = define(function, return_type, name, *rest, **options)
        hear_function(made, function)
        return str(made)

    def register_udtf(function: Any, return_type: Any, name: str, *rest: Any, **options: Any) -> str:  # noqa: ANN401  # as above
        made = define_table(function, return_type, name, *rest, **options)
        hear_function(made, function)
        return str(made)

    client.execute_command, client.register_udf, client.register_udtf = execute_command, register_udf, register_udtf
    return True


class AnalyzedPlan:
    """The analyzed plan of a classic frame (pyspark 4.1.4)."""

    def __init__(self, frame: DataFrame) -> None:
        some: Any = frame
        self._plan = some._jdf.queryExecution().analyzed()  # noqa: SLF001  # no public API shows it
        self.json, self.text = str(self._plan.toJSON()), str(self._plan.toString())

    def commands(self, leaves: Container[str]) -> Iterator[bytes]:
        """The pickled Python functions in it, with the types that they return, but not below aliases in ``leaves``."""
        if "PythonUD" not in self.json:
            return
        for plan in [self._plan, *_items(self._plan.subqueriesAll())]:
            for node in _nodes(plan, leaves):
                for expression in _items(node.expressions()):
                    yield from _commands(expression)

    def rows(self, leaves: Container[str]) -> Iterator[str | None]:
        """The rows in it that Python or a query gave; None for each RDD whose rows are not given."""
        if not any(name in self.json for name in ("LogicalRDD", "LocalRelation")):
            return
        for plan in [self._plan, *_items(self._plan.subqueriesAll())]:
            for node in _nodes(plan, leaves):
                match node.getClass().getSimpleName():
                    case "LocalRelation":
                        yield str(node.data().mkString("; "))
                    case "LogicalRDD":
                        yield _rows_of(node.rdd())


def _nodes(plan: Any, leaves: Container[str]) -> Iterator[Any]:  # noqa: ANN401  # an object of the JVM
    if plan.getClass().getSimpleName() == "SubqueryAlias" and str(plan.alias()) in leaves:
        return
    yield plan
    for child in _items(plan.children()):
        yield from _nodes(child, leaves)


def _commands(expression: Any) -> Iterator[bytes]:  # noqa: ANN401  # as above
    if expression.getClass().getSimpleName().startswith("PythonUD"):
        numbers = str(expression.func().command().mkString(","))
        yield bytes(int(each) % 256 for each in numbers.split(","))
    for child in _items(expression.children()):
        yield from _commands(child)


def _rows_of(rdd: Any) -> str | None:  # noqa: ANN401  # as above
    """The rows that Python passed to Spark; None if the RDD begins with others."""
    import pickle  # noqa: PLC0415  # this process has written what is read

    while above := _items(rdd.dependencies()):
        if len(above) > 1:
            return None
        rdd = above[0].rdd()
    if rdd.getClass().getSimpleName() == "EmptyRDD":
        return ""
    if rdd.getClass().getSimpleName() != "ParallelCollectionRDD":
        return None
    batches = [batch for part in rdd.partitions() for batch in _items(part.values())]
    if not all(isinstance(batch, bytes) for batch in batches):
        return None
    return repr([row for batch in batches for row in pickle.loads(batch)])  # noqa: S301  # as above


def sent_plan(frame: DataFrame) -> Any | None:  # noqa: ANN401  # it isn't public
    """The plan of a frame as its Spark Connect client sends it; None for a classic frame (pyspark 4.1.4)."""
    some: Any = frame
    if hasattr(frame, "_jdf"):
        return None
    return some._plan.plan(some.sparkSession.client)  # noqa: SLF001  # there is no public way


def plan_number(frame: DataFrame) -> int | None:
    """The number of a frame in the plans of its Spark Connect client; None for a classic frame (pyspark 4.1.4)."""
    some: Any = frame
    return None if hasattr(frame, "_jdf") else some._plan._plan_id  # noqa: SLF001  # as above


def offers_register(catalog: Catalog) -> bool:
    """Whether a catalog can register a table. A REST server says so; DynamoDB's never can (pyiceberg 0.12.0)."""
    offered: Any = getattr(catalog, "_supported_endpoints", None)
    if offered is not None:
        from pyiceberg.catalog.rest import Capability  # noqa: PLC0415  # slow to import, and a REST catalog has already loaded it

        return Capability.V1_REGISTER_TABLE in offered
    return catalog.properties.get("type") != "dynamodb"  # DynamoDB's method only raises.


def commits_tables_together(catalog: Catalog) -> bool:
    """Whether a catalog commits several tables at once. Of REST servers, those that say so do (pyiceberg 0.12.0)."""
    offered: Any = getattr(catalog, "_supported_endpoints", ())
    return any(str(each).partition(" ")[2].endswith(f"/{_TRANSACTION}") for each in offered)


def commit_tables_together(catalog: Catalog, changes: Sequence[Mapping[str, Any]]) -> None:
    """Commit changes of several tables, all or none, for which PyIceberg has no method (pyiceberg 0.12.0).

    ``changes`` are as in the REST specification's ``CommitTransactionRequest``.

    Raises:
        CommitFailedException: a requirement isn't met; nothing was committed.
    """
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415  # slow to import, and a REST catalog has already loaded it

    rest: Any = catalog
    answer = rest._session.post(rest.url(_TRANSACTION), json={"table-changes": changes})  # noqa: SLF001  # logged in
    if answer.status_code == HTTPStatus.CONFLICT:
        raise CommitFailedException
    answer.raise_for_status()


def commit_or_swap(  # noqa: PLR0913  # all are independent
    catalog: Catalog,
    table: Table,
    *,
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
    metadata_location: str,
    write: Callable[[], str],
) -> None:
    """Commit ``updates`` to a table; where PyIceberg writes the metadata, have ``write`` do it (pyiceberg 0.12.0).

    PyIceberg drops what it doesn't know of a metadata file, and refuses to write one of format 3. It still locks or
    compares as the catalog needs it. Without ``write``, the metadata file is that at ``metadata_location``.

    Raises:
        CommitFailedException: a requirement isn't met, or the table has another metadata file; nothing was committed.
    """
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415  # slow to import
    from pyiceberg.table import CommitTableRequest, StagedTable  # noqa: PLC0415  # as above

    def stage(current: Table | None, identifier: tuple[str, ...], *_: object) -> StagedTable:
        if current is None or current.metadata_location != metadata_location:
            raise CommitFailedException
        # It is compared with the current one, and only what differs is committed.
        newer = current.metadata.model_copy(update={"last_updated_ms": current.metadata.last_updated_ms + 1})
        return StagedTable(identifier, newer, write(), current.io, own)

    own: Any = copy.copy(catalog)
    own._update_and_stage_table = stage  # noqa: SLF001  # there is no public way; REST catalogs don't call it
    own._write_metadata = own._write_metadata_no_exist_check = lambda **_: None  # noqa: SLF001  # as above
    words = {"identifier": {"namespace": [], "name": ""}, "requirements": requirements, "updates": updates}
    asked = CommitTableRequest.model_validate(words)
    own.commit_table(table, asked.requirements, asked.updates)


def on_vended(catalog: Catalog, hear: Callable[[tuple[str, ...], Mapping[str, str], Mapping[str, Any]], None]) -> None:
    """Pass on what a REST server vends with each table, which PyIceberg itself keeps only in part (pyiceberg 0.12.0).

    ``hear`` gets the table's identifier, its ``config``, and its ``storage-credentials`` by prefix. Other catalogs vend
    nothing, so ``hear`` is never called.
    """
    rest: Any = catalog
    respond = getattr(rest, "_response_to_table", None)
    if respond is None:
        return

    def heard(identifier: tuple[str, ...], response: Any) -> Any:  # noqa: ANN401  # PyIceberg's own classes
        hear(identifier, response.config, {each.prefix: each.config for each in response.storage_credentials})
        return respond(identifier, response)

    rest._response_to_table = heard  # noqa: SLF001  # every table that it loads passes through it


def explained(frame: DataFrame) -> str:
    """What ``explain(extended=True)`` prints (pyspark 4.1.4, classic and Connect)."""
    some: Any = frame
    if hasattr(frame, "_jdf"):
        explain = some.sparkSession._jvm.PythonSQLUtils.explainString  # noqa: SLF001  # the public way prints
        return str(explain(some._jdf.queryExecution(), "extended"))  # noqa: SLF001  # as above
    return str(some._explain_string(extended=True))  # noqa: SLF001  # as above


def origins_of_rdds(frame: DataFrame) -> set[str] | None:
    """The classes of the RDDs that the RDDs in a frame's plan begin with; None over Spark Connect (pyspark 4.1.4).

    Rows that Python passes to Spark begin as a ``ParallelCollectionRDD``; those of a frame or of a checkpoint don't.
    """
    some: Any = frame
    if not hasattr(frame, "_jdf"):
        return None
    plan = some._jdf.queryExecution().analyzed()  # noqa: SLF001  # no public API shows it
    plans, found, seen = [plan, *_items(plan.subqueriesAll())], set(), set()
    leaves = [leaf for each in plans for leaf in _items(each.collectLeaves())]
    rdds = [leaf.rdd() for leaf in leaves if leaf.getClass().getSimpleName() == "LogicalRDD"]
    while rdds:
        rdd = rdds.pop()
        if rdd.id() in seen:
            continue
        seen.add(rdd.id())
        above = [dependency.rdd() for dependency in _items(rdd.dependencies())]
        rdds += above
        if not above:
            found.add(str(rdd.getClass().getSimpleName()))
    return found


def _items(sequence: Any) -> list[Any]:  # noqa: ANN401  # an object of the JVM
    return [sequence.apply(at) for at in range(sequence.length())]


def knowing_partitions(instance: dg.DagsterInstance) -> contextlib.AbstractContextManager[object]:
    """A context in which dynamic partitions are read from the instance, which alone has them (dagster 1.13.27)."""
    from dagster._core.definitions.partitions.context import partition_loading_context  # noqa: PLC0415  # not needed by those who only want Spark

    return partition_loading_context(dynamic_partitions_store=instance)


def evaluate_by(
    sensor: dg.SensorDefinition,
    evaluate: Callable[[dg.SensorEvaluationContext, Callable[[], dg.SensorResult]], dg.SensorResult],
) -> None:
    """Let ``evaluate`` do each tick of an automation sensor; it can call Dagster's own evaluation (dagster 1.13.27).

    Dagster itself requests a run per partition, or a backfill, which its daemon looks at only twice a minute. Its
    evaluation may be called several times in a tick: the result depends only on the sensor's cursor, which advances
    with what the tick returns. Copies of the sensor, as Dagster makes of all that a component loads, do the same.
    """
    changed: Any = sensor
    dagsters, copied = changed._evaluation_fn, changed.with_attributes  # noqa: SLF001  # there is no public way

    def result_of(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        (result,) = dagsters(context)
        return cast("dg.SensorResult", result)

    def with_attributes(**attributes: Any) -> dg.SensorDefinition:  # noqa: ANN401  # whatever Dagster replaces
        copy: dg.SensorDefinition = copied(**attributes)
        evaluate_by(copy, evaluate)
        return copy

    changed._evaluation_fn = lambda context: [evaluate(context, partial(result_of, context))]  # noqa: SLF001  # as above
    changed.with_attributes = with_attributes


def has_value(result: dg.MaterializeResult[Any]) -> bool:
    """Whether a result has a value for the IO manager; without one, Dagster calls none (dagster 1.13.27)."""
    from dagster._core.definitions.utils import NoValueSentinel  # noqa: PLC0415  # not needed by those who only want Spark

    return result.value is not NoValueSentinel


def takes_config(assets: dg.AssetsDefinition) -> bool:
    """Whether a run can be given a config for the function of ``assets`` (dagster 1.13.27)."""
    from dagster._config import ConfigTypeKind  # noqa: PLC0415  # not needed by those who only want Spark

    node: Any = assets.node_def
    return node.config_schema.as_field().config_type.kind is not ConfigTypeKind.ANY


def select_every_output(context: dg.AssetExecutionContext, assets: dg.AssetsDefinition) -> None:
    """Let a context to call the function of ``assets`` with say that all outputs are selected (dagster 1.13.27).

    Only the context of a step knows which ones are, so a function that asks for them could not be called otherwise.
    """
    names = frozenset(output.name for output in assets.node_def.output_defs)
    own: Any = context.op_execution_context
    own._step_execution_context = SimpleNamespace(selected_output_names=names)  # noqa: SLF001  # there is no public way


def wrap_function(assets: dg.AssetsDefinition, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Compute ``assets`` by the function that ``wrap`` makes of theirs, unless they are a graph (dagster 1.13.27)."""
    node: Any = assets.node_def
    compute: Any = getattr(node, "_compute_fn", None)
    if hasattr(compute, "decorated_fn"):
        node._compute_fn = compute._replace(decorated_fn=wrap(compute.decorated_fn))  # noqa: SLF001  # no public way


def note_partitions_that_do_not_exist(note: str) -> None:
    """Have a run that reads upstream partitions that don't exist say ``note`` after Dagster's error (dagster 1.13.27).

    Dagster refuses it before an IO manager is asked for the input.
    """
    from dagster._core.execution.context.system import StepExecutionContext  # noqa: PLC0415  # loaded only where runs are

    asked: Any = StepExecutionContext.asset_partitions_subset_for_input
    if hasattr(asked, "__wrapped__"):
        return

    @wraps(asked)
    def noting(*values: Any, **named: Any) -> Any:  # noqa: ANN401  # as the method
        try:
            return asked(*values, **named)
        except Exception as error:
            if "depends on invalid partitions" in str(error):
                error.add_note(note)
            raise

    setattr(StepExecutionContext, asked.__name__, noting)


def set_input_data_version(step: Any, upstream: dg.AssetKey, version: str) -> None:  # noqa: ANN401  # its class isn't public
    """Set the upstream data version that a step's materialization is recorded as computed from (dagster 1.13.27).

    Dagster itself takes the version that was reported when the step began. If there was none, any later report makes
    the materialization stale.
    """
    from dagster import DagsterEventType, DataVersion  # noqa: PLC0415  # not needed by those who only want Spark
    from dagster._core.execution.context.data_version_cache import InputAssetVersionInfo  # noqa: PLC0415

    found = step.maybe_fetch_and_get_input_asset_version_info(upstream)
    known = found or InputAssetVersionInfo(0, DagsterEventType.ASSET_MATERIALIZATION, None, "", 0.0)
    step.input_asset_records[upstream] = replace(known, data_version=DataVersion(version))


def set_input_event(step: Any, upstream: dg.AssetKey, storage_id: int) -> None:  # noqa: ANN401  # as above
    """Set the upstream event up to which a step's materialization is recorded as computed (dagster 1.13.27).

    For partitions, Dagster treats everything that is reported after this event as a change.
    """
    known = step.maybe_fetch_and_get_input_asset_version_info(upstream)
    if known is not None:  # Without an event when the step began, Dagster compares the newest with itself.
        step.input_asset_records[upstream] = replace(known, storage_id=storage_id)


def data_versions_of_partitions(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partitions: Sequence[str]
) -> dict[str, str]:
    """The data version of each partition's newest materialization, where it has one (dagster 1.13.27).

    There may be more partitions than a query can have parameters; then it asks for all partitions of the asset.
    """
    from dagster import DagsterEventType  # noqa: PLC0415  # not needed by those who only want Spark
    from dagster._core.definitions.data_version import DATA_VERSION_TAG  # noqa: PLC0415

    few = list(partitions) if len(partitions) <= _MOST_PARAMETERS else None
    found = instance.event_log_storage.get_latest_tags_by_partition(
        asset, DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG], asset_partitions=few
    )
    return {key: tags[DATA_VERSION_TAG] for key, tags in found.items() if DATA_VERSION_TAG in tags}


def definitions_at(options: dict[str, Any], skip: Callable[[str], object]) -> Iterator[dg.Definitions]:
    """The definitions that the options of ``dagster`` commands specify, loaded in this process (dagster 1.13.27).

    Without options, ``[tool.dagster]`` in pyproject.toml or workspace.yaml specifies them. ``skip`` is called with the
    name of each code location that a code server has: its definitions can't be loaded here.

    Raises:
        click.UsageError: nothing specifies where they are, or options exclude each other.
    """
    from dagster import Definitions  # noqa: PLC0415  # not needed by those who only want Spark
    from dagster._cli.workspace.cli_target import workspace_opts_to_load_target  # noqa: PLC0415
    from dagster._core.remote_origin import GrpcServerCodeLocationOrigin  # noqa: PLC0415
    from dagster._grpc.utils import get_loadable_targets  # noqa: PLC0415
    from dagster_shared.cli import WorkspaceOpts  # noqa: PLC0415

    for origin in workspace_opts_to_load_target(WorkspaceOpts.extract_from_cli_options(options)).create_origins():
        if isinstance(origin, GrpcServerCodeLocationOrigin):
            skip(origin.location_name)
            continue
        target = origin.loadable_target_origin
        for found in get_loadable_targets(
            python_file=target.python_file,
            module_name=target.module_name,
            package_name=target.package_name,
            autoload_defs_module_name=target.autoload_defs_module_name,
            working_directory=target.working_directory,
            attribute=target.attribute,
            resolve_lazy_defs=False,
        ):
            loaded: Any = found.target_definition
            definitions = loaded if isinstance(loaded, Definitions) else loaded() if callable(loaded) else None
            if isinstance(definitions, Definitions):
                yield definitions


def asset_graph(items: Iterable[Any]) -> Any:  # noqa: ANN401  # it isn't public
    """The asset graph of ``items``, which may need resources that are added later (dagster 1.13.27)."""
    import dagster as dg  # noqa: PLC0415  # as above
    from dagster._core.definitions.assets.graph.asset_graph import AssetGraph  # noqa: PLC0415  # as above

    kinds = dg.AssetsDefinition | dg.SourceAsset
    assets = [dg.AssetsDefinition(specs=[each]) if isinstance(each, dg.AssetSpec) else each for each in items]
    return AssetGraph.from_assets([each for each in assets if isinstance(each, kinds)])


def new_backfill_id() -> str:
    """A new id of the kind that Dagster gives its backfills (dagster 1.13.27)."""
    from dagster._core.utils import make_new_backfill_id  # noqa: PLC0415  # not needed by those who only want Spark

    return make_new_backfill_id()


def requested_backfill(  # noqa: PLR0913  # they are independent of each other
    instance: dg.DagsterInstance,
    backfill_id: str,
    assets: Mapping[dg.AssetKey, Any],
    *,
    tags: Mapping[str, str],
    title: str,
    description: str,
    at: float,
) -> Any:  # noqa: ANN401  # it isn't public
    """A Dagster backfill of ``assets``, each of which the daemon runs after its upstreams (dagster 1.13.27).

    ``assets`` maps each asset to the subset of its partitions, or to None if it has no partitions.
    """
    from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset  # noqa: PLC0415  # as above
    from dagster._core.execution.backfill import PartitionBackfill  # noqa: PLC0415  # as above

    kind: Any = AssetGraphSubset
    parts = {key: partitions for key, partitions in assets.items() if partitions is not None}
    subset = kind(parts, assets.keys() - parts.keys())
    return PartitionBackfill.from_asset_graph_subset(
        backfill_id=backfill_id,
        backfill_timestamp=at,
        tags=dict(tags),
        dynamic_partitions_store=instance,
        asset_graph_subset=subset,
        title=title,
        description=description,
        run_config=None,
    )


def backfill_status(backfill: Any) -> str:  # noqa: ANN401  # it isn't public
    """Dagster's status of a backfill: REQUESTED, COMPLETED_SUCCESS, FAILED, CANCELED, … (dagster 1.13.27)."""
    return str(backfill.status.value)


def backfills_with_tag(instance: dg.DagsterInstance, tag: str, value: str) -> list[Any]:
    """Dagster's backfills with a tag, including re-executions, which keep the tags (dagster 1.13.27)."""
    from dagster._core.execution.backfill import BulkActionsFilter  # noqa: PLC0415  # as above

    return list(instance.get_backfills(filters=BulkActionsFilter(tags={tag: value})))


def cancelling(backfill: Any) -> Any | None:  # noqa: ANN401  # it isn't public
    """The backfill in a status that makes the daemon cancel it and its runs; None if it has ended (dagster 1.13.27)."""
    from dagster._core.execution.backfill import BulkActionStatus  # noqa: PLC0415  # as above

    if backfill.status in (BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING):
        return backfill.with_status(BulkActionStatus.CANCELING)
    return None


def run_arguments(instance: dg.DagsterInstance, run: dg.DagsterRun) -> tuple[str, str]:
    """The interpreter that loads a run's definitions, and the argument for ``execute_run`` (dagster 1.13.27).

    Dagster's launchers for containers pass the same argument to ``dagster api execute_run``.
    """
    from dagster._grpc.types import ExecuteRunArgs  # noqa: PLC0415  # takes a tenth of a second
    from dagster._serdes import serialize_value  # noqa: PLC0415  # as above

    origin = run.job_code_origin
    assert origin is not None  # noqa: S101  # the launcher has checked it
    arguments = ExecuteRunArgs(origin, run.run_id, instance.get_ref(), set_exit_code_on_failure=True)
    return origin.executable_path, serialize_value(arguments)


def code_server_host(run: dg.DagsterRun) -> str | None:
    """The host of the code server with the run's definitions, if Dagster did not start it (dagster 1.13.27)."""
    from dagster._core.remote_origin import GrpcServerCodeLocationOrigin  # noqa: PLC0415  # as above

    origin = run.remote_job_origin
    location = origin.repository_origin.code_location_origin if origin else None
    return location.host if isinstance(location, GrpcServerCodeLocationOrigin) else None


def execute_run(arguments: str) -> None:
    """Execute the run in this process (dagster 1.13.27).

    Raises:
        SystemExit: the run failed.
    """
    from dagster._cli.api import execute_run_command  # noqa: PLC0415  # as above

    execute_run_command.main([arguments], standalone_mode=False)


def report_ended(arguments: str, how: str) -> None:
    """Report to Dagster that a run's process has ended, unless the run is already finished (dagster 1.13.27)."""
    import dagster as dg  # noqa: PLC0415  # as above
    from dagster._grpc.types import ExecuteRunArgs  # noqa: PLC0415  # as above
    from dagster._serdes import deserialize_value  # noqa: PLC0415  # as above

    given = deserialize_value(arguments, ExecuteRunArgs)
    assert given.instance_ref is not None  # noqa: S101  # run_arguments gives one
    with dg.DagsterInstance.from_ref(given.instance_ref) as instance:
        run = instance.get_run_by_id(given.run_id)
        if run is None or run.is_finished:
            return
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, message=how)
        else:
            instance.report_run_failed(run, message=how)
