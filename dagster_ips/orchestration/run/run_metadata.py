"""What a materialization shows in the UI: first a summary, then numbers that the UI can plot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ips.core.capture import Mode
from dagster_ips.core.code_of_rows import OlderRows
from dagster_ips.core.history_place import Everywhere
from dagster_ips.core.ownership import told
from dagster_ips.core.plan_version import PlanVersion
from dagster_ips.core.size_text import counted, size_text
from dagster_ips.core.valid_through import ALWAYS
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare
from dagster_ips.exactly_once.capture.partition_counts import Count
from dagster_ips.exactly_once.publish.input_change import Frame
from dagster_ips.exactly_once.publish.publisher import Publication
from dagster_ips.orchestration.declare.declarations import TABLE_NAME
from dagster_ips.orchestration.declare.run_numbers import (
    BYTES_CAPTURED,
    CAPTURE_SECONDS,
    PUBLISHED,
    ROWS_CAPTURED,
    WRITE_SECONDS,
)
from dagster_ips.orchestration.platform.markdown_text import escaped
from dagster_ips.orchestration.platform.staged_run import StagedRun
from dagster_ips.orchestration.platform.table_metadata import table_metadata
from dagster_ips.orchestration.run.cascade_tag import links
from dagster_ips.orchestration.run.runs import RunInputs
from dagster_ips.progress.made_rows import older_rows_of
from dagster_ips.run_view import RunView

_MOST_PARTITIONS = 50


@dataclass(frozen=True)
class RunReport:
    """What a run did, as far as the UI shows it."""

    table: str
    captured: RunInputs
    publication: Publication
    write_seconds: float
    lookups: tuple[str, ...] = ()
    older: OlderRows | None = None
    plan: PlanVersion | None = None
    staged: StagedRun | None = None

    @property
    def views(self) -> Mapping[str, RunView]:
        """What the asset read."""
        return self.captured.views

    @property
    def partitions(self) -> Sequence[str]:
        """The partitions that were captured."""
        return self.captured.partitions


def older_rows_in(publication: Publication, captured: RunInputs, code: str | None) -> OlderRows | None:
    """The rows of the table, or of the run's partitions, that the run's ``code`` would compute differently."""
    partitions = {capture.edge.partition for capture in captured.captures} or {None}
    return older_rows_of(publication.metadata, code, partitions) if publication.metadata else None


def run_metadata(report: RunReport) -> dict[str, Any]:
    """Metadata in the order in which it reads best, which the UI keeps.

    Dagster shows it for each partition of the run, so the names of numbers that cover several partitions say so.
    """
    shown: dict[str, Any] = dict(report.staged.metadata) if report.staged else {}
    numbers: dict[str, Any] = {}
    if report.views:
        shown["summary"] = dg.MetadataValue.md(_sentence(report))
        numbers |= _numbers(report)
    numbers |= _written(report)
    is_of_several = len(report.partitions) > 1
    shown |= {of_run(name): value for name, value in numbers.items()} if is_of_several else numbers
    if report.views:
        shown |= _tables(report.views)
        if report.captured.valid_through is not None:
            shown["valid through"] = _time(report.captured.valid_through)
        if report.captured.cascade.ids:
            shown["cascade"] = links(report.captured.cascade)
        shown |= _origins(report)
        if report.older:
            shown["older rows"] = str(report.older)
        if report.plan:
            shown["plan"] = str(report.plan)
            shown |= {"not shown by the plan": "; ".join(report.plan.unknown)} if report.plan.unknown else {}
    if report.publication.metadata is not None and report.staged is None:  # What is staged isn't in the table yet.
        shown |= table_metadata(report.publication.metadata)
    shown[TABLE_NAME] = report.table
    return shown


def captured_metadata(count: Count) -> dict[str, Any]:
    """What a run captured, or of it one partition in a run of several."""
    return {"files captured": count.files, ROWS_CAPTURED: count.rows, BYTES_CAPTURED: count.size_bytes}


def of_run(name: str) -> str:
    """The name of a number that covers all partitions of a run."""
    return f"whole run: {name}"


def _sentence(report: RunReport) -> str:
    views = list(report.views.values())
    capture = views[0].captured.capture
    parts = [_consumed(name, view) for name, view in report.views.items()]
    if len(keys := report.partitions) > 1:
        of = f"{escaped(keys[0])} to {escaped(keys[-1])}"
        parts.insert(0, f"one run of **{len(keys):,} partitions**, {of}; the numbers are totals")
    if accepted := views[0].captured.accepted.snapshots:
        parts.append(
            f"**accepts rows that others wrote**, as requested by run tag: {escaped(', '.join(map(told, accepted)))}"
        )
    advance = report.captured.advance
    if advance.rolled_back_from is not None and advance.base is not None:
        parts.append(
            f"**someone rolled the table back** from publication {advance.rolled_back_from:,} to "
            f"{advance.base.progress.number:,}; the run goes on from what it contains"
        )
    if report.publication.superseded_by:
        parts.append("**another run had already published this**, so nothing was written")
    elif capture.mode is Mode.INCREMENTAL and all(view.is_empty for view in views) and not report.publication.snapshots:
        parts.append("**no change**, so nothing was written")
    if report.lookups:
        parts.append(f"looked up in **{escaped(', '.join(report.lookups))}**")
    if report.older:
        parts.append(f"**older rows**: {escaped(str(report.older))}")
    parts.append(f"mode **{capture.mode}**: {escaped(capture.reason)}")
    return "\n".join(f"- {part}" for part in parts)


def _consumed(name: str, view: RunView) -> str:
    stats, head = view.stats, view.captured.head
    if head is None:
        return f"**{name}** has no snapshot yet"
    at = dt.datetime.fromtimestamp(head.timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = f"**{name}** consumed up to {at}: "
    limited = list(_limited(view.captured.share))
    if view.mode is Mode.FULL and not limited:
        files, rows = counted(stats.files, "file"), counted(stats.rows, "row")
        return text + f"everything, {files}, {rows}, {size_text(stats.size_bytes)}"
    of = stats.source_files
    files = counted(stats.files, "file") if of is None else f"{stats.files:,} of {counted(of, 'file')}"
    text += f"{files}, {counted(stats.rows, 'row')}, {size_text(stats.size_bytes)}"
    if stats.source_size_bytes:
        text += f" of {size_text(stats.source_size_bytes)}"
        read = view.bytes_read
        if read is not None:
            text += f", **{max(0.0, 1 - read / stats.source_size_bytes):.1%} less than a full read**"
        elif beside := _read_beside(view):
            text += f"; the run read {beside}, too"
    return ", ".join([text, *limited])


def _read_beside(view: RunView) -> str | None:
    """What a run read of an input beside its change; None if it took no frame of it, as an outside job does."""
    taken = view.change.taken
    if any(each.frame is Frame.SOURCE for each in taken):
        return "**unchanged rows**, all of them unless the asset filters them"
    groups = next((each for each in taken if each.frame is Frame.AFFECTED), None)
    if groups is not None:
        return f"the unchanged rows of each {escaped(', '.join(groups.keys))} that changed"
    return "the unchanged rows of partitions that changed" if taken else None


def _limited(share: BacklogShare) -> Iterator[str]:
    """How the input's limits affected the capture."""
    if share.is_beyond:
        yield "**more than its limit, because it can't be split**"
    if share.bite:
        yield f"{share.bite} in the order of that snapshot's manifests"
    if share.snapshots_left:
        yield f"{share.snapshots_left:,} later snapshots are left for the next runs"


