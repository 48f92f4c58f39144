"""Dagster's SQLite storage without repeated work. It saves a fifth of the CPU time of tests and their Dagster.

Dagster gives each run its own database and reads all migrations again for it. It gives each statement its own
engine, which compiles it again.
"""

from __future__ import annotations

import functools
import sqlite3
from typing import Any

from alembic.script import ScriptDirectory
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from sqlalchemy import event
from sqlalchemy.engine import Engine, create_engine

_engines: dict[str, Engine] = {}


def make_storage_quick() -> None:
    """Make Dagster's storage quick for the rest of this process."""
    ScriptDirectory.from_config = functools.cache(ScriptDirectory.from_config)  # type: ignore[method-assign]  # the same function, cached
    for module in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):
        module.create_engine = _one_engine  # type: ignore[attr-defined]  # each module imported it by name
    event.listen(Engine, "connect", write_without_waiting_for_the_disk)


def _one_engine(url: str, **settings: Any) -> Engine:  # noqa: ANN401  # SQLAlchemy's
    """One engine for each database. It keeps no connection, so replacing the database's file does no harm."""
    return _engines.get(url) or _engines.setdefault(url, create_engine(url, **settings))


def write_without_waiting_for_the_disk(connection: object, _: object) -> None:
    """Don't wait for the disk: only a crash of the machine loses data, the kill of a process doesn't."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")
