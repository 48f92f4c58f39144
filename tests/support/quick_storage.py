"""Dagster's SQLite storage without the work that it repeats: a fifth of the CPU time of tests and their Dagster.

Each run has a database of its own, and for each Dagster reads all its migrations anew. Each statement has an engine of
its own, which compiles it anew.
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
    """For the rest of this process."""
    ScriptDirectory.from_config = functools.cache(ScriptDirectory.from_config)  # type: ignore[method-assign]  # as it was, remembered
    for module in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):
        module.create_engine = _one_engine  # type: ignore[attr-defined]  # each imported it by name
    event.listen(Engine, "connect", _write_without_waiting_for_the_disk)


def _one_engine(url: str, **settings: Any) -> Engine:  # noqa: ANN401  # SQLAlchemy's
    """One for each database; it keeps no connection, so it doesn't mind that its file is replaced."""
    return _engines.get(url) or _engines.setdefault(url, create_engine(url, **settings))


def _write_without_waiting_for_the_disk(connection: object, _: object) -> None:
    """What a process that is killed has written is there all the same: only a machine that crashes would lose it."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")
