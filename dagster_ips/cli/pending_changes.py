"""``dagster-ips pending``: the pending changes of an asset, one by one, and what the next run does with them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from dagster_ips._compat import knowing_partitions
from dagster_ips.cli.context import Workplace
from dagster_ips.cli.shown_progress import shown_while
from dagster_ips.cli.text_format import at_json, json_text, moment_json, table
from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.edge import Edge
from dagster_ips.core.size_text import counted, size_text
from dagster_ips.core.time_text import age, moment
from dagster_ips.errors import CatalogUnreachableError, CursorStorageError, IpsError, UnknownTableError
from dagster_ips.exactly_once.capture.partitioned_input import PartitionedInput, look_at
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.edge_status import EdgeStatus
from dagster_ips.iceberg.stamps import RUN
from dagster_ips.orchestration.run.known_consumers import KnownConsumer
from dagster_ips.orchestration.watch.failed_runs import runs_that_failed, runs_without_output

_MOST = 50
_SUMMARY = {
    "files_added": "added-data-files",
    "rows_added": "added-records",
    "rows_removed": "deleted-records",
    "size_bytes": "added-files-size",
}


def pending(workplace: Workplace, asset: str, *, upstream: str | None, as_json: bool) -> None:
    """Print what is pending from each upstream of the asset, or from one."""
    known = workplace.consumer(asset)
    inputs = [known.tracked(upstream)] if upstream else list(known.consumer.inputs.values())
    of_kind = _of_partitions if known.consumer.is_partitioned else _of_whole
    with shown_while("Reading the metadata of pending changes"):
        found = [of_kind(workplace, known, tracked) for tracked in inputs]
    if as_json:
        click.echo(json_text([shown for shown, _ in found]))
    else:
        click.echo("\n\n".join(text for _, text in found))


def _of_whole(workplace: Workplace, known: KnownConsumer, tracked: TrackedInput) -> tuple[dict[str, Any], str]:
    status = workplace.inspector(known).status(known.consumer.name, tracked)
    waits = status.pending
    waiting = waits.waiting if waits else ()
    shown = {
        "asset": status.edge.consumer,
        "upstream": status.edge.upstream,
        "upstream_table": status.table,
        "mode": None if waits is None else "full" if waits.is_full else "incremental",
        "files": waits and waits.files,
        "rows": waits and waits.rows,
        "size_bytes": waits and waits.size_bytes,
        "waits_since": moment_json(waits.oldest_ms if waits else None),
        "snapshots": [_snapshot(each) for each in waiting],
        "problem": status.problem,
        "waits_for_table": status.table if status.is_waiting else None,
    }
    return shown, _text(status, waiting)


def _text(status: EdgeStatus, waiting: Sequence[Snapshot]) -> str:
    waits = status.pending
    if status.is_waiting:
        return f"{status.edge}: waiting for {status.table}, which doesn't exist yet."
    if waits is None:
        return f"{status.edge}: the next run will fail: {status.problem}"
    if not waiting and not waits.files:
        return f"{status.edge}: nothing pending."
    how = "computes everything" if waits.is_full else "reads only the changes"
    partitions = "" if waits.partitions is None else f" in {counted(waits.partitions, 'partition')}"
    now_ms = time.time_ns() // 1_000_000
    since = f", the oldest change for {age(now_ms - waits.oldest_ms)}" if waits.oldest_ms is not None else ""
    what = f"{counted(waits.files, 'file')}, {counted(waits.rows, 'row')}, {size_text(waits.size_bytes)}{partitions}"
    head = f"{status.edge}: {what} pending{since}. The next run {how}."
    rows = [_row(_snapshot(each)) for each in waiting[-_MOST:]]
    more = f"\n… after {len(waiting) - _MOST} older ones" if len(waiting) > _MOST else ""
    headings = ("COMMITTED", "SNAPSHOT", "OPERATION", "FILES", "ROWS", "SIZE", "BY")
    return f"{head}{more}\n" + table(headings, rows)


def _snapshot(each: Snapshot) -> dict[str, Any]:
    counts = {name: int(each.summary[key]) if key in each.summary else None for name, key in _SUMMARY.items()}
    return {
        "snapshot_id": str(each.snapshot_id),
        "at": moment(each.timestamp_ms),
        "operation": each.operation,
        **counts,
        "run": each.summary.get(RUN),
    }


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    gone = f" -{each['rows_removed']:,}" if each["rows_removed"] else ""
    return (
        each["at"],
        each["snapshot_id"],
        each["operation"],
        f"{each['files_added'] or 0:,}",
        f"+{each['rows_added'] or 0:,}{gone}",
        size_text(each["size_bytes"] or 0),
        f"run {each['run'][:8]}" if each["run"] else "an outside job",
    )


def _of_partitions(workplace: Workplace, known: KnownConsumer, tracked: TrackedInput) -> tuple[dict[str, Any], str]:
    consumer = known.consumer
    edge = Edge(consumer.name, tracked.upstream)
    shown: dict[str, Any] = {
        "asset": consumer.name,
        "upstream": tracked.upstream,
        "upstream_table": tracked.table,
        "partitions": [],
        "values_without_a_partition": [],
        "files_of_unknown_partitions": {},
        "problem": None,
        "waits_for_table": None,
    }
    try:
        looked = waiting_partitions(workplace, known, tracked)
    except (CatalogUnreachableError, CursorStorageError):
        raise
    except IpsError as error:
        if isinstance(error, UnknownTableError) and error.consumed_snapshot_id is None:
            told = f"{edge}: waiting for {tracked.table}, which doesn't exist yet."
            return shown | {"waits_for_table": tracked.table}, told
        return shown | {"problem": str(error)}, f"{edge}: the next run will fail: {error}"
    failed, blocked = workplace.failed(known), workplace.blocked(known)
    partitions: list[dict[str, Any]] = [
        {
            "partition": key,
            "consumed_up_to": at_json(at),
            "failed_in": runs_that_failed(failed).get(key),
            "without_output_in": runs_without_output(failed).get(key),
            "held_back": key in blocked,
        }
        for key, at in sorted(looked.pending.items())
    ]
    shown |= {
        "partitions": partitions,
        "values_without_a_partition": list(looked.changed.unmapped),
        "files_of_unknown_partitions": dict(looked.changed.unread),
    }
    return shown, _text_of_partitions(edge, partitions, looked.unreached)


def waiting_partitions(workplace: Workplace, known: KnownConsumer, tracked: TrackedInput) -> PartitionedInput:
    """An input of a partitioned consumer as it is now, with the partitions that are pending.

    Raises:
        UnknownTableError: the input's table doesn't exist.
        IpsError: it can't be read, or what the consumer's table contains is unknown.
    """
    lake, consumer, contained = known.manager.catalog.open(), known.consumer, workplace.progress(known)
    before = contained.progress.inputs.get(tracked.upstream) if contained is not None else None
    consumed = before.marks[0].snapshot_id if before is not None and before.marks else None
    source = lake.load(tracked.table, asset=consumer.name, consumed_snapshot_id=consumed)
    with knowing_partitions(workplace.instance):
        sliced = consumer.tracked(known.graph, workplace.instance).values()
        (slicing,) = (each for each in sliced if each.upstream == tracked.upstream)
        return look_at(lake.storage, source, slicing, contained, consumer.name)


def _text_of_partitions(edge: Edge, partitions: Sequence[Mapping[str, Any]], unreached: Iterable[str]) -> str:
    notes = [f"{edge}: {each}." for each in unreached]
    if not partitions:
        return "\n".join(notes) or f"{edge}: nothing pending."
    rows = [
        (
            each["partition"],
            each["consumed_up_to"]["at"] if each["consumed_up_to"] else "never computed",
            _tried(each),
            "yes" if each["held_back"] else "-",
        )
        for each in partitions[:_MOST]
    ]
    more = f"\n… and {len(partitions) - _MOST} more" if len(partitions) > _MOST else ""
    head = f"{edge}: {counted(len(partitions), 'partition')} pending."
    shown = table(("PARTITION", "CONSUMED UP TO", "LAST TRIED IN", "HELD BACK"), rows)
    return "\n".join([head, shown + more, *notes])


def _tried(partition: Mapping[str, Any]) -> str:
    if run_id := partition["failed_in"]:
        return f"run {run_id}, which failed"
    run_id = partition["without_output_in"]
    return f"run {run_id}, which yielded nothing" if run_id else "-"
