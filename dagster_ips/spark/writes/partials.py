"""Appends a change's aggregates as they are; they are folded when the table is read.

A run reads nothing of its table, unless a removed row may have been a group's least or greatest value: then only the
live rows show the next one, and such groups are recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_ips.core.aggregates import AggregatePart
from dagster_ips.core.partials_property import partials_of
from dagster_ips.core.ranges import quoted
from dagster_ips.core.write_mode import Combine
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import computed_once
from dagster_ips.spark.late import F, types
from dagster_ips.spark.observed import watched
from dagster_ips.spark.writes.combine import computed_again
from dagster_ips.spark.writes.group_parts import REMOVED, WIDE_SUM, Aggregates, Change, explained
from dagster_ips.spark.writes.merge import GONE
from dagster_ips.spark.writes.overwrite_where import is_outside, refuse_rows_outside_partitions
from dagster_ips.spark.writes.replace_keys import replace_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUM_DIGITS = 10


def append_partials(  # noqa: PLR0913  # all are independent
    change: Change,
    aggregates: Aggregates,
    branch: Branch,
    *,
    may_remove_rows: bool,
    partition_columns: Sequence[str],
    within: str | None,
) -> None:
    """Append the aggregates of ``change`` to ``branch``, one row for each group that it touches.

    ``may_remove_rows`` is False if no row was removed. ``within`` is the condition that all groups must meet.

    Raises:
        CombineError: a value is too large for its type.
        OutsidePartitionsError: a group isn't ``within``.
    """
    parts = aggregates.parts_that_matter(change)
    with explained(branch.table):
        if may_remove_rows and aggregates.combine.may_compute_groups_again:
            with computed_once(parts) as kept:
                if within is not None and not kept.where(is_outside(within)).isEmpty():
                    refuse_rows_outside_partitions(kept, within, table=branch.table)
                _compute_again(change, aggregates, kept, branch, partition_columns)
            return
        watch = watched(parts, is_outside(within)) if within is not None else None
        aggregates.stored(watch.rows if watch else parts).writeTo(branch.sql_name).append()
        if within is not None and watch is not None and watch.found():
            refuse_rows_outside_partitions(parts, within, table=branch.table)


def _compute_again(
    change: Change, aggregates: Aggregates, parts: DataFrame, branch: Branch, partition_columns: Sequence[str]
) -> None:
    """Append the parts of groups that only gained rows; replace all rows of the other groups by what is live."""
    keys = [F.col(quoted(key)) for key in aggregates.keys]
    lost = parts.where(F.col(REMOVED) > 0).select(*keys)
    again = computed_again(aggregates, change, lost, F.lit(True)).where(~F.col(GONE)).drop(GONE)  # noqa: FBT003
    gained = aggregates.stored(parts.where(F.col(REMOVED) == 0))
    if lost.isEmpty():
        gained.writeTo(branch.sql_name).append()
        return
    rows = gained.unionByName(again)
    replace_keys(rows, branch, lost, on=aggregates.keys, partition_columns=partition_columns)


def as_read(rows: DataFrame, properties: Mapping[str, str]) -> DataFrame:
    """How a reader sees the rows of a table with ``properties``: partials as the groups that they add up to."""
    combine = partials_of(properties)
    return rows if combine is None else folded(rows, combine)


def folded(stored: DataFrame, combine: Combine) -> DataFrame:
    """The groups that rows of a table of partials add up to: keys and aggregates, one row for each group with rows.

    Computing it fails if more rows of a group were removed than were added.
    """
    return Aggregates(combine, combine.layout, _kinds(stored, combine), stored).folded(stored)


def _kinds(stored: DataFrame, combine: Combine) -> dict[str, types.DataType]:
    """The types of the expressions, as far as the values computed from their parts depend on them."""
    of_columns = {field.name: field.dataType for field in stored.schema.fields}
    found: dict[str, types.DataType] = {}
    for kept, column in combine.layout.columns.items():
        kind = of_columns[column]
        is_sum, is_wide = kept.part is AggregatePart.SUM, kind.simpleString() == WIDE_SUM
        if is_sum and is_wide and combine.layout.has_undeclared_sum(kept.expression):
            found[kept.expression] = types.LongType()  # avg of decimals that sum up to this is refused.
        elif is_sum and isinstance(kind, types.DecimalType):
            found[kept.expression] = types.DecimalType(kind.precision - _SUM_DIGITS, kind.scale)
        elif is_sum:
            found[kept.expression] = kind
        else:
            found.setdefault(kept.expression, kind)
    return found
