"""Manifests in which other writers, such as DuckDB and old releases of Iceberg, leave something out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.table.snapshots import Snapshot

from dagster_ips.core.capture import Mode
from dagster_ips.core.limits import Limits
from dagster_ips.errors import SourceExpiredError
from dagster_ips.iceberg.avro import SCHEMA_KEY, read_avro, write_avro
from dagster_ips.iceberg.bites import appended_bite
from dagster_ips.iceberg.manifests import Status
from tests.iceberg.sources import TABLE, Source, numbered

MERGED = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
Entry = dict[str, Any]


def rewrite_manifests(source: Source, change: Callable[[Entry], Entry], schema: Callable[[str], str] = str) -> None:
    """Change every entry of the manifests that the table's head lists."""
    snapshot = source.table.current_snapshot()
    assert snapshot
    for manifest in snapshot.manifests(source.table.io):
        path = Path(urlsplit(manifest.manifest_path).path)
        file = read_avro(path.read_bytes())
        header = {**file.header, SCHEMA_KEY: schema(file.schema)}
        path.write_bytes(write_avro(header, [change(entry) for entry in file.records]))


def as_duckdb(entry: Entry) -> Entry:
    """DuckDB names no snapshot in the entries that it writes, nor when it lists them again in a merged manifest."""
    return {**entry, "snapshot_id": None}


def without_file_sequence_number(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != "file_sequence_number"}


def without_field(name: str) -> Callable[[str], str]:
    def of(schema: str) -> str:
        entry = json.loads(schema)
        entry["fields"] = [field for field in entry["fields"] if field["name"] != name]
        return json.dumps(entry)

    return of


def compact_as_duckdb(source: Source, *, named: bool) -> None:
    """Make the last append a rewrite of all rows before it: the removed files keep the snapshots that added them.

    If not ``named``, DuckDB itself had added them, so they have none.
    """
    snapshot = source.table.current_snapshot()
    assert snapshot
    path = Path(urlsplit(snapshot.manifest_list).path)
    file = read_avro(path.read_bytes())
    rows = []
    for row in file.records:
        if row["added_snapshot_id"] != snapshot.snapshot_id:
            old = Path(urlsplit(row["manifest_path"]).path)
            new = old.with_name(f"removed-by-{snapshot.snapshot_id}-{old.name}")
            manifest = read_avro(old.read_bytes())
            entries = [{**(e if named else as_duckdb(e)), "status": Status.DELETED.value} for e in manifest.records]
            new.write_bytes(write_avro(manifest.header, entries))
            removed = row["added_files_count"] + row["existing_files_count"] + row["deleted_files_count"]
            counts = {"added_files_count": 0, "existing_files_count": 0, "deleted_files_count": removed}
            written = {"added_snapshot_id": snapshot.snapshot_id, "sequence_number": snapshot.sequence_number}
            row = {**row, **counts, **written, "manifest_path": f"file://{new}"}  # noqa: PLW2901  # it replaces it
        rows.append(row)
    path.write_bytes(write_avro(file.header, rows))
    set_operation(source, "replace")


def expire(source: Source, *, before: Snapshot) -> None:
    """Expire the snapshots ``before`` this one, as Java does: the ids of parents stay."""
    path = Path(urlsplit(source.table.metadata_location).path)
    raw = json.loads(path.read_text())
    raw["snapshots"] = [each for each in raw["snapshots"] if each["sequence-number"] >= before.sequence_number]
    path.write_text(json.dumps(raw))


def set_operation(source: Source, operation: str) -> None:
    """Write ``operation`` into the summary of the table's head."""
    path = Path(urlsplit(source.table.metadata_location).path)
    raw = json.loads(path.read_text())
    head = next(each for each in raw["snapshots"] if each["snapshot-id"] == raw["current-snapshot-id"])
    head["summary"]["operation"] = operation
    path.write_text(json.dumps(raw))


def merging(folder: Path, *numbers: int) -> Source:
    """A table to which each number is appended by itself; all manifests are merged each time."""
    source = Source(folder, format_version="2", **MERGED)
    for number in numbers:
        source.append(numbered(number))
        rewrite_manifests(source, as_duckdb)
    return source


def test_files_that_a_merged_manifest_lists_again_without_their_snapshot_are_not_new_again(tmp_path: Path) -> None:
    source = merging(tmp_path, 1, 2)
    source.capture_and_consume()
    for number in (3, 4):
        source.append(numbered(number))
        rewrite_manifests(source, as_duckdb)
    captured = source.capture()
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(3, 4))


def test_bites_of_an_append_leave_out_files_that_its_manifest_lists_again(tmp_path: Path) -> None:
    source = merging(tmp_path, 1, 2)
    source.capture_and_consume()
    source.append(numbered(3))
    rewrite_manifests(source, as_duckdb)
    head = source.lake.load(TABLE, asset="daily").ancestry().head
    assert head
    metadata = source.lake.load(TABLE, asset="daily")
    files, bite = appended_bite(source.lake.storage, metadata, head, first=0, limits=Limits(max_files=1))
    assert (files.changes.row_count, bite.total) == (1, 1)


def test_files_listed_again_by_a_rewrite_of_their_manifests_are_not_new_if_the_start_has_expired(
    tmp_path: Path,
) -> None:
    source = merging(tmp_path, 1, 2)
    source.capture_and_consume()
    source.append(numbered(3))
    rewrite_manifests(source, as_duckdb)
    retained = source.table.current_snapshot()
    assert retained
    source.append([])
    set_operation(source, "replace")
    expire(source, before=retained)
    captured = source.capture()
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(3))


@pytest.mark.parametrize("asked_for", [None, Mode.FULL])
def test_manifests_of_version_2_from_before_files_had_a_sequence_number_of_their_own_are_read(
    tmp_path: Path, asked_for: Mode | None
) -> None:
    """Written by Iceberg before 1.0."""
    source = Source(tmp_path, format_version="2", **MERGED)
    source.append(numbered(1))
    source.append(numbered(2))
    source.capture_and_consume()
    source.append(numbered(3))
    rewrite_manifests(source, without_file_sequence_number, without_field("file_sequence_number"))
    captured = source.capture(asked_for=asked_for)
    new = source.rows if asked_for else numbered(3)
    assert source.scan(captured.capture.icdc_table) == source.expected(new)


@pytest.mark.parametrize("named", [True, False])
def test_rows_that_duckdb_compacted_are_not_taken_for_new_if_what_was_there_before_has_expired(
    tmp_path: Path, *, named: bool
) -> None:
    source = Source(tmp_path, format_version="2")
    source.append(numbered(1))
    source.append(numbered(2))
    source.capture_and_consume()
    source.append(numbered(1, 2))
    compact_as_duckdb(source, named=named)
    table = source.capture().capture.icdc_table
    assert source.scan(table, tag="before") == source.scan(table, tag="after") == source.expected(numbered(1, 2))
    head = source.table.current_snapshot()
    assert head
    expire(source, before=head)
    with pytest.raises(SourceExpiredError):
        source.capture()
