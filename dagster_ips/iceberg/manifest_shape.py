"""Gives manifests one shape, whatever their writer's: Avro allows several for the same fields.

A required field may be a union with null, as the partition in manifests of Sail (0.7.2). Fields may be in any order.
Iceberg finds them by their ids, not by their names.

Source: Iceberg table spec, "Manifests", "Avro" (appendix A); Apache Avro specification, "Schema Declaration".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dagster_ips.iceberg.avro import SCHEMA_KEY, AvroFile

_ENTRY = {0: "status", 1: "snapshot_id", 2: "data_file", 3: "sequence_number", 4: "file_sequence_number"}
_FILE = {
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    108: "column_sizes",
    109: "value_counts",
    110: "null_value_counts",
    125: "lower_bounds",
    128: "upper_bounds",
    131: "key_metadata",
    132: "split_offsets",
    134: "content",
    135: "equality_ids",
    137: "nan_value_counts",
    140: "sort_order_id",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
_REQUIRED = ("status", "data_file", "file_path", "partition", "record_count", "file_size_in_bytes")


@dataclass(frozen=True, slots=True)
class _Shape:
    """A manifest's ``schema`` in the one shape, and the names there of the fields that its records have."""

    schema: str
    of_entry: Mapping[str, str]
    of_file: Mapping[str, str]
    partition: tuple[str, ...]


def shaped(manifest: AvroFile) -> AvroFile:
    """``manifest`` with the spec's names, partition fields in the order of its spec, and no null where one is required.

    Raises:
        ValueError: it lacks a required field or its value.
    """
    shape = _shape(manifest.schema, manifest.header.get("partition-spec", "[]"))
    records = [_shaped(raw, shape) for raw in manifest.records]
    return AvroFile({**manifest.header, SCHEMA_KEY: shape.schema}, records)


def _shaped(raw: Mapping[str, Any], shape: _Shape) -> dict[str, Any]:
    entry = {name: raw[given] for given, name in shape.of_entry.items()}
    _require_values(entry, "status", "data_file")
    file = {name: entry["data_file"][given] for given, name in shape.of_file.items()}
    if file["partition"] is None and not shape.partition:
        file["partition"] = {}
    _require_values(file, *(name for name in _REQUIRED if name in file))
    file["partition"] = {name: file["partition"][name] for name in shape.partition}
    return {**entry, "data_file": file}


def _require_values(record: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if record[name] is None:
            message = f"an entry has no {name}"
            raise ValueError(message)


@lru_cache(maxsize=256)
def _shape(schema: str, spec: str) -> _Shape:
    entry = json.loads(schema)
    types = {found["name"]: found for found in _named_types(entry)}
    of_entry = _name(entry, _ENTRY, types)
    file = _field(entry, "data_file")["type"]
    of_file = _name(file, _FILE, types)
    partition = _field(file, "partition")["type"]
    places = {int(field["field-id"]): place for place, field in enumerate(json.loads(spec)) if "field-id" in field}
    # A field that isn't in the spec that the manifest names keeps its place after the others.
    partition["fields"].sort(key=lambda field: places.get(field.get("field-id"), len(places)))
    names = tuple(field["name"] for field in partition["fields"])
    return _Shape(json.dumps(entry), of_entry, of_file, names)


def _named_types(node: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401  # a JSON schema is a dict, a list or a string
    if isinstance(node, list):
        for each in node:
            yield from _named_types(each)
    elif isinstance(node, dict):
        if node.get("type") == "record":
            yield node
        for key in ("fields", "type", "items", "values"):
            yield from _named_types(node.get(key))


def _name(record: Any, names: Mapping[int, str], types: Mapping[str, Any]) -> dict[str, str]:  # noqa: ANN401  # as above
    """Give the fields of ``record`` the spec's names, and required ones their type alone; the names by the given ones.

    A record that is only named, as Avro allows for one that is defined elsewhere, is put in its place.
    """
    if not isinstance(record, dict) or record.get("type") != "record":
        message = "its schema isn't that of a manifest"
        raise ValueError(message)
    given = {}
    for field in record["fields"]:
        given[field["name"]] = field["name"] = names.get(field.get("field-id"), field["name"])
        if field["name"] in _REQUIRED and isinstance(field["type"], list):
            (field["type"],) = (each for each in field["type"] if each != "null")
            field.pop("default", None)
        if isinstance(field["type"], str):
            field["type"] = types.get(field["type"], field["type"])
    if lacking := [name for name in _REQUIRED if name in names.values() and name not in given.values()]:
        message = f"its schema lacks {lacking[0]}"
        raise ValueError(message)
    return given


def _field(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(field for field in record["fields"] if field["name"] == name)
    return found
