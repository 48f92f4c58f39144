"""Which of given partitions a table may hold rows of, and how many rows, from its manifest list alone.

Source: Iceberg table spec, "Manifest Lists", field summaries.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_ips.core.held_rows import HeldRows
from dagster_ips.iceberg.column_ranges import column_bound, is_ordered
from dagster_ips.iceberg.manifests import (
    Content,
    ManifestRow,
    content_of,
    live_rows,
    may_hold_live_files,
    read_manifest_list,
)
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.types import NestedField


def partitions_held(
    storage: Storage, table: TableMetadata, columns: Sequence[str], values: Sequence[tuple[object, ...]]
) -> HeldRows:
    """Those of ``values`` that a row at the head of ``table`` may have in ``columns``.

    It is certain that no row has the others. Without columns, it is the empty tuple if the table may hold rows at all.
    Rows count with all others of their manifest, even those that a delete hides.

    Raises:
        MetadataUnreadableError: the manifest list is missing or damaged.
    """
    head = table.ancestry().head
    if head is None:
        return HeldRows([], 0)
    fields = [table.columns.get(column) for column in columns]
    manifests = read_manifest_list(storage, head, table=table.table)
    live = [row for row in manifests if content_of(row) is Content.DATA and may_hold_live_files(row)]
    bounds = [[_bounds(row, table, field) for field in fields] for row in live]
    held = [
        [
            all(known is None or known.may_be(value) for known, value in zip(of_row, each, strict=True))
            for each in values
        ]
        for of_row in bounds
    ]
    counts = [live_rows(row) for row, holds in zip(live, held, strict=True) if any(holds)]
    known = [count for count in counts if count is not None]
    return HeldRows(
        [each for i, each in enumerate(values) if any(holds[i] for holds in held)],
        sum(known) if len(known) == len(counts) else None,
    )


class _Bounds:
    """What a manifest says about a column's values in the partitions of its files."""

    def __init__(self, summary: dict[str, Any], field: NestedField) -> None:
        self.has_null = bool(summary["contains_null"])
        self.lower, self.upper = [
            column_bound({field.field_id: summary.get(end)}, field) for end in ("lower_bound", "upper_bound")
        ]

    def may_be(self, value: object) -> bool:
        """Whether ``value`` may be among them; always so for kinds of values that are equal in several forms."""
        if value is None:
            return self.has_null
        if type(value) not in (int, str, dt.date, dt.datetime):
            return True
        try:
            return not (value < self.lower or value > self.upper)  # type: ignore[operator]  # the except handles it
        except TypeError:  # an unknown end, or the column was of another type then
            return True


def _bounds(row: ManifestRow, table: TableMetadata, field: NestedField | None) -> _Bounds | None:
    """The bounds of the column; None if the manifest doesn't say."""
    summaries = row.get("partitions") or ()
    if field is None or not is_ordered(field):
        return None
    for partition, summary in zip(table.spec(row["partition_spec_id"]), summaries, strict=False):
        if partition["transform"] == "identity" and partition.get("source-id") == field.field_id:
            return _Bounds(summary, field)
    return None
