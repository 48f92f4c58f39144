"""Prints which frames of a classic session can't be traced, as JSON: ``python -m tests.support.classic_frames``."""

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from dagster_ips.exactly_once.publish.provenance import provenance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def frames(session: SparkSession, read: DataFrame) -> dict[str, DataFrame]:
    totals: Any = read.groupBy("k").count()
    given: Any = session.createDataFrame([(0, "a"), (1, "b")], "k long, name string")
    totals.localCheckpoint().createOrReplaceTempView("kept")
    return {
        "a query": totals,
        "rows": given,
        "no rows": session.createDataFrame([], "k long"),
        "rows from pandas": session.createDataFrame(given.toPandas()),
        "parallelized rows": session.sparkContext.parallelize([(0, "a"), (1, "b")]).toDF(["k", "name"]),
        "a checkpoint": totals.localCheckpoint(),
        "a lazy checkpoint": totals.localCheckpoint(eager=False),
        "an RDD of a frame": totals.rdd.map(tuple).toDF(["k", "count"]),
        "a checkpoint in a subquery": session.sql("SELECT (SELECT max(k) FROM kept) AS k"),
        "a checkpoint in a WITH": session.sql("WITH c AS (SELECT k FROM kept) SELECT c.k FROM c JOIN c d ON c.k = d.k"),
    }


if __name__ == "__main__":
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    own = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        own.range(3).selectExpr("id", "id % 2 AS k").write.parquet(f"{folder}/rows")
        rows = own.read.parquet(f"{folder}/rows")  # A range is itself made of rows that Python passes to Spark.
        untraced = {
            name: bool(provenance(rows.join(found, "k"), [], table="t", shares_views=False).unknown)
            for name, found in frames(own, rows).items()
        }
    print(json.dumps(untraced))  # noqa: T201  # the caller reads it
