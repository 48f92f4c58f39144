"""The part of a table's history that its consumers still have to read."""

from __future__ import annotations

from pathlib import Path

from dagster_ips.core.expiry_limit import Need
from dagster_ips.core.limits import Limits
from dagster_ips.exactly_once.capture.unread_history import needs_of
from dagster_ips.iceberg.metadata import TableMetadata
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered
from tests.support.publishing import known_of


def table(source: Source) -> TableMetadata:
    return source.lake.load(TABLE, asset="test")


def needs(source: Source) -> list[Need]:
    known = known_of(source.store, source.lake, TARGET, EDGE.consumer)
    progress = known.progress.inputs[EDGE.upstream] if known else None
    return list(needs_of(EDGE, progress, table(source)))


def test_a_consumer_that_has_published_nothing_needs_no_snapshot(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    source.capture()
    assert needs(source) == []


def test_a_consumer_needs_its_last_consumed_snapshot_even_while_its_run_reads_later_ones(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    source.capture_and_consume()
    consumed = table(source).ancestry().head
    assert consumed
    source.append(numbered(2))
    need = Need("daily", "main", consumed.snapshot_id, consumed.sequence_number)
    assert needs(source) == [need]
    source.capture()
    assert needs(source) == [need]


def test_a_first_read_in_several_parts_needs_its_snapshot_until_the_last_part_is_consumed(tmp_path: Path) -> None:
    source, part = Source(tmp_path, "day"), Limits(max_files=1, cuts_files=True)
    source.append(numbered(1, 2))
    reading = table(source).ancestry().head
    assert reading
    source.consume(source.capture(limits=part))
    source.append(numbered(3))
    need = Need("daily", "main", reading.snapshot_id, reading.sequence_number)
    assert needs(source) == [need]
    source.consume(source.capture(limits=part))
    assert needs(source) == [need]
