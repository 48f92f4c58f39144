"""Which runs are at work right now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import dagster as dg

from dagster_ips.progress.cursor import Cursors

WORKING = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
UNFINISHED = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, *WORKING]


def run_at_work(
    instance: dg.DagsterInstance, key: dg.AssetKey, *, statuses: Collection[dg.DagsterRunStatus] = WORKING
) -> str | None:
    """The id of a run that is working on the asset, by its selection or by Dagster's events; None if there is none.

    Such a run has one of the ``statuses``.
    """
    planned = instance.event_log_storage.get_latest_planned_materialization_info(key)
    for record in instance.get_run_records(dg.RunsFilter(statuses=list(statuses))):
        run = record.dagster_run
        if key in (run.asset_selection or ()) or (planned is not None and planned.run_id == run.run_id):
            return run.run_id
    return None


@dataclass(frozen=True)
class RunsAtWork:
    """Whether a run, by its id, may still be at work: one of Dagster, or a job of ``consumer`` that hasn't reported."""

    instance: dg.DagsterInstance
    store: Cursors
    consumer: str
    _known: dict[str, bool] = field(default_factory=dict)

    def __call__(self, run_id: str) -> bool:
        """Whether it may."""
        if run_id not in self._known:
            self._known[run_id] = self._is_job(run_id) if ":" in run_id else self._is_running(run_id)
        return self._known[run_id]

    def _is_job(self, run_id: str) -> bool:
        job = self.store.get(self.consumer).job
        return job is not None and any(capture.run_id == run_id for capture in job.captures)

    def _is_running(self, run_id: str) -> bool:
        run = self.instance.get_run_by_id(run_id)
        return run is not None and not run.is_finished
