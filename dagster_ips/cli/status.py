"""``dagster-ips status``: how far each edge is, and what is pending."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from dagster import RunRecord

from dagster_ips.cli.context import UNREADABLE, Workplace
from dagster_ips.cli.progress import shown_while
from dagster_ips.cli.text_format import at_text, json_text, moment_json, table
from dagster_ips.core.edge import Edge
from dagster_ips.core.size_text import counted, listed, size_text
from dagster_ips.core.time_text import age, moment
from dagster_ips.core.touched import LineState
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.edge_status import EdgeStatus, Pending
from dagster_ips.orchestration.run.known_consumers import KnownConsumer
from dagster_ips.orchestration.watch.failed_runs import runs_that_failed, runs_without_output
from dagster_ips.orchestration.watch.pending_checks import failed_text

_HEADINGS = ("ASSET", "UPSTREAM", "CONSUMED UP TO", "NUMBER", "PENDING", "LAG", "IN FLIGHT", "TABLE'S NEWEST STAMP")

_OF_PARTITIONS = ("PARTITIONED ASSET", "UPSTREAM", "CHECKED UP TO", "CHANGED UPSTREAM PARTITIONS")
_MOST = 10


@dataclass(frozen=True)
class _Found:
    """How far consumers are: the edges of those without partitions, and the inputs and lines of the others.

    By consumer, ``older`` are the rows that older code computed, in words, and ``unreadable`` says why its table can't
    be read; ``failed`` and ``blocked`` are as a ``Workplace`` has them.
    """

    edges: Sequence[EdgeStatus]
    lines: Sequence[tuple[TrackedInput, LineState]]
    older: Mapping[str, str | None]
    unreadable: Mapping[str, str]
    failed: Mapping[str, Mapping[str, RunRecord]]
    blocked: Mapping[str, Collection[str]]


def status(workplace: Workplace, asset: str | None, *, as_json: bool) -> None:
    """Print how far each consumer is, or only ``asset``."""
    known = [workplace.consumer(asset)] if asset else list(workplace.consumers.values())
    known = sorted(known, key=lambda each: each.consumer.name)
    with shown_while("Reading the tables' metadata"):
        found = _look(workplace, known)
    if as_json:
        click.echo(json_text(_all_as_json(found)))
        return
    if not known:
        click.echo(
            "No asset in these definitions is incremental: none has an ips.incremental() input. If one has, pass the "
            "definitions through ips.with_incremental()."
        )
    if found.edges:
        click.echo(table(_HEADINGS, [_row(each, workplace) for each in found.edges]))
    outside = {each.table for each in workplace.known_tables if each.is_outside}
    remarks = [f"{each.edge}: {remark}" for each in found.edges for remark in _remarks(each, outside)]
    for remark in [*remarks, *(each.warning for each in known if each.warning)]:
        click.echo(f"\n{remark}")
    if found.lines:
        if found.edges:
            click.echo()
        click.echo(table(_OF_PARTITIONS, [_line_row(line) for _, line in found.lines]))
    for remark in _remarks_below(workplace, known, found):
        click.echo(f"\n{remark}")


def _look(workplace: Workplace, known: Sequence[KnownConsumer]) -> _Found:
    edges = [
        workplace.inspector(each).status(each.consumer.name, tracked)
        for each in known
        if not each.consumer.is_partitioned
        for tracked in each.consumer.inputs.values()
    ]
    lines = [
        (tracked, workplace.store.get_line(Edge(each.consumer.name, tracked.upstream)))
        for each in known
        if each.consumer.is_partitioned
        for tracked in each.consumer.inputs.values()
    ]
    older, unreadable = _older_rows(workplace, known)
    failed = {each.consumer.name: workplace.failed(each) for each in known}
    blocked = {each.consumer.name: workplace.blocked(each) for each in known}
    return _Found(edges, lines, older, unreadable, failed, blocked)


def _all_as_json(found: _Found) -> list[dict[str, Any]]:
    edges = [_as_json(each) for each in found.edges]
    lines = [_line_as_json(line, found.unreadable) for _, line in found.lines]
    return [
        {
            **each,
            "older_rows": found.older[each["asset"]],
            "failed": dict(runs_that_failed(found.failed[each["asset"]])),
            "without_output": dict(runs_without_output(found.failed[each["asset"]])),
            "held_back": sorted(found.blocked[each["asset"]]),
        }
        for each in [*edges, *lines]
    ]


def _remarks_below(workplace: Workplace, known: Sequence[KnownConsumer], found: _Found) -> Iterator[str]:
    """What needs attention apart from edges: partitioned assets, older rows, and runs that failed."""
    for name in dict.fromkeys(line.edge.consumer for _, line in found.lines):
        if name in found.unreadable:
            yield f"{name}: {_will_fail(found.unreadable[name])}"
    for tracked, line in found.lines:
        for text in tracked.unreached(line):
            yield f"{line.edge}: {text}. dagster-ips doctor says what to do."
    for each in known:
        if rows := found.older[each.consumer.name]:
            yield f"{each.consumer.name}: {rows} A full recompute would read {workplace.everything_text(each)}."
    for name, runs in found.failed.items():
        if runs:
            yield f"{name}: {failed_text(runs)}.{_held_back(found.blocked[name])}"


def _older_rows(
    workplace: Workplace, known: Sequence[KnownConsumer]
) -> tuple[Mapping[str, str | None], Mapping[str, str]]:
    """By consumer, the rows that older code computed, in words; and why the tables of others can't be read."""
    older: dict[str, str | None] = {}
    unreadable: dict[str, str] = {}
    for each in known:
        try:
            rows = workplace.older_rows(each)
        except UNREADABLE as error:
            rows, unreadable[each.consumer.name] = None, str(error)
        older[each.consumer.name] = str(rows) if rows else None
    return older, unreadable


