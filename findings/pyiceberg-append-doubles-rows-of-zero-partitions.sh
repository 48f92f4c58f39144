#!/usr/bin/env bash
# PyIceberg 0.12.0: an append of 0.0 and -0.0 into a table partitioned by that column stores each of these rows twice.
#
# Expected: an append of n rows adds n rows, or fails.
# Happens: the frame's distinct partition values hold 0.0 and -0.0, and for each of them the rows that are *equal* to it
#   are selected: 0.0 = -0.0, so both rows go into both partitions. With NaN, which equals nothing, no row is selected,
#   and the append fails with a ZeroDivisionError.
# Where: PyIceberg 0.12.0, appends to tables with an identity partition of a float or double column.
# What to do: don't partition by such columns, or replace -0.0 and NaN before the append.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet "pyiceberg[sql-sqlite,pyarrow,pyiceberg-core]==0.12.0" pyarrow==25.0.1

venv/bin/python - >seen <<'PY'
import os

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import IdentityTransform

catalog = load_catalog("lake", type="in-memory", warehouse=f"file://{os.getcwd()}/lake")
catalog.create_namespace("db")
for name, values in {"zeros": [0.0, -0.0, 1.0], "nan": [1.0, float("nan")]}.items():
    rows = pa.table({"f": values, "id": list(range(len(values)))})
    table = catalog.create_table(f"db.{name}", rows.schema)
    with table.update_spec() as spec:
        spec.add_field("f", IdentityTransform())
    try:
        table.append(rows)
        print(f"{name}: appended {rows.num_rows} rows, ids {sorted(table.scan().to_arrow()['id'].to_pylist())}")
    except ZeroDivisionError as error:
        print(f"{name}: ZeroDivisionError: {error}")
PY
cat seen

# Seen on 2026-11-28:
diff - seen <<'SEEN' || { echo "changed: PyIceberg no longer does this" >&2; exit 1; }
zeros: appended 3 rows, ids [0, 0, 1, 1, 2]
nan: ZeroDivisionError: division by zero
SEEN
