"""Values that are read from data files, because metadata doesn't show them."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from dagster_ips.core.change_set import DataFile
from dagster_ips.iceberg.file_values import Columns, DistinctRows, read_values
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

FIELD = {"id": 1, "name": "at", "type": "timestamp", "required": False}
METADATA = {
    "format-version": 2,
    "table-uuid": "u",
    "location": "file:///lake",
    "current-schema-id": 0,
    "schemas": [{"type": "struct", "schema-id": 0, "fields": [FIELD]}],
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "properties": {"schema.name-mapping.default": '[{"field-id": 1, "names": ["at"]}]'},
}


def test_timestamps_of_sparks_older_kind_keep_their_year(tmp_path: Path) -> None:
    """Spark writes INT96 into tables that ``migrate`` and ``add_files`` take over; Iceberg has no bounds of it."""
    path = tmp_path / "spark.parquet"
    times = [dt.datetime.fromisoformat(day) for day in ("9999-12-31", "2604-06-01", "0001-01-01")]
    rows = pa.table({"at": pa.array(times, pa.timestamp("us"))})
    parquet.write_table(rows, path, use_deprecated_int96_timestamps=True)
    source = TableMetadata.parse("media.plays", "file:///lake", json.dumps(METADATA).encode())
    file = DataFile(f"file://{path}", 0, len(times), path.stat().st_size)
    found = read_values(Storage({}), source, [file], Columns(("at",), ("at",)), later=())[file.path]
    assert isinstance(found, DistinctRows)
    assert found.rows == {(time,) for time in times}
