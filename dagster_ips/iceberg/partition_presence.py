"""Which of given partitions a table may hold rows of, and how many rows, from its manifest list alone.

Source: Iceberg table spec, "Manifest Lists", field summaries.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_ips.core.held_rows import HeldRows
from dagster_ips.iceberg.column_ranges import column_bound, is_ordered
from dagster_ips.iceberg.manifests import (
    Content,
    ManifestRow,
    content_of,
    live_rows,
    read_live_manifests,
)
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.types import NestedField

_COMPARABLE = {int, str, dt.date, dt.datetime}


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
    manifests = read_live_manifests(storage, head, table=table.table)
    live = [row for row in manifests if content_of(row) is Content.DATA]
    ordered = _Ordered([value for (value,) in values]) if len(columns) == 1 else None
    held: set[int] = set()
    counts: list[int | None] = []
    for row in live:
        bounds = [_bounds(row, table, field) for field in fields]
        places = ordered.within(bounds[0]) if ordered else None
        if places is None:
            places = [i for i, each in enumerate(values) if _may_be(bounds, each)]
        held.update(places)
        if places:
            counts.append(live_rows(row))
    known = [count for count in counts if count is not None]
    return HeldRows([values[i] for i in sorted(held)], sum(known) if len(known) == len(counts) else None)


def _may_be(bounds: Sequence[_Bounds | None], values: Sequence[object]) -> bool:
    return all(known is None or known.may_be(value) for known, value in zip(bounds, values, strict=True))


class _Ordered:
    """Values of one column in their order, so that those within bounds are found without comparing each."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._nulls = [place for place, value in enumerate(values) if value is None]
        known = [(value, place) for place, value in enumerate(values) if value is not None]
        self._kinds = {_kind(value) for value, _ in known}
        if len(self._kinds) == 1 and None not in self._kinds:
            known.sort()
        self._values, self._places = [value for value, _ in known], [place for _, place in known]

    def within(self, bounds: _Bounds | None) -> list[int] | None:
        """The places of the values that ``bounds.may_be``; None if each value must be compared."""
        kinds = {_kind(bounds.lower), _kind(bounds.upper)} if bounds else {None}
        if bounds is None or None in kinds or self._kinds != kinds:
            return None
        first, last = bisect_left(self._values, bounds.lower), bisect_right(self._values, bounds.upper)
        return self._places[first:last] + (self._nulls if bounds.has_null else [])


def _kind(value: Any) -> tuple[type, bool] | None:  # noqa: ANN401  # any value of a column
    """Equal for values that can be compared with each other; None if they may be equal in several forms."""
    return (type(value), getattr(value, "tzinfo", None) is None) if type(value) in _COMPARABLE else None


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
        if type(value) not in _COMPARABLE:
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
