"""The durable state around a pipeline: every file of the lake, every row of its catalog, every cursor."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import dagster as dg
import sqlalchemy as db

from tests.support.lake import Lake


@dataclass(frozen=True)
class Durable:
    """Everything that a run can change, as one comparable value: files by size and modification time, rows by value."""

    items: Mapping[str, object]

    def changed_since(self, earlier: Durable) -> set[str]:
        """The keys of everything that was added, removed or changed."""
        keys = self.items.keys() | earlier.items.keys()
        return {key for key in keys if self.items.get(key) != earlier.items.get(key)}


def durable(lake: Lake, instance: dg.DagsterInstance) -> Durable:
    """The state now. Rows stand for the catalog's own database file, and cursors for Dagster's."""
    items: dict[str, object] = {}
    for path in lake.folder.rglob("*"):
        if not path.name.startswith("catalog.db"):
            found = path.stat()
            items[f"file {path}"] = None if path.is_dir() else (found.st_size, found.st_mtime_ns)
    with closing(sqlite3.connect(lake.folder / "catalog.db")) as catalog:
        for table in ("iceberg_tables", "iceberg_namespace_properties"):
            for row in catalog.execute(f"SELECT * FROM {table}").fetchall():
                items[f"catalog {table} {row[:3]}"] = row
    items.update((f"cursor {key}", value) for key, value in cursors(instance).items())
    return Durable(items)


def cursors(instance: dg.DagsterInstance) -> dict[str, str]:
    """Every value in Dagster's cursor storage, by key. Read from the database, because Dagster can't list them."""
    with instance.run_storage.connect() as connection:  # type: ignore[attr-defined]  # both storages are SQL
        return {key: value for key, value in connection.execute(db.text("SELECT key, value FROM kvs"))}  # noqa: C416
