"""Which catalog a lake in a folder has: the embedded one, or what the folder's ``catalog.json`` says.

In a file, so that runs in processes of their own have the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import dagster_ips as ips
from dagster_ips.iceberg.catalog import LakeCatalog


def choose_catalog(folder: Path, properties: Mapping[str, str]) -> None:
    """Let the lake in ``folder``, which may not exist yet, have the catalog of these properties."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "catalog.json").write_text(json.dumps(properties))


def catalog_resource(folder: Path) -> ips.IcebergCatalog:
    """As a user declares it."""
    properties = _properties(folder)
    return ips.IcebergCatalog(properties=properties) if properties else ips.IcebergCatalog(folder=str(folder))


def lake_catalog(folder: Path) -> LakeCatalog:
    """The catalog itself, an object of its own."""
    properties = _properties(folder)
    return LakeCatalog("lake", properties) if properties else LakeCatalog.embedded("lake", folder)


def _properties(folder: Path) -> dict[str, str]:
    file = folder / "catalog.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}
