#!/usr/bin/env bash
# Spark 4.1.4 with Iceberg 1.12.0 (also 1.11.0): after the partitioning of a table was changed, overwritePartitions()
# and a dynamic INSERT OVERWRITE keep the rows that they should replace, so a rerun of a day doubles its rows.
#
# Expected: writing all rows of a day again replaces that day.
# Happens: only files of the current partition spec are replaced. Rows written before the change are in the older spec's
#   partitions, and stay beside their replacements. No error, no warning.
# Where: any change of the spec, also to a finer or coarser unit of time.
# What to do: overwrite by a condition on the rows, `df.writeTo(t).overwrite(col("ts") >= … & …)`, or rewrite the old
#   files into the new spec first, with rewrite_data_files and rewrite-all.
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

spark = SparkSession.builder.config("spark.sql.sources.partitionOverwriteMode", "dynamic").getOrCreate()
day = "SELECT ts, '{}' AS run FROM VALUES (timestamp '2026-11-28 01:00'), (timestamp '2026-11-28 02:00') AS t(ts)"


def runs():
    return sorted(row.run for row in spark.table("lake.db.t").collect())


for change in (None, "days(ts) WITH hours(ts)", "days(ts) WITH months(ts)"):
    spark.sql("DROP TABLE IF EXISTS lake.db.t")
    spark.sql(f"CREATE TABLE lake.db.t PARTITIONED BY (days(ts)) AS {day.format('first')}")
    if change:
        spark.sql(f"ALTER TABLE lake.db.t REPLACE PARTITION FIELD {change}")
    spark.sql(f"INSERT OVERWRITE lake.db.t {day.format('second')}")
    print(f"{change}: after INSERT OVERWRITE {runs()}")
    spark.sql(day.format("third")).writeTo("lake.db.t").overwritePartitions()
    print(f"{change}: after overwritePartitions {runs()}")
PY
cat seen

# Which run wrote the day's rows. Seen on 2026-11-28:
diff - seen <<'SEEN' || { echo "changed: Iceberg replaces the rows of older specs now" >&2; exit 1; }
None: after INSERT OVERWRITE ['second', 'second']
None: after overwritePartitions ['third', 'third']
days(ts) WITH hours(ts): after INSERT OVERWRITE ['first', 'first', 'second', 'second']
days(ts) WITH hours(ts): after overwritePartitions ['first', 'first', 'third', 'third']
days(ts) WITH months(ts): after INSERT OVERWRITE ['first', 'first', 'second', 'second']
days(ts) WITH months(ts): after overwritePartitions ['first', 'first', 'third', 'third']
SEEN
