"""``dagster-ips status``: how far each edge is, and what is pending."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from dagster import RunRecord

from dagster_ips.cli.context import UNKNOWN, Workplace
from dagster_ips.cli.shown_progress import shown_while
from dagster_ips.cli.text_format import at_text, json_text, moment_json, table
from dagster_ips.core.edge import Edge
from dagster_ips.core.retention import IcdcTable
from dagster_ips.core.size_text import counted, listed, size_text
from dagster_ips.core.time_text import age, moment
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.inspect.edge_status import EdgeStatus, Pending
from dagster_ips.orchestration.run.known_consumers import KnownConsumer
from dagster_ips.orchestration.watch.failed_runs import runs_that_failed, runs_without_output
from dagster_ips.orchestration.watch.pending_checks import failed_text
from dagster_ips.progress.cursor import Copy
from dagster_ips.progress.progress import InputProgress, Progress

_HEADINGS = ("ASSET", "UPSTREAM", "CONSUMED UP TO", "NUMBER", "PENDING", "LAG", "IN FLIGHT")

_OF_PARTITIONS = (
    "PARTITIONED ASSET",
    "UPSTREAM",
    "CONSUMED UP TO",
    "NUMBER",
    "BEHIND",
    "AHEAD",
    "KEYS WITHOUT A PARTITION",
)
_MOST = 10
_MOST_SINCE = 3


@dataclass(frozen=True)
class _Contained:
    """What a consumer's table contains; ``problem`` says why that is unknown now.

    ``copied`` is how often it had been published when Dagster last copied its progress; 0 if unknown.
    """

    progress: Progress
    problem: str | None = None
    copied: int = 0

    @property
    def taken_back_to(self) -> int | None:
        """The publication to which someone rolled the table back; None if nobody did."""
        return self.progress.number if 0 < self.progress.number < self.copied else None


@dataclass(frozen=True)
class _Found:
    """How far consumers are: the edges of those without partitions, and the inputs of the others.

    By consumer, ``contained`` is what its table contains, ``older`` are the rows that older code computed, in words;
    ``failed`` and ``blocked`` are as a ``Workplace`` has them.
    """

    edges: Sequence[EdgeStatus]
    partitioned: Sequence[Edge]
    contained: Mapping[str, _Contained]
    older: Mapping[str, str | None]
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
        click.echo(table(_HEADINGS, [_row(each) for each in found.edges]))
    outside = {each.table for each in workplace.known_tables if each.is_outside}
    remarks = [
        f"{each.edge}: {remark}"
        for each in found.edges
        for remark in _remarks(each, found.contained[each.edge.consumer], outside)
    ]
    for remark in [*remarks, *(each.warning for each in known if each.warning)]:
        click.echo(f"\n{remark}")
    if found.partitioned:
        if found.edges:
            click.echo()
        click.echo(table(_OF_PARTITIONS, [_row_of_partitions(each, found) for each in found.partitioned]))
    for remark in _remarks_below(workplace, known, found):
        click.echo(f"\n{remark}")


def _look(workplace: Workplace, known: Sequence[KnownConsumer]) -> _Found:
    edges = [
        workplace.inspector(each).status(each.consumer.name, tracked)
        for each in known
        if not each.consumer.is_partitioned
        for tracked in each.consumer.inputs.values()
    ]
    return _Found(
        edges,
        [edge for each in known if each.consumer.is_partitioned for edge in each.consumer.edges],
        contained={each.consumer.name: _contained(workplace, each) for each in known},
        older={each.consumer.name: _older_rows(workplace, each) for each in known},
        failed={each.consumer.name: workplace.failed(each) for each in known},
        blocked={each.consumer.name: workplace.blocked(each) for each in known},
    )


def _contained(workplace: Workplace, known: KnownConsumer) -> _Contained:
    """What the consumer's table contains, or if that is unknown, what it contained when Dagster last copied that."""
    copy: Copy | None = None
    try:
        copy = workplace.store.get(known.consumer.name).copy
        found = workplace.progress(known)
    except UNKNOWN as error:
        return _Contained(copy.progress if copy is not None else Progress(), str(error))
    if found is None:
        return _Contained(Progress())
    is_of_same = copy is not None and copy.mark is not None and copy.mark.table_uuid == found.mark.table_uuid
    return _Contained(found.progress, copied=copy.progress.number if copy is not None and is_of_same else 0)


def _older_rows(workplace: Workplace, known: KnownConsumer) -> str | None:
    """The rows that older code computed, in words; None if none are known."""
    try:
        rows = workplace.older_rows(known)
    except UNKNOWN:  # The asset's own remark says why.
        return None
    return str(rows) if rows else None


def _all_as_json(found: _Found) -> list[dict[str, Any]]:
    edges = [_as_json(each, found) for each in found.edges]
    partitioned = [_partitioned_as_json(each, found) for each in found.partitioned]
    return [
        {
            **each,
            "progress": _progress_json(found.contained[each["asset"]].progress.inputs.get(each["upstream"])),
            "rolled_back_to": found.contained[each["asset"]].taken_back_to,
            "older_rows": found.older[each["asset"]],
            "failed": dict(runs_that_failed(found.failed[each["asset"]])),
            "without_output": dict(runs_without_output(found.failed[each["asset"]])),
            "held_back": sorted(found.blocked[each["asset"]]),
        }
        for each in [*edges, *partitioned]
    ]


