"""Rows that are looked at while they are written, instead of by a query of its own before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.spark.late import F, sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

_FOUND = "__ips_found"


@dataclass(frozen=True)
class Watched:
    """``rows``, to be written once: whether a condition holds of any of them is known after that."""

    rows: DataFrame
    _unwatched: DataFrame
    _condition: Column
    _observation: Observation

    def found(self) -> bool:
        """Whether it holds of one; runs a job only where Spark had nothing to count, as of a frame without rows."""
        counted = self._observation.get.get(_FOUND)
        return not self._unwatched.where(self._condition).isEmpty() if counted is None else counted > 0


def watched(rows: DataFrame, condition: Column) -> Watched:
    """``rows`` with an eye on those of which ``condition`` holds.

    To be used in one query, and once in it: Spark Connect refuses a join of two frames that are watched by one eye.
    """
    observation = sql.Observation()
    return Watched(rows.observe(observation, F.count_if(condition).alias(_FOUND)), rows, condition, observation)
