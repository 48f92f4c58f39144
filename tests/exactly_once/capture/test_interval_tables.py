"""Tables of the change in any interval, which belong to no consumer."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_ips.core.history_place import AtSnapshot
from dagster_ips.errors import IntervalError
from dagster_ips.exactly_once.capture.interval_tables import IntervalTables
from tests.iceberg.sources import TABLE, Source, numbered
from tests.iceberg.test_manifests_of_others import rewrite_manifests


def test_an_interval_in_which_a_file_was_overwritten_is_refused_with_advice_for_intervals(tmp_path: Path) -> None:
    source = Source(tmp_path, format_version="2")
    source.append(numbered(1))
    first = source.table.current_snapshot()
    assert first
    (file,) = source.capture().files.changes.added
    source.table.delete("number = 1")
    source.append(numbered(2, 3))
    same = {"file_path": file.path}
    rewrite_manifests(source, lambda entry: {**entry, "data_file": {**entry["data_file"], **same}})
    tables = IntervalTables(source.lake)
    with pytest.raises(IntervalError, match=r"under the same path\. Give an interval that begins or ends in between"):
        tables.make(TABLE, start=AtSnapshot(first.snapshot_id), end=None)
    assert tables.make(TABLE, start=None, end=AtSnapshot(first.snapshot_id)).changes.row_count == 1
