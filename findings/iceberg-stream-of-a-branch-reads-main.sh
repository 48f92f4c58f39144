#!/usr/bin/env bash
# Spark 4.1.4 with Iceberg 1.12.0 (also 1.11.0): a stream that reads a branch gets main's rows.
#
# Expected: readStream of a branch delivers the branch's rows, as a batch read with the same option or name does, or
#   says that it can't.
# Happens: the branch is ignored, and main's rows are delivered, without an error. A consumer that was meant to test
#   rows before they are published processes published ones.
# Where: option("branch", …) and the table name t.branch_x. Support for branches in streams was asked for in
#   apache/iceberg, issue 3898, which was closed without it.
# What to do: read branches in batches.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet pyspark==4.1.4

mkdir conf
cat >conf/spark-defaults.conf <<CONF
spark.master                       local[1]
spark.ui.enabled                   false
spark.jars.packages                org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
spark.sql.extensions               org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions
spark.sql.catalog.lake             org.apache.iceberg.spark.SparkCatalog
spark.sql.catalog.lake.type        hadoop
spark.sql.catalog.lake.warehouse   $work/lake
CONF
export SPARK_CONF_DIR=$work/conf

venv/bin/python - >seen 2>log <<'PY' || { cat log >&2; exit 1; }
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sql("CREATE TABLE lake.db.t AS SELECT 'main' AS written_to")
spark.sql("ALTER TABLE lake.db.t CREATE BRANCH audit")
spark.sql("INSERT INTO lake.db.t.branch_audit VALUES ('audit')")


def batch(frame):
    return sorted(row.written_to for row in frame.collect())


def stream(frame, name):
    writer = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", f"checkpoints/{name}")
    writer.trigger(availableNow=True).start().awaitTermination()
    return batch(spark.table(name))


def option(reader):
    return reader.format("iceberg").option("branch", "audit").load("lake.db.t")


print("option: batch", batch(option(spark.read)), "stream", stream(option(spark.readStream), "by_option"))
name = "lake.db.t.branch_audit"
print("name: batch", batch(spark.read.table(name)), "stream", stream(spark.readStream.table(name), "by_name"))
PY
cat seen

# Seen on 2026-11-28:
diff - seen <<'SEEN' || { echo "changed: streams read branches now, or refuse to" >&2; exit 1; }
option: batch ['audit', 'main'] stream ['main']
name: batch ['audit', 'main'] stream ['main']
SEEN
