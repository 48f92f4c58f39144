"""The name, location and properties of an ICDC table: enough to recognize one."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence

from dagster_ips.core.capture import Capture
from dagster_ips.core.edge import Edge
from dagster_ips.errors import UnsupportedTableError
from dagster_ips.iceberg.metadata import TableMetadata

PARTITIONS = "dagster-ips.partitions"
TARGET = "dagster-ips.target"
_FROM = "dagster-ips.from-snapshot-id-exclusive"
_TO = "dagster-ips.to-snapshot-id-inclusive"
SOURCE_UUID = "dagster-ips.source-uuid"
RUN_OF_CAPTURE = "dagster-ips.run"
_S3 = ("s3a", "s3n")
_NUMBER_AND_ATTEMPT = re.compile(r"(\d{6,})_[0-9a-f]{6}")


def name_prefix(edge: Edge) -> str:
    """What the names of the edge's ICDC tables start with: readable, and different from every other edge's."""
    return f"{edge.slug}_{edge.id[:6]}__"


def new_name(edge: Edge, number: int) -> str:
    """The name, without namespace, of a table for the edge's capture ``number``.

    It is unique to this attempt: an abandoned capture of the same number may still be read.
    """
    return f"{name_prefix(edge)}{number:06d}_{uuid.uuid4().hex[:6]}"


def location(source: TableMetadata, table: str, *, under: str | None = None) -> str:
    """The folder of the ICDC table ``table``: in ``under``, or beside the source's folder.

    It is never inside the source's own folder, which the source's maintenance cleans.

    Raises:
        UnsupportedTableError: ``under`` is inside it; or nothing can be beside the source, as it is a whole bucket.
    """
    namespace, _, name = table.rpartition(".")
    if under is not None:
        if _place(under).startswith(_place(source.location)):
            raise UnsupportedTableError(
                table=source.table,
                problem=f"its maintenance deletes files in {source.location}, where icdc_location {under} is",
                remedy="Set icdc_location to a folder that isn't inside a table.",
            )
        return f"{under.rstrip('/')}/_{namespace}/{name}"
    if "/" not in source.location.rpartition("://")[2].rstrip("/"):
        raise UnsupportedTableError(
            table=source.table,
            problem=f"its location {source.location} is the root of its storage, so an ICDC table could only lie "
            "inside it, where the source's maintenance deletes files, or in another storage",
            remedy="Move the table into a folder of its bucket.",
        )
    beside = source.location.rstrip("/").rpartition("/")[0]
    return f"{beside}/_{namespace}/{name}"


def _place(location: str) -> str:
    """A folder as one text, however its address is spelled: ``s3a`` is S3 as well, and no scheme is ``file``."""
    scheme, colon, path = location.partition(":")
    if not colon or scheme == "file":
        path = "/" + (path if colon else location).lstrip("/")
        scheme = "file"
    return f"{'s3' if scheme in _S3 else scheme}:{path.rstrip('/')}/"


def properties(captures: Sequence[Capture], number: int, *, target: str | None = None) -> dict[str, str]:
    """Properties that say where table ``number`` of an edge comes from: one capture, or one per partition of a run.

    ``target`` is the consumer's table; None if there is none.
    """
    capture = captures[0]
    starts, end = {each.from_exclusive for each in captures}, capture.to_inclusive
    start = capture.from_exclusive if len(starts) == 1 else None
    partitions = [each.edge.partition for each in captures if each.edge.partition is not None]
    return {
        **_identity(capture.edge, number),
        **({TARGET: target} if target else {}),
        **({PARTITIONS: json.dumps(partitions, ensure_ascii=False)} if partitions else {}),
        "dagster-ips.mode": capture.mode.value,
        RUN_OF_CAPTURE: capture.run_id,
        _FROM: str(start.snapshot_id) if start else "",
        _TO: str(end.snapshot_id) if end else "",
        SOURCE_UUID: end.table_uuid if end else "",
        "dagster-ips.bite": str(capture.bite or ""),
    }


def number_in_name(table: str, edge: Edge) -> int | None:
    """The number of the edge's capture by the name alone, which may be another table's; None if it has none."""
    match = _NUMBER_AND_ATTEMPT.fullmatch(table.rpartition(".")[2].removeprefix(name_prefix(edge)))
    return int(match[1]) if match else None


def capture_number(metadata: TableMetadata, edge: Edge) -> int | None:
    """The number of the edge's capture that the table was made for.

    None unless its name, its folder and its properties all say that it is an ICDC table of the edge.
    """
    namespace, _, name = metadata.table.rpartition(".")
    number = number_in_name(metadata.table, edge)
    if number is None or not metadata.location.endswith(f"/_{namespace}/{name}"):
        return None
    ours = _identity(edge, number) | {"gc.enabled": "false"}
    return number if ours.items() <= metadata.properties.items() else None


def edge_of(metadata: TableMetadata) -> Edge | None:
    """The edge that an ICDC table was made for; None for any other table."""
    consumer, upstream = (metadata.properties.get(f"dagster-ips.{side}") for side in ("consumer", "upstream"))
    edge = Edge(consumer, upstream) if consumer and upstream else None
    return edge if edge is not None and capture_number(metadata, edge) is not None else None


def interval_of(metadata: TableMetadata) -> tuple[int | None, int | None]:
    """The snapshots between which an ICDC table has the changes; None for one that it doesn't name."""
    start, end = (metadata.properties.get(side) for side in (_FROM, _TO))
    return int(start) if start else None, int(end) if end else None


def partitions_of(metadata: TableMetadata) -> tuple[str, ...]:
    """The consumer's partitions that an ICDC table was made for; none if the consumer has no partitions."""
    return tuple(json.loads(metadata.properties.get(PARTITIONS, "[]")))


def _identity(edge: Edge, number: int) -> dict[str, str]:
    return {
        "dagster-ips.consumer": edge.consumer,
        "dagster-ips.upstream": edge.upstream,
        "dagster-ips.capture": str(number),
    }
