"""Settings of a session: those that it has, and others for as long as something lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings_of(session: SparkSession, names: Collection[str]) -> dict[str, str | None]:
    """What the session has by ``names``, None where it has nothing; one request by Spark Connect.

    Spark 4.0's server can't list all that a session has.
    """
    client: Any = getattr(session, "client", None)
    if client is None or not names:
        return {name: session.conf.get(name, None) for name in names}
    return dict(zip(names, client.get_config_with_defaults(*((name, None) for name in names)), strict=True))


@contextlib.contextmanager
def with_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Within, ``settings`` hold; then what the session had instead does again."""
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
