"""Models of a dbt project as assets that are maintained incrementally."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_ips._late import LateModule
from dagster_ips.core.ranges import quoted
from dagster_ips.core.table_name import name_of, parts_of
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declare.declarations import iceberg_asset
from dagster_ips.orchestration.declare.sql_assets import sql_asset

if TYPE_CHECKING:
    from dagster_ips.query import query_text
else:  # As in sql_assets.
    query_text = LateModule("dagster_ips.query.query_text")

_ADAPTERS = {"spark": "iceberg", "databricks": "delta", "glue": "parquet"}
"""Those that are supported, with the format of a table that names none. Spark takes the catalog's own."""
_NO_TABLE = {
    "view": "it is a view: its query is inlined into the models that read it",
    "ephemeral": "it is ephemeral: its query is inlined into the models that read it",
    "incremental": "it is incremental, so the rows of its compiled SQL depend on when it was compiled. Make it a "
    "table: changes are found without is_incremental()",
}
_NO_ICEBERG = ("materialized_view", "streaming_table", "metric_view")
# What dbt makes of a table apart from its query, partitions and properties.
_ONLY_DBT = (
    *("pre-hook", "post-hook", "grants", "sql_header", "row_filter", "databricks_tags", "lf_tags_config", "lf_grants"),
    *("location_root", "custom_location", "options", "clustered_by", "liquid_clustered_by", "auto_liquid_cluster"),
    *("zorder", "add_iceberg_timestamp", "catalog_name"),
)
_IN_JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_OF_COMPILING = re.compile(r"\b(?:run_started_at|invocation_id|modules\s*\.\s*(?:datetime|pytz))\b")
_QUERIES = ("macro.dbt.run_query", "macro.dbt.statement")
_ONLY_COUNTS = "get_intervals_between"  # A macro that queries only the number of days between two dates.

_Node = Mapping[str, Any]
_Parts = tuple[str, ...]


@dataclass(frozen=True)
class DbtModels:
    """Models of a dbt project.

    ``assets`` has one asset for each model that was taken over. ``tables`` are the tables that these read and that
    something else writes: sources, seeds, snapshots and models that were not taken over. ``left_out`` gives the
    reasons, by model name; if several models have the name, by package, name and version. Pass ``exclude`` to
    ``dbt build --exclude``, so that dbt doesn't build the models that were taken over.
    """

    assets: Sequence[dg.AssetsDefinition]
    tables: Sequence[dg.AssetSpec]
    left_out: Mapping[str, str]
    exclude: str


def dbt_models(
    manifest: str | Path | Mapping[str, Any],
    *,
    refresh: str = "auto",
    io_manager_key: str = "io_manager",
    **attributes: Any,  # noqa: ANN401  # passed on to dagster.asset
) -> DbtModels:
    """Turn a dbt project's ``table`` models into assets, each a ``sql_asset`` of its compiled query.

    Keys are the ones that dagster-dbt gives by default. Each table gets the model's name, schema, ``partition_by`` and
    ``tblproperties``. Queries of views are inlined into the models that read them.

    Args:
        manifest: The ``target/manifest.json`` that ``dbt compile`` writes: its path or its content.
        refresh: As in ``sql_asset()``.
        io_manager_key: The key of an ``IcdcIOManager``, whose catalog has all of these tables.
        attributes: Other arguments of ``dagster.asset``, for every asset: ``group_name``, ``automation_condition``, ….

    Raises:
        DeclarationError: it isn't a usable manifest, or an argument is wrong.
    """
    project = _Project.of(manifest)
    # Wrong arguments are an error, and not a reason to leave out every model.
    _ = sql_asset("dbt_models", "SELECT * FROM a", refresh=refresh, io_manager_key=io_manager_key, **attributes)
    left_out: dict[str, str] = {}
    queries: dict[str, _ModelQuery] = {}
    for name, model in project.named_models().items():
        try:
            queries[name] = project.query(model)
        except _NotTakenError as error:
            left_out[name] = str(error)
    for name, problem in _mixed_up(queries).items():
        left_out[name] = problem
        del queries[name]
    assets: list[dg.AssetsDefinition] = []
    taken: list[_Node] = []
    read: dict[dg.AssetKey, _Node] = {}
    for name, query in queries.items():
        model = query.model
        try:
            asset = sql_asset(
                _key(model),
                query.text,
                table=_table(model),
                partition_by=query.partition_by,
                properties=query.properties,
                refresh=refresh,
                sources={name_of(parts): _key(node) for parts, node in query.sources.items()},
                description=model.get("description") or None,
                io_manager_key=io_manager_key,
                **attributes,
            )
        except DeclarationError as error:
            left_out[name] = error.problem
        except dg.DagsterInvalidDefinitionError as error:
            left_out[name] = f"Dagster can't declare it: {str(error).splitlines()[0]}"
        else:
            assets.append(asset)
            taken.append(model)
            read |= {_key(node): node for node in query.sources.values()}
    made = {_key(model) for model in taken}
    outside = {key: node for key, node in read.items() if key not in made}
    tables = [iceberg_asset(key, table=_table(node), io_manager_key=io_manager_key) for key, node in outside.items()]
    return DbtModels(assets, tables, left_out, " ".join(project.selectors(taken)))


