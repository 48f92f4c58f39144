"""The rows of a snapshot, with the columns that its table has now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.columns import kinds_within
from dagster_ips.errors import UnreadableColumnError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.null_partitions import misread_at
from dagster_ips.iceberg.storage import Storage
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.current_columns import by_current_columns
from dagster_ips.spark.frames import as_spark_reads, table_frame
from dagster_ips.spark.writes.partials import as_read

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession


_UNKNOWN_TO_SPARK = ("time", "timestamp_ns", "timestamptz_ns")
_RESERVED = frozenset(
    ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
)
"""Names that a table's own column can have, but with which Iceberg (1.12) refuses to read it."""


def require_readable_by_spark(table: TableMetadata) -> None:
    """Fail if Spark can't read the table's columns: of a type that it doesn't know, or with a name that it can't use.

    Raises:
        UnreadableColumnError: the table has such a column.
    """
    names: dict[str, str] = {}
    for column in table.struct.fields:
        if unknown := [kind for kind in kinds_within(column.kind) if kind in _UNKNOWN_TO_SPARK]:
            raise UnreadableColumnError(table.table, column.name, unknown[0])
        other = names.setdefault(column.name.lower(), column.name)
        if column.name in _RESERVED or other != column.name:
            raise UnreadableColumnError(table.table, column.name, other=other if other != column.name else None)


def snapshot_rows(
    session: SparkSession,
    catalog: str,
    found: TableMetadata,
    snapshot: Snapshot | None,
    *,
    storage: Storage | None = None,
) -> DataFrame:
    """The rows of ``found`` at a retained snapshot, whatever happens to the table while the frame is used.

    Without a snapshot, it is the table, which has no snapshot yet, as it is when the frame is used. For a table of
    partials, it is the groups that they add up to. ``storage``, the catalog's, says by which columns a partition has
    null; without it, it may be any.
    """
    return as_read(stored_rows(session, catalog, found, snapshot, storage=storage), found.properties)


def current_rows(
    session: SparkSession, catalog: str, found: TableMetadata, *, storage: Storage | None = None
) -> DataFrame:
    """As ``snapshot_rows``, at the table's newest snapshot."""
    return snapshot_rows(session, catalog, found, found.ancestry().head, storage=storage)


def stored_rows(
    session: SparkSession,
    catalog: str,
    found: TableMetadata,
    snapshot: Snapshot | None,
    *,
    storage: Storage | None = None,
) -> DataFrame:
    """As ``snapshot_rows``; for a table of partials, it is the partials."""
    require_readable_by_spark(found)
    rows = table_frame(session, catalog, found.table, snapshot_id=snapshot.snapshot_id if snapshot else None)
    if snapshot is not None and not found.shows_current_schema(snapshot):
        rows = by_current_columns(rows, found.fields_at(snapshot), found.current_fields, found.struct)
    return as_spark_reads(rows, misread_at(storage, found, snapshot))


def branch_rows(session: SparkSession, branch: Branch, found: TableMetadata, *, storage: Storage) -> DataFrame:
    """The rows of ``branch`` as it is in ``found``; for a table of partials, the groups that they add up to."""
    head = found.ancestry(branch.name).head
    rows = as_spark_reads(session.table(branch.sql_name), misread_at(storage, found, head))
    return as_read(rows, found.properties)
