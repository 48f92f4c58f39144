"""Append rows, leaving out those whose key is already there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import all_of, computed_once
from dagster_ips.spark.writes.partition_filter import partitions_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def append_rows(frame: DataFrame, branch: Branch, *, dedup_on: Sequence[str], partition_columns: Sequence[str]) -> None:
    """Append ``frame`` to ``branch``. With ``dedup_on``, one row per key, and none whose key the table already has.

    Where columns of the key partition the table, only the partitions that the frame touches are probed. Rows with a
    null in the key are never taken for duplicates.
    """
    if not dedup_on:
        frame.writeTo(branch.sql_name).append()
        return
    with computed_once(frame) as computed:
        rows = first_per_key(computed, dedup_on)
        there = frame.sparkSession.table(branch.sql_name)
        probe = [column for column in partition_columns if column in dedup_on]
        existing = there.where(partitions_of(rows, probe)) if probe else there
        keys = existing.select(*[existing[quoted(key)].alias(f"__ips_{i}") for i, key in enumerate(dedup_on)])
        same = all_of([rows[quoted(key)] == keys[f"__ips_{i}"] for i, key in enumerate(dedup_on)])
        rows.join(keys, same, "left_anti").writeTo(branch.sql_name).append()


def first_per_key(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """One row per key, whichever; every row with a null in its key."""
    complete = all_of([rows[quoted(key)].isNotNull() for key in keys])
    return rows.where(complete).dropDuplicates(list(keys)).unionAll(rows.where(~complete))
