"""Spark sessions for the jobs that run outside Dagster."""

from pathlib import Path

from pyspark.sql import SparkSession

from example_project.lake import CATALOG, SPARK_CONFIG


def spark_on_lake(folder: Path, remote: str | None) -> SparkSession:
    """A session on the Spark Connect server ``remote`` (``sc://host:port``), configured for the lake in ``folder``.

    With ``remote=None``, it uses the Spark that the environment configures (``SPARK_REMOTE``, ``spark-submit``).
    Iceberg's jar and extensions must already be there, because they can't be added to a running Spark.
    """
    session = SparkSession.builder.remote(remote).create() if remote else SparkSession.builder.getOrCreate()
    know_lake(session, folder)
    return session


def know_lake(session: SparkSession, folder: Path) -> None:
    """Configure ``session`` for the lake in ``folder``."""
    catalog = f"spark.sql.catalog.{CATALOG}"
    session.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{catalog}.type", "jdbc")
    session.conf.set(f"{catalog}.uri", f"jdbc:sqlite:{folder}/catalog.db?busy_timeout=30000")
    session.conf.set(f"{catalog}.warehouse", f"file://{folder}/warehouse")
    session.conf.set(f"{catalog}.jdbc.schema-version", "V1")
    # The commits of other writers must be visible immediately.
    session.conf.set(f"{catalog}.cache-enabled", "false")
    for key, value in SPARK_CONFIG.items():
        session.conf.set(key, value)
