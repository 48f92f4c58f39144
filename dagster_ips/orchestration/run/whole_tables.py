"""Tables that are read whole, as they are when a run begins to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.spark.current_columns import by_current_columns
from dagster_ips.spark.frames import table_frame
from dagster_ips.spark.writes.partials import as_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def whole_table(session: SparkSession, catalog: str, found: TableMetadata) -> DataFrame:
    """The rows of the table's head by its columns of now, whatever becomes of it while the frame is used.

    Of a table of partials, the groups that they make.
    """
    head = found.ancestry().head
    rows = table_frame(session, catalog, found.table, snapshot_id=head.snapshot_id if head else None)
    if head is not None and not found.shows_current_schema(head):
        rows = by_current_columns(rows, found.fields_at(head), found.current_fields, found.struct)
    return as_read(rows, found.properties)
