"""Ranges derived from partition values and column bounds, in the cases where those mislead."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from dagster_ips.core.change_set import ChangeSet, DataFile
from dagster_ips.core.partition_keys import Span
from dagster_ips.core.ranges import ChangeRange, RangeKind
from dagster_ips.errors import UnknownColumnError, UnorderedColumnError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.column_ranges import change_range, change_ranges, partition_values
from dagster_ips.iceberg.file_spans import span
from dagster_ips.iceberg.metadata import TableMetadata
from tests.iceberg.sources import TABLE, TARGET, Source, numbered
from tests.iceberg.test_appended_histories import check_range
from tests.support.memory_store import MemoryCursors

JANUARY_3, JANUARY_5 = dt.date(2026, 1, 3), dt.date(2026, 1, 5)


def test_the_range_of_a_partition_column_is_exact(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(2, 4))
    found = source.capture("day").ranges["day"]
    assert found == ChangeRange("day", RangeKind.EXACT, JANUARY_3, JANUARY_5)


def test_the_range_of_any_other_column_is_bounded(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(2, 4))
    found = source.capture("day").ranges["day"]
    assert found == ChangeRange("day", RangeKind.BOUNDED, JANUARY_3, JANUARY_5)


def test_only_changed_files_count_towards_a_range(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(2, 4))
    source.capture_and_consume()
    source.append(numbered(3))
    found = source.capture("day", "number").ranges
    assert (found["day"].lower, found["day"].upper) == (dt.date(2026, 1, 4),) * 2
    assert (found["number"].lower, found["number"].upper) == (3, 3)


@pytest.mark.parametrize("amounts", [(math.nan, 1.0), (1.0, math.nan)])
def test_a_nan_partition_makes_the_range_open_whatever_the_order_of_files(
    tmp_path: Path, amounts: tuple[float, float]
) -> None:
    metadata = Source(tmp_path, "amount").lake.load(TABLE, asset="daily")
    # Described by hand, because PyIceberg writes no such partition; Spark does.
    changes = ChangeSet(tuple(DataFile("a.parquet", 0, 1, 1, {"amount": amount}) for amount in amounts))
    found = change_range(changes, metadata, "amount")
    assert found.since("amount") == found.between("amount") == "TRUE"
    assert partition_values(changes, metadata, "amount") is None


def test_a_bound_that_is_nan_leaves_its_side_open(tmp_path: Path) -> None:
    """Old writers of ORC files report NaN for both bounds if it is the first value of a file."""
    metadata = Source(tmp_path).lake.load(TABLE, asset="daily")
    field = metadata.columns["amount"].field_id
    bounds = [{field: struct.pack("<d", amount)} for amount in (math.nan, 1.0)]
    for some in (bounds, bounds[::-1]):
        files = tuple(DataFile("a.orc", 0, 1, 1, {}, lower_bounds=each, upper_bounds=each) for each in some)
        assert change_range(ChangeSet(files), metadata, "amount").between("amount") == "TRUE"


def test_a_partition_field_that_a_file_does_not_name_is_unknown_rather_than_null(tmp_path: Path) -> None:
    metadata = Source(tmp_path, "day").lake.load(TABLE, asset="daily")
    changes = ChangeSet((DataFile("a.parquet", 0, 1, 1, {"another spelling": 20455}),))
    assert change_range(changes, metadata, "day").between("day") == "TRUE"
    assert partition_values(changes, metadata, "day") is None


def test_a_partition_name_that_avro_cannot_spell_is_still_read(tmp_path: Path) -> None:
    source = Source(tmp_path, "title")
    source.append([{3: "b"}, {3: "a"}])
    assert source.capture("the title").ranges["the title"] == ChangeRange("the title", RangeKind.EXACT, "a", "b")


def test_a_truncated_upper_bound_still_includes_the_value(tmp_path: Path) -> None:
    source = Source(tmp_path)
    long = "x" * 40
    source.append([{3: long}])
    found = source.capture("the title").ranges["the title"]
    assert found.kind is RangeKind.BOUNDED
    assert str(found.lower) < long < str(found.upper)


@pytest.mark.parametrize(("lower", "upper"), [("a", None), (None, "b"), (None, None)])
def test_a_bound_that_is_cut_inside_a_character_leaves_its_side_open(
    tmp_path: Path, lower: str | None, upper: str | None
) -> None:
    """Other writers cut the bounds of texts after some bytes."""
    metadata = Source(tmp_path).lake.load(TABLE, asset="daily")
    field, cut = metadata.columns["the title"].field_id, "a\u00e9".encode()[:2]
    lowers, uppers = ({field: end.encode() if end else cut} for end in (lower, upper))
    file = DataFile("a.parquet", 0, 2, 1, lower_bounds=lowers, upper_bounds=uppers, null_counts={field: 0})
    assert span(file, metadata, "the title") == Span(lower, upper)
    found = change_range(ChangeSet((file,)), metadata, "the title")
    assert found.kind is RangeKind.UNBOUNDED
    assert (found.since("the title") == "TRUE") is (lower is None)


def test_a_column_without_statistics_is_unbounded(tmp_path: Path) -> None:
    source = Source(tmp_path)
    with source.table.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    source.append(numbered(1))
    found = source.capture("number").ranges["number"]
    assert found.kind is RangeKind.UNBOUNDED
    assert found.between("number") == "TRUE"


def test_partition_values_distinguish_nulls_from_values(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append([{1: 1}, {1: 2, 2: JANUARY_3}])
    captured = source.capture("day")
    assert partition_values(captured.files.changes, captured.source, "day") == {None, JANUARY_3}
    assert partition_values(captured.files.changes, captured.source, "number") is None


def test_an_empty_change_has_an_empty_range(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    source.capture_and_consume()
    assert source.capture("number").ranges["number"].is_empty


def test_a_range_over_an_unknown_column_is_refused_before_anything_is_captured(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    with pytest.raises(UnknownColumnError, match=rf"{TABLE} has no column 'nowhere'; it has number, day"):
        source.capture("nowhere")
    assert source.store.get("daily").job is None


days = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
moments = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))  # noqa: DTZ001  # deliberately without a zone
KINDS: list[tuple[IcebergType, pa.DataType, st.SearchStrategy[Any]]] = [
    (BooleanType(), pa.bool_(), st.booleans()),
    (IntegerType(), pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (FloatType(), pa.float32(), st.floats(width=32)),
    (DoubleType(), pa.float64(), st.floats()),
    (DecimalType(9, 2), pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
    (DecimalType(38, 4), pa.decimal128(38, 4), st.decimals(-(10**30), 10**30, places=4)),
    (DateType(), pa.date32(), days),
    (TimestampType(), pa.timestamp("us"), moments),
    (TimestamptzType(), pa.timestamp("us", "UTC"), moments.map(lambda moment: moment.replace(tzinfo=dt.UTC))),
    (StringType(), pa.string(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)),
    (BinaryType(), pa.binary(), st.binary(max_size=20)),
    (FixedType(4), pa.binary(4), st.binary(min_size=4, max_size=4)),
    (UUIDType(), pa.binary(16), st.uuids().map(lambda value: value.bytes)),
    (TimeType(), pa.time64("us"), st.times()),
]
UNORDERED = (BinaryType, FixedType, UUIDType, TimeType)
NESTED: list[IcebergType] = [
    StructType(NestedField(101, "a", IntegerType())),
    ListType(102, IntegerType()),
    MapType(103, StringType(), 104, IntegerType()),
]
PLAIN = [NestedField(i + 1, f"c{i}", kind) for i, (kind, *_) in enumerate(KINDS)]
OTHERS = [NestedField(50 + i, f"n{i}", kind) for i, kind in enumerate(NESTED)]
ARROW = pa.schema([(field.name, kind) for field, (_, kind, _) in zip(PLAIN, KINDS, strict=True)])

rows_of_any_type = st.lists(st.tuples(*[st.none() | values for *_, values in KINDS]), min_size=1, max_size=4)


class EveryType:
    """A table with a column of every type. A capture of it contains all appended rows."""

    def __init__(self, folder: Path, partition_by: int | None = None) -> None:
        self.lake = LakeCatalog.embedded("lake", folder)
        self.lake.create_namespace("media")
        self.lake.client.create_table(TARGET, Schema(*PLAIN))
        fields = [] if partition_by is None else [PartitionField(partition_by + 1, 1000, IdentityTransform(), "part")]
        self.lake.client.create_table(TABLE, Schema(*PLAIN, *OTHERS), partition_spec=PartitionSpec(*fields))

    def append(self, rows: Sequence[tuple[Any, ...]]) -> None:
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), ARROW.types, strict=True)]
        self.lake.client.load_table(TABLE).append(pa.table(arrays, schema=ARROW))

    def capture(self, *ranges: str) -> CapturedInput:
        tracked = TrackedInput("playback", TABLE, ranges)
        capturer = Capturer(self.lake, MemoryCursors())
        (captured,) = capturer.capture(CaptureRequest("daily", [tracked], target=TARGET), run_id="run")
        return captured


@settings(max_examples=12, deadline=None)
@given(appends=st.lists(rows_of_any_type, min_size=1, max_size=2), partition_by=st.none() | st.integers(0, 10))
def test_a_range_of_any_type_includes_every_changed_row_and_is_exact_if_marked_exact(
    appends: list[list[tuple[Any, ...]]], partition_by: int | None
) -> None:
    # PyIceberg can't write a partition of NaN: it finds no row that equals it.
    assume(partition_by is None or not any(row[partition_by] != row[partition_by] for rows in appends for row in rows))
    with tempfile.TemporaryDirectory() as folder:
        table = EveryType(Path(folder), partition_by)
        for rows in appends:
            table.append(rows)
        found = table.capture(*ARROW.names).ranges
        for i, (kind, *_) in enumerate(KINDS):
            if isinstance(kind, UNORDERED):
                assert found[f"c{i}"] == ChangeRange.everything(f"c{i}")
            else:
                check_range(found[f"c{i}"], [row[i] for rows in appends for row in rows])


@settings(max_examples=12, deadline=None)
@given(appends=st.lists(rows_of_any_type, min_size=1, max_size=5), most=st.sampled_from([1, 2, 16]))
def test_several_ranges_include_every_changed_row_and_are_apart(
    appends: list[list[tuple[Any, ...]]], most: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = EveryType(Path(folder))
        for rows in appends:
            table.append(rows)
        captured = table.capture()
        for i, (kind, *_) in enumerate(KINDS):
            found = change_ranges(captured.files.changes, captured.source, f"c{i}", most=most)
            values = [row[i] for rows in appends for row in rows]
            if isinstance(kind, UNORDERED):
                assert found == [ChangeRange.everything(f"c{i}")]
                continue
            assert 1 <= len(found) <= most
            assert all(any(holds(each, value) for each in found) for value in values)
            for one, other in itertools.pairwise(found):
                assert one.upper < other.lower  # type: ignore[operator]  # values of one column


def holds(found: ChangeRange, value: Any) -> bool:  # noqa: ANN401  # of any type
    if value is None:
        return found.has_null
    if value != value:  # noqa: PLR0124  # NaN, greater than every number in Spark
        return found.highest is None
    return (found.lowest is None or found.lowest <= value) and (found.highest is None or value <= found.highest)


@pytest.mark.parametrize("column", ["n0", "n1", "n2"])
def test_a_range_over_a_struct_a_list_or_a_map_is_refused_before_anything_is_captured(
    tmp_path: Path, column: str
) -> None:
    with pytest.raises(UnorderedColumnError, match=rf"{column}.*no minimum and maximum.*top-level columns"):
        EveryType(tmp_path).capture(column)


@pytest.mark.parametrize("kind", ["variant", "geometry(EPSG:4326)", "geography(srid:4326, karney)"])
def test_a_column_of_a_type_that_pyiceberg_cannot_load_leaves_the_other_columns_readable(kind: str) -> None:
    fields = [{"id": 1, "name": "number", "type": "int"}, {"id": 2, "name": "place", "type": kind}]
    raw = {"schema-id": 0, "type": "struct", "fields": [{**field, "required": False} for field in fields]}
    known = {"format-version": 3, "table-uuid": "u", "location": "file:///t", "schemas": [raw]}
    metadata = TableMetadata.parse(TABLE, "file:///t/m.json", json.dumps(known).encode())
    assert list(metadata.columns) == ["number"]
    assert metadata.column_types == {"number": "int", "place": kind}


def test_a_range_over_a_field_of_a_struct_is_refused_before_anything_is_captured(tmp_path: Path) -> None:
    with pytest.raises(UnknownColumnError, match=r"no column 'n0\.a'"):
        EveryType(tmp_path).capture("n0.a")
