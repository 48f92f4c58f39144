"""Models of a dbt project as assets that are maintained incrementally."""

from __future__ import annotations

import json
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

_ADAPTERS = ("spark", "databricks", "glue")
_NO_TABLE = {
    "view": "it is a view: its query is inlined into the models that read it",
    "ephemeral": "it is ephemeral: its query is inlined into the models that read it",
    "incremental": "it is incremental, so the rows of its compiled SQL depend on when it was compiled. Make it a "
    "table: changes are found without is_incremental()",
}

_Node = Mapping[str, Any]
_Parts = tuple[str, ...]


@dataclass(frozen=True)
class DbtModels:
    """Models of a dbt project.

    ``assets`` has one asset for each model that was taken over. ``tables`` are the tables that these read and that
    something else writes: sources, seeds, snapshots and models that were not taken over. ``left_out`` gives the
    reasons, by model name. Pass ``exclude`` to ``dbt build --exclude``, so that dbt doesn't build the models that were
    taken over.
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
        DeclarationError: it isn't a usable manifest.
    """
    project = _Project.of(manifest)
    assets: list[dg.AssetsDefinition] = []
    left_out: dict[str, str] = {}
    read: dict[dg.AssetKey, _Node] = {}
    taken: list[_Node] = []
    for model in project.models():
        try:
            query = project.query(model)
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
        except _NotTakenError as error:
            left_out[model["name"]] = str(error)
        except DeclarationError as error:
            left_out[model["name"]] = error.problem
        else:
            assets.append(asset)
            taken.append(model)
            read |= {_key(node): node for node in query.sources.values()}
    made = {_key(model) for model in taken}
    outside = {key: node for key, node in read.items() if key not in made}
    tables = [iceberg_asset(key, table=_table(node), io_manager_key=io_manager_key) for key, node in outside.items()]
    return DbtModels(assets, tables, left_out, " ".join(".".join(model["fqn"]) for model in taken))


class _NotTakenError(ValueError):
    """A model isn't taken over from dbt; the text says why."""


@dataclass(frozen=True)
class _ModelQuery:
    """A model's query. ``sources`` are all tables that it reads: the node of each, by its name in the query."""

    text: str
    sources: Mapping[_Parts, _Node]
    partition_by: Sequence[str]
    properties: Mapping[str, str] | None


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
        nodes = [*manifest["nodes"].values(), *manifest["sources"].values()]
        by_name = {_lower(parts_of(node["relation_name"])): node for node in nodes if node.get("relation_name")}
        project = cls(by_name, manifest)
        tables = [model for model in project.models() if model["config"].get("materialized") == "table"]
        if tables and not any(model.get("compiled_code") for model in tables):
            problem = "it has no compiled SQL, as after `dbt parse`"
            raise _no_manifest(problem)
        return project

    def models(self) -> Iterator[_Node]:
        return (node for node in self.manifest["nodes"].values() if node["resource_type"] == "model")

    def query(self, model: _Node) -> _ModelQuery:
        """A model's query; raises ``_NotTakenError`` if the model isn't taken over."""
        config = model["config"]
        if problem := next(_problems(model), None):
            raise _NotTakenError(problem)
        text, sources = self._expanded(model)
        by, properties = config.get("partition_by") or [], config.get("tblproperties")
        return _ModelQuery(text, sources, [by] if isinstance(by, str) else by, properties)

    def _expanded(self, model: _Node) -> tuple[str, dict[_Parts, _Node]]:
        """The model's query with the queries of views inlined, and the tables that it then reads."""
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


def _problems(model: _Node) -> Iterator[str]:
    """Why a model isn't taken over, apart from its query."""
    config = model["config"]
    kind, stored, by = config.get("materialized"), config.get("file_format"), config.get("partition_by") or []
    if model.get("language", "sql") != "sql":
        yield f"it is written in {model['language']}"
    elif kind != "table":
        yield _NO_TABLE.get(kind, f"it is materialized as {kind}")
    elif not model.get("compiled_code"):
        yield "the manifest has no compiled SQL for it"
    if stored not in {None, "iceberg"}:
        yield f"its table format is {stored}, not Iceberg"
    for name in ("pre-hook", "post-hook", "grants", "sql_header"):
        if config.get(name):
            yield f"it has {name}, which only dbt can apply"
    if (config.get("contract") or {}).get("enforced"):
        yield "it has an enforced contract, which only dbt checks"
    if not isinstance(by, str) and not (isinstance(by, list) and all(isinstance(each, str) for each in by)):
        yield f"its partition_by is {by!r}, not columns"


def _of(model: _Node, problem: str) -> str:
    """The problem, preceded by the view's name if it is a view's; a model's own problems are listed by its name."""
    return f"the view {model['name']}: {problem}" if model["config"]["materialized"] == "view" else problem


def _key(node: _Node) -> dg.AssetKey:
    """The asset key that dagster-dbt's ``default_asset_key_fn`` gives (dagster-dbt 0.29)."""
    config = node.get("config") or {}
    for meta in (node.get("meta") or {}, config.get("meta") or {}):
        if found := (meta.get("dagster") or {}).get("asset_key"):
            return dg.AssetKey(found)
    if node["resource_type"] == "source":
        return dg.AssetKey([node["source_name"], node["name"]])
    if node.get("version"):
        return dg.AssetKey([node["alias"]])
    schema = config.get("schema")
    return dg.AssetKey([schema, node["name"]] if schema else [node["name"]])


def _table(node: _Node) -> str:
    """The table's name in the catalog: the last two parts of dbt's relation name."""
    return name_of(parts_of(node["relation_name"])[-2:])


def _no_manifest(problem: str) -> DeclarationError:
    remedy = "Run `dbt compile` with a Spark target, and pass the target/manifest.json that it writes."
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
