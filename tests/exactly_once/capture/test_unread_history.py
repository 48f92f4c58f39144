"""The part of a table's history that its consumers still have to read."""

from __future__ import annotations

from pathlib import Path

from dagster_ips.core.expiry_limit import Need
from dagster_ips.exactly_once.capture.unread_history import needs_of_state
from dagster_ips.iceberg.metadata import TableMetadata
from tests.iceberg.sources import TABLE, Source, numbered


def table(source: Source) -> TableMetadata:
    return source.lake.load(TABLE, asset="test")


def test_a_run_that_reads_everything_needs_the_snapshot_that_it_reads(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    reading = table(source).head_snapshot_id()
    source.capture()
    source.append(numbered(2))
    assert list(needs_of_state(source.state, table(source))) == [Need("daily", "main", reading)]


def test_a_consumer_needs_its_last_consumed_snapshot_even_while_its_run_reads_later_ones(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    source.capture_and_consume()
    consumed = table(source).head_snapshot_id()
    source.append(numbered(2))
    assert list(needs_of_state(source.state, table(source))) == [Need("daily", "main", consumed)]
    source.capture()
    assert set(needs_of_state(source.state, table(source))) == {Need("daily", "main", consumed)}
