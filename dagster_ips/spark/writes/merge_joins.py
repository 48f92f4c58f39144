"""How Spark joins the rows of a MERGE to the target's rows: it decides by settings alone, and drops hints."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from dagster_ips.core.installed_spark import minor_version
from dagster_ips.spark.settings import BROADCAST_THRESHOLD, may_broadcast_more, with_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_BYTES = "64m"
_BY_PARTITION = {
    "spark.sql.sources.v2.bucketing.enabled": "true",
    "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
    "spark.sql.sources.v2.bucketing.shuffle.enabled": "true",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.iceberg.planning.preserve-data-grouping": "true",
    # A source that is far smaller than the target is then hashed, and neither is sorted.
    "spark.sql.join.preferSortMergeJoin": "false",
}
_AT_LEAST = {"spark.sql.shuffle.partitions": 16}
"""Spark hashes a source of up to ten megabytes for each of a shuffle's partitions, which are few on few cores."""
_WRITTEN_IN_PLACE = {"spark.sql.iceberg.distribution-mode": "none"}


def small_sources_broadcast(session: SparkSession) -> AbstractContextManager[None]:
    """Within it, a MERGE broadcasts a source of up to 64 MB, and leaves the target's rows where they are.

    Spark decides by the source's size alone: it gives the join of a MERGE a hint of its own, and drops any other. If
    the user set a threshold, it stays.

    Source: Spark 4.1, ``RewriteMergeIntoTable.join`` and ``EliminateResolvedHint``.
    """
    return with_settings(session, {BROADCAST_THRESHOLD: _MOST_BYTES}) if may_broadcast_more(session) else nullcontext()


def joined_by_partition(session: SparkSession, *, is_written_in_place: bool = False) -> AbstractContextManager[None]:
    """Within it, a MERGE sends the source's rows to where the target's partition is read, and leaves that in place.

    With ``is_written_in_place``, the result is written there, too. Then the condition must compare all columns that
    partition the target: otherwise a task may have rows of many partitions, and would write a file for each.

    One task joins all rows of a partition. This needs a target that is partitioned by plain columns, which the
    condition compares by ``=``. To Spark, ``<=>`` is another comparison: then the target's rows are shuffled as usual.
    With Spark 4.0 they always are, as it fails if Iceberg's partitions have columns of several types.

    Source: Spark 4.1, ``EnsureRequirements``, ``KeyGroupedShuffleSpec`` and ``JoinSelection``.
    """
    if minor_version(session.version) < (4, 1):
        return nullcontext()
    settings = _BY_PARTITION | (_WRITTEN_IN_PLACE if is_written_in_place else {})
    return with_settings(session, settings, at_least=_AT_LEAST)
