"""Frames that are known again in Spark's plans, and the analysed plan of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips._compat import explained
from dagster_ips.core.lineage import RESULT
from dagster_ips.core.ranges import quoted
from dagster_ips.core.spark_plan import Node, PlanUnreadableError, parse_plan
from dagster_ips.spark.late import F
from dagster_ips.spark.settings import with_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Spark shortens long lists otherwise.
_ALL_FIELDS = {"spark.sql.debug.maxToStringFields": "1000000"}


def marked(frame: DataFrame, mark: str, *, name: str) -> DataFrame:
    """``frame``, which plans show as ``mark``, with columns that no other frame has; ``name`` qualifies them in SQL."""
    return frame.select(*[F.col(quoted(column)).alias(column) for column in frame.columns]).alias(mark).alias(name)


def result_plan(frame: DataFrame) -> Node:
    """The analysed plan of ``frame``, its columns numbered as ``core.lineage`` wants them; runs no job.

    Raises:
        PlanUnreadableError: Spark explains it in a way that isn't known, or two columns have the name that it gives.
    """
    columns = frame.columns
    lowered = [column.lower() for column in columns]  # Spark tells no cases apart
    if len(set(lowered)) < len(columns):
        twice = next(column for column in columns if lowered.count(column.lower()) > 1)
        named = f"two columns are named {twice}"
        raise PlanUnreadableError(named)
    numbered = [F.col(quoted(column)).alias(f"{RESULT}{at}") for at, column in enumerate(columns)]
    # Without rows there is nothing for Spark to plan beyond what is looked at.
    empty = frame.select(*numbered).limit(0)
    with with_settings(frame.sparkSession, _ALL_FIELDS):
        text = explained(empty)
    analysed, end, _ = text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")
    if not end:
        cut = "it is truncated"
        raise PlanUnreadableError(cut)
    _schema, _, tree = analysed.strip("\n").partition("\n")
    return parse_plan(tree)
