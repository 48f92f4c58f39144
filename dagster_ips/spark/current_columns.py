"""The rows of a snapshot with the columns that its table has now; time travel shows the columns of then.

A table gets, loses and renames columns without a snapshot. Fields are matched by id. Source: Iceberg table spec,
"Column Projection" and "Default values".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from dagster_ips.core.columns import Kind, ListOf, MapOf, Struct, type_text
from dagster_ips.core.ranges import quoted
from dagster_ips.spark.late import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Fields: TypeAlias = Sequence[Mapping[str, Any]]
"""Columns, or fields of a nested column, as they are in a table's metadata."""

_BINARY = "binary"


def by_current_columns(rows: DataFrame, then: Fields, now: Fields, columns: Struct) -> DataFrame:
    """``rows``, read with the columns ``then``, converted to the columns ``now``, whose types are ``columns``."""
    return rows.select(*_fields({field["name"]: F.col(quoted(field["name"])) for field in then}, then, now, columns))


def _fields(values: Mapping[str, Column], then: Fields, now: Fields, kinds: Struct) -> list[Column]:
    before = {field["id"]: field for field in then}
    found = []
    for field, column in zip(now, kinds.fields, strict=True):
        was = before.get(field["id"])
        value = (
            _shown(values[was["name"]], was["type"], field["type"], column.kind) if was else _new(field, column.kind)
        )
        found.append(value.alias(column.name))
    return found


def _shown(value: Column, then: Any, now: Any, kind: Kind) -> Column:  # noqa: ANN401  # a type as metadata has it
    if then == now:
        return value
    match kind:
        case Struct():
            fields = {field["name"]: value.getField(field["name"]) for field in then["fields"]}
            return F.when(value.isNotNull(), F.struct(*_fields(fields, then["fields"], now["fields"], kind)))
        case ListOf(element):
            return F.transform(value, lambda each: _shown(each, then["element"], now["element"], element))
        case MapOf(key, of_key):

            def entry(each: Column) -> Column:
                return F.struct(
                    _shown(each.getField("key"), then["key"], now["key"], key),
                    _shown(each.getField("value"), then["value"], now["value"], of_key),
                )

            return F.map_from_entries(F.transform(F.map_entries(value), entry))
        case _:
            return value.cast(type_text(kind))


def _new(field: Mapping[str, Any], kind: Kind) -> Column:
    """The value of a new column in rows from before it."""
    text, default = type_text(kind, quoted), field.get("initial-default")
    return F.unhex(F.lit(default)) if default is not None and text == _BINARY else F.lit(default).cast(text)
