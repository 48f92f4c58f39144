"""Which values the files of a manifest may hold, by its partition summaries."""

from __future__ import annotations

import datetime as dt
import json
import struct

import pytest

from dagster_ips.core.partition_keys import Span
from dagster_ips.core.ranges import Bound
from dagster_ips.iceberg.file_spans import manifest_span, may_hold
from dagster_ips.iceberg.metadata import TableMetadata

DAY = 20_000  # days since 1970: 2024-10-04
NOON = dt.datetime(2024, 10, 4, 12, tzinfo=dt.UTC)
LATE = {"lower_bound": None, "upper_bound": None, "contains_null": True}


def table(kind: str, transform: str) -> TableMetadata:
    raw = {
        "format-version": 2,
        "table-uuid": "u",
        "location": "file:///t",
        "schemas": [{"schema-id": 0, "type": "struct", "fields": [_column(1, "at", kind), _column(2, "id", "long")]}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": [_part(2, "bucket[4]"), _part(1, transform)]}],
    }
    return TableMetadata.parse("media.plays", "file:///t/m.json", json.dumps(raw).encode())


def _column(number: int, name: str, kind: str) -> dict[str, object]:
    return {"id": number, "name": name, "type": kind, "required": False}


def _part(source: int, transform: str) -> dict[str, object]:
    return {"name": transform, "transform": transform, "source-id": source, "field-id": 1000 + source}


def row(first: bytes, last: bytes) -> dict[str, object]:
    bucket = {"lower_bound": struct.pack("<i", 0), "upper_bound": struct.pack("<i", 3), "contains_null": False}
    at = {"lower_bound": first, "upper_bound": last, "contains_null": False}
    return {"partition_spec_id": 0, "partitions": [bucket, at]}


@pytest.mark.parametrize(
    ("kind", "transform", "bound", "inside", "outside"),
    [
        ("date", "identity", struct.pack("<i", DAY), NOON.date(), dt.date(2024, 10, 5)),
        ("date", "day", struct.pack("<i", DAY), NOON.date(), dt.date(2024, 10, 6)),
        ("timestamp", "day", struct.pack("<i", DAY), NOON.replace(tzinfo=None), dt.datetime(2024, 10, 3, 23)),  # noqa: DTZ001  # a time without zone
        ("timestamptz", "day", struct.pack("<i", DAY), NOON, NOON + dt.timedelta(days=1)),
        ("timestamptz", "hour", struct.pack("<i", DAY * 24 + 12), NOON, NOON + dt.timedelta(hours=2)),
        ("string", "identity", b"2024-10-04", "2024-10-04", "2024-10-05"),
        ("long", "identity", struct.pack("<q", 7), 7, 8),
    ],
)
def test_a_manifest_holds_values_within_its_partitions_only(
    kind: str, transform: str, bound: bytes, inside: Bound, outside: Bound
) -> None:
    metadata, manifest = table(kind, transform), row(bound, bound)
    assert may_hold(manifest, metadata, {"at": Span(inside, inside)})
    assert not may_hold(manifest, metadata, {"at": Span(outside, outside)})
    assert may_hold(manifest, metadata, {"at": Span(None, None), "id": Span(9, 9)})


@pytest.mark.parametrize(
    ("kind", "transform", "bound"),
    [
        ("timestamptz", "month", struct.pack("<i", 657)),
        ("string", "truncate[4]", b"2024"),
        ("double", "identity", struct.pack("<d", 1.0)),
        ("timestamp", "day", struct.pack("<i", 2**31 - 1)),
    ],
)
def test_a_manifest_may_hold_anything_if_its_partitions_do_not_tell(kind: str, transform: str, bound: bytes) -> None:
    found = manifest_span(row(bound, bound), table(kind, transform), "at")
    assert (found.lower, found.upper) == (None, None)


def test_a_manifest_without_summaries_or_of_nulls_only_may_hold_anything() -> None:
    metadata = table("date", "identity")
    wanted = {"at": Span(NOON.date(), NOON.date())}
    assert may_hold({"partition_spec_id": 0, "partitions": None}, metadata, wanted)
    assert may_hold({"partition_spec_id": 0, "partitions": [LATE, LATE]}, metadata, wanted)
