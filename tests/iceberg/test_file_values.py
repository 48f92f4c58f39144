"""Values that are read from data files, because metadata doesn't show them."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from dagster_ips.core.change_set import DataFile
from dagster_ips.iceberg.file_values import Columns, DistinctRows, Unreadable, read_values
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

FIELDS = [
    {"id": 1, "name": "at", "type": "timestamp", "required": False},
    {"id": 2, "name": "region", "type": "string", "required": False},
]
METADATA = {
    "format-version": 2,
    "table-uuid": "u",
    "location": "file:///lake",
    "current-schema-id": 0,
    "schemas": [{"type": "struct", "schema-id": 0, "fields": FIELDS}],
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "properties": {
        "schema.name-mapping.default": '[{"field-id": 1, "names": ["at"]}, {"field-id": 2, "names": ["region"]}]'
    },
}


def values_in(
    path: Path, *columns: str, by_minute: tuple[str, ...] = (), file_format: str = "PARQUET"
) -> DistinctRows | Unreadable:
    source = TableMetadata.parse("media.plays", "file:///lake", json.dumps(METADATA).encode())
    file = DataFile(f"file://{path}", 0, 1, path.stat().st_size, file_format=file_format)
    return read_values(Storage({}), source, [file], Columns(columns, by_minute), later=())[file.path]


def test_timestamps_of_sparks_older_kind_keep_their_year(tmp_path: Path) -> None:
    """Spark writes INT96 into tables that ``migrate`` and ``add_files`` take over; Iceberg has no bounds of it."""
    path = tmp_path / "spark.parquet"
    times = [dt.datetime.fromisoformat(day) for day in ("9999-12-31", "2604-06-01", "0001-01-01")]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us"))})
    parquet.write_table(rows, path, use_deprecated_int96_timestamps=True)
    found = values_in(path, "at", by_minute=("at",))
    assert isinstance(found, DistinctRows)
    assert found.rows == {(time,) for time in times}


def test_text_that_its_writer_did_not_mark_as_text_is_read_as_text(tmp_path: Path) -> None:
    """As Impala writes it into tables that ``migrate`` and ``add_files`` take over."""
    path = tmp_path / "impala.parquet"
    parquet.write_table(pa.table({"region": pa.array([b"eu", "süd".encode(), None])}), path)
    found = values_in(path, "region")
    assert isinstance(found, DistinctRows)
    assert found.rows == {("eu",), ("süd",), (None,)}
    parquet.write_table(pa.table({"region": pa.array([b"eu", b"\xff", b"us"])}), path)
    assert isinstance(values_in(path, "region"), Unreadable)


@pytest.mark.parametrize("file_format", ["ORC", "AVRO"])
def test_a_file_that_is_not_parquet_is_not_opened_and_says_so(tmp_path: Path, file_format: str) -> None:
    path = tmp_path / "trino.orc"
    path.write_bytes(b"ORC")
    assert values_in(path, "region", file_format=file_format) == Unreadable(
        f"its format is {file_format}, but only Parquet files can be read for this"
    )


@pytest.mark.parametrize("times", [pa.array([1, 2], pa.int64()), pa.array(["2026-01-01"])])
def test_a_file_with_a_column_of_another_type_is_unreadable_and_fails_nothing_else(
    tmp_path: Path, times: pa.Array
) -> None:
    path = tmp_path / "strange.parquet"
    parquet.write_table(pa.table({"at": times}), path)
    assert isinstance(values_in(path, "at"), Unreadable)
