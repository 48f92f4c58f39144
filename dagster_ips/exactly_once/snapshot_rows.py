"""The rows of a snapshot, with the columns that its table has now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.columns import kinds_within
from dagster_ips.errors import UnreadableColumnError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.spark.current_columns import by_current_columns
from dagster_ips.spark.frames import table_frame, with_defaults
from dagster_ips.spark.writes.partials import as_read

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession


_UNKNOWN_TO_SPARK = ("time", "timestamp_ns", "timestamptz_ns")


def require_readable_by_spark(table: TableMetadata) -> None:
    """Fail if Spark can't read the table, even without the column of which it doesn't know the type.

    Raises:
        UnreadableColumnError: the table has such a column.
    """
    for column in table.struct.fields:
        if unknown := [kind for kind in kinds_within(column.kind) if kind in _UNKNOWN_TO_SPARK]:
            raise UnreadableColumnError(table.table, column.name, unknown[0])


def snapshot_rows(session: SparkSession, catalog: str, found: TableMetadata, snapshot: Snapshot | None) -> DataFrame:
    """The rows of ``found`` at a retained snapshot, whatever happens to the table while the frame is used.

    Without a snapshot, it is the table, which has no snapshot yet, as it is when the frame is used. For a table of
    partials, it is the groups that they add up to.
    """
    return as_read(stored_rows(session, catalog, found, snapshot), found.properties)


def current_rows(session: SparkSession, catalog: str, found: TableMetadata) -> DataFrame:
    """As ``snapshot_rows``, at the table's newest snapshot."""
    return snapshot_rows(session, catalog, found, found.ancestry().head)


def stored_rows(session: SparkSession, catalog: str, found: TableMetadata, snapshot: Snapshot | None) -> DataFrame:
    """As ``snapshot_rows``; for a table of partials, it is the partials."""
    require_readable_by_spark(found)
    rows = table_frame(session, catalog, found.table, snapshot_id=snapshot.snapshot_id if snapshot else None)
    if snapshot is not None and not found.shows_current_schema(snapshot):
        rows = by_current_columns(rows, found.fields_at(snapshot), found.current_fields, found.struct)
    return with_defaults(rows, found.columns_with_defaults)
