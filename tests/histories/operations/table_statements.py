"""Statements and conditions that several kinds of operations use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo, IsNaN, IsNull

from tests.histories.operations.operation import Where
from tests.histories.table import HistoryTable
from tests.histories.values import sql_value


def new_name(table: HistoryTable) -> str:
    raw = table.raw
    return f"new_{len(raw['schemas'])}_{len(raw['partition-specs'])}"


def alter(table: HistoryTable, change: str) -> None:
    table.sql(f"ALTER TABLE {table.sql_name} {change}")


def where_clause(table: HistoryTable, where: Where) -> str:
    if where is None:
        return "TRUE"
    column = table.field(where[0])
    value = table.value(column, where[1])
    name = f"`{column.name}`"
    return f"{name} IS NULL" if value is None else f"{name} = {sql_value(value, column.type)}"


def pyiceberg_condition(table: HistoryTable, where: Where) -> BooleanExpression:
    if where is None:
        return AlwaysTrue()
    column = table.field(where[0])
    value = table.value(column, where[1])
    if value is None:
        return IsNull(column.name)
    return IsNaN(column.name) if value != value else EqualTo(column.name, value)  # noqa: PLR0124  # NaN is not equal to itself


@contextlib.contextmanager
def session_with(table: HistoryTable, configuration: Mapping[str, str]) -> Iterator[None]:
    conf = table.lake.session.conf
    for key, value in configuration.items():
        conf.set(key, value)
    try:
        yield
    finally:
        for key in configuration:
            conf.unset(key)
