"""Whether a run is working on an asset right now."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import dagster as dg

from dagster_ips.core.capture import EdgeState

WORKING = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *WORKING]


def run_at_work(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    states: Iterable[EdgeState] = (),
    *,
    statuses: Collection[dg.DagsterRunStatus] = WORKING,
) -> str | None:
    """The id of a run that is working on the asset, by its ``states`` or by Dagster's events; None if there is none.

    Such a run has one of the ``statuses``.
    """
    planned = instance.event_log_storage.get_latest_planned_materialization_info(key)
    held = [state.in_flight.run_id for state in states if state.in_flight]
    for run_id in [*held, *([planned.run_id] if planned else [])]:
        run = instance.get_run_by_id(run_id)
        if run is not None and run.status in statuses:
            return run_id
    return None
