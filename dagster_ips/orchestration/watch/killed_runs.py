"""The sensor that reports what killed runs had published before Dagster could record it.

Nothing is pending after such a run, so nothing would repeat it. Dagster's own conditions, such as ``eager()``, follow
materializations only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import dagster as dg
from dagster import DagsterInstance, DagsterRunStatus

from dagster_ips.core.ancestry import Ancestry
from dagster_ips.core.capture import Stamp
from dagster_ips.core.edge import Edge
from dagster_ips.errors import IpsError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import RUN, target_histories
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
        assert context.repository_def is not None  # noqa: S101  # the sensor runs where the definitions are
        graph, now = context.repository_def.asset_graph, dt.datetime.now(dt.UTC)
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
                    events += _unrecorded(each, graph, context.instance)
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


def _unrecorded(
    each: WatchedInputs,
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    instance: DagsterInstance,
) -> Iterator[dg.AssetMaterialization]:
    """What killed runs of a consumer have published to its table, as events for Dagster."""
    key = each.consumer.key
    failed = failed_runs(instance, key, is_partitioned=each.consumer.is_partitioned)
    target = each.watched.catalog.open_for_ticks().find(each.consumer.table) if failed else None
    if target is None:
        return
    newest: dict[str | None, Stamp] = {}
    # Of an input whose table had no snapshot, the run left no stamp.
    upstreams = [tracked.upstream for tracked in each.consumer.tracked(graph, instance).values()]
    edges = [Edge(each.name, upstream, partition or None) for upstream in upstreams for partition in failed]
    for edge, history in target_histories(target, edges).items():
        known, found = newest.get(edge.partition), history.newest
        if found is not None and (known is None or known.target.position < found.target.position):
            newest[edge.partition] = found
    for partition, stamp in newest.items():
        version = None if stamp.takes_back else _version(target, stamp)
        if version is not None and _is_unreported(instance, key, partition, stamp, version):
            yield dg.AssetMaterialization(
                key,
                description=f"run {stamp.run_id} published this, and ended before Dagster recorded it",
                partition=partition,
                metadata={PUBLISHED: version},
                tags={DATA_VERSION_TAG: version},
            )


def _version(target: TableMetadata, stamp: Stamp) -> str | None:
    """The newest snapshot of the stamp's run that changed rows, as text; None if the run changed none."""
    newest = Ancestry.of(target.snapshots, stamp.target.snapshot_id).snapshots
    own = takewhile(lambda snapshot: snapshot.summary.get(RUN) == stamp.run_id, newest)
    return next((str(snapshot.snapshot_id) for snapshot in own if not snapshot.keeps_rows), None)


def _is_unreported(
    instance: DagsterInstance, key: dg.AssetKey, partition: str | None, stamp: Stamp, version: str
) -> bool:
    """Whether the stamp's run failed, and neither it nor anything since has reported what it published."""
    run = instance.get_run_by_id(stamp.run_id) if stamp.run_id else None
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
