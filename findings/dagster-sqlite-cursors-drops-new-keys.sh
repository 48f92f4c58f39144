#!/usr/bin/env bash
# Dagster 1.13.29 with its default SQLite storage: set_cursor_values loses new keys if one of the keys exists already.
#
# Expected: after daemon_cursor_storage.set_cursor_values({"a": …, "b": …}), both keys have these values.
# Happens: existing keys are updated, new ones are dropped, without an error. Only a batch of nothing but new keys, or
#   of nothing but existing ones, is stored as given. Whoever keeps a cursor per partition there forgets each new
#   partition.
# Where: DagsterInstance.daemon_cursor_storage on SQLite, Dagster's default storage.
# What to do: one set_cursor_values call for each key; read back what you wrote.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet dagster==1.13.29

venv/bin/python - >seen <<'PY'
import tempfile

from dagster import DagsterInstance

with tempfile.TemporaryDirectory() as folder, DagsterInstance.local_temp(folder) as instance:
    cursors = instance.daemon_cursor_storage
    for batch in ({"a": "1"}, {"a": "2", "b": "2"}, {"b": "3", "c": "3"}, {"a": "4", "c": "4"}):
        cursors.set_cursor_values(batch)
        print(f"set {batch}: stored {dict(sorted(cursors.get_cursor_values({'a', 'b', 'c'}).items()))}")
PY
cat seen

# Seen on 2026-11-28:
diff - seen <<'SEEN' || { echo "changed: Dagster stores these keys now" >&2; exit 1; }
set {'a': '1'}: stored {'a': '1'}
set {'a': '2', 'b': '2'}: stored {'a': '2'}
set {'b': '3', 'c': '3'}: stored {'a': '2', 'b': '3', 'c': '3'}
set {'a': '4', 'c': '4'}: stored {'a': '4', 'b': '3', 'c': '4'}
SEEN
