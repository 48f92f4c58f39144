"""Metadata files in which other writers leave optional fields out, or write null for them, which means the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dagster_ips.core.capture import Mode
from dagster_ips.core.change_set import DataFile
from dagster_ips.errors import MetadataUnreadableError
from dagster_ips.iceberg.column_ranges import identity_value
from dagster_ips.iceberg.metadata import TableMetadata
from tests.iceberg.sources import TABLE, Source, numbered

OPTIONAL = (
    "refs",
    "properties",
    "snapshot-log",
    "metadata-log",
    "statistics",
    "partition-statistics",
    "encryption-keys",
)
OPTIONAL_IN_V1 = (
    "schemas",
    "current-schema-id",
    "partition-specs",
    "default-spec-id",
    "last-partition-id",
    "sort-orders",
    "default-sort-order-id",
    "last-sequence-number",
)


def consumed(folder: Path, version: str) -> Source:
    """A partitioned source of which a consumer has consumed the first of two appends."""
    source = Source(folder, "day", format_version=version)
    source.append(numbered(1))
    source.capture_and_consume()
    source.append(numbered(2))
    return source


def metadata_file(source: Source) -> Path:
    return Path(urlsplit(source.table.metadata_location).path)


@pytest.mark.parametrize("asked_for", [None, Mode.FULL])
@pytest.mark.parametrize(("version", "fields"), [("1", (*OPTIONAL, *OPTIONAL_IN_V1)), ("2", OPTIONAL)])
def test_optional_fields_that_are_null_are_read_as_if_they_were_missing(
    tmp_path: Path, version: str, fields: Sequence[str], asked_for: Mode | None
) -> None:
    source = consumed(tmp_path, version)
    file, expected = metadata_file(source), source.expected(source.rows if asked_for else numbered(2))
    file.write_text(json.dumps({**json.loads(file.read_text()), **dict.fromkeys(fields)}))
    assert source.scan(source.capture(asked_for=asked_for).capture.icdc_table) == expected


@pytest.mark.parametrize("version", ["1", "2"])
def test_minus_one_is_no_snapshot(tmp_path: Path, version: str) -> None:
    source = consumed(tmp_path, version)
    raw = json.loads(metadata_file(source).read_text())
    raw["snapshots"][0]["parent-snapshot-id"] = -1  # as ClickHouse writes it
    ancestry = TableMetadata.parse(TABLE, "m.json", json.dumps(raw).encode()).ancestry()
    assert ([each.parent_id for each in ancestry.snapshots][1:], ancestry.is_whole) == ([None], True)
    none = {"refs": {"main": {"snapshot-id": -1, "type": "branch"}}, "current-snapshot-id": -1, "snapshots": []}
    assert TableMetadata.parse(TABLE, "m.json", json.dumps({**raw, **none}).encode()).ancestry().head is None


def test_a_snapshot_that_lists_its_manifests_itself_is_named_and_the_catalog_not_blamed(tmp_path: Path) -> None:
    source = consumed(tmp_path, "1")
    file = metadata_file(source)
    raw: dict[str, Any] = json.loads(file.read_text())
    for snapshot in raw["snapshots"]:
        snapshot["manifests"] = [snapshot.pop("manifest-list")]
    file.write_text(json.dumps(raw))
    with pytest.raises(MetadataUnreadableError, match=rf"snapshot {raw['current-snapshot-id']} .*no manifest list"):
        source.capture()


def test_a_partition_by_several_columns_determines_the_value_of_none() -> None:
    field = {"id": 1, "name": "number", "type": "int", "required": False}
    spec = [{"name": "both", "transform": "bucket[8]", "source-ids": [1, 2], "field-id": 1000}]
    raw = {
        "format-version": 3,
        "table-uuid": "u",
        "location": "file:///t",
        "schemas": [{"schema-id": 0, "type": "struct", "fields": [field]}],
        "partition-specs": [{"spec-id": 0, "fields": spec}],
    }
    metadata = TableMetadata.parse(TABLE, "file:///t/m.json", json.dumps(raw).encode())
    assert identity_value(DataFile("file:///t/1", 0, 1, 1, {"both": 3}), metadata, metadata.columns["number"]) is None


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("timestamp_ns", "2026-01-01T00:00:00.000000001"),
        ({"type": "struct", "fields": [{"id": 21, "name": "x", "type": "int", "required": False}]}, {}),
    ],
)
def test_a_default_that_pyiceberg_cannot_load_leaves_the_other_columns_readable(
    tmp_path: Path, kind: object, default: object
) -> None:
    source = consumed(tmp_path, "2")
    file = metadata_file(source)
    raw: dict[str, Any] = json.loads(file.read_text())
    new = {"id": 20, "name": "new", "required": False, "type": kind, "initial-default": default}
    raw["schemas"][-1]["fields"].append(new)
    file.write_text(json.dumps({**raw, "format-version": 3, "next-row-id": 0, "last-column-id": 21}))
    captured = source.capture("number", asked_for=Mode.FULL)
    assert (captured.ranges["number"].lower, captured.files.changes.row_count) == (1, 2)
