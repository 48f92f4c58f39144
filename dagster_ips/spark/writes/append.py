"""Appends rows, leaving out those whose key is already there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import all_of, computed_once, distinct_keys
from dagster_ips.spark.writes.partition_filter import Partitions, PartitionsHeld, all_held, among, collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def append_rows(
    frame: DataFrame,
    branch: Branch,
    *,
    dedup_on: Sequence[str],
    partition_columns: Sequence[str],
    held: PartitionsHeld = all_held,
) -> None:
    """Append ``frame`` to ``branch``. With ``dedup_on``, one row per key, and none whose key the table already has.

    If columns of the key partition the table, only the partitions that the frame touches are searched, and of those
    only the ``held`` ones. A null key matches a null key.
    """
    if not dedup_on:
        frame.writeTo(branch.sql_name).append()
        return
    probe = [column for column in partition_columns if column in dedup_on]
    with computed_once(frame) as computed:
        rows = first_per_key(computed, dedup_on)
        touched = held(_touched(computed, probe)).partitions
        if not touched:
            rows.writeTo(branch.sql_name).append()
            return
        existing = frame.sparkSession.table(branch.sql_name).where(among(probe, touched))
        keys = existing.select(*[existing[quoted(key)].alias(f"__ips_{i}") for i, key in enumerate(dedup_on)])
        same = all_of([rows[quoted(key)].eqNullSafe(keys[f"__ips_{i}"]) for i, key in enumerate(dedup_on)])
        rows.join(keys, same, "left_anti").writeTo(branch.sql_name).append()


def _touched(rows: DataFrame, columns: Sequence[str]) -> Partitions:
    return collected(distinct_keys(rows, columns)) if columns else [()]


def first_per_key(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Any one row per key."""
    return rows.dropDuplicates(list(keys))
