"""Pending, shown where it stays true: an asset check of each consumer, kept up to date without a run.

In a materialisation's metadata it would be old with the next commit upstream.

No ``from __future__ import annotations`` here: Dagster reads the annotation of ``context`` as it is.
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import dagster as dg

from dagster_ips.core.backlog import Backlog, sum_of
from dagster_ips.core.retry import MOST_FAILURES
from dagster_ips.errors import IpsError
from dagster_ips.iceberg.code_stamps import older_rows_of
from dagster_ips.orchestration.blocked import failed_runs
from dagster_ips.orchestration.cursor_store import CursorStore
from dagster_ips.orchestration.run_metadata import size_text
from dagster_ips.orchestration.tick_failures import said_of
from dagster_ips.orchestration.watching import WatchedInputs

PENDING_CHECK = "pending"
_MOST_SHOWN = 20
PENDING_SENSOR = "ips_pending"


class Never(dg.AutomationCondition[dg.AssetCheckKey]):
    """A check without a condition is added as a step to every run that Dagster's automation requests of its asset."""

    @property
    def name(self) -> str:
        """The name in the UI."""
        return "dagster_ips_by_sensor"

    def evaluate(self, context: dg.AutomationContext[dg.AssetCheckKey]) -> dg.AutomationResult[dg.AssetCheckKey]:
        """Nothing, ever."""
        return dg.AutomationResult(context, context.get_empty_subset())


def pending_checks(watched: Sequence[WatchedInputs]) -> dg.AssetChecksDefinition:
    """The checks, also for whoever executes one in the UI. A warning that blocks nothing, as waiting isn't an error."""
    by_key = {dg.AssetKey.from_user_string(each.name): each for each in watched}
    specs = [
        dg.AssetCheckSpec(
            PENDING_CHECK,
            asset=key,
            description="Whether every change of its inputs is consumed.",
            automation_condition=Never(),
        )
        for key in by_key
    ]

    @dg.multi_asset_check(name="ips_pending_checks", specs=specs, can_subset=True)
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        now = dt.datetime.now(dt.UTC)
        for check in sorted(context.selected_asset_check_keys):
            graph = context.job_def.asset_layer.asset_graph
            _, says = _looked_at(by_key[check.asset_key], graph, context.instance, now)
            yield dg.AssetCheckResult(asset_key=check.asset_key, check_name=check.name, **(says or _shown({})))

    return evaluate


