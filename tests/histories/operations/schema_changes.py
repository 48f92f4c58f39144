"""Columns are added, dropped and changed."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.histories import handmade
from tests.histories.operations.operation import operation, roles
from tests.histories.operations.table_statements import alter, new_name
from tests.histories.table import HistoryTable, NotNow
from tests.histories.values import spark_type


@operation("schema", kind=st.sampled_from(["int", "bigint", "string", "double", "date"]))
def add_column(table: HistoryTable, *, kind: str) -> None:
    alter(table, f"ADD COLUMN {new_name(table)} {kind}")


@operation("schema", versions=(3,))
def add_column_with_default(table: HistoryTable) -> None:
    handmade.add_column_with_default(table, new_name(table), "int", 7)


@operation("schema", refused=["Cannot drop"], role=roles)
def drop_column(table: HistoryTable, *, role: str) -> None:
    _never_partitioned_by(table, role)
    alter(table, f"DROP COLUMN `{table.field(role).name}`")


@operation("schema", role=roles)
def drop_and_add_again(table: HistoryTable, *, role: str) -> None:
    """The name comes back, but not the values."""
    _never_partitioned_by(table, role)
    dropped = table.field(role)
    alter(table, f"DROP COLUMN `{dropped.name}`")
    alter(table, f"ADD COLUMN `{dropped.name}` {spark_type(dropped.type)}")


@operation("schema", role=roles)
def rename_column(table: HistoryTable, *, role: str) -> None:
    alter(table, f"RENAME COLUMN `{table.field(role).name}` TO {new_name(table)}")


@operation("schema", one=roles, other=roles)
def swap_names(table: HistoryTable, *, one: str, other: str) -> None:
    for role in (one, other):
        _never_partitioned_by(table, role)
    names = table.field(one).name, table.field(other).name
    if one == other:
        raise NotNow
    for before, after in ((names[0], "held"), (names[1], names[0]), ("held", names[1])):
        alter(table, f"RENAME COLUMN `{before}` TO `{after}`")


@operation("schema", role=roles)
def move_column_first(table: HistoryTable, *, role: str) -> None:
    alter(table, f"ALTER COLUMN `{table.field(role).name}` FIRST")


_WIDER = {"int": "bigint", "float": "double", "decimal(9, 2)": "decimal(12, 2)"}


@operation("schema", role=st.sampled_from(["number", "ratio", "price"]))
def widen_column(table: HistoryTable, *, role: str) -> None:
    found = table.field(role)
    if str(found.type) not in _WIDER:
        raise NotNow
    alter(table, f"ALTER COLUMN `{found.name}` TYPE {_WIDER[str(found.type)]}")


@operation("schema")
def add_nested_field(table: HistoryTable) -> None:
    alter(table, f"ADD COLUMN `{table.field('place').name}`.{new_name(table)} string")


@operation("schema")
def drop_nested_field(table: HistoryTable) -> None:
    """One field always stays: if a file has no field of a struct, no reader can tell whether the struct was null."""
    place = table.field("place")
    assert isinstance(place.type, dict)
    names = [field["name"] for field in place.type["fields"]]
    if names[0] == "code" or len(names) < 2:
        raise NotNow
    alter(table, f"DROP COLUMN `{place.name}`.`{place.type['fields'][0]['name']}`")


def _never_partitioned_by(table: HistoryTable, role: str) -> None:
    """A column that any spec ever used can't be dropped: Spark could no longer read the table."""
    used = {field["source-id"] for spec in table.raw["partition-specs"] for field in spec["fields"]}
    if table.field(role).id in used or len(table.fields) < 3:
        raise NotNow
