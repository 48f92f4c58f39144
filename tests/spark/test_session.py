"""Sessions come and go without disturbing each other."""

from __future__ import annotations

import gc
import weakref

import pytest

from dagster_ips.errors import DeclarationError
from dagster_ips.local_spark.connect_server import ConnectServer
from dagster_ips.spark.session import configure


def test_a_session_without_references_is_not_collected_while_others_work(spark_server: ConnectServer) -> None:
    """PySpark would shut down a thread pool that all sessions share whenever Python collects a session."""
    dropped = weakref.ref(spark_server.session())
    gc.collect()
    assert dropped() is not None


def test_a_session_that_would_read_current_rows_instead_of_a_snapshot_s_is_refused(spark_server: ConnectServer) -> None:
    session = spark_server.session()
    configure(session, {"spark.sql.catalog.some": "org.apache.iceberg.spark.SparkCatalog"})
    session.conf.set("spark.sql.timeTravelVersionKey", "version")
    with pytest.raises(DeclarationError, match="Remove spark"):
        configure(session, {"spark.sql.catalog.other": "org.apache.iceberg.spark.SparkCatalog"})
