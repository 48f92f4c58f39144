"""The Spark resource of the tests' assets: the session's own server, configured by the file beside its folder.

The configuration is in a file so that runs in other processes use the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import dagster_ips as ips
from dagster_ips.local_spark.connect_server import NO_CONF


def choose_server_config(spark_folder: Path, config: Mapping[str, str]) -> None:
    """Configure the server in ``spark_folder`` with ``config``."""
    _file(spark_folder).write_text(json.dumps(dict(config)))


def server_config(spark_folder: Path) -> dict[str, str]:
    """The configuration of the server in ``spark_folder``; empty if none was chosen."""
    file = _file(spark_folder)
    return dict(json.loads(file.read_text())) if file.exists() else {}


def spark_resource(
    spark_folder: Path, spark_config: Mapping[str, str] = NO_CONF, *, driver_memory: str = "2g"
) -> ips.LocalSparkConnect:
    """The resource as a user declares it."""
    return ips.LocalSparkConnect(
        server_folder=str(spark_folder),
        driver_memory=driver_memory,
        server_config=server_config(spark_folder),
        spark_config=dict(spark_config),
    )


def _file(spark_folder: Path) -> Path:
    return spark_folder.with_name(f"{spark_folder.name}.json")
