"""The sensor that reports what killed runs had published before Dagster could record it.

Nothing is pending after such a run, so nothing would repeat it. Dagster's own conditions, such as ``eager()``, follow
materializations only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import takewhile

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.errors import IpsError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import REVERTED, RUN, computed_in
from dagster_ips.orchestration.declare.declarations import DATA_VERSION_TAG
from dagster_ips.orchestration.declare.run_numbers import PUBLISHED
from dagster_ips.orchestration.watch.failed_runs import failed_runs
from dagster_ips.orchestration.watch.tick_failures import said_of
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs

KILLED_RUNS_SENSOR = "ips_killed_runs"
_KILLED = (DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
_OVERLAP = dt.timedelta(minutes=1)
"""How much of the time before the last tick is looked at again: what ended last may have been stored a bit later."""


def killed_runs_sensor(watched: Sequence[WatchedInputs], *, interval_seconds: int) -> dg.SensorDefinition:
    """A sensor that looks at each run that failed or was canceled, and reports what Dagster doesn't know it published.

    A tick without such a run costs one query. Its cursor is the time up to which ended runs have been looked at; if a
    table can't be read, the next tick looks at the same runs again.
    """

    @dg.sensor(
        name=KILLED_RUNS_SENSOR,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports what killed runs had published before Dagster could record it.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        now = dt.datetime.now(dt.UTC)
        since = dt.datetime.fromisoformat(context.cursor) if context.cursor else now
        ended = dg.RunsFilter(statuses=[*_KILLED], updated_after=since - _OVERLAP)
        runs = [record.dagster_run for record in context.instance.get_run_records(ended)]
        chosen = {key for run in runs for key in run.asset_selection or ()}
        is_any = any(run.asset_selection is None for run in runs)
        events: list[dg.AssetMaterialization] = []
        errors: dict[str, IpsError] = {}
        for each in watched:
            if is_any or each.consumer.key in chosen:
                try:
                    events += _unrecorded(each, context.instance)
                except IpsError as error:  # Other assets are still reported.
                    context.log.warning("could not determine what runs of %s published: %s", each.name, error)
                    errors[each.name] = error
        said = [] if events else ["Dagster knows what the runs that failed have published."]
        return dg.SensorResult(
            asset_events=events,
            cursor=(since if errors else now).isoformat(),
            skip_reason=" ".join([*said, *said_of(errors)]) or None,
        )

    return watch


def _unrecorded(each: WatchedInputs, instance: DagsterInstance) -> Iterator[dg.AssetMaterialization]:
    """What killed runs of a consumer have published to its table, as events for Dagster."""
    failed = failed_runs(instance, each.consumer.key, is_partitioned=each.consumer.is_partitioned)
    target = each.watched.catalog.open_for_ticks().find(each.consumer.table) if failed else None
    if target is None:
        return
    for snapshot in target.ancestry().snapshots:
        computed = {key: mode for key, mode in computed_in(snapshot).items() if key in failed}
        failed = {key: run for key, run in failed.items() if key not in computed}
        run_id = snapshot.summary.get(RUN, "")
        version = None if REVERTED in snapshot.summary else _version(target, snapshot, run_id)
        for key in computed if version is not None else ():
            if version is not None and _is_unreported(instance, each.consumer.key, key or None, run_id, version):
                yield dg.AssetMaterialization(
                    each.consumer.key,
                    description=f"run {run_id} published this, and ended before Dagster recorded it",
                    partition=key or None,
                    metadata={PUBLISHED: version},
                    tags={DATA_VERSION_TAG: version},
                )
        if not failed:
            return


def _version(target: TableMetadata, snapshot: Snapshot, run_id: str) -> str | None:
    """The newest snapshot of the run, up to ``snapshot``, that changed rows, as text; None if the run changed none."""
    newest = Ancestry.of(target.snapshots, snapshot.snapshot_id).snapshots
    own = takewhile(lambda each: each.summary.get(RUN) == run_id, newest)
    return next((str(each.snapshot_id) for each in own if not each.keeps_rows), None)


def _is_unreported(
    instance: DagsterInstance, key: dg.AssetKey, partition: str | None, run_id: str, version: str
) -> bool:
    """Whether the run failed, and neither it nor anything since has reported what it published."""
    run = instance.get_run_by_id(run_id) if run_id else None
    if run is None or run.status not in _KILLED:
        return False
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=[partition] if partition else None)
    for record in instance.fetch_materializations(wanted, limit=1).records:
        newest = record.asset_materialization
        if newest is not None and (newest.tags or {}).get(DATA_VERSION_TAG) == version:
            return False
    made = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    events = [entry.dagster_event for entry in made if entry.dagster_event]
    return all((event.asset_key, event.partition) != (key, partition) for event in events)
