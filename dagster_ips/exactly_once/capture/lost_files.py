"""What an engine's error says about a data file, in words that help."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dagster_ips.errors import FilesGoneError, IpsError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.iceberg.storage import Storage

_DATA_FILE = re.compile(r"[^\s'\"(]+\.(?:parquet|orc|avro|puffin)\b")
_SAID = 200


def lost_file(error: Exception, inputs: Iterable[CapturedInput], storage: Storage) -> FilesGoneError | None:
    """What a missing or damaged data file of one of ``inputs`` deserves to be called; None if ``error`` is of no such.

    Engines name the file somewhere in a message of many screens.
    """
    if isinstance(error, IpsError):
        return None
    message = str(error)
    for found in dict.fromkeys(_DATA_FILE.findall(message)):
        for captured in inputs:
            if _is_of(found, captured):
                said = message[message.index(found) + len(found) :].partition("\n")[0].strip()[:_SAID]
                cause = f"can't be read ({said})" if storage.exists(found) else "doesn't exist any more"
                return FilesGoneError(table=captured.source.table, file=found, cause=cause)
    return None


def _is_of(path: str, captured: CapturedInput) -> bool:
    name = path.rpartition("/")[2]
    folder = captured.source.location.rpartition("://")[2].strip("/")
    return f"{folder}/" in path or any(file.path.endswith(name) for file in captured.files.changes.touched)
