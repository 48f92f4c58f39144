"""The version of a frame's plan, over Spark Connect or in a classic session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_ips._compat import AnalyzedPlan, plan_number, sent_plan
from dagster_ips.core.plan_version import PlanVersion
from dagster_ips.core.run_values import RunValues
from dagster_ips.spark.classic_plan import classic_plan
from dagster_ips.spark.connect_plan import connect_plan
from dagster_ips.spark.error_text import first_line
from dagster_ips.spark.session_names import names_in
from dagster_ips.spark.settings import ALL_FIELDS, with_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plan_version(frame: DataFrame, values: RunValues, lookups: Mapping[str, DataFrame]) -> PlanVersion:
    """The version of the plan of ``frame``; runs no job.

    ``values`` are what the run gave to the function that made it. ``lookups`` are frames of the library that have no
    mark in plans, by what they are in words.
    """
    try:
        return _version(frame, values, lookups)
    except Exception as error:  # noqa: BLE001  # whatever a plan holds that isn't foreseen here, rows can be written
        why = f"its plan can't be read: {type(error).__name__}: {first_line(error)}"
        return PlanVersion("unreadable", (), (why,), varies=True)


def _version(frame: DataFrame, values: RunValues, lookups: Mapping[str, DataFrame]) -> PlanVersion:
    relation = sent_plan(frame)
    if relation is None:
        with with_settings(frame.sparkSession, ALL_FIELDS):
            plan = AnalyzedPlan(frame)
        found = classic_plan(plan, values)
        return replace(found, as_written=classic_plan(plan, values.without_bounds()) if values.bounds else None)
    names = names_in(frame.sparkSession)
    given = {number: text for text, each in lookups.items() if (number := plan_number(each)) is not None}
    found = connect_plan(relation, values, names, given)
    written = connect_plan(relation, values.without_bounds(), names, given) if values.bounds else None
    return replace(found, as_written=written)
