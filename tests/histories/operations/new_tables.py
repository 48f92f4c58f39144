"""The table starts over."""

from __future__ import annotations

from collections.abc import Sequence

from tests.histories.operations.operation import operation, rows
from tests.histories.table import HistoryTable


@operation("replace", rows=rows)
def create_or_replace(table: HistoryTable, *, rows: Sequence[int]) -> None:
    """The uuid stays, and the ancestry is cut."""
    properties = f"TBLPROPERTIES ('format-version' = '{table.version}', 'commit.manifest-merge.enabled' = 'false')"
    table.sql(f"CREATE OR REPLACE TABLE {table.sql_name} USING iceberg {properties} AS {table.sql_rows(rows)}")


@operation("replace")
def drop_and_create_again(table: HistoryTable) -> None:
    table.drop()
    table.create()