class _NotTakenError(ValueError):
    """A model isn't taken over from dbt; the text says why."""


@dataclass(frozen=True)
class _ModelQuery:
    """A model's query. ``sources`` are all tables that it reads: the node of each, by its name in the query."""

    model: _Node
    text: str
    sources: Mapping[_Parts, _Node]
    partition_by: Sequence[str]
    properties: Mapping[str, str] | None

    @property
    def nodes(self) -> Sequence[_Node]:
        """The model and all that it reads."""
        return [self.model, *self.sources.values()]


@dataclass(frozen=True)
class _Project:
    """A dbt project. ``nodes`` are all nodes that have a name in the database, by that name in lower case."""

    nodes: Mapping[_Parts, _Node]
    manifest: _Node

    @classmethod
    def of(cls, given: str | Path | Mapping[str, Any]) -> _Project:
        manifest = given if isinstance(given, Mapping) else _content(Path(given))
        if not {"nodes", "sources", "metadata"} <= manifest.keys():
            problem = "it isn't a dbt manifest: it has no nodes, sources and metadata"
            raise _no_manifest(problem)
        adapter = manifest["metadata"].get("adapter_type")
        if adapter not in _ADAPTERS:
            problem = f"it was compiled for {adapter}, but only {', '.join(_ADAPTERS)} are supported"
            raise _no_manifest(problem)
        # A source may be declared for a model's table, which is the model all the same.
        nodes = [*manifest["sources"].values(), *manifest["nodes"].values()]
        by_name = {_lower(parts_of(node["relation_name"])): node for node in nodes if node.get("relation_name")}
        project = cls(by_name, manifest)
        tables = [model for model in project.models() if model["config"].get("materialized") == "table"]
        if tables and not any(model.get("compiled_code") for model in tables):
            problem = "it has no compiled SQL, as after `dbt parse`"
            raise _no_manifest(problem)
        return project

    @property
    def adapter(self) -> str:
        """What it was compiled for."""
        return str(self.manifest["metadata"]["adapter_type"])

    def models(self) -> Iterator[_Node]:
        return (node for node in self.manifest["nodes"].values() if node["resource_type"] == "model")

    def named_models(self) -> Mapping[str, _Node]:
        """The models by name; those of several versions, or packages, by package, name and version."""
        count = Counter(model["name"] for model in self.models())
        return {
            model["name"] if count[model["name"]] == 1 else unique.partition(".")[2]: model
            for unique, model in self.manifest["nodes"].items()
            if model["resource_type"] == "model"
        }

    def selectors(self, models: Sequence[_Node]) -> Iterator[str]:
        """What selects each of the models in dbt, and nothing else.

        A model's path selects everything whose path begins with it, as a folder's does.
        """
        chosen = {tuple(model["fqn"]) for model in models}
        others = [tuple(node["fqn"]) for node in self.manifest["nodes"].values() if node.get("fqn")]
        for model in models:
            path = tuple(model["fqn"])
            is_folder = any(other[: len(path)] == path and other not in chosen for other in others)
            yield ".".join(path) + (f",file:{Path(model['original_file_path']).name}" if is_folder else "")

    def query(self, model: _Node) -> _ModelQuery:
        """A model's query; raises ``_NotTakenError`` if the model isn't taken over."""
        config = model["config"]
        if problem := next(self._problems(model), None):
            raise _NotTakenError(problem)
        text, sources = self._expanded(model)
        by = config.get("partition_by") or []
        properties = config.get("table_properties" if self.adapter == "glue" else "tblproperties")
        query = _ModelQuery(model, text, sources, [by] if isinstance(by, str) else by, properties)
        if problem := next(self._problems_of_sources(query), None):
            raise _NotTakenError(problem)
        return query

    def _expanded(self, model: _Node) -> tuple[str, dict[_Parts, _Node]]:
        """The model's query with the queries of views inlined, and the tables that it then reads."""
        if cause := self._of_compiling(model):
            problem = f"its SQL depends on when it was compiled, because of {cause}"
            raise _NotTakenError(_of(model, problem))
        try:
            query = query_text.read(model["compiled_code"])
        except query_text.RefusedQueryError as error:
            raise _NotTakenError(_of(model, f"its query can't be maintained: {error}")) from None
        names: dict[int, str] = {}
        has_views = False
        sources: dict[_Parts, _Node] = {}
        for number, parts in enumerate(query.sources):
            node = self.nodes.get(_lower(parts))
            if node is None:
                raise _NotTakenError(_of(model, f"it reads {name_of(parts)}, which isn't in the manifest"))
            if node.get("config", {}).get("materialized") == "view":
                if not node.get("compiled_code"):
                    raise _NotTakenError(_of(model, f"the manifest has no compiled SQL for the view {node['name']}"))
                inner, its = self._expanded(node)
                has_views = True
                # A line break at the end, because the view's last line may be a comment.
                names[number] = f"(\n{inner}\n)"
                sources |= its
            else:
                names[number] = ".".join(quoted(part) for part in parts)
                sources[parts] = node
        return query.over(names) if has_views else query.text, sources

    def _problems(self, model: _Node) -> Iterator[str]:
        """Why a model isn't taken over, apart from its query."""
        config = model["config"]
        kind, by = config.get("materialized"), config.get("partition_by") or []
        if model.get("language", "sql") != "sql":
            yield f"it is written in {model['language']}"
        elif kind != "table":
            yield _NO_TABLE.get(kind, f"it is materialized as {kind}")
        elif not model.get("compiled_code") or not model.get("relation_name"):
            yield "the manifest has no compiled SQL for it"
        if (stored := self._format(model)) != "iceberg":
            yield f"its table format is {stored}, not Iceberg"
        for name in _ONLY_DBT:
            if config.get(name):
                yield f"it has {name}, which only dbt can apply"
        if any((each or {}).get("column_mask") for each in (model.get("columns") or {}).values()):
            yield "it has column_mask, which only dbt can apply"
        if (config.get("contract") or {}).get("enforced"):
            yield "it has an enforced contract, which only dbt checks"
        if not isinstance(by, str) and not (isinstance(by, list) and all(isinstance(each, str) for each in by)):
            yield f"its partition_by is {by!r}, not columns"

    def _problems_of_sources(self, query: _ModelQuery) -> Iterator[str]:
        """Why a model isn't taken over because of the tables that it reads."""
        for node in query.sources.values():
            name, kind = node["relation_name"], (node.get("config") or {}).get("materialized")
            if node is query.model:
                yield "it reads its own table, so its rows depend on those that dbt wrote before"
            if kind in _NO_ICEBERG:
                yield f"it reads {name}, which is materialized as {kind}, and isn't an Iceberg table"
            if node["resource_type"] != "source" and (stored := self._format(node)) != "iceberg":
                yield f"it reads {name}, whose table format is {stored}, not Iceberg"
        catalogs = {catalog.lower() for catalog, _ in map(_place, query.nodes) if catalog}
        if len(catalogs) > 1:
            yield f"it and the tables that it reads are in several catalogs: {', '.join(sorted(catalogs))}"

    def _format(self, node: _Node) -> str:
        config = node.get("config") or {}
        found = str(config.get("file_format") or _ADAPTERS[self.adapter]).lower()
        return "iceberg" if str(config.get("table_format")).lower() == "iceberg" else found

    def _of_compiling(self, node: _Node) -> str | None:
        """What in a node's text makes another query of it each time that it is compiled; None if nothing is known."""
        for block in _IN_JINJA.findall(node.get("raw_code") or ""):
            if found := _OF_COMPILING.search(block):
                return found[0]
        needs = node.get("depends_on") or {}
        for macro in needs.get("macros") or ():
            if self._varies(macro, set()):
                return f"its macro {macro.rpartition('.')[2]}"
        inlined = [self.manifest["nodes"].get(each) or {} for each in needs.get("nodes") or ()]
        ephemeral = [each for each in inlined if (each.get("config") or {}).get("materialized") == "ephemeral"]
        return next((why for each in ephemeral if (why := self._of_compiling(each))), None)

    def _varies(self, name: str, seen: set[str]) -> bool:
        """Whether a macro queries the database or uses the time of compiling, itself or by macros that it calls."""
        if name in seen or name.endswith(_ONLY_COUNTS):
            return False
        seen.add(name)
        macro = (self.manifest.get("macros") or {}).get(name) or {}
        calls = (macro.get("depends_on") or {}).get("macros") or ()
        return (
            name in _QUERIES
            or _OF_COMPILING.search(macro.get("macro_sql") or "") is not None
            or any(self._varies(each, seen) for each in calls)
        )


