"""The first client of a new Spark Connect server: ``python warm_up.py sc://127.0.0.1:15002``.

The server's token is in the environment, where PySpark's own clients look for it too.

The first client of a server waits some fifteen seconds for classes to load. This client is that first one, and uses
what every run uses: a session, and an Iceberg table that is written, merged into and read back.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from dagster_ips.spark.session import connect_session

_SESSION_SECONDS = 30


def warm_up(remote: str) -> None:
    """Open a session on ``remote``, run a query, and use a small Iceberg table that is dropped afterwards.

    Prints its progress, for those who wait.
    """
    _say("opening a session")
    spark = connect_session(remote, {}, token=os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"])
    try:
        _say("running a first query")
        _count(spark)
        with tempfile.TemporaryDirectory() as warehouse:
            _use_a_table(spark, Path(warehouse))
    finally:
        spark.stop()


def _count(spark: SparkSession) -> None:
    """Run a first query. Spark 4.0 answers a little before it has the session that clients' sessions are made from."""
    until = time.monotonic() + _SESSION_SECONDS
    while True:
        try:
            spark.range(3).count()
        except PySparkException as error:
            if "No active or default Spark session" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def _use_a_table(spark: SparkSession, warehouse: Path) -> None:
    spark.conf.set("spark.sql.catalog.ips_warm_up", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.ips_warm_up.type", "hadoop")
    spark.conf.set("spark.sql.catalog.ips_warm_up.warehouse", warehouse.as_uri())
    table = "ips_warm_up.db.t"
    _say("writing a first table")
    rows = spark.range(3).select("id", (col("id") % 2).alias("part"))
    rows.writeTo(table).partitionedBy(col("part")).create()
    _say("merging rows into it")
    rows.alias("s").mergeInto(table, col(f"{table}.id") == col("s.id")).whenMatched().updateAll().merge()
    _say("reading it back")
    spark.table(table).groupBy("part").count().collect()
    spark.sql(f"DROP TABLE {table}")


def _say(what: str) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    warm_up(sys.argv[1])
