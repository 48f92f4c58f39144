"""Rows replace other rows."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

from tests.histories.operations.operation import Where, operation, rows, wheres
from tests.histories.operations.table_statements import pyiceberg_condition, session_with, where_clause
from tests.histories.table import HistoryTable


@operation("overwrite", rows=rows)
def insert_overwrite_everything(table: HistoryTable, *, rows: Sequence[int]) -> None:
    with session_with(table, {"spark.sql.sources.partitionOverwriteMode": "static"}):
        table.sql(f"INSERT OVERWRITE {table.sql_name} {table.sql_rows(rows)}")


@operation("overwrite", rows=rows)
def insert_overwrite_partitions(table: HistoryTable, *, rows: Sequence[int]) -> None:
    with session_with(table, {"spark.sql.sources.partitionOverwriteMode": "dynamic"}):
        table.sql(f"INSERT OVERWRITE {table.sql_name} {table.sql_rows(rows)}")


@operation("overwrite", refused=["some, but not all, rows match"], rows=rows, where=wheres)
def overwrite_by_filter(table: HistoryTable, *, rows: Sequence[int], where: Where) -> None:
    condition = F.expr(where_clause(table, where))
    table.sql(table.sql_rows(rows)).writeTo(table.sql_name).overwrite(condition)


@operation("overwrite", versions=(1, 2), rows=rows, where=st.none() | wheres)
def overwrite_by_pyiceberg(table: HistoryTable, *, rows: Sequence[int], where: Where) -> None:
    table.by_pyiceberg().overwrite(table.arrow_rows(rows), pyiceberg_condition(table, where))


@operation(
    "overwrite", versions=(1, 2), refused=["non-identity-transform field", "on an unpartitioned table"], rows=rows
)
def overwrite_partitions_by_pyiceberg(table: HistoryTable, *, rows: Sequence[int]) -> None:
    table.by_pyiceberg().dynamic_partition_overwrite(table.arrow_rows(rows))


@operation("overwrite")
def truncate(table: HistoryTable) -> None:
    table.sql(f"TRUNCATE TABLE {table.sql_name}")
