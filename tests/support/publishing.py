"""What a run does to publish, by PyIceberg instead of Spark, and what is known of a table then."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.partitioned_input import PartitionedInput, look_at
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.ref_commits import RefCommit, commit_refs
from dagster_ips.iceberg.stamps import attempt_properties, computed_properties, owner_properties
from dagster_ips.progress.advance import Standing
from dagster_ips.progress.cursor import Copy, Cursors, known_progress
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PIN, PROGRESS, TableProgress, table_progress

NO_SESSION: Any = None


def known_of(store: Cursors, lake: LakeCatalog, target: str, consumer: str) -> TableProgress | None:
    """What the consumer's table ``target`` contains."""
    found = lake.find(target)
    return known_progress(table_progress(found, asset=consumer, storage=lake.storage), store.get(consumer), found)


def look(  # noqa: PLR0913  # all are independent
    store: Cursors,
    lake: LakeCatalog,
    tracked: TrackedInput,
    *,
    consumer: str,
    target: str,
    source: TableMetadata | None = None,
) -> PartitionedInput:
    """What a sensor finds; ``source`` is the upstream's table if it was loaded a while ago."""
    source = source or lake.load(tracked.table, asset="a test")
    return look_at(lake.storage, source, tracked, known_of(store, lake, target, consumer), consumer)


def publish(  # noqa: PLR0913  # all are independent
    store: Cursors,
    lake: LakeCatalog,
    target: str,
    captured: Sequence[CapturedInput],
    rows: pa.Table | None = None,
    *,
    copies: bool = True,
) -> Standing:
    """Append ``rows``, by default none, with the run's progress, unless another run has published since.

    If it doesn't copy the progress, the run was killed before that.
    """
    first, advance, consumer = captured[0].capture, captured[0].advance, captured[0].capture.edge.consumer
    publisher = Publisher(lake, store, NO_SESSION, first.run_id, advance=advance)
    known = publisher.known(lake.load(target, asset=consumer), consumer)
    standing = advance.standing(known)
    if standing is not Standing.MAY_PUBLISH:
        return standing
    stamp = attempt_properties(f"ips_{uuid.uuid4().hex}", first.run_id) | computed_properties(
        advance.mode, advance.partitions
    )
    progress = advance.progress(known, made={}, lookups={})
    publish_progress(lake, target, consumer, progress, rows, stamp=stamp)
    if copies:
        copy_progress(store, lake, target, consumer)
    return standing


def publish_progress(  # noqa: PLR0913  # all are independent
    lake: LakeCatalog,
    target: str,
    consumer: str,
    progress: Progress,
    rows: pa.Table | None = None,
    *,
    stamp: Mapping[str, str] | None = None,
) -> None:
    """Append ``rows``, by default none, with the progress, and move the tag that keeps it."""
    summary = owner_properties(consumer, None) | {PROGRESS: progress_text(progress)} | dict(stamp or {})
    table = lake.client.load_table(target)
    table.append(table.scan(limit=0).to_arrow() if rows is None else rows, snapshot_properties=summary)
    head = table.refresh().current_snapshot()
    assert head
    commit_refs(lake, target, RefCommit(sets={PIN: head.snapshot_id}, tags=[PIN]), asset=consumer)


def copy_progress(store: Cursors, lake: LakeCatalog, target: str, consumer: str) -> None:
    """Copy what the table contains to the cursor, as a run does once it has published."""
    known = table_progress(lake.find(target), asset=consumer, storage=lake.storage)
    assert known
    store.set_copy(consumer, Copy(known.progress, known.mark))


def consume_without_writing(store: Cursors, lake: LakeCatalog, target: str, captured: Sequence[CapturedInput]) -> None:
    """Count what was captured as consumed by a run that had nothing to write."""
    consumer, advance = captured[0].capture.edge.consumer, captured[0].advance
    known, progress = known_of(store, lake, target, consumer), advance.without_writing()
    if known and progress and advance.base and known.mark == advance.base.mark:
        store.set_copy(consumer, Copy(progress, known.mark))