def _numbers(report: RunReport) -> dict[str, Any]:
    stats = [view.stats for view in report.views.values()]
    of_source = [s.source_size_bytes for s in stats if s.source_size_bytes is not None]
    numbers = captured_metadata(
        Count(sum(s.files for s in stats), sum(s.rows for s in stats), sum(s.size_bytes for s in stats))
    )
    if len(of_source) == len(stats):
        numbers["source bytes"] = sum(of_source)
    return numbers | {
        CAPTURE_SECONDS: round(report.captured.seconds, 2),
        WRITE_SECONDS: round(report.write_seconds, 2),
    }


def _origins(report: RunReport) -> dict[str, Any]:
    shown: dict[str, Any] = {"mode": next(iter(report.views.values())).mode.value}
    for name, view in report.views.items():
        capture = view.captured.capture
        start, end = capture.from_exclusive, capture.to_inclusive
        shown[f"{name}: ICDC table"] = capture.icdc_table
        shown[f"{name}: capture"] = capture.number
        # As text: JavaScript would round such large numbers.
        shown[f"{name}: from snapshot, exclusive"] = str(start.snapshot_id) if start else "the beginning"
        shown[f"{name}: to snapshot, inclusive"] = str(end.snapshot_id) if end else "none"
        if view.captured.unmapped:
            shown[f"{name}: rows outside all partitions"] = ", ".join(view.captured.unmapped)
        if view.captured.share.bite:
            shown[f"{name}: bite"] = str(view.captured.share.bite)
        if capture.mode is Mode.INCREMENTAL and view.captured.began_late:
            now = view.captured.tracked.start
            began = "a start that was declared before" if now is Everywhere.ALL else str(now)
            text = f"{began}: earlier rows are in the table only if a full run has computed them"
            shown[f"{name}: began at"] = text
    if report.lookups:
        shown["ignored changes of"] = ", ".join(report.lookups)
    return shown


