"""Up to when a table is complete, as it says itself: by stamps on its snapshots, or by the bounds of a column."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.valid_through import ALWAYS, EventTime, as_text, from_text, instant, least
from dagster_ips.errors import ValidThroughError
from dagster_ips.iceberg.column_ranges import require_column
from dagster_ips.iceberg.file_spans import manifest_span, span
from dagster_ips.iceberg.late import types
from dagster_ips.iceberg.manifests import (
    Content,
    ManifestRow,
    content_of,
    read_live_entries,
    read_live_manifests,
)
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import RUN, is_of_same_attempt
from dagster_ips.iceberg.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

VALID_THROUGH = "dagster-ips.valid-through"
_BY_KAFKA_CONNECT = "kafka.connect.valid-through-ts"
"""Written by Iceberg's Kafka Connect sink: the time of which it has written the records of all Kafka partitions."""


def properties(valid_through: dt.datetime | None) -> dict[str, str]:
    """Summary properties for a commit that makes a table complete up to then; none if that is unknown."""
    return {} if valid_through is None else {VALID_THROUGH: as_text(valid_through)}


def valid_through_at(
    storage: Storage, metadata: TableMetadata, ref: str, snapshot_id: int, declared: EventTime | None
) -> dt.datetime | None:
    """Up to when the table is complete at a snapshot of ``ref``; None if nothing says so.

    A stamp on a snapshot takes precedence over what is ``declared``, as its writer knows more than the rows show. That
    of Kafka Connect knows nothing of events that reach Kafka late, so what is declared can only lower it.

    Raises:
        UnknownColumnError: the table doesn't have the declared column.
        ValidThroughError: a stamp isn't a time, or the column doesn't say.
    """
    ancestry = metadata.ancestry(ref)
    snapshot = ancestry.find(snapshot_id)
    if snapshot is None:
        return None
    stamped = _stamp_at(ancestry, snapshot)
    if stamped is not None:
        return _time(stamped, VALID_THROUGH, metadata.table)
    before = ancestry.snapshots[ancestry.snapshots.index(snapshot) :]
    by_kafka = next((each.summary[_BY_KAFKA_CONNECT] for each in before if _BY_KAFKA_CONNECT in each.summary), None)
    arrived = None if by_kafka is None else _time(by_kafka, _BY_KAFKA_CONNECT, metadata.table)
    if declared is None:
        return arrived
    highest = highest_value(storage, metadata, declared.column, snapshot) if declared.column else None
    shown = declared.through(highest, committed_ms=snapshot.timestamp_ms)
    return least([shown, arrived]) if arrived is not None and declared.column else shown


def _time(stamped: str, name: str, table: str) -> dt.datetime:
    try:
        return from_text(stamped)
    except ValueError as error:
        problem = f"its snapshots are stamped with {name}={stamped!r}, which isn't a date or time"
        remedy = "Make the job that writes it stamp a date or time in ISO 8601."
        raise ValidThroughError(table=table, problem=problem, remedy=remedy) from error


def highest_value(storage: Storage, metadata: TableMetadata, column: str, snapshot: Snapshot) -> dt.datetime | None:
    """The newest event time in any file that is live at ``snapshot``; None if no row has one.

    Rows that delete files hide count: they have arrived. Manifests are read from the newest on, by what the manifest
    list says about a partition field made from the column, as long as one may hold something newer. If there is such a
    field, that is one or two manifests, otherwise all of them. A file without bounds says nothing.

    Raises:
        UnknownColumnError: the table has no such top-level column.
        ValidThroughError: its values aren't dates or times, or there are rows but no file has bounds of it.
    """
    require_time_column(metadata, column)
    rows = read_live_manifests(storage, snapshot, table=metadata.table)
    data = [row for row in rows if content_of(row) is Content.DATA]
    highest, has_rows = None, False
    for ceiling, row in sorted(((_ceiling(row, metadata, column), row) for row in data), key=_by_ceiling, reverse=True):
        if highest is not None and ceiling is not None and ceiling <= highest:
            break
        for entry in read_live_entries(storage, row, table=metadata.table):
            if not entry.record_count:
                continue
            found = span(entry.data_file(), metadata, column)
            has_rows |= not found.holds_only_nulls
            if isinstance(found.upper, dt.date):
                highest = max(instant(found.upper), highest or instant(found.upper))
    if highest is None and has_rows:
        problem = f"none of its data files has an upper bound for {column}, which shows how far its events reach"
        remedy = f"Write it with metrics for the column (write.metadata.metrics.column.{column}=full)."
        raise ValidThroughError(table=metadata.table, problem=problem, remedy=remedy)
    return highest


def require_time_column(metadata: TableMetadata, column: str) -> NestedField:
    """The column of event times.

    Raises:
        UnknownColumnError: the table has no such top-level column.
        ValidThroughError: its values aren't dates or times.
    """
    field = require_column(
        metadata, column, remedy="Correct the name in iceberg_asset(valid_through=...); nothing was captured."
    )
    if field is None or not isinstance(field.field_type, types.DateType | types.TimestampType | types.TimestamptzType):
        problem = f"its column {column} is of type {metadata.column_types[column]}, which holds no dates or times"
        remedy = "Name a column of type date, timestamp or timestamptz."
        raise ValidThroughError(table=metadata.table, problem=problem, remedy=remedy)
    return field


def _stamp_at(ancestry: Ancestry, snapshot: Snapshot) -> str | None:
    """The stamp that holds at ``snapshot``: its own, or that of the last commit before it that says anything.

    What an attempt of a run wrote in several commits is complete only with the last of them. A run that wrote no stamp
    didn't know, whatever was stamped before it.
    """
    at = ancestry.snapshots.index(snapshot)
    after = ancestry.snapshots[at - 1] if at else None
    for each in ancestry.snapshots[at:]:
        if after is not None and is_of_same_attempt(each, after):
            continue
        if VALID_THROUGH in each.summary or RUN in each.summary:
            return each.summary.get(VALID_THROUGH)
    return None


def _ceiling(row: ManifestRow, metadata: TableMetadata, column: str) -> dt.datetime | None:
    """An upper limit of the values in the manifest's files, by its partition summaries; None if those don't say."""
    upper = manifest_span(row, metadata, column).upper
    return instant(upper) if isinstance(upper, dt.date) else None


def _by_ceiling(of_row: tuple[dt.datetime | None, ManifestRow]) -> dt.datetime:
    return of_row[0] or ALWAYS
