"""Checks rows while they are written, instead of by a separate query before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.spark.late import F, sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

_FOUND = "__ips_found"


@dataclass(frozen=True)
class Watched:
    """``rows``, to be written once; after that it is known whether a condition holds for any of them."""

    rows: DataFrame
    _unwatched: DataFrame
    _condition: Column
    _observation: Observation

    def found(self) -> bool:
        """Whether it holds for any row; runs a job only if Spark had nothing to count, as for a frame without rows."""
        counted = self._observation.get.get(_FOUND)
        return not self._unwatched.where(self._condition).isEmpty() if counted is None else counted > 0


def watched(rows: DataFrame, condition: Column) -> Watched:
    """``rows`` with a count of those for which ``condition`` holds.

    They may be used in one query, and once in it: Spark Connect refuses a join of two frames with one observation.
    """
    observation = sql.Observation()
    return Watched(rows.observe(observation, F.count_if(condition).alias(_FOUND)), rows, condition, observation)