def _tables(views: Mapping[str, RunView]) -> dict[str, Any]:
    """Tables of the values and partitions that changed; none for inputs read in mode ``full``, where everything did."""
    changed = {name: view for name, view in views.items() if view.mode is Mode.INCREMENTAL and not view.is_empty}
    is_of_several = len(views) > 1  # The UI's page of an asset has no room for a column that is always the same.
    ranges = [
        {
            **({"input": name} if is_of_several else {}),
            "column": column,
            "lowest": _bound(found.lowest),
            "highest": _bound(found.highest),
            "bounds": found.kind,
        }
        for name, view in changed.items()
        for column, found in view.reported_ranges.items()
    ]
    partitions = [
        {
            **({"input": name} if is_of_several else {}),
            "partition": ", ".join(f"{field}={_side(value)}" for field, value in each.items()),
        }
        for name, view in changed.items()
        for each in view.reported_partitions or ()
    ]
    shown: dict[str, Any] = {}
    if ranges:
        shown["changed ranges"] = _table(ranges)
    if partitions:
        shown["partitions affected"] = len(partitions)
        most = f", the first {_MOST_PARTITIONS}" if len(partitions) > _MOST_PARTITIONS else ""
        shown[f"affected partitions{most}"] = _table(partitions[:_MOST_PARTITIONS])
    return shown


def _table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table([dg.TableRecord({key: str(value) for key, value in row.items()}) for row in rows])


def _time(valid_through: dt.datetime) -> dg.MetadataValue[Any]:
    if valid_through == ALWAYS:
        return dg.MetadataValue.text("always")
    return dg.MetadataValue.timestamp(valid_through)


def _bound(value: object) -> str:
    return "…" if value is None else str(value)


def _side(value: object) -> str:
    return "null" if value is None else str(value)


def _written(report: RunReport) -> dict[str, Any]:
    metadata = report.publication.metadata
    if metadata is None or metadata.ancestry().head is None:
        return {}
    written = report.publication.snapshots
    shown: dict[str, Any] = {
        "rows added": sum(int(s.summary.get("added-records", 0)) for s in written),
        "files added": sum(int(s.summary.get("added-data-files", 0)) for s in written),
        "bytes added": sum(int(s.summary.get("added-files-size", 0)) for s in written),
    }
    if written:
        shown[PUBLISHED] = str(written[-1].snapshot_id)
    return shown
