"""The check ``pending`` of each consumer, which shows what it has to consume and is kept up to date without a run.

In a materialization's metadata, this information would be outdated by the next commit upstream.

No ``from __future__ import annotations`` here: Dagster reads the annotation of ``context`` without resolving it.
"""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import dagster as dg

from dagster_ips.core.backlog import Backlog, sum_of
from dagster_ips.core.packed_text import digest, packed, unpacked
from dagster_ips.core.retry import MOST_FAILURES
from dagster_ips.core.size_text import counted, listed, size_text
from dagster_ips.core.time_text import age
from dagster_ips.errors import ForeignWriteError, IpsError
from dagster_ips.orchestration.declare.consumers import PENDING_CHECK
from dagster_ips.orchestration.declare.declarations import code_of
from dagster_ips.orchestration.platform.markdown_text import escaped
from dagster_ips.orchestration.watch.failed_runs import failed_runs, runs_that_failed, runs_without_output
from dagster_ips.orchestration.watch.tick_failures import said_of
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs

_MOST_SHOWN = 20
_ALL_CONSUMED = "everything is consumed"
PENDING_SENSOR = "ips_pending"


class Never(dg.AutomationCondition[dg.AssetCheckKey]):
    """A condition that is never true.

    Without a condition, Dagster adds a check as a step to every run that its automation requests for the check's asset.
    """

    name = "dagster_ips_by_sensor"

    def evaluate(self, context: dg.AutomationContext[dg.AssetCheckKey]) -> dg.AutomationResult[dg.AssetCheckKey]:
        """Never select anything."""
        return dg.AutomationResult(context, context.get_empty_subset())


def pending_checks(watched: Sequence[WatchedInputs]) -> dg.AssetChecksDefinition:
    """The checks, which can also be executed in the UI. They warn and block nothing, because waiting isn't an error."""
    by_key = {each.consumer.key: each for each in watched}
    specs = [
        dg.AssetCheckSpec(
            PENDING_CHECK,
            asset=key,
            description="Passes while no input change has been waiting for longer than "
            f"{_text(each.consumer.target_lag)}.",
            automation_condition=Never(),
        )
        for key, each in by_key.items()
    ]

    @dg.multi_asset_check(name="ips_pending_checks", specs=specs, can_subset=True)
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        now = _now()
        for check in sorted(context.selected_asset_check_keys):
            graph = context.job_def.asset_layer.asset_graph
            says = _looked_at(by_key[check.asset_key], graph, context.instance, now).says
            yield dg.AssetCheckResult(asset_key=check.asset_key, check_name=check.name, **says)

    return evaluate


