"""What a materialisation shows in the UI: one sentence first, then numbers that plot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.place import Everywhere
from dagster_ips.core.valid_through import ALWAYS
from dagster_ips.orchestration.cascades import links
from dagster_ips.orchestration.table_metadata import table_metadata
from dagster_ips.tracking.limiting import Share
from dagster_ips.tracking.publishing import Publication
from dagster_ips.view import IcdcView

_MOST_PARTITIONS = 50


@dataclass(frozen=True)
class RunReport:
    """What a run did, as far as the UI shows it."""

    table: str
    views: Mapping[str, IcdcView]
    publication: Publication
    capture_seconds: float
    write_seconds: float
    lookups: tuple[str, ...]
    cascade: Cascade
    valid_through: dt.datetime | None


def run_metadata(report: RunReport) -> dict[str, Any]:
    """Metadata in the order in which it reads best; the UI keeps it."""
    shown: dict[str, Any] = {}
    if report.views:
        shown["summary"] = dg.MetadataValue.md(_sentence(report))
        shown |= _numbers(report)
    shown |= _written(report)
    if report.views:
        shown |= _tables(report.views)
        if report.valid_through is not None:
            shown["valid through"] = _time(report.valid_through)
        if report.cascade.ids:
            shown["cascade"] = links(report.cascade)
        shown |= _origins(report)
    if report.publication.metadata is not None:
        shown |= table_metadata(report.publication.metadata)
    shown["dagster/table_name"] = report.table
    return shown


def _sentence(report: RunReport) -> str:
    views = list(report.views.values())
    capture = views[0].captured.capture
    parts = [_consumed(name, view) for name, view in report.views.items()]
    if report.publication.superseded_by:
        parts.append("**another run had published this already**, so nothing was written")
    elif capture.mode is Mode.INCREMENTAL and all(view.is_empty for view in views):
        parts.append("**no change**, so nothing was written")
    parts.append(f"mode **{capture.mode}**: {capture.reason}")
    return "\n".join(f"- {part}" for part in parts)


def _consumed(name: str, view: IcdcView) -> str:
    stats, head = view.stats, view.captured.head
    if head is None:
        return f"**{name}** has no snapshot yet"
    at = dt.datetime.fromtimestamp(head.timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = f"**{name}** consumed up to {at}: "
    limited = list(_limited(view.captured.share))
    if view.mode is Mode.FULL and not limited:
        return text + f"everything, {stats.files:,} files, {stats.rows:,} rows, {size_text(stats.size_bytes)}"
    of = f" of {stats.source_files:,}" if stats.source_files is not None else ""
    text += f"{stats.files:,}{of} files, {stats.rows:,} rows, {size_text(stats.size_bytes)}"
    if stats.source_size_bytes:
        saved = max(0.0, 1 - stats.size_bytes / stats.source_size_bytes)
        text += f" of {size_text(stats.source_size_bytes)}, **{saved:.1%} less than everything**"
    return ", ".join([text, *limited])


def _limited(share: Share) -> Iterator[str]:
    """What the input's limits had to do with it."""
    if share.is_beyond:
        yield "**more than its limit, as it can't be cut**"
    if share.bite:
        yield f"{share.bite} in the order of that snapshot's manifests"
    if share.snapshots_left:
        yield f"{share.snapshots_left:,} later snapshots are left for the next runs"


def _numbers(report: RunReport) -> dict[str, Any]:
    stats = [view.stats for view in report.views.values()]
    of_source = [s.source_size_bytes for s in stats if s.source_size_bytes is not None]
    numbers = {
        "files captured": sum(s.files for s in stats),
        "rows captured": sum(s.rows for s in stats),
        "bytes captured": sum(s.size_bytes for s in stats),
    }
    if len(of_source) == len(stats):
        numbers["source bytes"] = sum(of_source)
    return numbers | {
        "capture seconds": round(report.capture_seconds, 2),
        "write and publish seconds": round(report.write_seconds, 2),
    }


def _origins(report: RunReport) -> dict[str, Any]:
    shown: dict[str, Any] = {"mode": next(iter(report.views.values())).mode.value}
    for name, view in report.views.items():
        capture = view.captured.capture
        start, end = capture.from_exclusive, capture.to_inclusive
        shown[f"{name}: ICDC table"] = view.icdc_table
        shown[f"{name}: capture"] = capture.number
        # As text: JavaScript would round such large numbers.
        shown[f"{name}: from snapshot, exclusive"] = str(start.snapshot_id) if start else "the beginning"
        shown[f"{name}: to snapshot, inclusive"] = str(end.snapshot_id) if end else "none"
        if view.captured.unmapped:
            shown[f"{name}: rows of no partition"] = ", ".join(view.captured.unmapped)
        if view.captured.share.bite:
            shown[f"{name}: bite"] = str(view.captured.share.bite)
        if capture.mode is Mode.INCREMENTAL and view.captured.start is not Everywhere.ALL:
            text = f"{view.captured.start}: what was there before is in the table only if a full run computed it"
            shown[f"{name}: began at"] = text
    if report.lookups:
        shown["changes ignored of"] = ", ".join(report.lookups)
    return shown


def _tables(views: Mapping[str, IcdcView]) -> dict[str, Any]:
    """Which values and partitions changed; of a full run everything did, which needs no table."""
    changed = {name: view for name, view in views.items() if view.mode is Mode.INCREMENTAL and not view.is_empty}
    ranges = [
        {
            "input": name,
            "column": column,
            "lowest": _bound(found.lowest),
            "highest": _bound(found.highest),
            "bounds": found.kind,
        }
        for name, view in changed.items()
        for column, found in view.ranges.items()
    ]
    partitions = [
        {"input": name, "partition": ", ".join(f"{field}={_side(value)}" for field, value in each.items())}
        for name, view in changed.items()
        for each in view.partitions or ()
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
        shown["published snapshot"] = str(written[-1].snapshot_id)
    return shown


def size_text(size_bytes: int) -> str:
    """A size as a person reads it.

    Example:
        >>> size_text(5_923_842)
        '5.9 MB'
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"
