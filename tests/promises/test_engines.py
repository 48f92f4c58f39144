"""The same ICDC table read by Spark, PyIceberg and DuckDB gives the same rows, for every kind of delete they read."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.iceberg.icdc.icdc_tables import Tag
from tests.histories.history import CONSUMERS, History, quicken
from tests.histories.table import Shape
from tests.iceberg.sources import as_multiset, duckdb_with_iceberg
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

Rows = Counter[tuple[Any, ...]]
COLUMNS = ("number", "day", "title", "_change_type")
CONSUMER = next(iter(CONSUMERS))

KINDS: dict[str, tuple[int, list[tuple[str, dict[str, Any]]]]] = {
    "v2, appended": (2, [("append_by_spark", {"rows": (5, 6)})]),
    "v2, position deletes": (2, [("update_merge_on_read", {"where": ("number", 1), "to": ("title", 0)})]),
    "v2, equality deletes": (2, [("delete_by_equality", {"where": ("number", 1), "file": 0})]),
    "v3, deletion vectors": (3, [("update_merge_on_read", {"where": ("number", 1), "to": ("title", 0)})]),
    "v1, appended": (1, [("append_by_spark", {"rows": (5, 6)})]),
    "v1, copy-on-write": (1, [("delete_copy_on_write", {"where": ("number", 1)})]),
    "v1 to v2, position deletes": (1, [("upgrade_to_v2", {}), ("delete_merge_on_read", {"where": ("number", 1)})]),
    "v2, copy-on-write": (2, [("update_copy_on_write", {"where": ("number", 1), "to": ("title", 0)})]),
    "v2, position deletes by partition": (2, [("delete_merge_on_read_by_partition", {"where": ("number", 1)})]),
    "v2 to v3, position deletes": (2, [("delete_merge_on_read", {"where": ("number", 1)}), ("upgrade_to_v3", {})]),
    "v3, appended": (3, [("append_by_spark", {"rows": (5, 6)})]),
    "v3, copy-on-write": (3, [("update_copy_on_write", {"where": ("number", 1), "to": ("title", 0)})]),
    "v3, equality deletes": (3, [("delete_by_equality", {"where": ("number", 1), "file": 0})]),
}
CANT_READ: dict[tuple[str, str], str] = {
    ("pyiceberg", "v2, equality deletes"): "PyIceberg does not yet support equality deletes",
    ("pyiceberg", "v3, equality deletes"): "PyIceberg does not yet support equality deletes",
    # It takes rows whose key is null to be deleted, in any table.
    ("duckdb", "v2, equality deletes"): "duckdb shows other rows",
    ("duckdb", "v3, equality deletes"): "duckdb shows other rows",
}
"""An engine, a kind that it can't read, and the resulting error."""


def by_spark(lake: Lake, captured: CapturedInput, tag: Tag | None) -> Rows:
    version = f" VERSION AS OF {captured.tags[tag]}" if tag else ""
    rows = lake.sql(f"SELECT {', '.join(COLUMNS)} FROM lake.{captured.capture.icdc_table}{version}").collect()
    return as_multiset(tuple(row) for row in rows)


def by_pyiceberg(lake: Lake, captured: CapturedInput, tag: Tag | None) -> Rows:
    scan = lake.catalog.client.load_table(captured.capture.icdc_table).scan(selected_fields=COLUMNS)
    read = (scan.use_ref(tag) if tag else scan).to_arrow().select(COLUMNS)
    return as_multiset(zip(*[column.to_pylist() for column in read.columns], strict=True))


def by_duckdb(lake: Lake, captured: CapturedInput, tag: Tag | None) -> Rows:
    location = lake.catalog.load(captured.capture.icdc_table, asset="test").metadata_location
    version = f", snapshot_from_id => {captured.tags[tag]}" if tag else ""
    query = f"SELECT {', '.join(COLUMNS)} FROM iceberg_scan('{location}'{version})"
    return as_multiset(duckdb_with_iceberg().execute(query).fetchall())


ENGINES = {"spark": by_spark, "pyiceberg": by_pyiceberg, "duckdb": by_duckdb}


@pytest.mark.parametrize("kind", mostly_slow(KINDS, quick=4))
def test_every_engine_reads_the_same_change(lake: Lake, kind: str) -> None:
    quicken(lake)
    version, operations = KINDS[kind]
    history = History(lake, Shape(version, partitioned_by=("day",)))
    history.do("append_by_spark", rows=(0, 1, 2, 3, 8, 9, 9))
    history.capture_by_all()
    for name, arguments in operations:
        history.do(name, **arguments)
    before, after = history._watermarks()[0], history.table.head
    captured = history._captured(CONSUMER, None, None)
    lived = {s: rows_at(lake, history, s) for s in (before, after)}

    for engine, read in ENGINES.items():
        reason = CANT_READ.get((engine, kind))
        with pytest.raises(Exception, match=reason) if reason else contextlib.nullcontext():
            found = change(read, lake, captured)
            expected = lived[after] - lived[before], lived[before] - lived[after]
            assert found == expected, f"{engine} shows other rows"


def change(read: Callable[..., Rows], lake: Lake, captured: CapturedInput) -> tuple[Rows, Rows]:
    """The added and removed rows, found as the README says for any engine."""
    if not captured.files.changes.may_remove_rows:
        return read(lake, captured, None), Counter()
    before, after = read(lake, captured, Tag.BEFORE), read(lake, captured, Tag.AFTER)
    return after - before, before - after


def rows_at(lake: Lake, history: History, snapshot_id: int | None) -> Rows:
    query = f"SELECT {', '.join(COLUMNS)} FROM {history.table.sql_name} VERSION AS OF {snapshot_id}"
    return as_multiset(tuple(row) for row in lake.sql(query).collect())