def _mixed_up(queries: Mapping[str, _ModelQuery]) -> Mapping[str, str]:
    """Why models can't be taken over because two of the tables would be one in Dagster, or in the catalog."""
    called: dict[str, set[str]] = defaultdict(set)
    for query in queries.values():
        for each, node in _identities(query):
            called[each].add(".".join(parts_of(node["relation_name"])).lower())
    found: dict[str, str] = {}
    for name, query in queries.items():
        for each, _ in _identities(query):
            if len(called[each]) > 1:
                found.setdefault(name, f"{' and '.join(sorted(called[each]))} would both be the {each}")
    return found


def _identities(query: _ModelQuery) -> Iterator[tuple[str, _Node]]:
    """What no two tables may share, of the model and of all that it reads."""
    for node in query.nodes:
        yield f"asset {_key(node).to_user_string()}", node
        yield f"table {_table(node).lower()}", node
    # In its name, my-table and my_table are the same.
    yield f"operation {_key(query.model).to_python_identifier()} in Dagster", query.model


def _of(model: _Node, problem: str) -> str:
    """The problem, preceded by the view's name if it is a view's; a model's own problems are listed by its name."""
    return f"the view {model['name']}: {problem}" if model["config"]["materialized"] == "view" else problem


def _key(node: _Node) -> dg.AssetKey:
    """The asset key that dagster-dbt's ``default_asset_key_fn`` gives (dagster-dbt 0.29)."""
    config = node.get("config") or {}
    meta = config.get("meta") or node.get("meta") or {}
    if found := (meta.get("dagster") or {}).get("asset_key"):
        return dg.AssetKey(found)
    if node["resource_type"] == "source":
        return dg.AssetKey([node["source_name"], node["name"]])
    if node.get("version"):
        return dg.AssetKey([node["alias"]])
    schema = config.get("schema")
    return dg.AssetKey([schema, node["name"]] if schema else [node["name"]])


def _table(node: _Node) -> str:
    """The table's name in the catalog."""
    return _place(node)[1]


def _place(node: _Node) -> tuple[str | None, str]:
    """The catalog, if dbt's name for the relation has one, and the name in it."""
    first, *others = parts_of(node["relation_name"])
    return (first, name_of(others)) if len(others) > 1 else (None, name_of([first, *others]))


def _no_manifest(problem: str) -> DeclarationError:
    remedy = (
        "Run `dbt compile --full-refresh` with a target of Spark, Databricks or Glue, and pass the "
        "target/manifest.json that it writes."
    )
    return DeclarationError(asset="dbt_models", problem=f"{problem}.", remedy=remedy)


def _content(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        problem = f"{path} can't be read: {error}"
        raise _no_manifest(problem) from None
    return found if isinstance(found, dict) else {}


def _lower(parts: Sequence[str]) -> _Parts:
    return tuple(part.lower() for part in parts)
