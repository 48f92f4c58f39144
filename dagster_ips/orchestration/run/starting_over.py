"""Has a step start over in the same run, and recompute everything, once its plan shows that it can't go on."""

from __future__ import annotations

from typing import Any

import dagster as dg

from dagster_ips.core.packed_text import digest
from dagster_ips.errors import PlanChangedError
from dagster_ips.orchestration.run.cascade_tag import Running

_TAG = "dagster_ips/recompute-{run}-{step}"


def start_over(step: Any, error: PlanChangedError) -> dg.RetryRequested:  # noqa: ANN401  # Dagster's class for it isn't public
    """The request to Dagster to execute ``step`` again, which recomputes everything then.

    Raises:
        PlanChangedError: retries are disabled.
    """
    if step.retry_mode.disabled:
        raise error
    step.instance.add_run_tags(step.run_id, {_tag(step): error.problem})
    step.log.info("%s: %s. The step starts over and recomputes everything.", error.table, error.problem)
    return dg.RetryRequested(max_retries=step.previous_attempt_count + 1)


def why_started_over(running: Running) -> str | None:
    """Why everything is recomputed in this attempt of a step, after an earlier one had to give up; None if none had."""
    step: Any = running.get_step_execution_context()
    if not step.previous_attempt_count:
        return None
    run = running.instance.get_run_by_id(step.run_id)
    return run.tags.get(_tag(step)) if run else None


def _tag(step: Any) -> str:  # noqa: ANN401  # as above
    """The tag of the step, in this run only: Dagster copies tags to the runs that repeat a run."""
    return _TAG.format(run=step.run_id[:8], step=digest(step.step.key)[:12])
