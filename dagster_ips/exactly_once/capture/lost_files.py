"""Turns an engine's error about a captured file, table or snapshot into an error that helps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from dagster_ips.errors import CutBoundError, FilesGoneError, IcdcTableGoneError, IpsError, SnapshotGoneError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_DATA_FILE = re.compile(r"[^\s'\"(]+\.(?:parquet|orc|avro|puffin)\b")
_CUT = "Failed to decode value as UTF-8"
_SNAPSHOT = re.compile(r"snapshot with ID (\d+)")
_NAME = re.compile(r"/([^/\s'\"():,]+)")
_OUT_OF_RANGE = re.compile(r"\b416\b|InvalidRange|Range ?Not ?Satisfiable", re.IGNORECASE)
"""What an object store answers if a file lacks the part asked for. Spark passes it on without the file's name."""
_SAID, _MOST_MEASURED = 200, 1_000


def unreadable(
    error: Exception, inputs: Iterable[CapturedInput], catalog: LakeCatalog, looked_up: Iterable[TableMetadata] = ()
) -> IpsError | None:
    """The error to raise for ``error`` if something that the run reads can't be read; None if that isn't its cause.

    The run reads ``inputs``, and beside them the tables ``looked_up`` as they were then.
    """
    captured = list(inputs)
    return (
        lost_table(error, captured, catalog)
        or _lost_snapshot(error, captured, looked_up, catalog)
        or lost_file(error, captured, catalog.storage)
        or _cut_bound(error, captured, catalog.name)
    )


def _cut_bound(error: Exception, inputs: Iterable[CapturedInput], catalog: str) -> CutBoundError | None:
    """As ``unreadable``, for a bound of a file that isn't in the change, where it would have been seen."""
    if isinstance(error, IpsError) or _CUT not in str(error):
        return None
    return CutBoundError(tuple(sorted({each.source.table for each in inputs})), catalog)


def _lost_snapshot(
    error: Exception, inputs: Iterable[CapturedInput], looked_up: Iterable[TableMetadata], catalog: LakeCatalog
) -> SnapshotGoneError | None:
    """As ``unreadable``, for a snapshot that expired. Engines name it, but not its table."""
    if isinstance(error, IpsError):
        return None
    captures = [(each.source.table, capture) for each in inputs for capture in each.captures]
    places = [(table, end) for table, each in captures for end in (each.to_inclusive, each.from_exclusive)]
    read = [(table, place.snapshot_id) for table, place in places if place is not None]
    read += [(each.table, head) for each in looked_up if (head := each.head_snapshot_id()) is not None]
    named = set(_SNAPSHOT.findall(str(error)))
    for table, snapshot_id in dict.fromkeys(read):
        if str(snapshot_id) not in named:
            continue
        found = catalog.find(table)
        if found is not None and snapshot_id not in found.snapshots:
            return SnapshotGoneError(table, snapshot_id)
    return None


def lost_table(error: Exception, inputs: Iterable[CapturedInput], catalog: LakeCatalog) -> IcdcTableGoneError | None:
    """As ``unreadable``, for an ICDC table that was dropped."""
    if isinstance(error, IpsError):
        return None
    for captured in inputs:
        capture = captured.capture
        if capture.icdc_table.rpartition(".")[2] in str(error) and catalog.find(capture.icdc_table) is None:
            edge = capture.edge
            return IcdcTableGoneError(capture.icdc_table, edge.consumer, edge.upstream, capture.run_id)
    return None


def lost_file(error: Exception, inputs: Iterable[CapturedInput], storage: Storage) -> FilesGoneError | None:
    """The error to raise for a missing or damaged data file of one of ``inputs``; None if ``error`` isn't about one.

    Engines name the file somewhere in a very long message. They don't name it if an object store has less of the file
    than the table's metadata says; then the files are measured.
    """
    if isinstance(error, IpsError):
        return None
    message = str(error)
    for found in dict.fromkeys(_DATA_FILE.findall(message)):
        for captured in inputs:
            if path := _path_in(found, captured):
                return _lost(captured, path, message.partition(found)[2], storage)
    names = set(_NAME.findall(message))
    for captured in inputs:
        if path := _path_of_any(names, captured, message):
            return _lost(captured, path, message.partition(_place(path))[2], storage)
    return _cut_short(inputs, storage) if _OUT_OF_RANGE.search(message) else None


def _lost(captured: CapturedInput, path: str, said: str, storage: Storage) -> FilesGoneError:
    """The error for a file, of which an engine ``said`` something right after its path."""
    said = said.partition("\n")[0].strip()[:_SAID]
    is_there = storage.exists(path, table=captured.source.table)
    return _gone(captured, path, f"can't be read ({said})" if is_there else "no longer exists")


def _cut_short(inputs: Iterable[CapturedInput], storage: Storage) -> FilesGoneError | None:
    for captured in inputs:
        table = captured.source.table
        for file in captured.files.changes.touched[:_MOST_MEASURED]:
            if not storage.exists(file.path, table=table):
                continue
            if (found := storage.size(file.path, table=table)) != file.file_size_bytes:
                cause = f"has {found:,} bytes, but the table's metadata says {file.file_size_bytes:,}"
                return _gone(captured, file.path, cause)
    return None


def _gone(captured: CapturedInput, file: str, cause: str) -> FilesGoneError:
    to = captured.capture.to_inclusive
    return FilesGoneError(
        table=captured.source.table, file=file, cause=cause, snapshot_id=to.snapshot_id if to else None
    )


def _path_of_any(names: AbstractSet[str], captured: CapturedInput, message: str) -> str | None:
    """The file of the input that the message names, if its name has no extension, as that of a file that Hive wrote."""
    own = (file.path for file in captured.files.changes.touched)
    return next((path for path in own if path.rpartition("/")[2] in names and _place(path) in message), None)


def _place(path: str) -> str:
    """A path without what engines spell in several ways: ``file:/a`` and ``file:///a``, ``s3://a`` and ``s3a://a``."""
    return path.rpartition(":")[2].lstrip("/")


def _path_in(found: str, captured: CapturedInput) -> str | None:
    """The file of the input that an engine calls ``found``, which begins after the last blank in a path with blanks."""
    name = found.rpartition("/")[2]
    folder = captured.source.location.rpartition("://")[2].strip("/")
    own = (file.path for file in captured.files.changes.touched if file.path.endswith(f"/{name}"))
    return next(own, found if f"{folder}/" in found else None)
