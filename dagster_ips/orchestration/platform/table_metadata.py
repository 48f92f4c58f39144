"""What Dagster's standard metadata keys say of an Iceberg table."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.iceberg.metadata import TableMetadata

ROW_COUNT = "dagster/row_count"


def table_metadata(metadata: TableMetadata) -> dict[str, Any]:
    """Where it is, its columns, and its rows if its newest snapshot says how many there are.

    Column lineage isn't told: what an asset makes of its inputs is the user's code, and a guess would be worse.
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
        **(row_count(head) if head else {}),
    }


def row_count(snapshot: Snapshot) -> dict[str, int]:
    """The table's rows at ``snapshot``; nothing where rows are hidden by delete files, of which only readers know."""
    if "total-records" not in snapshot.summary or int(snapshot.summary.get("total-delete-files", 0)) > 0:
        return {}
    return {ROW_COUNT: int(snapshot.summary["total-records"])}
