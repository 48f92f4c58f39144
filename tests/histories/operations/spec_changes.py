"""The partitioning and the format version change."""

from __future__ import annotations

import re

from tests.histories.operations.operation import operation, transforms
from tests.histories.operations.table_statements import alter, new_name
from tests.histories.table import HistoryTable, NotNow
from tests.histories.values import COLUMNS


@operation("spec", refused=["Cannot add redundant partition", "Cannot add duplicate partition"], transform=transforms)
def add_partition_field(table: HistoryTable, *, transform: str) -> None:
    alter(table, f"ADD PARTITION FIELD {_with_current_name(table, transform)} AS by_{new_name(table)}")


@operation("spec")
def drop_partition_field(table: HistoryTable) -> None:
    spec = next(s for s in table.raw["partition-specs"] if s["spec-id"] == table.raw["default-spec-id"])
    names = [field["name"] for field in spec["fields"] if field["transform"] != "void"]
    if not names:
        raise NotNow
    alter(table, f"DROP PARTITION FIELD `{names[0]}`")


@operation("format", versions=(1,))
def upgrade_to_v2(table: HistoryTable) -> None:
    alter(table, "SET TBLPROPERTIES ('format-version' = '2')")


@operation("format", versions=(2,))
def upgrade_to_v3(table: HistoryTable) -> None:
    alter(table, "SET TBLPROPERTIES ('format-version' = '3')")


def _with_current_name(table: HistoryTable, transform: str) -> str:
    for column in COLUMNS:
        name = rf"\b{column.name}\b"
        if re.search(name, transform):
            return re.sub(name, f"`{table.field(column.name).name}`", transform)
    raise NotNow
