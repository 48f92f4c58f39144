"""A plain sensor that requests runs for what is pending, for users who don't use automation conditions."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg

from dagster_ips._compat import RANGE_END_TAG, RANGE_START_TAG, knowing_partitions
from dagster_ips.core.backlog import Backlog, sum_of
from dagster_ips.core.packed_text import digest
from dagster_ips.errors import DeclarationError, IpsError
from dagster_ips.orchestration.automate.run_requests import in_few_runs
from dagster_ips.orchestration.declare.asset_keys import AssetName, asset_key_of
from dagster_ips.orchestration.watch.run_at_work import UNFINISHED
from dagster_ips.orchestration.watch.tick_failures import said_of
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs, require_limits, require_no_limits

CONSUMER_TAG = "dagster_ips/consumer"

Bind = Callable[[Sequence[WatchedInputs]], dg.SensorDefinition]


class PendingSensor(dg.SensorDefinition):
    """What ``pending_sensor`` returns. A tick raises an error until ``with_incremental`` has bound the sensor."""

    def __init__(self, assets: frozenset[dg.AssetKey], bind: Bind, **attributes: Any) -> None:  # noqa: ANN401  # SensorDefinition's
        super().__init__(evaluation_fn=_unbound, asset_selection=dg.AssetSelection.assets(*assets), **attributes)
        self.driven_assets = assets
        self.bind = bind
        self._attributes = attributes

    def with_attributes(
        self,
        *,
        jobs: Sequence[Any] | None = None,  # noqa: ARG002  # it has none
        metadata: Mapping[str, Any] | None = None,
    ) -> PendingSensor:
        """A copy with other metadata, such as Dagster makes of each sensor that a component loads."""
        attributes = self._attributes if metadata is None else {**self._attributes, "metadata": metadata}
        return PendingSensor(self.driven_assets, self.bind, **attributes)


def pending_sensor(  # noqa: PLR0913  # independent parameters
    name: str,
    assets: Sequence[AssetName],
    *,
    interval_seconds: int = 30,
    min_bytes: int | None = None,
    max_wait: dt.timedelta | None = None,
    tags: Mapping[str, str] | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Create a sensor that requests runs of those ``assets`` that have pending changes; ``with_incremental`` binds it.

    Each change is requested once: an asset is skipped while a run requested for it is queued or running, and isn't
    requested again for the same change if that run fails (use Dagster's run retries for that). Assets driven by such a
    sensor get no automation condition.

    Args:
        name: The sensor's name.
        assets: Incremental assets. All assets of a step are requested together, also if only some of them are named.
        interval_seconds: The minimum time between ticks; everything committed in between becomes one run.
        min_bytes: As in ``pending``.
        max_wait: As in ``pending``.
        tags: Additional tags for the runs.
        default_status: Whether it is on by default.

    Example:
        >>> sensor = pending_sensor("hourly", ["playback_daily"], interval_seconds=3600)
        >>> sensor.minimum_interval_seconds
        3600
    """
    if isinstance(assets, str):
        problem = f"its assets={assets!r} is a single string, so each letter would count as an asset."
        raise DeclarationError(asset=name, problem=problem, remedy=f"Write [{assets!r}].")
    require_limits(min_bytes, max_wait, of=name)
    keys = frozenset(asset_key_of(each) for each in assets)
    attributes: dict[str, Any] = {
        "name": name,
        "minimum_interval_seconds": interval_seconds,
        "default_status": default_status,
        "description": "Requests runs of the incremental assets that have something to consume.",
    }

    due = partial(
        Backlog.is_due, min_bytes=min_bytes, max_wait_seconds=max_wait.total_seconds() if max_wait is not None else None
    )

    def bind(watched: Sequence[WatchedInputs]) -> dg.SensorDefinition:
        for each in watched:
            require_no_limits(each, min_bytes, max_wait)

        def evaluate(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
            now, found, said, errors = dt.datetime.now(dt.UTC), False, [], dict[str, IpsError]()
            for together in _by_step(watched):
                names = ", ".join(each.name for each in together)
                all_tags = {**(tags or {}), CONSUMER_TAG: names}
                if context.instance.get_runs_count(dg.RunsFilter(tags={CONSUMER_TAG: names}, statuses=UNFINISHED)):
                    said.append(f"A run requested earlier for {names} isn't finished.")
                    continue
                try:
                    requests = _requests(context, together, now, due, all_tags)
                except IpsError as error:  # The other assets' runs don't depend on it.
                    context.log.error("could not determine what %s has to consume: %s", names, error)  # noqa: TRY400
                    errors[names] = error
                    continue
                found = found or bool(requests)
                yield from requests
            if not found:
                yield dg.SkipReason(" ".join([*said, *said_of(errors)]) or "Nothing new is pending.")

        selection = dg.AssetSelection.assets(*{key for each in watched for key in each.consumer.step})
        return dg.SensorDefinition(evaluation_fn=evaluate, asset_selection=selection, **attributes)

    return PendingSensor(keys, bind, **attributes)


def _requests(
    context: dg.SensorEvaluationContext,
    together: Sequence[WatchedInputs],
    now: dt.datetime,
    due: Callable[..., bool],
    tags: Mapping[str, str],
) -> list[dg.RunRequest]:
    """Runs for what is pending for one step's assets.

    Raises:
        IpsError: it is unknown what is pending.
    """
    if together[0].consumer.is_partitioned:
        return _of_partitions(context, together[0], now, tags)
    waiting = [each.backlogs(context.instance, tick=now) for each in together]
    if not any(of_one and due(sum_of(of_one.values()), now_ms=now.timestamp() * 1000) for of_one in waiting):
        return []
    assert context.repository_def is not None  # noqa: S101  # the sensor runs where the definitions are
    graph, step = context.repository_def.asset_graph, together[0].consumer.step
    run_key = " ".join(_run_key(context, each, now) for each in together)
    checks = _checks(graph, step)
    return [dg.RunRequest(run_key=run_key, asset_selection=list(step), asset_check_keys=checks, tags=dict(tags))]


def _checks(graph: Any, step: Sequence[dg.AssetKey]) -> list[dg.AssetCheckKey]:  # noqa: ANN401  # Dagster's asset graph has no public type
    """The checks that run with the assets of a step, as in automation: not those that have a condition of their own.

    If a request names none, Dagster runs all of them.
    """
    of_step = {check for key in step for check in graph.get(key).assets_def.check_keys}
    found = graph.get_check_keys_for_assets(set(step))
    return sorted(check for check in found if check in of_step or graph.get(check).automation_condition is None)


def _by_step(watched: Sequence[WatchedInputs]) -> list[list[WatchedInputs]]:
    """The driven assets, grouped by step, because a step is run for all of its assets at once."""
    steps: dict[tuple[dg.AssetKey, ...], list[WatchedInputs]] = {}
    for each in watched:
        steps.setdefault(each.consumer.step, []).append(each)
    return list(steps.values())


def _of_partitions(
    context: dg.SensorEvaluationContext, each: WatchedInputs, now: dt.datetime, tags: Mapping[str, str]
) -> list[dg.RunRequest]:
    """Runs for the pending partitions, each once for the same consumed numbers and the same heads of the inputs."""
    assert context.repository_def is not None  # noqa: S101  # the sensor runs where the definitions are
    graph, key = context.repository_def.asset_graph, each.consumer.key
    pending = each.pending_partitions(graph, context.instance, tick=now)
    definition = graph.get(key).partitions_def
    if not pending or definition is None:
        return []
    checks = _checks(graph, [key])
    single = [
        dg.RunRequest(asset_selection=[key], asset_check_keys=checks, partition_key=p, tags=dict(tags))
        for p in sorted(pending)
    ]
    with knowing_partitions(context.instance):
        spans = [(request, _span_of(request)) for request in in_few_runs(single, graph)]
        within = [definition.get_partition_keys_in_range(dg.PartitionKeyRange(*span)) for _, span in spans]
    return [
        request.with_replaced_attrs(run_key=f"{_run_key(context, each, now, keys)} {'...'.join(dict.fromkeys(span))}")
        for (request, span), keys in zip(spans, within, strict=True)
    ]


def _span_of(request: dg.RunRequest) -> tuple[str, str]:
    """The first and the last partition of the request."""
    if request.partition_key:
        return request.partition_key, request.partition_key
    return request.tags[RANGE_START_TAG], request.tags[RANGE_END_TAG]


def _run_key(
    context: dg.SensorEvaluationContext,
    each: WatchedInputs,
    now: dt.datetime,
    partitions: Sequence[str | None] = (None,),
) -> str:
    """A key for the pending interval: up to where each input was consumed, and each input's current head.

    What was consumed before is pending again if someone took the table back, or a person asked for it.
    """
    tables, known = each.tables(tick=now), each.known(context.instance, tick=now)
    cursor = each.watched.cursors(context.instance, tick=now)[each.name]
    number, copy = known.progress.number if known is not None else 0, cursor.copy
    taken_back = copy.mark.snapshot_id if copy and copy.mark and copy.progress.number > number else None
    heads: list[object] = [taken_back, [request.id for request in cursor.open_requests(known)]]
    for t in each.inputs:
        progress, source = known.progress.inputs.get(t.upstream) if known is not None else None, tables[t.table]
        marks = [progress.position(partition) for partition in partitions] if progress is not None else []
        consumed = [mark and mark.snapshot_id for mark in marks]
        heads.append([t.upstream, consumed, source.uuid, source.head_snapshot_id(t.ref)])
    return f"{each.name} {digest(json.dumps(heads))}"


def _unbound(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    raise DeclarationError(
        asset=context.sensor_name,
        problem="the sensor has no information on what its assets read.",
        remedy="Pass the definitions that contain it through with_incremental().",
    )
