"""Spark sessions: by Spark Connect or in this process, and the catalogs they know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from dagster_ips._compat import leave_without_asking_the_server, never_collect

__all__ = ["DataFrame", "SparkSession", "classic_configuration", "configure", "connect_session"]

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def connect_session(remote: str, configuration: Mapping[str, str]) -> SparkSession:
    """A session of our own on the Spark Connect server at ``remote`` (``sc://host:port``), configured for itself."""
    session: SparkSession = SparkSession.builder.remote(remote).create()
    never_collect(session)
    leave_without_asking_the_server(session)
    configure(session, configuration)
    return session


def classic_configuration(jars: Sequence[Path]) -> dict[str, str]:
    """What a Spark session in this process must be started with to read and write Iceberg."""
    return {"spark.sql.extensions": EXTENSIONS, "spark.jars": ",".join(str(jar) for jar in jars)}


def configure(session: SparkSession, configuration: Mapping[str, str]) -> None:
    """Set what the session doesn't have yet; a catalog may be configured as long as it hasn't been used."""
    known = session.conf.getAll
    for key, value in configuration.items():
        if key not in known:
            session.conf.set(key, value)
