"""The rows of histories: few values, so that they collide, and awkward ones among them.

A row is a number. Its values follow from the number and the table's current columns, so a history needs only one line
per step, whatever has happened to the schema before.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

IcebergType: TypeAlias = str | dict[str, Any]
"""A type in the form of a table's metadata.json."""

ROWS = 24
"""Rows are numbered from 0 to 23; higher numbers repeat the same rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of every new table. ``shared_by`` neighboring rows have the same value."""

    name: str
    type: str
    values: tuple[Any, ...]
    shared_by: int = 1

    def of(self, row: int) -> Any:  # noqa: ANN401  # a value of any column
        """The row's value."""
        return self.values[row // self.shared_by % len(self.values)]


COLUMNS = (
    Column("number", "int", (0, 1, 2, None)),
    Column("day", "date", (dt.date(2026, 1, 1), dt.date(2026, 1, 2), None), shared_by=4),
    Column("title", "string", ("a", "b/ c='é'", None, ""), shared_by=2),
    Column("amount", "double", (1.5, math.nan, None, -0.0, 0.0)),
    Column("ratio", "float", (0.5, None, math.nan, -math.inf), shared_by=3),
    Column("price", "decimal(9, 2)", (Decimal("1.50"), None, Decimal("-3.25")), shared_by=2),
    Column("place", "struct<city: string, code: int>", ({"city": "x", "code": 1}, None, {"city": None, "code": 2})),
    Column("tags", "array<string>", (["a"], [], None, ["b", None])),
    Column("marks", "map<string, int>", ({"j": 1, "k": 2}, {"k": 2, "j": 1}, {}, None, {"k": None})),
    Column("_change_type", "string", ("insert", "delete", None), shared_by=3),
)
VARIANT = Column("note", "variant", ({"a": 1, "b": [1, "x"]}, None, "text", 7))

_ADDED: Mapping[str, tuple[Any, ...]] = {
    "int": (None, 7),
    "long": (None, 2**40),
    "string": ("new", None),
    "double": (None, -0.0, math.nan),
    "date": (None, dt.date(2027, 1, 1)),
}


def added_value(kind: IcebergType, row: int) -> Any:  # noqa: ANN401  # a value of any column
    """A row's value in a column that was added to the table later."""
    values = _ADDED.get(kind, (None,)) if isinstance(kind, str) else (None,)
    return values[row // 2 % len(values)]


def spark_type(kind: IcebergType) -> str:
    """The type in Spark's SQL.

    Example:
        >>> spark_type({"type": "list", "element-id": 9, "element": "long", "element-required": False})
        'array<bigint>'
    """
    if isinstance(kind, str):
        return {"long": "bigint"}.get(kind, kind)
    if kind["type"] == "struct":
        fields = ", ".join(f"{field['name']}: {spark_type(field['type'])}" for field in kind["fields"])
        return f"struct<{fields}>"
    if kind["type"] == "list":
        return f"array<{spark_type(kind['element'])}>"
    return f"map<{spark_type(kind['key'])}, {spark_type(kind['value'])}>"


def sql_value(value: Any, kind: IcebergType) -> str:  # noqa: ANN401  # a value of any column
    """A Spark SQL expression with exactly this value and type."""
    if kind == "variant":
        return "CAST(NULL AS variant)" if value is None else f"parse_json({_text(json.dumps(value))})"
    return f"CAST({_expression(value, kind)} AS {spark_type(kind)})"


def _expression(value: Any, kind: IcebergType) -> str:  # noqa: ANN401  # as above
    if value is None:
        return "NULL"
    if isinstance(kind, str):
        return _text(str(value))
    if kind["type"] == "struct":
        fields = ((f["name"], sql_value(value.get(f["name"]), f["type"])) for f in kind["fields"])
        return _call("named_struct", [part for name, field in fields for part in (_text(name), field)])
    if kind["type"] == "list":
        return _call("array", [sql_value(item, kind["element"]) for item in value])
    pairs = ((sql_value(k, kind["key"]), sql_value(v, kind["value"])) for k, v in value.items())
    return _call("map", [part for pair in pairs for part in pair])


def _call(function: str, arguments: Sequence[str]) -> str:
    return f"{function}({', '.join(arguments)})"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
