"""Spark sessions, by Spark Connect or in this process, and the catalogs that they know."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard
from weakref import WeakKeyDictionary

from dagster_ips._compat import fail_once, forget_ended_sessions, never_collect, release_at_exit, session_with_token
from dagster_ips.core.installed_spark import installed_version, minor_version
from dagster_ips.errors import DeclarationError, SparkVersionsDifferError
from dagster_ips.spark.late import sql
from dagster_ips.spark.session_names import listen
from dagster_ips.spark.settings import change_settings, settings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "DataFrame",
    "SparkSession",
    "classic_configuration",
    "configure",
    "connect_session",
    "is_frame",
    "is_frame_class",
]

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
REDACTED = "(?i)secret|password|token|credential|authorization|connection-string|(access|account|api)[.-]?key"
"""The settings whose values Spark hides in its UI and its event log, which show all settings of each query.

Spark's own pattern lets through the login of a REST catalog (``credential``, ``header.Authorization``), Azure's account
keys and connection strings, and ``s3.access-key-id``.
"""

VERSION_AS_OF, _VERSION_KEY = "versionAsOf", "spark.sql.timeTravelVersionKey"
"""The option by which a snapshot is read, and the setting that says so."""
_ALWAYS = {"spark.sql.inMemoryColumnarStorage.partitionPruning": "false"}
"""What every session is set to: Spark (4.1.4) leaves out parts of a cached frame by their least and greatest values.

These don't count NaN, so ``f > 1``, or an equality that follows from a join, would lose it without a word.
"""
_IDENTIFYING = ("type", "catalog-impl", "uri", "warehouse")
_CONFIGURED: WeakKeyDictionary[SparkSession, list[dict[str, str]]] = WeakKeyDictionary()


def is_secret(setting: str) -> bool:
    """Whether a setting may hold a secret, by its name.

    Example:
        >>> is_secret("spark.sql.catalog.lake.token"), is_secret("spark.sql.catalog.lake.uri")
        (True, False)
    """
    return re.search(rf"{REDACTED}|\.header\.", setting) is not None


def connect_session(
    remote: str, configuration: Mapping[str, str], *, token: str, ended: Callable[[], Exception | None] = lambda: None
) -> SparkSession:
    """A configured session on the Spark Connect server of this machine at ``remote`` (``sc://127.0.0.1:port``).

    ``configuration`` takes precedence over what the server was started with. If the server doesn't answer, the session
    fails with the error that ``ended`` returns; if that is None, it keeps asking for up to ten minutes.
    """
    forget_ended_sessions()
    session = session_with_token(remote, token)
    never_collect(session)
    fail_once(session, ended)
    release_at_exit(session)
    listen(session, from_start=True)
    known = settings_of(session, configuration)
    # A setting that can't be changed in a session may still be given with the value that it has.
    lacking = {key: value for key, value in configuration.items() if known[key] != value}
    change_settings(session, {**lacking, **_ALWAYS})
    return session


def classic_configuration(jars: Sequence[Path]) -> dict[str, str]:
    """The configuration that a Spark session in this process must be started with to read and write Iceberg."""
    return {
        "spark.sql.extensions": EXTENSIONS,
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.redaction.regex": REDACTED,
    }


def configure(session: SparkSession, configuration: Mapping[str, str]) -> None:
    """Set what the session doesn't have yet, and what it must have.

    A catalog can be configured as long as it hasn't been used. A session that had a configuration isn't asked for it
    again.

    Raises:
        DeclarationError: the session has another catalog of the same name from an earlier call, or another name for
            the option ``versionAsOf``.
        SparkVersionsDifferError: the session's Spark has another minor version than the one that is installed.
    """
    listen(session)
    having = _CONFIGURED.setdefault(session, [])
    if dict(configuration) in having:
        return
    _require_same_catalogs(having, configuration)
    if minor_version(session.version) != minor_version(installed_version()):
        raise SparkVersionsDifferError(session.version, installed_version())
    # Iceberg refuses a catalog that has both a type and an implementation.
    instead = {key: f"{key.removesuffix('type')}catalog-impl" for key in configuration if key.endswith(".type")}
    known = settings_of(session, [*configuration, *instead.values(), _VERSION_KEY])
    if known[_VERSION_KEY] not in (None, VERSION_AS_OF):
        raise DeclarationError(
            asset="IcebergCatalog",
            problem=f"the Spark session has {_VERSION_KEY}={known[_VERSION_KEY]}. Spark would ignore the option "
            f"{VERSION_AS_OF}, by which older snapshots are read, and read current ones.",
            remedy=f"Remove {_VERSION_KEY} from the session's configuration.",
        )
    lacking = {
        key: value
        for key, value in configuration.items()
        if known[key] is None and (key not in instead or known[instead[key]] is None)
    }
    change_settings(session, {**lacking, **_ALWAYS})
    having.append(dict(configuration))


def _require_same_catalogs(having: Sequence[Mapping[str, str]], configuration: Mapping[str, str]) -> None:
    """Otherwise, statements for one catalog would go to the other: a session has one of each name."""
    for earlier in having:
        for key in earlier.keys() & configuration.keys():
            prefix, _, name = key.rpartition(".")
            if name in _IDENTIFYING and earlier[key] != configuration[key]:
                catalog = prefix.removeprefix("spark.sql.catalog.")
                raise DeclarationError(
                    asset="IcebergCatalog",
                    problem=f"two catalogs are called {catalog!r} in one Spark session, but their {name} differs.",
                    remedy=f"Give each a name of its own, as in IcebergCatalog(name='{catalog}_2', ...).",
                )


def is_frame(found: object) -> TypeGuard[DataFrame]:
    """Whether it is a Spark DataFrame, classic or Connect."""
    return isinstance(found, sql.DataFrame)


def is_frame_class(annotation: object) -> bool:
    """Whether it is the class of Spark's DataFrames, or of only classic or only Connect frames."""
    return isinstance(annotation, type) and issubclass(annotation, sql.DataFrame)
