"""The catalog of a lake in a folder: the embedded one, or the one in the folder's ``catalog.json``.

The choice is in a file so that runs in other processes use the same catalog.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import dagster_ips as ips
from dagster_ips.iceberg.catalog import LakeCatalog


def choose_catalog(folder: Path, properties: Mapping[str, str]) -> None:
    """Give the lake in ``folder``, which may not exist yet, a catalog with these properties."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "catalog.json").write_text(json.dumps(properties))


def catalog_resource(folder: Path) -> ips.IcebergCatalog:
    """The catalog as the resource that a user declares."""
    properties = _properties(folder)
    return ips.IcebergCatalog(properties=properties) if properties else ips.IcebergCatalog(folder=str(folder))


def lake_catalog(folder: Path) -> LakeCatalog:
    """The catalog itself, as a new object."""
    properties = _properties(folder)
    return LakeCatalog("lake", properties) if properties else LakeCatalog.embedded("lake", folder)


def _properties(folder: Path) -> dict[str, str]:
    file = folder / "catalog.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}
