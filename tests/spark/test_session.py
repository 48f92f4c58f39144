"""Sessions come and go without disturbing each other."""

from __future__ import annotations

import gc
import weakref

from dagster_ips.local_spark.connect_server import ConnectServer


def test_a_session_that_nobody_holds_is_not_collected_while_others_work(spark_server: ConnectServer) -> None:
    """pyspark would shut down a thread pool that all sessions share, at whatever moment Python collects it."""
    dropped = weakref.ref(spark_server.session())
    gc.collect()
    assert dropped() is not None
