"""A real Iceberg table whose history is made step by step, and what its metadata contains."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from tests.histories.values import COLUMNS, VARIANT, Column, IcebergType, added_value, spark_type, sql_value
from tests.support.lake import Lake

NAMESPACE = "media"
_numbers = itertools.count()


class NotNow(Exception):  # noqa: N818  # not an error: the history continues without the step
    """The operation has no meaning for the table now: a column was dropped, or there is nothing to roll back to."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The initial state of a table. ``merging``: commits merge manifests as soon as there are two."""

    version: int = 2
    partitioned_by: tuple[str, ...] = ()
    merging: bool = False
    variant: bool = False


PLAIN = Shape()


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the current schema."""

    id: int
    name: str
    type: IcebergType
    default: Any = None

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Field:
        """A column from a table's metadata. ``default`` is its value in files written before the column was added."""
        return cls(raw["id"], raw["name"], raw["type"], raw.get("initial-default"))


@dataclass
class HistoryTable:
    """A table under test. ``watermarks`` returns the snapshots up to which its consumers have consumed.

    ``made_of`` are the table's first columns.
    """

    lake: Lake
    shape: Shape = PLAIN
    watermarks: Callable[[], Sequence[int]] = lambda: ()
    name: str = field(default_factory=lambda: f"{NAMESPACE}.history_{next(_numbers)}")
    made_of: tuple[Column, ...] = COLUMNS

    def __post_init__(self) -> None:
        self.lake.catalog.create_namespace(NAMESPACE)
        self.create()

    @property
    def sql_name(self) -> str:
        """The table's name in Spark."""
        return f"lake.{self.name}"

    @property
    def version(self) -> int:
        """The current format version."""
        return int(self.raw["format-version"])

    @property
    def raw(self) -> dict[str, Any]:
        """The current metadata.json."""
        return self.lake.catalog.load(self.name, asset="history").raw

    @property
    def folder(self) -> Path:
        """The folder of the table's files."""
        return path_of(self.raw["location"])

    def create(self) -> None:
        """Create the table, empty, in its shape."""
        columns = (*self.made_of, VARIANT) if self.shape.variant else self.made_of
        by = f" PARTITIONED BY ({', '.join(self.shape.partitioned_by)})" if self.shape.partitioned_by else ""
        properties = {"format-version": self.shape.version, "commit.manifest.min-count-to-merge": 2}
        properties |= {"commit.manifest-merge.enabled": str(self.shape.merging).lower()}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        types = ", ".join(f"{column.name} {column.type}" for column in columns)
        self.sql(f"CREATE TABLE {self.sql_name} ({types}) USING iceberg{by} TBLPROPERTIES ({listed})")
        self.columns = {f.id: column for f, column in zip(self.fields, columns, strict=True)}

    def drop(self) -> None:
        """Drop the table and its files, without an engine."""
        folder = self.folder
        self.lake.catalog.client.drop_table(self.name)
        shutil.rmtree(folder)

    def sql(self, text: str) -> DataFrame:
        """Run a statement with Spark."""
        return self.lake.sql(text)

    def by_pyiceberg(self) -> Table:
        """The table for a change by PyIceberg, which can write neither v3 nor ``variant``.

        Raises:
            NotNow: PyIceberg can't write the table.
        """
        if self.version > 2 or self.shape.variant:
            raise NotNow
        return self.lake.catalog.client.load_table(self.name)

    @property
    def exists(self) -> bool:
        """Whether the catalog has the table."""
        try:
            return bool(self.lake.catalog.client.load_table(self.name))
        except NoSuchTableError:
            return False

    # Columns

    @property
    def fields(self) -> tuple[Field, ...]:
        """The current schema's columns."""
        return fields_of(self.raw, self.raw["current-schema-id"])

    def field_ids(self) -> dict[str, int]:
        """The ids of the current schema's columns, and of the fields of structs as ``a.b``."""
        structs = [(f.name, f.type.get("fields", ())) for f in self.fields if isinstance(f.type, dict)]
        nested = {f"{name}.{raw['name']}": raw["id"] for name, fields in structs for raw in fields}
        return {f.name: f.id for f in self.fields} | nested

    def field(self, role: str) -> Field:
        """The column whose first name was ``role``, whatever its name is now.

        Raises:
            NotNow: the column was dropped or never existed.
        """
        wanted = next((number for number, column in self.columns.items() if column.name == role), None)
        for found in self.fields:
            if found.id == wanted:
                return found
        raise NotNow

    def value(self, column: Field, row: int) -> Any:  # noqa: ANN401  # a value of any column
        """The value of ``row`` in ``column``."""
        first = self.columns.get(column.id)
        return first.of(row) if first else added_value(column.type, row)

    # Rows

    def sql_rows(self, rows: Sequence[int]) -> str:
        """A SELECT that returns ``rows``, with named columns."""
        fields = self.fields
        names = ", ".join(f"`{f.name}`" for f in fields)
        if not rows:
            typed = ", ".join(f"CAST(NULL AS {spark_type(f.type)}) AS `{f.name}`" for f in fields)
            return f"SELECT {typed} WHERE FALSE"
        lines = [", ".join(sql_value(self.value(f, row), f.type) for f in fields) for row in rows]
        return f"SELECT /*+ COALESCE(1) */ * FROM VALUES ({'), ('.join(lines)}) AS rows({names})"

    def arrow_rows(self, rows: Sequence[int]) -> pa.Table:
        """``rows`` as a table for PyIceberg."""
        schema = self.by_pyiceberg().schema().as_arrow()
        values = [{f.name: self.value(f, row) for f in self.fields} for row in rows]
        maps = {f.name for f in self.fields if isinstance(f.type, dict) and f.type["type"] == "map"}
        as_items = [{k: list(v.items()) if k in maps and v else v for k, v in row.items()} for row in values]
        return pa.Table.from_pylist(as_items, schema=schema)

    # Snapshots

    @property
    def head(self) -> int | None:
        """The snapshot of ``main``."""
        found = self.raw.get("refs", {}).get("main")
        return found["snapshot-id"] if found else None

    def ancestry(self) -> list[int]:
        """The retained snapshots of main, newest first."""
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in self.raw.get("snapshots", ())}
        found, at = [], self.head
        while at in parents:
            found.append(at)
            at = parents[at]
        return found

    def snapshots(self) -> list[int]:
        """Every retained snapshot, in the order of the commits."""
        return [s["snapshot-id"] for s in self.raw.get("snapshots", ())]

    def files(self) -> dict[Path, tuple[int, int]]:
        """Every file in the table's folder, with its size and modification time, which show any write."""
        found = ((path, path.stat()) for path in self.folder.rglob("*") if path.is_file())
        return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found}


def fields_of(raw: dict[str, Any], schema_id: int) -> tuple[Field, ...]:
    """The columns of one of a table's schemas."""
    schema = next(s for s in raw["schemas"] if s["schema-id"] == schema_id)
    return tuple(Field.of(f) for f in schema["fields"])


def path_of(location: str) -> Path:
    """The path of a file or folder; Spark writes ``file:/x``, PyIceberg ``file:///x``."""
    return Path(urlsplit(location).path)
