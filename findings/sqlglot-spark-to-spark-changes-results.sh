#!/usr/bin/env bash
# sqlglot 30.30.0: parsing a Spark query and writing it for Spark again changes its result.
#
# Expected: transpile(sql, read="spark", write="spark") may change the layout, not the meaning.
# Happens: percentile_cont, which interpolates, becomes percentile_approx, which doesn't. 'it''s', one string since
#   Spark 4.1, becomes the concatenation of two, as before 4.1. to_char becomes a cast, which drops the format.
# Where: the dialect "spark"; whatever rewrites queries through sqlglot is affected.
# What to do: keep the text of expressions that you don't change; run old and new text on a sample.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet pyspark==4.1.4 sqlglot==30.30.0

venv/bin/python - >seen 2>log <<'PY' || { cat log >&2; exit 1; }
import sqlglot
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for query in (
    "SELECT percentile_cont(0.25) WITHIN GROUP (ORDER BY x) FROM VALUES (1), (2), (4), (9) AS t(x)",
    "SELECT 'it''s'",
    "SELECT to_char(x, '999.99') FROM VALUES (2.5) AS t(x)",
    "SELECT to_char(x, '000.00') FROM VALUES (2.5) AS t(x)",
):
    (rewritten,) = sqlglot.transpile(query, read="spark", write="spark")
    print(query)
    print(rewritten)
    print(repr(spark.sql(query).first()[0]), "became", repr(spark.sql(rewritten).first()[0]))
PY
cat seen

# Seen on 2026-11-28:
diff - seen <<'SEEN' || { echo "changed: sqlglot rewrites these queries in another way" >&2; exit 1; }
SELECT percentile_cont(0.25) WITHIN GROUP (ORDER BY x) FROM VALUES (1), (2), (4), (9) AS t(x)
SELECT PERCENTILE_APPROX(x, 0.25) FROM VALUES (1), (2), (4), (9) AS t(x)
1.75 became 1
SELECT 'it''s'
SELECT CONCAT('it', 's')
"it's" became 'its'
SELECT to_char(x, '999.99') FROM VALUES (2.5) AS t(x)
SELECT CAST(x AS STRING) FROM VALUES (2.5) AS t(x)
'  2.50' became '2.5'
SELECT to_char(x, '000.00') FROM VALUES (2.5) AS t(x)
SELECT CAST(x AS STRING) FROM VALUES (2.5) AS t(x)
'002.50' became '2.5'
SEEN
