"""Deletes rows that were removed upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.errors import RemovedRowsError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import all_of, computed_once
from dagster_ips.spark.late import F
from dagster_ips.spark.writes.merge_joins import small_sources_broadcast
from dagster_ips.spark.writes.partition_filter import among, collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def remove_rows(
    rows: DataFrame, branch: Branch, *, on: Sequence[str], upstream: str, partition_columns: Sequence[str]
) -> None:
    """Delete from ``branch`` what has a key of ``rows``, the rows removed upstream; a null key matches a null key.

    Raises:
        RemovedRowsError: the table has more rows of a key than were removed, so it is unknown which of them to delete.
    """
    names = [F.col(quoted(key)).alias(f"__ips_{i}") for i, key in enumerate(on)]
    counted = rows.groupBy(*names).agg(F.count("*").alias("__ips_removed"))
    with computed_once(counted) as keys:
        prune = [(f"__ips_{i}", key) for i, key in enumerate(on) if key in partition_columns]
        found = collected(
            keys.groupBy(*[F.col(name).alias(key) for name, key in prune]).agg(F.count("*").alias("__ips_keys"))
        )
        if not any(value[-1] for value in found):
            return
        columns, partitions = [key for _, key in prune], [value[:-1] for value in found]
        there = rows.sparkSession.table(branch.sql_name)
        same = all_of([there[quoted(key)].eqNullSafe(keys[f"__ips_{i}"]) for i, key in enumerate(on)])
        matched = (
            there.where(among(columns, partitions)).join(keys, same).groupBy(*[f"__ips_{i}" for i in range(len(on))])
        )
        counts = matched.agg(F.count("*").alias("__ips_found"), F.max("__ips_removed").alias("__ips_removed"))
        ambiguous = counts.where("__ips_found > __ips_removed").limit(1).collect()
        if ambiguous:
            raise RemovedRowsError(
                table=branch.table,
                upstream=upstream,
                problem=f"it has more rows of key {tuple(ambiguous[0])[: len(on)]} ({', '.join(on)}) than were "
                "removed, so it is unclear which of them to remove",
                remedy="Name columns in append(remove_on=...) that identify one row. If the asset makes several of it, "
                "by explode or a join, use merge() with a frame built on affected(...).",
            )
        target = branch.qualifier
        condition = all_of(
            [F.col(f"{target}.{quoted(key)}").eqNullSafe(F.col(f"__ips_{i}")) for i, key in enumerate(on)]
        )
        gone = keys.drop("__ips_removed")
        merging = gone.mergeInto(branch.sql_name, condition & among(columns, partitions, alias=target))
        with small_sources_broadcast(keys.sparkSession):
            merging.whenMatched().delete().merge()
