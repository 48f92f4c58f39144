#!/usr/bin/env bash
# Spark 4.1.4 with Iceberg 1.12.0 (<> also with 1.11.0): DELETE FROM t WHERE x <> 'q' deletes rows whose x is null, if
# they are in files of their own.
#
# Expected: in SQL, null <> 'q' is unknown, so the row stays. SELECT with the same WHERE doesn't return it.
# Happens: if Iceberg finds by statistics or partition values that every row of the files fits, it drops whole files.
#   There it evaluates null <> 'q' as true. If one file also has a row that doesn't fit, Spark evaluates the condition
#   row by row, and rows whose x is null stay. So which rows are deleted depends on which files they are in: a partition
#   of nulls, a day's file in which a sparse column is empty.
# Where: DELETE with <> or NOT (… = …), on any table. Iceberg's expressions have two-valued logic (apache/iceberg, pull
#   request 3578). Spark adds `x IS NOT NULL` to a SELECT's filter, not to a DELETE's. NOT IN with several values is
#   right.
# What to do: write `x <> 'q' AND x IS NOT NULL`, which deletes the right rows. A DELETE's operation in `t.snapshots` is
#   `delete` if whole files were dropped.
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


def ids(query):
    return sorted(row[0] for row in spark.sql(query).collect())


number = 0
for condition in ("x <> 'q'", "x NOT IN ('q', 'r')", "NOT (x = 'q')", "x <> 'q' AND x IS NOT NULL"):
    for layout in ("PARTITIONED BY (x)", "one file for each row", "one file"):
        number += 1
        table = f"lake.db.t{number}"
        spark.sql(f"CREATE TABLE {table} (id int, x string) {layout if 'BY' in layout else ''}")
        rows = ["(1, 'p')", "(2, 'q')", "(3, null)"]
        for values in rows if layout == "one file for each row" else [", ".join(rows)]:
            spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
        selected = ids(f"SELECT id FROM {table} WHERE {condition}")
        spark.sql(f"DELETE FROM {table} WHERE {condition}")
        deleted = sorted({1, 2, 3} - set(ids(f"SELECT id FROM {table}")))
        print(f"{condition:26} {layout:21}: SELECT {selected}, DELETE {deleted}")
PY
cat seen

# Seen on 2026-11-28 (row 3 is the one whose x is null):
diff - seen <<'SEEN' || { echo "changed: Iceberg keeps these rows now, or SELECT returns others" >&2; exit 1; }
x <> 'q'                   PARTITIONED BY (x)   : SELECT [1], DELETE [1, 3]
x <> 'q'                   one file for each row: SELECT [1], DELETE [1, 3]
x <> 'q'                   one file             : SELECT [1], DELETE [1]
x NOT IN ('q', 'r')        PARTITIONED BY (x)   : SELECT [1], DELETE [1]
x NOT IN ('q', 'r')        one file for each row: SELECT [1], DELETE [1]
x NOT IN ('q', 'r')        one file             : SELECT [1], DELETE [1]
NOT (x = 'q')              PARTITIONED BY (x)   : SELECT [1], DELETE [1, 3]
NOT (x = 'q')              one file for each row: SELECT [1], DELETE [1, 3]
NOT (x = 'q')              one file             : SELECT [1], DELETE [1]
x <> 'q' AND x IS NOT NULL PARTITIONED BY (x)   : SELECT [1], DELETE [1]
x <> 'q' AND x IS NOT NULL one file for each row: SELECT [1], DELETE [1]
x <> 'q' AND x IS NOT NULL one file             : SELECT [1], DELETE [1]
SEEN
