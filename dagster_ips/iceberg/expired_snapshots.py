"""Snapshots that a table has expired, but that older versions of its metadata still list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dagster_ips.errors import IpsError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage


def with_expired_snapshots(storage: Storage, table: TableMetadata) -> Iterator[TableMetadata]:
    """``table`` with what one older version of its metadata lists in addition, then with two, and so on.

    Its refs stay where they are, so what was rolled back isn't in their history. The series ends with the metadata log,
    which keeps the last hundred versions unless the table says otherwise, or at a file that is gone: what was before
    that is unknown.

    Source: Iceberg table spec, "Table Metadata", ``metadata-log``.
    """
    known = {raw["snapshot-id"]: raw for raw in table.raw.get("snapshots", ())}
    for entry in reversed(table.raw.get("metadata-log", ())):
        try:
            location = entry["metadata-file"]
            older = TableMetadata.parse(table.table, location, storage.read(location, table=table.table))
        except IpsError:
            return
        listed = {raw["snapshot-id"]: raw for raw in older.raw.get("snapshots", ())}
        if older.uuid != table.uuid:
            return
        if listed.keys() - known.keys():
            # The older one is the original: PyIceberg removes the parent id from snapshots whose parent it expires.
            known |= listed
            yield replace(table, raw={**table.raw, "snapshots": list(known.values())})
