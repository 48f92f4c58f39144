"""The Avro schemas of manifests and manifest lists, as far as histories written by hand need them.

Source: Iceberg table spec, "Manifests", "Manifest Lists".
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
_SINCE_VERSION_2 = {3, 4, 134, 135, 515, 516, 517}


def field(field_id: int, name: str, kind: Any, *, required: bool = False) -> Json:  # noqa: ANN401  # an Avro type
    """One field of a record."""
    if required:
        return {"name": name, "type": kind, "field-id": field_id}
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _bounds(key_id: int, value_id: int) -> Json:
    pair = [field(key_id, "key", "int", required=True), field(value_id, "value", "bytes", required=True)]
    return {"type": "array", "logicalType": "map", "items": {"type": "record", "name": f"k{key_id}", "fields": pair}}


def entry_schema(partition: Json, *optional: Json) -> Json:
    """Of a manifest in version 2, with ``optional`` fields of the file."""
    file = [
        field(134, "content", "int", required=True),
        field(100, "file_path", "string", required=True),
        field(101, "file_format", "string", required=True),
        field(102, "partition", partition, required=True),
        field(103, "record_count", "long", required=True),
        field(104, "file_size_in_bytes", "long", required=True),
        field(125, "lower_bounds", _bounds(126, 127)),
        field(128, "upper_bounds", _bounds(129, 130)),
        field(135, "equality_ids", {"type": "array", "items": "int", "element-id": 136}),
        *optional,
    ]
    entry = [
        field(0, "status", "int", required=True),
        field(1, "snapshot_id", "long"),
        field(3, "sequence_number", "long"),
        field(4, "file_sequence_number", "long"),
        field(2, "data_file", {"type": "record", "name": "r2", "fields": file}, required=True),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": entry}


def of_version_1(schema: Any) -> Any:  # noqa: ANN401  # JSON
    """``schema`` without the fields that version 2 added."""
    if isinstance(schema, list):
        kept = (each for each in schema if not isinstance(each, dict) or each.get("field-id") not in _SINCE_VERSION_2)
        return [of_version_1(each) for each in kept]
    return {key: of_version_1(value) for key, value in schema.items()} if isinstance(schema, dict) else schema


_SUMMARY = [
    field(509, "contains_null", "boolean", required=True),
    field(518, "contains_nan", "boolean"),
    field(510, "lower_bound", "bytes"),
    field(511, "upper_bound", "bytes"),
]
_COUNTS = {
    504: ("added_files_count", "int"),
    505: ("existing_files_count", "int"),
    506: ("deleted_files_count", "int"),
    512: ("added_rows_count", "long"),
    513: ("existing_rows_count", "long"),
    514: ("deleted_rows_count", "long"),
}
LIST_SCHEMA = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        field(500, "manifest_path", "string", required=True),
        field(501, "manifest_length", "long", required=True),
        field(502, "partition_spec_id", "int", required=True),
        field(517, "content", "int", required=True),
        field(515, "sequence_number", "long", required=True),
        field(516, "min_sequence_number", "long", required=True),
        field(503, "added_snapshot_id", "long", required=True),
        *[field(number, name, kind, required=True) for number, (name, kind) in _COUNTS.items()],
        field(
            507,
            "partitions",
            {"type": "array", "items": {"type": "record", "name": "r508", "fields": _SUMMARY}, "element-id": 508},
        ),
        field(519, "key_metadata", "bytes"),
        field(520, "first_row_id", "long"),
    ],
}
