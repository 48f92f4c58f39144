"""Checks whether a storage can be written to where ICDC tables are stored."""

from __future__ import annotations

import uuid

from dagster_ips.errors import CatalogUnreachableError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.storage import Storage, kind_of

_CONTENT = b"dagster-ips doctor was here"


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