def pending_checks_sensor(watched: Sequence[WatchedInputs], *, interval_seconds: int) -> dg.SensorDefinition:
    """Evaluates each check whose value has changed since the last tick, without a run.

    And each whose asset was materialised: Dagster shows no result of a check that is older than its asset.
    """
    keys = {each.name: dg.AssetKey.from_user_string(each.name) for each in watched}

    @dg.sensor(
        name=PENDING_SENSOR,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Keeps the check `pending` of incremental assets true.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        assert context.repository_def is not None  # noqa: S101  # the sensor runs where the definitions are
        graph, now = context.repository_def.asset_graph, dt.datetime.now(dt.UTC)
        shown: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
        records = {each.asset_entry.asset_key: each for each in context.instance.get_asset_records(list(keys.values()))}
        events, errors = [], {}
        for each in watched:
            try:
                value, says = _looked_at(each, graph, context.instance, now)
            except IpsError as error:  # The others' checks stay true; the consumer's own run says it as an error.
                context.log.warning("what %s has to consume can't be told: %s", each.name, error)
                errors[each.name] = error
                continue
            record = records.get(keys[each.name])
            now_shown = [value, record.asset_entry.last_materialization_storage_id if record else None]
            if says is not None and shown.get(each.name) != now_shown:
                shown[each.name] = now_shown
                events.append(dg.AssetCheckEvaluation(asset_key=keys[each.name], check_name=PENDING_CHECK, **says))
        said = [] if events else ["What is pending is as it was."]
        skip_reason = " ".join([*said, *said_of(errors)]) or None
        return dg.SensorResult(asset_events=events, cursor=json.dumps(shown), skip_reason=skip_reason)

    return watch


def _looked_at(
    each: WatchedInputs,
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    instance: dg.DagsterInstance,
    now: dt.datetime,
) -> tuple[Any, dict[str, Any] | None]:
    """What is pending of a consumer, to be compared, and what its check says; None as long as a table isn't there."""
    value: Any
    if each.consumer.is_partitioned:
        keys = each.pending_partitions(graph, instance, tick=now)
        value, says = sorted(keys or ()), None if keys is None else _shown_partitions(sorted(keys))
    else:
        waiting = each.backlogs(CursorStore(instance), tick=now)
        value = {upstream: asdict(backlog) for upstream, backlog in (waiting or {}).items()}
        says = None if waiting is None else _shown(waiting)
    if says is None:
        return value, None
    if not says["passed"]:  # What failed is still pending; all that is idle costs no query.
        failed = failed_runs(instance, each.consumer.key, is_partitioned=each.consumer.is_partitioned)
        runs = {key: record.dagster_run.run_id for key, record in failed.items()}
        value, says = ([value, runs], _with_failed(says, runs)) if runs else (value, says)
    target = each.watched.table(each.consumer.table, tick=now)
    older = older_rows_of(target, graph.get(each.consumer.key).code_version) if target else None
    return ([value, str(older)], _with_older_rows(says, str(older))) if older else (value, says)


def _with_failed(says: Mapping[str, Any], runs: Mapping[str, str]) -> dict[str, Any]:
    """What a check says beside, where what waits was tried already."""
    shown = [f"[{key or run_id[:8]}](/runs/{run_id})" for key, run_id in sorted(runs.items())]
    more = [f"and {len(shown) - _MOST_SHOWN:,} more"] if len(shown) > _MOST_SHOWN else []
    return {
        **says,
        "description": f"{says['description']}. {failed_text(runs)}",
        "metadata": {**says["metadata"], "failed": dg.MetadataValue.md(", ".join(shown[:_MOST_SHOWN] + more))},
    }


def failed_text(runs: Mapping[str, str]) -> str:
    """What failed last, by partition the id of its run or by an empty text the asset's, and what comes of it."""
    named = [f"{key} (run {run_id[:8]})" for key, run_id in sorted(runs.items())]
    listed = ", ".join(named[:_MOST_SHOWN]) + (", …" if len(named) > _MOST_SHOWN else "")
    what = (
        f"Its last run failed (run {runs['']})" if "" in runs else f"The last run of these partitions failed: {listed}"
    )
    return f"{what}; automation tries {MOST_FAILURES} times and then waits for new data, new code or a person"


def _with_older_rows(says: Mapping[str, Any], older: str) -> dict[str, Any]:
    """What a check says beside: no change of an input waits for it, so it doesn't decide whether the check passes."""
    return {
        **says,
        "description": f"{says['description']}. {older[0].upper()}{older[1:]}",
        "metadata": {**says["metadata"], "older rows": older},
    }


def _shown_partitions(keys: Sequence[str]) -> dict[str, Any]:
    """What a partitioned asset's check says."""
    listed = ", ".join(keys[:_MOST_SHOWN]) + (", …" if len(keys) > _MOST_SHOWN else "")
    have = "1 partition has" if len(keys) == 1 else f"{len(keys):,} partitions have"
    said = f"{have} changes that are not consumed: {listed}"
    return {
        "passed": not keys,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": said if keys else "everything is consumed",
        "metadata": {"partitions pending": len(keys)},
    }


def _shown(waiting: Mapping[str, Backlog]) -> dict[str, Any]:
    """What a check says: a sentence, numbers that plot, and which input they come from if there are several."""
    total = sum_of(waiting.values())
    metadata: dict[str, Any] = {
        "files pending": total.files,
        "rows pending": total.rows,
        "bytes pending": total.size_bytes,
        "snapshots pending": total.snapshots,
    }
    if total.oldest_ms is not None:
        metadata["pending since"] = dg.MetadataValue.timestamp(total.oldest_ms / 1000)
    if len(waiting) > 1:
        rows: list[dict[str, str | int | float | bool | None]] = [
            {"input": name, "snapshots": b.snapshots, "files": b.files, "rows": b.rows, "bytes": b.size_bytes}
            for name, b in waiting.items()
        ]
        metadata["by input"] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows])
    return {
        "passed": total.is_empty,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": _sentence(waiting),
        "metadata": metadata,
    }


def _sentence(waiting: Mapping[str, Backlog]) -> str:
    parts = []
    for upstream, found in waiting.items():
        if not found.is_known:
            parts.append(f"{upstream} can't be followed from where it was consumed; the next run says why")
        elif not found.is_empty:
            commits = "1 snapshot" if found.snapshots == 1 else f"{found.snapshots:,} snapshots"
            parts.append(
                f"{commits} of {upstream} not consumed: {found.files:,} files, {found.rows:,} rows, "
                f"{size_text(found.size_bytes)}"
            )
    return "; ".join(parts) or "everything is consumed"
