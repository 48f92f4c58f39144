#!/usr/bin/env bash
# DuckDB 1.5.5, Daft 0.7.26 and chdb 4.4.0 don't find rows from before 1970 in tables partitioned by their time.
#
# Expected: WHERE ts = (a row's own value) finds the row, as it does in the same table without partitions. (>= loses
#   rows, too.)
# Happens: to skip partitions, the engines compute the partition of the value that is searched for. Before 1970, years,
#   months, days and hours since 1970 are negative, and have to be rounded down. Rounded towards zero, they name the
#   next partition, and the right one is skipped, without an error. Birthdays and historical data are such times.
# Where: DuckDB with month and day partitions of timestamps, Daft with hour partitions, ClickHouse (chdb) with all, also
#   of dates. PyIceberg 0.12.0, which wrote the table, and Polars 2.1.0 find every row. The table spec defines the
#   transforms in "Partition Transforms".
# What to do: partition such data by another column, or don't filter it by time in these engines.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet "pyiceberg[sql-sqlite,pyarrow,pyiceberg-core]==0.12.0" pyarrow==25.0.1 polars==2.1.0 \
    daft==0.7.26 chdb==4.4.0 duckdb==1.5.5 duckdb-extension-iceberg==1.5.5 duckdb-extension-avro==1.5.5

venv/bin/python - >seen <<'PY'
import os
from datetime import datetime
from importlib.resources import files

import chdb
import daft
import duckdb
import polars as pl
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, YearTransform

for name in ("avro", "iceberg"):
    (extension,) = files(f"duckdb_extension_{name}").rglob("*.duckdb_extension")
    duckdb.execute(f"LOAD '{extension}'")
times = [datetime(1960, 3, 15, 5, 30), datetime(1969, 12, 31, 23, 30), datetime(2026, 11, 28, 5, 30)]
rows = pa.table({"ts": pa.array(times, pa.timestamp("us"))})
catalog = load_catalog("lake", type="in-memory", warehouse=f"file://{os.getcwd()}/lake")
catalog.create_namespace("db")

for transform in (None, YearTransform(), MonthTransform(), DayTransform(), HourTransform()):
    table = catalog.create_table(f"db.by_{transform}", rows.schema)
    if transform:
        with table.update_spec() as spec:
            spec.add_field("ts", transform, "part")
    table.append(rows)
    in_duckdb = f"iceberg_scan('{table.metadata_location}') WHERE ts = TIMESTAMP"
    in_chdb = f"icebergLocal('{table.location().removeprefix('file://')}') WHERE ts = toDateTime64"
    found = {
        "PyIceberg": [table.scan(row_filter=f"ts = '{time.isoformat()}'").count() for time in times],
        "Polars": [pl.scan_iceberg(table).filter(pl.col("ts") == time).collect().height for time in times],
        "DuckDB": [duckdb.execute(f"SELECT count(*) FROM {in_duckdb} '{time}'").fetchone()[0] for time in times],
        "Daft": [daft.read_iceberg(table).where(daft.col("ts") == time).count_rows() for time in times],
        "chdb": [int(str(chdb.query(f"SELECT count() FROM {in_chdb}('{time}', 6, 'UTC')"))) for time in times],
    }
    print(f"by {transform}:", ", ".join(f"{engine} {counts}" for engine, counts in found.items()))
PY
cat seen

# Rows found of 1960, 1969 and 2026, one each. Seen on 2026-11-28:
diff - seen <<'SEEN' || { echo "changed: some of these engines no longer do this" >&2; exit 1; }
by None: PyIceberg [1, 1, 1], Polars [1, 1, 1], DuckDB [1, 1, 1], Daft [1, 1, 1], chdb [1, 1, 1]
by year: PyIceberg [1, 1, 1], Polars [1, 1, 1], DuckDB [1, 1, 1], Daft [1, 1, 1], chdb [0, 0, 1]
by month: PyIceberg [1, 1, 1], Polars [1, 1, 1], DuckDB [0, 0, 1], Daft [1, 1, 1], chdb [0, 0, 1]
by day: PyIceberg [1, 1, 1], Polars [1, 1, 1], DuckDB [0, 0, 1], Daft [1, 1, 1], chdb [0, 0, 1]
by hour: PyIceberg [1, 1, 1], Polars [1, 1, 1], DuckDB [1, 1, 1], Daft [0, 0, 1], chdb [0, 0, 1]
SEEN