def _will_fail(problem: str) -> str:
    return f"the next run will fail: {problem}"


def _held_back(keys: Collection[str]) -> str:
    """A sentence on the failed partitions that automation doesn't retry now."""
    named = listed([key for key in sorted(keys) if key], _MOST)
    return f" Held back now{f': {named}' if named else ''}." if keys else ""


def _row(each: EdgeStatus, workplace: Workplace) -> Sequence[str]:
    state, pending, held = each.state, each.pending, each.state.in_flight
    waits = "no table yet" if each.is_waiting else "?" if pending is None else "nothing"
    if pending is not None and (pending.files or pending.snapshots):
        what = "everything: " if pending.is_full else ""
        waits = (
            f"{what}{counted(pending.snapshots, 'snapshot')}, {counted(pending.files, 'file')}, "
            f"{counted(pending.rows, 'row')}, {size_text(pending.size_bytes)}"
        )
    stamp = each.newest_stamp
    return (
        each.edge.consumer,
        each.edge.upstream,
        at_text(None if state.is_beginning else state.committed),
        f"{state.number:,}",
        waits,
        _lag(pending),
        f"{held.run_id} {_since(each, workplace)}" if held else "-",
        f"{stamp.number:,} at {moment(stamp.target.timestamp_ms)}" if stamp else "-",
    )


def _since(each: EdgeStatus, workplace: Workplace) -> str:
    """When the run in flight took its capture, or that the run has ended: the next one takes up what it left."""
    held = each.state.in_flight
    run = workplace.instance.get_run_by_id(held.run_id) if held else None
    return "has ended" if run is not None and run.is_finished else f"since {moment(each.in_flight_since_ms)}"


def _lag(pending: Pending | None) -> str:
    """How long the oldest change has been waiting."""
    oldest_ms = pending.oldest_ms if pending else None
    return age(time.time_ns() // 1_000_000 - oldest_ms) if oldest_ms is not None else "-"


def _line_row(line: LineState) -> Sequence[str]:
    keys = sorted(line.touched)
    touched = f"{len(keys):,}: {listed(keys, _MOST)}" if keys else "none"
    return (line.edge.consumer, line.edge.upstream, at_text(line.scanned), touched)


def _line_as_json(line: LineState, problems: Mapping[str, str]) -> dict[str, Any]:
    return {
        "asset": line.edge.consumer,
        "upstream": line.edge.upstream,
        "partitioned": True,
        "looked_at_up_to": _watermark(line.scanned),
        "changed_partitions_of_upstream": sorted(line.touched),
        "values_without_a_partition": list(line.unmapped),
        "files_of_unknown_partitions": line.unread_causes,
        "problem": problems.get(line.edge.consumer),
    }


def _remarks(status: EdgeStatus, outside: Collection[str]) -> list[str]:
    state = status.state
    remarks = [_will_fail(status.problem)] if status.problem else []
    if status.is_waiting:
        upstream = status.edge.upstream
        then = (
            "If it should, correct the name in iceberg_asset(..., table=...)"
            if status.table in outside
            else f"The first run of {upstream} creates it"
        )
        remarks.append(f"waiting for {status.table}, the table of {upstream}, which doesn't exist yet. {then}.")
    if state.reread_to:
        remarks.append(f"was rewound; the next run reads up to {at_text(state.reread_to)} again.")
    return remarks + [f"{each.kind} on {moment(each.at_ms)} by {each.who}: {each.why}" for each in state.interventions]


def _as_json(each: EdgeStatus) -> dict[str, Any]:
    state, pending, held, stamp = each.state, each.pending, each.state.in_flight, each.newest_stamp
    return {
        "asset": each.edge.consumer,
        "upstream": each.edge.upstream,
        "upstream_table": each.table,
        "table": each.target,
        "consumed_up_to": _watermark(None if state.is_beginning else state.committed),
        "begins_after": _watermark(state.committed) if state.is_beginning else None,
        "reads_again_up_to": _watermark(state.reread_to),
        "number": state.number,
        "pending": pending
        and {
            "mode": "full" if pending.is_full else "incremental",
            "snapshots": pending.snapshots,
            "files": pending.files,
            "rows": pending.rows,
            "size_bytes": pending.size_bytes,
            "partitions": pending.partitions,
            "since": moment_json(pending.oldest_ms),
        },
        "in_flight": held
        and {
            "number": held.number,
            "run_id": held.run_id,
            "mode": held.mode,
            "icdc_table": held.icdc_table,
            "since": moment_json(each.in_flight_since_ms),
        },
        "newest_stamp": stamp
        and {
            "number": stamp.number,
            "snapshot_id": str(stamp.target.snapshot_id),
            "at": moment(stamp.target.timestamp_ms),
            "upstream_snapshot_id": str(stamp.to_inclusive.snapshot_id),
        },
        "interventions": [
            {
                "kind": done.kind,
                "who": done.who,
                "why": done.why,
                "at": moment(done.at_ms),
                "number": done.number,
                "before": _watermark(done.before),
                "after": _watermark(done.after),
            }
            for done in state.interventions
        ],
        "problem": each.problem,
        "waits_for_table": each.table if each.is_waiting else None,
    }


def _watermark(watermark: Watermark | None) -> dict[str, Any] | None:
    if watermark is None:
        return None
    return {"snapshot_id": str(watermark.snapshot_id), "at": moment(watermark.timestamp_ms), "ref": watermark.ref}