def pending_checks_sensor(watched: Sequence[WatchedInputs], *, interval_seconds: int) -> dg.SensorDefinition:
    """A sensor that evaluates each check whose value has changed since the last tick, without a run.

    It also evaluates each check whose asset was materialized, because Dagster hides results that are older than that.
    Once it is unknown what is pending, it takes back what a check showed.
    """

    @dg.sensor(
        name=PENDING_SENSOR,
        minimum_interval_seconds=interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Keeps the check `pending` of incremental assets up to date.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        assert context.repository_def is not None  # noqa: S101  # the sensor runs where the definitions are
        graph, now = context.repository_def.asset_graph, _now()
        keys = [each.consumer.key for each in watched]
        shown, seen = _remembered(context.cursor)
        records = {each.asset_entry.asset_key: each for each in context.instance.get_asset_records(keys)}
        events, errors = [], {}
        for each in watched:
            try:
                look = _looked_at(each, graph, context.instance, now, seen.get(each.name, {}))
                if each.consumer.is_partitioned:
                    each.keep_up(graph, context.instance, tick=now)
            except IpsError as error:  # Other checks are still evaluated.
                context.log.warning("could not determine what %s has to consume: %s", each.name, error)
                errors[each.name] = error
                look = _unknown(str(error), kind=type(error).__name__, first_seen_ms=seen.get(each.name))
            record = records.get(each.consumer.key)
            seen[each.name] = look.first_seen_ms
            # A digest, because there may be thousands of partitions.
            value = digest(json.dumps(look.value))
            now_shown = [value, record.asset_entry.last_materialization_storage_id if record else None]
            if (look.is_known or each.name in shown) and shown.get(each.name) != now_shown:
                shown[each.name] = now_shown
                of = each.consumer.key
                events.append(dg.AssetCheckEvaluation(asset_key=of, check_name=PENDING_CHECK, **look.says))
        said = [] if events else ["Nothing pending has changed."]
        skip_reason = " ".join([*said, *said_of(errors)]) or None
        cursor = packed(json.dumps({"shown": shown, "seen": seen}))
        return dg.SensorResult(asset_events=events, cursor=cursor, skip_reason=skip_reason)

    return watch


@dataclass(frozen=True, slots=True)
class _CheckState:
    """What is pending for a consumer, as a ``value`` to compare, and what its check ``says``.

    ``first_seen_ms`` is, by partition, since when it has been seen waiting. ``waits`` says whether anything is pending.
    ``is_known`` is False if that is unknown, for example while an input has no table.
    """

    value: Any
    says: dict[str, Any]
    first_seen_ms: dict[str, float] = field(default_factory=dict)
    waits: bool = False
    is_known: bool = True


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _remembered(cursor: str | None) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """What each check showed and since when partitions wait; both empty if an older version wrote the cursor."""
    known = json.loads(unpacked(cursor)) if cursor else {}
    return (known["shown"], known["seen"]) if known.keys() == {"shown", "seen"} else ({}, {})


def _looked_at(
    each: WatchedInputs,
    graph: Any,  # noqa: ANN401  # Dagster's asset graph has no public type
    instance: dg.DagsterInstance,
    now: dt.datetime,
    first_seen_ms: Mapping[str, float] | None = None,
) -> _CheckState:
    """The state of a consumer's check.

    Without ``first_seen_ms`` it is unknown since when partitions wait, and all waiting partitions count as late.
    """
    look = _waiting(each, graph, instance, now, first_seen_ms)
    if not look.is_known:
        return look
    if look.waits:  # Whatever failed is still pending, so nothing pending needs no query.
        failed = failed_runs(instance, each.consumer.key, is_partitioned=each.consumer.is_partitioned)
        if failed:
            runs = {key: record.dagster_run.run_id for key, record in failed.items()}
            look = replace(look, value=[look.value, runs], says=_with_failed(look.says, failed))
    target = each.watched.table(each.consumer.table, tick=now)
    node = graph.get(each.consumer.key)
    code = code_of(node.code_version, node.metadata)
    older = each.older_rows(graph, instance, target, code) if target is not None else None
    if older:
        look = replace(look, value=[look.value, str(older)], says=_with_older_rows(look.says, str(older)))
    try:
        each.require_known_writes(instance, tick=now)
    except ForeignWriteError as error:
        look = replace(look, value=[look.value, error.newest], says=_with_foreign_writes(look.says, str(error)))
    return look


def _waiting(
    each: WatchedInputs,
    graph: Any,  # noqa: ANN401  # as for _looked_at
    instance: dg.DagsterInstance,
    now: dt.datetime,
    first_seen_ms: Mapping[str, float] | None,
) -> _CheckState:
    lag, now_ms = each.consumer.target_lag, now.timestamp() * 1000
    if each.consumer.is_partitioned:
        keys = each.pending_partitions(graph, instance, tick=now)
        if keys is None:
            return _without_table(each, now, first_seen_ms)
        unreached = each.unreached(graph, instance, tick=now)
        otherwise = 0.0 if first_seen_ms is None else now_ms
        seen = {key: (first_seen_ms or {}).get(key, otherwise) for key in sorted(keys)}
        is_late = any(now_ms - since >= lag.total_seconds() * 1000 for since in seen.values())
        shown = _shown_partitions(sorted(keys), lag, unreached, is_late=is_late)
        return _CheckState([sorted(keys), is_late, *unreached], shown, seen, waits=bool(keys))
    waiting = each.backlogs(instance, tick=now)
    if waiting is None:
        return _without_table(each, now, first_seen_ms)
    is_late = any(b.is_due(now_ms=now_ms, max_wait_seconds=lag.total_seconds()) for b in waiting.values())
    value = [{upstream: asdict(backlog) for upstream, backlog in waiting.items()}, is_late]
    return _CheckState(
        value, _shown(waiting, lag, is_late=is_late), waits=any(not b.is_empty for b in waiting.values())
    )


def _with_failed(says: Mapping[str, Any], failed: Mapping[str, dg.RunRecord]) -> dict[str, Any]:
    """What a check says, plus the runs that didn't consume what is pending."""
    linked = {
        name: dg.MetadataValue.md(_links(runs))
        for name, runs in (("failed", runs_that_failed(failed)), ("without output", runs_without_output(failed)))
        if runs
    }
    return {
        **says,
        "description": f"{says['description']}. {failed_text(failed)}",
        "metadata": {**says["metadata"], **linked},
    }


def _links(runs: Mapping[str, str]) -> str:
    shown = [f"[{escaped(key) or run_id[:8]}](/runs/{run_id})" for key, run_id in sorted(runs.items())]
    more = [f"and {len(shown) - _MOST_SHOWN:,} more"] if len(shown) > _MOST_SHOWN else []
    return ", ".join(shown[:_MOST_SHOWN] + more)


def failed_text(failed: Mapping[str, dg.RunRecord]) -> str:
    """A sentence on what ``failed_runs`` found, and what happens next."""
    ended = _last_runs("failed", runs_that_failed(failed))
    yielded_nothing = _last_runs("succeeded, but yielded nothing", runs_without_output(failed))
    said = [text for text in (ended, yielded_nothing) if text]
    tried = f"automation tries what is pending {MOST_FAILURES} times, then waits for new data, new code or a manual run"
    return f"{'. '.join(said)}; {tried}"


def _last_runs(did: str, runs: Mapping[str, str]) -> str:
    if "" in runs:
        return f"Its last run {did} (run {runs['']})"
    named = [f"{key} (run {run_id[:8]})" for key, run_id in sorted(runs.items())]
    return f"The last run of these partitions {did}: {listed(named, _MOST_SHOWN)}" if runs else ""


def _with_older_rows(says: Mapping[str, Any], older: str) -> dict[str, Any]:
    """What a check says, plus which rows are of older code.

    That doesn't decide whether the check passes, because no input change is waiting for these rows.
    """
    return {
        **says,
        "description": f"{says['description']}. {older[0].upper()}{older[1:]}",
        "metadata": {**says["metadata"], "older rows": older},
    }


def _with_foreign_writes(says: Mapping[str, Any], error: str) -> dict[str, Any]:
    """What a check says, plus why the next run is going to be refused, which otherwise shows with the next change."""
    return {**says, "passed": False, "description": f"{says['description']}. The next run is refused: {error}"}


def _without_table(each: WatchedInputs, now: dt.datetime, first_seen_ms: Mapping[str, float] | None) -> _CheckState:
    there = each.tables(tick=now)
    missing = [tracked for tracked in each.inputs if tracked.table not in there]
    why = "; ".join(f"{tracked.table}, the table of {tracked.upstream}, doesn't exist" for tracked in missing)
    return _unknown(why, kind="no table", first_seen_ms=first_seen_ms)


def _unknown(why: str, *, kind: str, first_seen_ms: Mapping[str, float] | None) -> _CheckState:
    """The state if it is unknown what is pending; ``kind`` doesn't change from tick to tick, as ``why`` may."""
    says = {
        "passed": False,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": f"It is unknown what is pending: {why}",
        "metadata": {},
    }
    return _CheckState(["unknown", kind], says, dict(first_seen_ms or {}), is_known=False)


def _shown_partitions(
    keys: Sequence[str], lag: dt.timedelta, unreached: Sequence[str], *, is_late: bool
) -> dict[str, Any]:
    """What a partitioned asset's check says; ``unreached`` are texts on rows that no run will take."""
    have = f"{counted(len(keys), 'partition')} {'has' if len(keys) == 1 else 'have'}"
    late, named = _lag_text(lag, is_late=is_late), listed(keys, _MOST_SHOWN)
    said = [f"{have} changes that are not consumed{late}: {named}"] if keys else []
    return {
        "passed": not (is_late or unreached),
        "severity": dg.AssetCheckSeverity.WARN,
        "description": "; ".join([*said, *unreached]) or _ALL_CONSUMED,
        "metadata": {"partitions pending": len(keys)},
    }


def _shown(waiting: Mapping[str, Backlog], lag: dt.timedelta, *, is_late: bool) -> dict[str, Any]:
    """What a check says: a sentence, numbers that the UI can plot, and the numbers by input if there are several."""
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
        "passed": not is_late,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": _ALL_CONSUMED if total.is_empty else _sentence(waiting) + _lag_text(lag, is_late=is_late),
        "metadata": metadata,
    }


def _lag_text(lag: dt.timedelta, *, is_late: bool) -> str:
    return f", {'for longer than' if is_late else 'within'} the target lag of {_text(lag)}"


def _sentence(waiting: Mapping[str, Backlog]) -> str:
    parts = []
    for upstream, found in waiting.items():
        if not found.is_known:
            parts.append(
                f"{upstream} can't be followed from the last consumed snapshot; the error of the next run says why"
            )
        elif not found.is_empty:
            parts.append(
                f"{counted(found.snapshots, 'snapshot')} of {upstream} not consumed: {counted(found.files, 'file')}, "
                f"{counted(found.rows, 'row')}, {size_text(found.size_bytes)}"
            )
    return "; ".join(parts)


def _text(lag: dt.timedelta) -> str:
    return age(round(lag.total_seconds() * 1000))
