"""Reads the settings of a session, and changes them for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings_of(session: SparkSession, names: Collection[str]) -> dict[str, str | None]:
    """The values of the settings ``names`` in the session, None for unset ones; one request over Spark Connect.

    Spark 4.0's server can't list all settings of a session.
    """
    client: Any = getattr(session, "client", None)
    if client is None or not names:
        return {name: session.conf.get(name, None) for name in names}
    return dict(zip(names, client.get_config_with_defaults(*((name, None) for name in names)), strict=True))


@contextlib.contextmanager
def with_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set ``settings`` within the block; afterwards the session has its previous values again."""
    before = settings_of(session, settings)
    try:
        for key, value in settings.items():
            session.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)
