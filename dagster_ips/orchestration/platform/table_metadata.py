"""Dagster's standard metadata for an Iceberg table."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.ownership import live_rows
from dagster_ips.iceberg.metadata import TableMetadata

ROW_COUNT = "dagster/row_count"


def table_metadata(metadata: TableMetadata) -> dict[str, Any]:
    """A table's location, its columns, and its row count if the newest snapshot records it.

    There is no column lineage: the user's code determines it, and a guess would be worse than nothing.
    """
    required = {name for name, column in metadata.columns.items() if column.required}
    columns = [
        dg.TableColumn(
            name=name,
            type=kind,
            description=metadata.columns[name].doc if name in metadata.columns else None,
            constraints=dg.TableColumnConstraints(nullable=name not in required),
        )
        for name, kind in metadata.column_types.items()
    ]
    head = metadata.ancestry().head
    return {
        "dagster/uri": metadata.location,
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
        **(row_count(metadata, head) if head else {}),
    }


def row_count(metadata: TableMetadata, snapshot: Snapshot) -> dict[str, int]:
    """The table's row count at ``snapshot``; empty if delete files hide rows that only readers can count."""
    records = snapshot.summary.get("total-records")
    if records is not None and int(snapshot.summary.get("total-delete-files", 0)) == 0:
        return {ROW_COUNT: int(records)}
    rows = live_rows(snapshot) if metadata.hides_rows_by_vectors else None
    return {ROW_COUNT: rows.least} if rows is not None else {}
