"""Tries whether a storage can be written to where ICDC tables are stored, and whether a catalog keeps branches."""

from __future__ import annotations

import uuid

from dagster_ips.errors import CatalogUnreachableError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.storage import Storage, kind_of

_CONTENT = b"dagster-ips doctor was here"


def try_branches(catalog: LakeCatalog, table: str, location: str) -> bool:
    """Whether the catalog keeps branches, tried with a ``table`` that is created for it in ``location``, and dropped.

    Raises:
        CatalogUnreachableError: the catalog or its storage did not answer.
    """
    with effect(Effect.TRY_STORAGE):
        kept = catalog.keeps_branches(table, location)
        for folder in (f"{location}/metadata", f"{location}/data", location):
            catalog.storage.remove_empty_folder(folder, table=table)
        return kept


def try_storage(storage: Storage, folder: str, *, table: str) -> str | None:
    """Write, read and delete a small file under ``folder``, as ICDC tables of ``table`` are; return what went wrong.

    None if nothing did.
    """
    location = f"{folder}/{uuid.uuid4().hex}.txt"
    try:
        with effect(Effect.TRY_STORAGE):
            storage.write(location, _CONTENT, table=table)
            kept = storage.read(location, table=table)
            storage.delete(location, table=table)
            storage.remove_empty_folder(folder, table=table)
    except Exception as error:  # noqa: BLE001  # every storage has its own exceptions
        return error.cause if isinstance(error, CatalogUnreachableError) else kind_of(error)
    return None if kept == _CONTENT else "reading back returned different bytes"
