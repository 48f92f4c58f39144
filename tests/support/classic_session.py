"""Runs both stages in one process that has its own JVM: ``python -m tests.support.classic_session HOME LAKE``."""

from __future__ import annotations

import sys

import dagster as dg
from dagster_pyspark import LazyPySparkResource

import dagster_ips as ips
from tests.support.pipeline import agg, daily, materialize

if __name__ == "__main__":
    home, folder = sys.argv[1:]
    catalog = ips.IcebergCatalog(folder=folder)
    spark = LazyPySparkResource(spark_config=catalog.spark_config() | {"spark.ui.enabled": "false"})
    manager = ips.IcdcIOManager(catalog=catalog, spark=spark)
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = ips.with_incremental(dg.Definitions(assets=[playback, daily, agg], resources={"io_manager": manager}))
    with dg.DagsterInstance.from_config(home) as instance:
        materialize(definitions, instance, "daily", "agg")
