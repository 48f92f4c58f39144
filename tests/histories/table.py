"""A real Iceberg table whose history is made step by step, and what its metadata says."""

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


class NotNow(Exception):  # noqa: N818  # not an error: a history simply goes on without the step
    """The operation means nothing for the table as it is: a column was dropped, there is nothing to roll back to."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a table begins. ``merging``: commits merge manifests as soon as there are two."""

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
        """From a table's metadata; ``default`` is the value in files written before the column was added."""
        return cls(raw["id"], raw["name"], raw["type"], raw.get("initial-default"))


@dataclass
class HistoryTable:
    """One table under test. ``watermarks`` gives the snapshots up to which its consumers have consumed.

    ``made_of`` are the columns that it begins with.
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
        """For Spark."""
        return f"lake.{self.name}"

    @property
    def version(self) -> int:
        """The format version as it is now."""
        return int(self.raw["format-version"])

    @property
    def raw(self) -> dict[str, Any]:
        """The current metadata.json."""
        return self.lake.catalog.load(self.name, asset="history").raw

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return path_of(self.raw["location"])

    def create(self) -> None:
        """Empty, in its shape."""
        columns = (*self.made_of, VARIANT) if self.shape.variant else self.made_of
        by = f" PARTITIONED BY ({', '.join(self.shape.partitioned_by)})" if self.shape.partitioned_by else ""
        properties = {"format-version": self.shape.version, "commit.manifest.min-count-to-merge": 2}
        properties |= {"commit.manifest-merge.enabled": str(self.shape.merging).lower()}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        types = ", ".join(f"{column.name} {column.type}" for column in columns)
        self.sql(f"CREATE TABLE {self.sql_name} ({types}) USING iceberg{by} TBLPROPERTIES ({listed})")
        self.columns = {f.id: column for f, column in zip(self.fields, columns, strict=True)}

    def drop(self) -> None:
        """With its files, without asking an engine."""
        folder = self.folder
        self.lake.catalog.client.drop_table(self.name)
        shutil.rmtree(folder)

    def sql(self, text: str) -> DataFrame:
        """By Spark."""
        return self.lake.sql(text)

    def by_pyiceberg(self) -> Table:
        """For a change by PyIceberg, which writes neither v3 nor ``variant``.

        Raises:
            NotNow: the table is one of those.
        """
        if self.version > 2 or self.shape.variant:
            raise NotNow
        return self.lake.catalog.client.load_table(self.name)

    @property
    def exists(self) -> bool:
        """Whether the catalog has it."""
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
        """The current schema's columns, and the fields of those that are structs as ``a.b``."""
        structs = [(f.name, f.type.get("fields", ())) for f in self.fields if isinstance(f.type, dict)]
        nested = {f"{name}.{raw['name']}": raw["id"] for name, fields in structs for raw in fields}
        return {f.name: f.id for f in self.fields} | nested

    def field(self, role: str) -> Field:
        """The column that began as ``role``, whatever it is called now.

        Raises:
            NotNow: it was dropped, or never there.
        """
        wanted = next((number for number, column in self.columns.items() if column.name == role), None)
        for found in self.fields:
            if found.id == wanted:
                return found
        raise NotNow

    def value(self, column: Field, row: int) -> Any:  # noqa: ANN401  # a value of any column
        """What ``row`` holds in ``column``."""
        first = self.columns.get(column.id)
        return first.of(row) if first else added_value(column.type, row)

    # Rows

    def sql_rows(self, rows: Sequence[int]) -> str:
        """A SELECT of ``rows``, columns by name."""
        fields = self.fields
        names = ", ".join(f"`{f.name}`" for f in fields)
        if not rows:
            typed = ", ".join(f"CAST(NULL AS {spark_type(f.type)}) AS `{f.name}`" for f in fields)
            return f"SELECT {typed} WHERE FALSE"
        lines = [", ".join(sql_value(self.value(f, row), f.type) for f in fields) for row in rows]
        return f"SELECT /*+ COALESCE(1) */ * FROM VALUES ({'), ('.join(lines)}) AS rows({names})"

    def arrow_rows(self, rows: Sequence[int]) -> pa.Table:
        """``rows`` for PyIceberg."""
        schema = self.by_pyiceberg().schema().as_arrow()
        values = [{f.name: self.value(f, row) for f in self.fields} for row in rows]
        maps = {f.name for f in self.fields if isinstance(f.type, dict) and f.type["type"] == "map"}
        as_items = [{k: list(v.items()) if k in maps and v else v for k, v in row.items()} for row in values]
        return pa.Table.from_pylist(as_items, schema=schema)

    # Snapshots

    @property
    def head(self) -> int | None:
        """The snapshot that ``main`` is at."""
        found = self.raw.get("refs", {}).get("main")
        return found["snapshot-id"] if found else None

    def ancestry(self) -> list[int]:
        """Main's snapshots that are retained, newest first."""
        parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in self.raw.get("snapshots", ())}
        found, at = [], self.head
        while at in parents:
            found.append(at)
            at = parents[at]
        return found

    def snapshots(self) -> list[int]:
        """Every retained snapshot, in the order in which they were committed."""
        return [s["snapshot-id"] for s in self.raw.get("snapshots", ())]

    def files(self) -> dict[Path, tuple[int, int]]:
        """Every file in its folder, with what would tell that it was written to."""
        found = ((path, path.stat()) for path in self.folder.rglob("*") if path.is_file())
        return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found}


def fields_of(raw: dict[str, Any], schema_id: int) -> tuple[Field, ...]:
    """The columns of one of a table's schemas."""
    schema = next(s for s in raw["schemas"] if s["schema-id"] == schema_id)
    return tuple(Field.of(f) for f in schema["fields"])


def path_of(location: str) -> Path:
    """A file's or folder's path; Spark writes ``file:/x``, PyIceberg ``file:///x``."""
    return Path(urlsplit(location).path)
