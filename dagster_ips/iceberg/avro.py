"""Reads and writes Avro files without losing a bit.

Logical types are removed from the schema while fastavro decodes, so that dates, decimals and uuids stay the integers
and bytes that they are on disk; a file written back has the original schema, including field ids. PyIceberg's own
reader and writer change types on the way (``equality_ids`` becomes a list of long, which Java refuses).

Source: Apache Avro specification, "Object Container Files".
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro

SCHEMA_KEY = "avro.schema"
_MAGIC = b"Obj\x01"


class CodecUnknownError(ValueError):
    """The package that decompresses the file isn't installed; the text names it."""


@dataclass(frozen=True, slots=True)
class AvroFile:
    """The header of an Avro file, with values as text, and its records as plain dicts."""

    header: Mapping[str, str]
    records: list[dict[str, Any]]

    @property
    def schema(self) -> str:
        """The Avro schema as JSON text."""
        return self.header[SCHEMA_KEY]


def read_avro(content: bytes) -> AvroFile:
    """All records of ``content``.

    Raises:
        ValueError: it isn't a complete Avro file.
        CodecUnknownError: the package that decompresses it isn't installed.
    """
    header, body = _split(content)
    plain = {**header, SCHEMA_KEY: json.dumps(_without_logical_types(header[SCHEMA_KEY]))}
    try:
        records = list(fastavro.reader(io.BytesIO(_join(plain, body))))
    except Exception as error:
        if "codec" in str(error):  # the error in which fastavro names the package to install
            message = f"the file may be intact, but it can't be decompressed here: {error}"
            raise CodecUnknownError(message) from error
        # Damage shows as whatever the decoder trips over: zlib.error, struct.error, MemoryError, a StopIteration.
        message = f"its Avro blocks can't be read: {type(error).__name__} {error}"
        raise ValueError(message) from error
    return AvroFile(header, records)  # type: ignore[arg-type]  # a manifest's records are all of record type


def write_avro(header: Mapping[str, str], records: Iterable[Mapping[str, Any]]) -> bytes:
    """An Avro file of ``records`` with ``header``'s schema and metadata."""
    buffer = io.BytesIO()
    metadata = {key: value for key, value in header.items() if not key.startswith("avro.")}
    schema = _parsed(header[SCHEMA_KEY])
    fastavro.writer(buffer, schema, records, codec="deflate", metadata=metadata)
    written, body = _split(buffer.getvalue())
    return _join({**written, SCHEMA_KEY: header[SCHEMA_KEY]}, body)


@lru_cache(maxsize=256)
def _without_logical_types(schema: str) -> Any:  # noqa: ANN401  # a JSON schema is a dict, a list or a string
    """The schema as fastavro needs it. PyIceberg defines a named type wherever it occurs; Avro allows it once."""
    defined: dict[str, Any] = {}

    def strip(node: Any) -> Any:  # noqa: ANN401  # as above
        if isinstance(node, dict):
            found = {key: strip(value) for key, value in node.items() if key != "logicalType"}
            name = found.get("name") if found.get("type") == "fixed" else None
            return name if name and defined.setdefault(name, found) is not found and defined[name] == found else found
        return [strip(item) for item in node] if isinstance(node, list) else node

    return strip(json.loads(schema))


@lru_cache(maxsize=256)
def _parsed(schema: str) -> Any:  # noqa: ANN401  # fastavro's parsed schemas are untyped
    return fastavro.parse_schema(_without_logical_types(schema))


def _split(content: bytes) -> tuple[dict[str, str], bytes]:
    """The header's metadata, and everything from the sync marker on."""
    if content[:4] != _MAGIC:
        message = "it isn't an Avro file"
        raise ValueError(message)
    header: dict[str, str] = {}
    position = len(_MAGIC)
    try:
        while True:
            count, position = _read_long(content, position)
            if count == 0:
                return header, content[position:]
            if count < 0:
                _, position = _read_long(content, position)
            for _ in range(abs(count)):
                key, position = _read_bytes(content, position)
                value, position = _read_bytes(content, position)
                header[key.decode()] = value.decode()
    except IndexError as error:
        message = "its Avro header is truncated"
        raise ValueError(message) from error


def _join(header: Mapping[str, str], body: bytes) -> bytes:
    out = bytearray(_MAGIC + _long(len(header)))
    for key, value in header.items():
        for text in (key.encode(), value.encode()):
            out += _long(len(text)) + text
    return bytes(out + b"\x00" + body)


def _read_bytes(content: bytes, position: int) -> tuple[bytes, int]:
    length, position = _read_long(content, position)
    if not 0 <= length <= len(content) - position:
        raise IndexError
    return content[position : position + length], position + length


def _read_long(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004  # the variable-length code's continuation bit
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value & ~0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*out, value])