def _remarks_below(workplace: Workplace, known: Sequence[KnownConsumer], found: _Found) -> Iterator[str]:
    """What needs attention apart from edges: tables that aren't as expected, older rows, and runs that failed."""
    for each in known:
        name, contained = each.consumer.name, found.contained[each.consumer.name]
        if contained.problem and each.consumer.is_partitioned:
            yield f"{name}: {_will_fail(contained.problem)}"
        if contained.taken_back_to:
            yield (
                f"{name}: someone rolled {each.consumer.table} back to publication {contained.taken_back_to:,} (there "
                f"were {contained.copied:,}). The next run goes on from what it contains now."
            )
        if rows := found.older[name]:
            yield f"{name}: {rows} A full recompute would read {workplace.everything_text(each)}."
    for name, runs in found.failed.items():
        if runs:
            yield f"{name}: {failed_text(runs)}.{_held_back(found.blocked[name])}"


def _will_fail(problem: str) -> str:
    return f"the next run will fail: {problem}"


def _held_back(keys: Collection[str]) -> str:
    """A sentence on the failed partitions that automation doesn't retry now."""
    named = listed([key for key in sorted(keys) if key], _MOST)
    return f" Held back now{f': {named}' if named else ''}." if keys else ""


def _row(each: EdgeStatus) -> Sequence[str]:
    state, pending, held = each.state, each.pending, _in_flight(each)
    waits = "no table yet" if each.is_waiting else "?" if pending is None else "nothing"
    if pending is not None and (pending.files or pending.snapshots):
        what = "everything: " if pending.is_full else ""
        waits = (
            f"{what}{counted(pending.snapshots, 'snapshot')}, {counted(pending.files, 'file')}, "
            f"{counted(pending.rows, 'row')}, {size_text(pending.size_bytes)}"
        )
    return (
        each.edge.consumer,
        each.edge.upstream,
        at_text(None if state.is_beginning else state.committed),
        f"{state.number:,}",
        waits,
        _lag(pending),
        f"{held.run_id} since {moment(held.created_ms)}" if held else "-",
    )


def _in_flight(each: EdgeStatus) -> IcdcTable | None:
    """What a run or job is working on; a job may have published it and not reported that."""
    held = each.in_flight
    return held if held is not None and held.number > each.state.number else None


def _lag(pending: Pending | None) -> str:
    """How long the oldest change has been waiting."""
    oldest_ms = pending.oldest_ms if pending else None
    return age(time.time_ns() // 1_000_000 - oldest_ms) if oldest_ms is not None else "-"


def _row_of_partitions(edge: Edge, found: _Found) -> Sequence[str]:
    progress = found.contained[edge.consumer].progress
    known = progress.inputs.get(edge.upstream, InputProgress())
    ahead = set(known.ahead)
    behind = {key: since for key, since in known.behind.items() if since not in ahead}
    return (
        edge.consumer,
        edge.upstream,
        at_text(known.at),
        f"{progress.number:,}",
        _keys_text(behind),
        _keys_text({key: since for key, since in known.behind.items() if since in ahead}),
        _keys_text(known.untaken),
    )


def _keys_text(keys: Mapping[str, Watermark | None]) -> str:
    """How many keys there are, and the first of them, each with up to when it is consumed."""
    first = sorted(keys)[: _MOST_SINCE + 1]
    told = [f"{key} ({moment(since.timestamp_ms) if (since := keys[key]) else 'never'})" for key in first]
    return f"{len(keys):,}: {listed(told, _MOST_SINCE)}" if keys else "-"


def _remarks(status: EdgeStatus, contained: _Contained, outside: Collection[str]) -> list[str]:
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
    if (files := state.file_set) is not None:
        upto = at_text(files.to_inclusive)
        remarks.append(f"{files.taken:,} of {files.total:,} files of the change up to {upto} are consumed.")
    if state.reread_to:
        remarks.append(f"was rewound; the next run reads up to {at_text(state.reread_to)} again.")
    return remarks + [
        f"{each.kind} on {moment(each.id)} by {each.who}: {each.why}"
        f"{'' if each.id <= contained.progress.obeyed else ' (the next run does it)'}"
        for each in status.requests
    ]


def _as_json(each: EdgeStatus, found: _Found) -> dict[str, Any]:
    state, pending, held = each.state, each.pending, _in_flight(each)
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
            "icdc_table": held.name,
            "since": moment_json(held.created_ms),
        },
        "requests": [
            {
                "kind": asked.kind,
                "who": asked.who,
                "why": asked.why,
                "at": moment(asked.id),
                "before": _watermark(asked.before),
                "after": _watermark(asked.after),
                "is_done": asked.id <= found.contained[each.edge.consumer].progress.obeyed,
            }
            for asked in each.requests
        ],
        "problem": each.problem,
        "waits_for_table": each.table if each.is_waiting else None,
    }


def _partitioned_as_json(edge: Edge, found: _Found) -> dict[str, Any]:
    contained = found.contained[edge.consumer]
    known = contained.progress.inputs.get(edge.upstream, InputProgress())
    return {
        "asset": edge.consumer,
        "upstream": edge.upstream,
        "partitioned": True,
        "consumed_up_to": _watermark(known.at),
        "number": contained.progress.number,
        "problem": contained.problem,
    }


def _progress_json(known: InputProgress | None) -> dict[str, Any] | None:
    """What the table says of an upstream: what it has consumed, and which files of the next change."""
    if known is None:
        return None
    files = known.files
    taken = files and {"up_to": _watermark(files.to_inclusive), "taken": files.taken, "total": files.total}
    return {
        "at": _watermark(known.at),
        "behind": {key: _watermark(since) for key, since in sorted(known.behind.items())},
        "untaken": {key: _watermark(since) for key, since in sorted(known.untaken.items())},
        "files": taken,
        "began_late": known.began_late,
    }


def _watermark(watermark: Watermark | None) -> dict[str, Any] | None:
    if watermark is None:
        return None
    return {"snapshot_id": str(watermark.snapshot_id), "at": moment(watermark.timestamp_ms), "ref": watermark.ref}
