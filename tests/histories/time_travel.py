"""What a table held at each of its snapshots, read by Spark's time travel, comparable across schemas and frames."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from tests.histories.table import Field, HistoryTable, fields_of
from tests.histories.values import IcebergType

Row: TypeAlias = tuple[Any, ...]
"""A row's values, in the order of the schema through which it is seen. Rows that are equal here are equal in Spark."""
Rows: TypeAlias = Counter[Row]
Schema: TypeAlias = tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """Rows that Spark wrote as JSON, and their schema at that time."""

    schema: Schema
    rows: tuple[str, ...]

    def through(self, schema: Schema) -> Rows:
        """The rows as a reader with ``schema`` sees them: columns by field id, missing columns as null."""
        return Counter(_struct(json.loads(text, parse_float=Decimal), self.schema, schema) for text in self.rows)


def collect_json(frames: Mapping[str, DataFrame]) -> dict[str, tuple[str, ...]]:
    """Every row of each frame as JSON, in one Spark job."""
    parts = [
        frame.select(F.lit(name).alias("frame"), F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row"))
        for name, frame in frames.items()
    ]
    found: dict[str, list[str]] = {name: [] for name in frames}
    for name, row in reduce(DataFrame.unionAll, parts).collect() if parts else ():
        found[name].append(row)
    return {name: tuple(rows) for name, rows in found.items()}


@dataclass
class TimeTravel:
    """Reads each snapshot once. Snapshots never change, so the rows stay right after the snapshot has expired."""

    table: HistoryTable
    known: dict[int, Written] = field(default_factory=dict)

    def frames(self, *snapshot_ids: int | None) -> dict[str, DataFrame]:
        """Frames of the snapshots that weren't read yet, for ``collect_json``; pass its result to ``learn``."""
        retained = self.table.snapshots()
        return {
            f"{_PREFIX}{found}": self.table.sql(f"SELECT * FROM {self.table.sql_name} VERSION AS OF {found}")
            for found in dict.fromkeys(snapshot_ids)
            if found in retained and found not in self.known
        }

    def learn(self, collected: Mapping[str, Sequence[str]]) -> None:
        """Remember the collected rows of ``frames``."""
        raw = self.table.raw
        schemas = {s["snapshot-id"]: s.get("schema-id", raw["current-schema-id"]) for s in raw["snapshots"]}
        for name, rows in collected.items():
            if name.startswith(_PREFIX):
                snapshot_id = int(name.removeprefix(_PREFIX))
                self.known[snapshot_id] = Written(fields_of(raw, schemas[snapshot_id]), tuple(rows))

    def rows(self, snapshot_id: int | None, schema: Schema) -> Rows:
        """The rows at a snapshot that was read, seen through ``schema``; none if ``snapshot_id`` is None."""
        return self.known[snapshot_id].through(schema) if snapshot_id is not None else Counter()


_PREFIX = "as of "


def _struct(value: Mapping[str, Any], written: Sequence[Field], wanted: Sequence[Field]) -> Row:
    there = {found.id: found for found in written}
    return tuple(
        _value(value[there[f.id].name], there[f.id].type, f.type) if f.id in there else f.default for f in wanted
    )


def _value(value: Any, written: IcebergType, wanted: IcebergType) -> Any:  # noqa: ANN401  # a value of any column
    if value is None:
        return None
    if isinstance(wanted, str) or isinstance(written, str):
        return _PLAIN.get(str(wanted).partition("(")[0], str)(value)
    if wanted["type"] == "struct":
        return _struct(value, nested_fields(written), nested_fields(wanted))
    if wanted["type"] == "list":
        return tuple(_value(item, written["element"], wanted["element"]) for item in value)
    return frozenset((key, _value(item, written["value"], wanted["value"])) for key, item in value.items())


def nested_fields(kind: dict[str, Any]) -> tuple[Field, ...]:
    """The fields of a struct type."""
    return tuple(Field.of(raw) for raw in kind["fields"])


def _float(value: Any) -> float | str:  # noqa: ANN401  # JSON has no NaN: Spark writes text
    number = float(value)
    return "NaN" if math.isnan(number) else number + 0.0  # makes -0.0 equal to 0.0


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "int": int,
    "long": int,
    "double": _float,
    "float": _float,
    "decimal": Decimal,
    "variant": lambda value: json.dumps(value, sort_keys=True, default=str),
}


def difference(before: Rows, after: Rows) -> tuple[Rows, Rows]:
    """The rows added and the rows removed, like EXCEPT ALL in both directions."""
    return after - before, before - after
