"""Replaces the rows of given keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import MOST_LITERALS, all_of, distinct_keys
from dagster_ips.spark.late import F
from dagster_ips.spark.writes.merge_joins import small_sources_broadcast
from dagster_ips.spark.writes.partition_filter import among, collected, exactly

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def replace_keys(
    frame: DataFrame, branch: Branch, keys: DataFrame, *, on: Sequence[str], partition_columns: Sequence[str]
) -> None:
    """Delete the rows of ``branch`` whose columns ``on`` are among ``keys``, and append ``frame``.

    ``keys`` has these columns, and each key once; a null is a value like any other. If the keys are whole partitions,
    these are overwritten in one commit. ``frame`` must not be read from ``branch``.
    """
    prune = [column for column in partition_columns if column in on]
    touched = collected(distinct_keys(keys, prune).limit(MOST_LITERALS + 1)) if prune else [()]
    if not touched:
        return
    if set(on) <= set(partition_columns) and len(touched) <= MOST_LITERALS:
        frame.writeTo(branch.sql_name).overwrite(exactly(prune, touched))
        return
    names = [f"__ips_{place}" for place in range(len(on))]
    target = branch.qualifier
    same = [F.col(f"{target}.{quoted(key)}").eqNullSafe(F.col(own)) for key, own in zip(on, names, strict=True)]
    # Of more partitions than that, not all are known.
    condition = all_of([*same, *([among(prune, touched, alias=target)] if len(touched) <= MOST_LITERALS else [])])
    of_keys = keys.select(*map(quoted, on)).toDF(*names).mergeInto(branch.sql_name, condition)
    with small_sources_broadcast(keys.sparkSession):
        of_keys.whenMatched().delete().merge()
    frame.writeTo(branch.sql_name).append()
