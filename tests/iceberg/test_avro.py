"""Avro files are read and written back without losing any information."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ips.iceberg.avro import read_avro, write_avro
from tests.iceberg.sources import SPECS, Source, numbered
from tests.support.lake import Lake, events


def decoded(content: bytes) -> list[Any]:
    """The records as fastavro alone decodes them, including logical types."""
    return list(fastavro.reader(io.BytesIO(content)))


def check_round_trip(content: bytes) -> None:
    file = read_avro(content)
    written = write_avro(file.header, file.records)
    again = read_avro(written)
    assert repr(again.records) == repr(file.records)
    assert repr(decoded(written)) == repr(decoded(content))
    assert json.loads(again.schema) == json.loads(file.schema)
    custom = {key for key in file.header if not key.startswith("avro.")}
    assert {key: again.header[key] for key in custom} == {key: file.header[key] for key in custom}


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("spec", list(SPECS))
def test_a_data_manifest_and_its_list_are_written_back_as_they_were(tmp_path: Path, spec: str, version: str) -> None:
    source = Source(tmp_path, spec, format_version=version)
    source.append([*numbered(1, 2), {}])
    written = [path for path in source.files() if path.suffix == ".avro"]
    assert len(written) == 2
    for path in written:
        check_round_trip(path.read_bytes())


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_delete_manifest_written_by_spark_is_written_back_as_it_was(lake: Lake, version: str) -> None:
    lake.create_playback(events(range(6)))
    properties = f"'write.delete.mode' = 'merge-on-read', 'format-version' = '{version}'"
    lake.sql(f"ALTER TABLE lake.media.playback SET TBLPROPERTIES ({properties})").collect()
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3").collect()
    manifests = lake.sql("SELECT path, content FROM lake.media.playback.manifests").collect()
    assert {row.content for row in manifests} == {0, 1}
    for row in manifests:
        check_round_trip(Path(urlsplit(row.path).path).read_bytes())


SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "field-id": 1},
        {"name": "id", "type": {"type": "fixed", "size": 16, "logicalType": "uuid", "name": "uuid_fixed"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}},
        {"name": "ids", "type": ["null", {"type": "array", "items": "int", "element-id": 136}], "field-id": 135},
        {"name": "text", "type": "string", "doc": "any"},
        {"name": "number", "type": "double"},
    ],
}
records = st.fixed_dictionaries(
    {
        "day": st.none() | st.integers(-(2**31), 2**31 - 1),  # also days outside of Python's calendar
        "id": st.binary(min_size=16, max_size=16),
        "price": st.binary(min_size=1, max_size=6),
        "at": st.integers(-(2**63), 2**63 - 1),
        "ids": st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
        "text": st.text(),
        "number": st.floats(allow_nan=False),
    }
)


@settings(deadline=None)
@given(st.lists(records, max_size=5), st.dictionaries(st.text(min_size=1, max_size=9).map("x-{}".format), st.text()))
def test_every_value_is_written_back_unchanged(rows: list[dict[str, Any]], metadata: dict[str, str]) -> None:
    file = read_avro(write_avro({"avro.schema": json.dumps(SCHEMA), **metadata}, rows))
    assert file.records == rows
    assert json.loads(file.schema) == SCHEMA
    assert {key: value for key, value in file.header.items() if not key.startswith("avro.")} == metadata


@settings(deadline=None)
@given(st.binary(max_size=200).map(b"Obj\x01".__add__) | st.binary(max_size=50))
def test_a_file_that_is_not_avro_is_refused(content: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        read_avro(content)


def test_a_file_compressed_with_zstandard_is_read() -> None:
    content = io.BytesIO()
    fastavro.writer(content, {"type": "record", "name": "r", "fields": []}, [{}], codec="zstandard")
    assert read_avro(content.getvalue()).records == [{}]


def test_a_missing_codec_is_not_reported_as_damage() -> None:
    header = b"Obj\x01" + b'\x04\x16avro.schema\x0a"int"\x14avro.codec\x0aother\x00' + b"0" * 16
    with pytest.raises(ValueError, match=r"the file may be intact, .*codec: other"):
        read_avro(header + b"\x02\x02\x02" + b"0" * 16)
