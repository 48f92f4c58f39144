"""The part of a table's history that its consumers still have to read."""

from __future__ import annotations

from pathlib import Path

from dagster_ips.core.expiry_limit import Need
from dagster_ips.core.limits import Limits
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


def test_a_first_read_in_several_parts_needs_its_snapshot_until_the_last_part_is_consumed(tmp_path: Path) -> None:
    source, part = Source(tmp_path, "day"), Limits(max_files=1, cuts_files=True)
    source.append(numbered(1, 2))
    reading = table(source).head_snapshot_id()
    source.consume(source.capture(limits=part))
    source.append(numbered(3))
    assert list(needs_of_state(source.state, table(source))) == [Need("daily", "main", reading)]
    source.consume(source.capture(limits=part))
    assert list(needs_of_state(source.state, table(source))) == [Need("daily", "main", reading)]
