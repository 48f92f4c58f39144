"""A Spark that starts queries quickly, for tests whose tables have a few rows."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from dagster_ips.local_spark.connect_server import WITH_UI, ConnectServer, ensure_connect_server

# Half of the CPU time of such a query is compilation: to Java by Spark, to machine code by the JVM's second compiler.
# Without that compiler, the JVM's code cache is only 48 MB. It is full within minutes, and then swept all the time.
INTERPRETED = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:MetaspaceSize=256m "
    "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
)


def ensure_quick_server(folder: Path, extra_jars: Collection[str] = ()) -> ConnectServer:
    """The server of ``folder`` as `ensure_connect_server` starts it, but it interprets queries and has a UI."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {INTERPRETED}".strip())
        return ensure_connect_server(folder, conf=WITH_UI, extra_jars=extra_jars)
