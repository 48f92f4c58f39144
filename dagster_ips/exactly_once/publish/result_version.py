"""The version of the code that a run shows by what its asset returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_ips.core.plan_version import PlanVersion
from dagster_ips.core.ranges import Bound
from dagster_ips.core.run_values import RunValues
from dagster_ips.exactly_once.publish.input_change import InputChange
from dagster_ips.spark.plan_reading import plan_version

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


def result_version(  # noqa: PLR0913  # all are independent
    frame: DataFrame,
    inputs: Sequence[InputChange],
    *,
    lookups: Mapping[str, DataFrame],
    keys: Sequence[tuple[Bound, str]] = (),
    own: str | None = None,
    where: str | None = None,
    shares_views: bool = False,
) -> PlanVersion:
    """The version of the plan of ``frame``, which an asset made of ``inputs`` and ``lookups``; runs no job.

    ``lookups`` are frames of whole tables, by table. ``keys`` are values that say which partitions the run computes.
    ``own`` is the module of the asset's function. ``where`` is the condition on the rows that the frame replaces.
    ``shares_views`` is as in ``provenance``.
    """
    leaves = {taken.mark: taken.in_code(change.upstream) for change in inputs for taken in change.taken if taken.mark}
    packages = frozenset([own.partition(".")[0]] if own else [])
    values = RunValues.of_all(
        [*(change.given for change in inputs), RunValues(leaves, bounds=tuple(keys), own=packages)]
    )
    found = plan_version(frame, values, {f"rows of {table}": found for table, found in lookups.items()})
    if where is not None and found.lines:
        found = _replacing(found, where, values)
    shown = "\n".join(found.lines)
    unseen = [] if shares_views else [leaf for leaf in dict.fromkeys(leaves.values()) if f"«{leaf}»" not in shown]
    collected = [f"values that the function may have collected from {leaf}" for leaf in unseen]
    return replace(found, unknown=(*found.unknown, *collected), varies=bool(collected)) if collected else found


def _replacing(plan: PlanVersion, where: str, values: RunValues) -> PlanVersion:
    """The version of ``plan`` as that of an Overwrite."""
    written = plan.as_written
    if written is not None:
        written = replace(written, lines=(_overwrite(where, values.without_bounds()), *written.lines))
    return replace(plan, lines=(_overwrite(where, values), *plan.lines), as_written=written)


def _overwrite(where: str, values: RunValues) -> str:
    return f"overwrite({values.in_sql(where)})"
