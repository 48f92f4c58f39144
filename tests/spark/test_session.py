"""Sessions come and go without disturbing each other."""

from __future__ import annotations

import gc
import weakref

from dagster_ips.local_spark.connect_server import ConnectServer


def test_a_session_without_references_is_not_collected_while_others_work(spark_server: ConnectServer) -> None:
    """PySpark would shut down a thread pool that all sessions share whenever Python collects a session."""
    dropped = weakref.ref(spark_server.session())
    gc.collect()
    assert dropped() is not None
