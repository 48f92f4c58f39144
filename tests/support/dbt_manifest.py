"""A manifest as ``dbt compile`` writes it, with only those entries that the library reads (dbt 1.9, adapter spark)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def model(name: str, sql: str | None, *, schema: str = "media", **config: Any) -> dict[str, Any]:  # noqa: ANN401  # of any kind
    """A model, with materialization ``table`` unless ``config`` has another one."""
    language = config.pop("language", "sql")
    materialized = config.get("materialized", "table")
    return {
        "resource_type": "model",
        "name": name,
        "alias": name,
        "fqn": ["media", name],
        "original_file_path": f"models/{name}.sql",
        "schema": schema,
        "language": language,
        "relation_name": None if materialized == "ephemeral" else f"{schema}.{name}",
        "compiled_code": sql,
        "description": "",
        "meta": {},
        "version": None,
        "config": {
            "materialized": materialized,
            "file_format": "iceberg",
            "schema": None,
            "meta": {},
            "pre-hook": [],
            "post-hook": [],
            "grants": {},
            "contract": {"enforced": False, "alias_types": True},
            **config,
        },
    }


def seed(name: str) -> dict[str, Any]:
    """A table that ``dbt seed`` writes."""
    return {**model(name, None, materialized="seed"), "resource_type": "seed"}


def source(group: str, name: str, table: str) -> dict[str, Any]:
    """A table written by something else, which the project calls ``source(group, name)``."""
    return {
        "resource_type": "source",
        "source_name": group,
        "name": name,
        "relation_name": table,
        "meta": {},
        "config": {"enabled": True},
    }


def manifest(*nodes: Mapping[str, Any], adapter: str = "spark") -> dict[str, Any]:
    """The whole manifest."""
    named = {_unique_id(node): node for node in nodes}
    return {
        "metadata": {"adapter_type": adapter},
        "nodes": {key: node for key, node in named.items() if node["resource_type"] != "source"},
        "sources": {key: node for key, node in named.items() if node["resource_type"] == "source"},
    }


def _unique_id(node: Mapping[str, Any]) -> str:
    if node["resource_type"] == "source":
        return f"source.media.{node['source_name']}.{node['name']}"
    return ".".join([node["resource_type"], node["fqn"][0], *node["fqn"][1 if node["version"] else -1 :]])
