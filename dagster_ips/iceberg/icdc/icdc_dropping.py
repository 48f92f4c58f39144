"""Lists an edge's registered ICDC tables, and drops one with the files that are its own.

Any other table is left alone. A file is deleted only if it is directly in the metadata folder that such a table has, so
that no metadata, damaged or forged, leads to the deletion of a source's file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dagster_ips.core.edge import Edge
from dagster_ips.core.retention import IcdcTable
from dagster_ips.errors import MetadataUnreadableError, UnsupportedTableError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc.icdc_names import (
    RUN_OF_CAPTURE,
    SOURCE_UUID,
    TARGET,
    capture_number,
    edge_of,
    interval_of,
    name_prefix,
    number_in_name,
    partitions_of,
)
from dagster_ips.iceberg.manifests import read_manifest_list
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage

_METADATA_FILE = re.compile(r"[\w.-]+\.(?:avro|json)")


def icdc_tables(catalog: LakeCatalog, edge: Edge, *, namespace: str) -> list[IcdcTable]:
    """The edge's ICDC tables in ``namespace``, as in ``tables_named``."""
    return _tables_at(catalog, edge, catalog.metadata_locations_by_prefix(namespace, name_prefix(edge)))


def names_by_number(catalog: LakeCatalog, edge: Edge, *, namespace: str) -> dict[int, list[str]]:
    """The names of the edge's ICDC tables in ``namespace``, by the numbers of their captures, the newest first.

    Tables of others may have such names too. None is read.

    Raises:
        CatalogUnreachableError: the catalog did not answer.
    """
    found: dict[int, list[str]] = {}
    for name in catalog.names_by_prefix(namespace, name_prefix(edge)):
        if (number := number_in_name(name, edge)) is not None:
            found.setdefault(number, []).append(name)
    return dict(sorted(found.items(), reverse=True))


def tables_named(catalog: LakeCatalog, edge: Edge, names: Sequence[str]) -> list[IcdcTable]:
    """Those of the tables ``names`` that are ICDC tables of the edge.

    A table that can't be read is left out: nothing shows that it is an ICDC table, or another run is just dropping it.

    Raises:
        CatalogUnreachableError: the catalog did not answer.
    """
    return _tables_at(catalog, edge, catalog.metadata_locations(names))


def _tables_at(catalog: LakeCatalog, edge: Edge, located: Mapping[str, str]) -> list[IcdcTable]:
    read = [_read(catalog.storage, name, location) for name, location in located.items()]
    known = [(metadata, capture_number(metadata, edge)) for metadata in read if metadata is not None]
    return [
        IcdcTable(
            metadata.table,
            number,
            _created_ms(metadata),
            partitions_of(metadata),
            metadata.properties.get(TARGET),
            metadata.properties.get(RUN_OF_CAPTURE, ""),
        )
        for metadata, number in known
        if number is not None
    ]


@dataclass(frozen=True, slots=True)
class IcdcOrigin:
    """Which snapshots an ICDC table of an edge was made from, as its properties say; None if they don't."""

    edge: Edge
    is_partitioned: bool
    from_exclusive: int | None
    to_inclusive: int | None
    run_id: str = ""


def icdc_origins(catalog: LakeCatalog, source_uuid: str, *, namespace: str) -> list[IcdcOrigin]:
    """The origin of every ICDC table of the source in ``namespace``; of an edge's tables, the newest comes last.

    Raises:
        CatalogUnreachableError: the catalog did not answer.
    """
    located = catalog.metadata_locations_by_prefix(namespace, "")
    read = [_origin_at(catalog, name, location) for name, location in located.items()]
    found = [each for each in read if each is not None and each.source_uuid == source_uuid]
    return [each.origin for each in sorted(found, key=lambda each: each.number)]


class _NumberedOrigin(NamedTuple):
    """The origin of an ICDC table, the uuid of its source, and its capture's number."""

    source_uuid: str | None
    number: int
    origin: IcdcOrigin


@lru_cache(maxsize=50_000)
def _origin_at(catalog: LakeCatalog, name: str, location: str) -> _NumberedOrigin | None:
    """What the metadata at ``location`` says; it never changes, and the job that tidies up asks for each table."""
    metadata = _read(catalog.storage, name, location)
    edge = edge_of(metadata) if metadata is not None else None
    if metadata is None or edge is None:
        return None
    run_id = metadata.properties.get(RUN_OF_CAPTURE, "")
    origin = IcdcOrigin(edge, bool(partitions_of(metadata)), *interval_of(metadata), run_id)
    return _NumberedOrigin(metadata.properties.get(SOURCE_UUID), capture_number(metadata, edge) or 0, origin)


def drop_icdc_table(catalog: LakeCatalog, name: str, edge: Edge) -> None:
    """Drop the ICDC table ``name`` of ``edge`` and delete its own metadata files.

    Nothing happens if the table is gone or isn't an ICDC table of the edge; files that are gone are no error.

    Raises:
        CatalogUnreachableError: the catalog did not answer.
    """
    location = catalog.metadata_locations([name]).get(name)
    metadata = _read(catalog.storage, name, location) if location else None
    if metadata is None or capture_number(metadata, edge) is None:
        return
    files = _own_files(catalog.storage, metadata)
    catalog.drop(name)
    for file in files:
        catalog.storage.delete(file, table=name)
    catalog.storage.remove_empty_folder(_folder(metadata), table=name)
    catalog.storage.remove_empty_folder(metadata.location, table=name)


def _read(storage: Storage, name: str, location: str) -> TableMetadata | None:
    try:
        return TableMetadata.parse(name, location, storage.read(location, table=name))
    except (MetadataUnreadableError, UnsupportedTableError):
        return None


def _created_ms(metadata: TableMetadata) -> int:
    """When its first snapshot was created: an ICDC table is created with one."""
    return min((snapshot.timestamp_ms for snapshot in metadata.snapshots.values()), default=0)


def _own_files(storage: Storage, metadata: TableMetadata) -> list[str]:
    named = [metadata.metadata_location]
    for snapshot in metadata.snapshots.values():
        named.append(snapshot.manifest_list)
        with contextlib.suppress(MetadataUnreadableError):
            rows = read_manifest_list(storage, snapshot, table=metadata.table)
            named += [row["manifest_path"] for row in rows]
    return [file for file in named if _is_own_file(metadata, file)]


def _is_own_file(metadata: TableMetadata, file: str) -> bool:
    """Whether ``file`` is in the table's own metadata folder, and not somewhere else by way of ``..`` or the like."""
    folder = _folder(metadata) + "/"
    return file.startswith(folder) and _METADATA_FILE.fullmatch(file.removeprefix(folder)) is not None


def _folder(metadata: TableMetadata) -> str:
    return f"{metadata.location}/metadata"
