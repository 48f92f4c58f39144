"""Reads the settings of a session, and changes them for a while."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BROADCAST_THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"
_SPARKS_DEFAULT = "10485760b"
ALL_FIELDS = {"spark.sql.debug.maxToStringFields": "1000000"}
"""With it, Spark doesn't shorten long lists when it prints a plan."""


def may_broadcast_more(session: SparkSession) -> bool:
    """Whether the user hasn't set up to which size Spark broadcasts what it joins."""
    return session.conf.get(BROADCAST_THRESHOLD) == _SPARKS_DEFAULT


def settings_of(session: SparkSession, names: Collection[str]) -> dict[str, str | None]:
    """The values of the settings ``names`` in the session, None for unset ones; one request over Spark Connect.

    Spark 4.0's server can't list all settings of a session.
    """
    client = _client(session)
    if client is None or not names:
        return {name: session.conf.get(name, None) for name in names}
    return dict(zip(names, client.get_config_with_defaults(*((name, None) for name in names)), strict=True))


def change_settings(session: SparkSession, settings: Mapping[str, str | None]) -> None:
    """Set ``settings`` in the session, and unset those that are None; one request for each over Spark Connect."""
    client = _client(session)
    given = {name: value for name, value in settings.items() if value is not None}
    unset = [name for name, value in settings.items() if value is None]
    if client is None:
        for name, value in given.items():
            session.conf.set(name, value)
        for name in unset:
            session.conf.unset(name)
        return
    from pyspark.sql.connect import proto  # noqa: PLC0415  # needed only over Spark Connect

    asked = proto.ConfigRequest
    operations = []
    if given:
        pairs = [proto.KeyValue(key=name, value=value) for name, value in given.items()]
        operations.append(asked.Operation(set=asked.Set(pairs=pairs)))
    if unset:
        operations.append(asked.Operation(unset=asked.Unset(keys=unset)))
    for operation in operations:
        for warning in client.config(operation).warnings:
            warnings.warn(warning, stacklevel=2)


@contextlib.contextmanager
def with_settings(
    session: SparkSession, settings: Mapping[str, str], *, at_least: Mapping[str, int] | None = None
) -> Iterator[None]:
    """Set ``settings`` within the block, and raise numbers ``at_least`` that are set to less.

    Afterwards the session has its previous values again.
    """
    lowest = at_least or {}
    before = settings_of(session, [*settings, *lowest])
    known = {name: before[name] for name in lowest}
    raised = {name: str(lowest[name]) for name, value in known.items() if value and int(value) < lowest[name]}
    try:
        change_settings(session, {**settings, **raised})
        yield
    finally:
        change_settings(session, before)


def _client(session: SparkSession) -> Any:  # noqa: ANN401  # PySpark has no public type for it
    """The session's Spark Connect client; None of a classic session, which raises an error if it is asked for one."""
    some: Any = session
    return some.client if type(session).__module__.startswith("pyspark.sql.connect.") else None
