"""A source table written by PyIceberg, a record of what it must hold, and a consumer that captures it."""

from __future__ import annotations

import datetime as dt
import functools
import importlib.util
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.limits import Limits
from dagster_ips.core.policy import InputPolicies
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.progress.advance import Standing
from dagster_ips.progress.cursor import state_of
from tests.support.memory_store import MemoryCursors, consume
from tests.support.publishing import known_of, publish

TABLE = "media.playback"
TARGET = "media.daily"
EDGE = Edge("daily", "playback")
SCHEMA = Schema(
    NestedField(1, "number", IntegerType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "the title", StringType()),
    NestedField(4, "amount", DoubleType()),
    NestedField(5, "price", DecimalType(9, 2)),
    NestedField(6, "at", TimestampType()),
    NestedField(7, "at_utc", TimestamptzType()),
    NestedField(8, "is_new", BooleanType()),
)
SPECS = {
    "none": UNPARTITIONED_PARTITION_SPEC,
    "day": PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day")),
    "title": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "the title")),
    "amount": PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "amount")),
    "price": PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "price")),
    "at": PartitionSpec(PartitionField(6, 1000, IdentityTransform(), "at")),
    "at_utc": PartitionSpec(PartitionField(7, 1000, IdentityTransform(), "at_utc")),
    "is_new": PartitionSpec(PartitionField(8, 1000, IdentityTransform(), "is_new")),
}
ARROW = {
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    DateType: pa.date32(),
    StringType: pa.string(),
    DoubleType: pa.float64(),
    DecimalType: pa.decimal128(9, 2),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    BooleanType: pa.bool_(),
}

Row = Mapping[int, Any]
"""A row by field id, so that a renamed column keeps its values and a dropped column never passes them to another."""
Rows = Counter[tuple[Any, ...]]


class Source:
    """``media.playback`` in its own embedded catalog. ``rows`` are the appended rows, in order."""

    def __init__(self, folder: Path, spec: str = "none", **properties: str) -> None:
        self.folder = folder
        self.lake = LakeCatalog.embedded("lake", folder)
        self.store = MemoryCursors()
        self.lake.create_namespace("media")
        self.lake.client.create_table(TARGET, SCHEMA)
        self.create(spec, **properties)

    def create(self, spec: str = "none", **properties: str) -> None:
        """Create the table. Property names have underscores: ``format_version="1"``."""
        named = {key.replace("_", "-"): value for key, value in properties.items()}
        self.lake.client.create_table(TABLE, SCHEMA, partition_spec=SPECS[spec], properties=named)
        self.rows: list[Row] = []

    @property
    def table(self) -> Table:
        return self.lake.client.load_table(TABLE)

    @property
    def fields(self) -> tuple[NestedField, ...]:
        return self.table.schema().fields

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in one commit; fields that a row lacks are null."""
        fields = self.fields
        arrays = [pa.array([row.get(f.field_id) for row in rows], ARROW[type(f.field_type)]) for f in fields]
        self.table.append(pa.table(arrays, names=[f.name for f in fields]))
        self.rows += rows

    def expected(self, rows: Iterable[Row]) -> Rows:
        """``rows`` as the current schema shows them, for comparison."""
        return as_multiset(tuple(row.get(f.field_id) for f in self.fields) for row in rows)

    def scan(self, table: str = TABLE, *, tag: str | None = None, snapshot_id: int | None = None) -> Rows:
        """All rows of ``table`` now, at ``tag`` or as of a snapshot, read by PyIceberg."""
        scan = self.lake.client.load_table(table).scan(snapshot_id=snapshot_id)
        read = (scan.use_ref(tag) if tag else scan).to_arrow()
        return as_multiset(zip(*[column.to_pylist() for column in read.columns], strict=True))

    def scan_with_duckdb(self, table: str) -> Rows:
        location = self.lake.client.load_table(table).metadata_location
        return as_multiset(duckdb_with_iceberg().execute(f"SELECT * FROM iceberg_scan('{location}')").fetchall())

    def capture(
        self,
        *ranges: str,
        asked_for: Mode | None = None,
        policies: InputPolicies | None = None,
        limits: Limits | None = None,
    ) -> CapturedInput:
        """Capture what is new, without consuming it."""
        capturer = Capturer(self.lake, self.store)
        tracked = TrackedInput(EDGE.upstream, TABLE, ranges, policies=policies or InputPolicies())
        tracked = replace(tracked, limits=limits or Limits())
        (captured,) = capturer.capture(
            CaptureRequest(EDGE.consumer, [tracked], target=TARGET, asked_for=asked_for), run_id="run"
        )
        return captured

    def publish(self, captured: CapturedInput) -> None:
        """What a run does until its rows and progress are the target's; the cursor doesn't say so yet."""
        rows = self.lake.client.load_table(captured.capture.icdc_table).scan().to_arrow()
        assert publish(self.store, self.lake, TARGET, [captured], rows, copies=False) is Standing.MAY_PUBLISH

    def consume(self, captured: CapturedInput) -> None:
        consume(self.store, self.lake, TARGET, [captured])

    def capture_and_consume(self) -> CapturedInput:
        captured = self.capture()
        self.consume(captured)
        return captured

    @property
    def state(self) -> EdgeState:
        known = known_of(self.store, self.lake, TARGET, EDGE.consumer)
        return state_of(EDGE, known, self.store.get(EDGE.consumer))

    def files(self) -> dict[Path, bytes]:
        """Every file of the source's own folder."""
        folder = Path(urlsplit(self.table.location()).path)
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def as_multiset(rows: Iterable[tuple[Any, ...]]) -> Rows:
    return Counter(tuple(_comparable(value) for value in row) for row in rows)


def numbered(*numbers: int) -> list[Row]:
    """A row for each number; the day follows from it."""
    return [{1: n, 2: dt.date(2026, 1, 1) + dt.timedelta(days=n)} for n in numbers]


def clean_schema(table: Table, schema_id: int) -> None:
    """Like ``expire_snapshots(clean_expired_metadata => true)`` with schemas that no snapshot uses."""
    path = Path(urlsplit(table.metadata_location).path)
    raw = json.loads(path.read_text())
    raw["schemas"] = [schema for schema in raw["schemas"] if schema["schema-id"] != schema_id]
    path.write_text(json.dumps(raw))


@functools.cache
def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """A connection with DuckDB's Iceberg extension. It comes as a package, so tests download nothing."""
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert spec
        assert spec.origin
        (extension,) = Path(spec.origin).parent.glob("extensions/*/*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _comparable(value: Any) -> Any:  # noqa: ANN401  # a value of any column
    if isinstance(value, float) and math.isnan(value):
        return "NaN"  # NaN is not equal to itself
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value
