"""Runs that overlap read and write the cursor in any order: none undoes the work of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.types import StringType

from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.errors import CaptureVoidError, PublishError, TargetColumnsChangedError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.pending_partitions import PartitionWatch
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.exactly_once.publish.statement_block import Block
from dagster_ips.iceberg.icdc.icdc_tables import Tag
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import SameKeys
from dagster_ips.spark.branches import Branch
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, clean_schema, numbered
from tests.support.memory_store import MemoryEdgeStore

NO_SESSION: Any = None
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """One commit, published and consumed."""
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    publish(source, source.capture())
    return source


def publisher(source: Source) -> Publisher:
    return Publisher(source.lake, source.store, NO_SESSION, "run")


def publish(source: Source, captured: CapturedInput, *, lives_to_commit: bool = True) -> None:
    """A run's publish and commit; the rows themselves don't matter here."""
    source.publish(captured)
    if lives_to_commit:
        publisher(source).commit([captured.capture], source.lake.load(TARGET, asset="test"))


def write_nothing(source: Source, captured: CapturedInput) -> None:
    publisher(source).commit_without_writing([captured.capture])


def delete(source: Source, number: int) -> None:
    source.table.delete(EqualTo("number", number))


@pytest.mark.parametrize("last", ["publishes", "writes nothing"])
def test_three_concurrent_runs_do_not_lose_the_removal_of_a_row_that_one_of_them_published(
    source: Source, last: str
) -> None:
    """A row comes and goes within the interval of one run, and another run publishes it in between."""
    source.append(numbered(2))
    idle = source.capture()
    source.append(numbered(3))
    busy = source.capture()
    write_nothing(source, idle)
    delete(source, 3)
    blind = source.capture()
    ends = [lambda: publish(source, busy), lambda: write_nothing(source, blind)]
    for end in ends if last == "writes nothing" else reversed(ends):
        end()

    captured = source.capture()
    assert source.scan(captured.capture.icdc_table, tag=Tag.BEFORE) == source.expected(numbered(3))


def test_a_run_that_published_and_a_run_of_the_same_number_that_wrote_nothing_both_count(source: Source) -> None:
    source.append(numbered(2))
    busy = source.capture()
    idle = source.capture()
    write_nothing(source, idle)
    publish(source, busy)
    assert source.state.target is not None
    assert source.capture().capture.after_stamp == source.state.target.snapshot_id
    assert source.capture().files.changes.is_empty


class Interrupted(MemoryEdgeStore):
    """A store in which something happens right before or right after the cursors are read for the first time."""

    def __init__(
        self,
        of: MemoryEdgeStore,
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self._values, self.before, self.after = of._values, before, after

    def get_many(self, edges: Iterable[Edge]) -> dict[Edge, EdgeState]:
        if (before := self.before) is not None:
            self.before = None
            before()
        found = super().get_many(edges)
        if (after := self.after) is not None:
            self.after = None
            after()
        return found


def test_a_run_that_begins_while_another_one_commits_sees_what_that_consumed_of_all_inputs_or_of_none(
    source: Source,
) -> None:
    """What one input added, another may have taken back: a run that continues only one of them would count it again."""
    inputs = [TrackedInput(upstream, TABLE) for upstream in ("playback", "plans")]
    request = CaptureRequest(EDGE.consumer, inputs, target=TARGET)

    def captures() -> list[Capture]:
        return [each.capture for each in Capturer(source.lake, source.store).capture(request, run_id="run")]

    publisher(source).commit_without_writing(captures())
    source.append(numbered(2))
    idle = captures()
    stored = source.store
    other = Publisher(source.lake, stored, NO_SESSION, "idle")
    source.store = Interrupted(stored, after=lambda: other.commit_without_writing(idle))
    assert len({each.from_exclusive for each in captures()}) == 1


def test_a_run_that_begins_while_another_one_publishes_does_not_take_the_target_to_be_rolled_back(
    source: Source,
) -> None:
    source.append(numbered(2))
    other = source.capture()
    source.append(numbered(3))
    stored = source.store

    def ends() -> None:
        source.publish(other)
        Publisher(source.lake, stored, NO_SESSION, "other").commit(
            [other.capture], source.lake.load(TARGET, asset="test")
        )

    source.store = Interrupted(stored, before=ends)
    captured = source.capture()
    assert captured.capture.mode is Mode.INCREMENTAL
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(3))


def test_a_run_that_looked_before_a_reset_and_writes_after_it_does_not_undo_it(source: Source) -> None:
    source.append(numbered(2))
    capturer = Capturer(source.lake, source.store)
    looked = capturer.look(CaptureRequest(EDGE.consumer, [TrackedInput(EDGE.upstream, TABLE)], target=TARGET))
    Administrator(source.lake, source.store, TARGET).reset(EDGE, who="me", why="wrong rows")
    (late,) = capturer.take(looked, run_id="late")
    with pytest.raises(CaptureVoidError, match="me did a reset since"):
        write_nothing(source, late)

    captured = source.capture()
    assert captured.capture.mode is Mode.FULL
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(1, 2))
    publish(source, captured)
    source.append(numbered(3))
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))


def test_a_run_that_commits_while_a_person_resets_does_not_undo_it(source: Source) -> None:
    source.append(numbered(2))
    late = source.capture()
    before = source.state
    publish(source, late, lives_to_commit=False)
    Administrator(source.lake, source.store, TARGET).reset(EDGE, who="me", why="wrong rows")
    # The run writes after the reset what it read before it.
    source.store.set(before.with_committed(late.capture, before.target))
    assert source.capture().capture.mode is Mode.FULL


def test_a_run_of_a_partition_that_a_later_run_found_unchanged_can_no_longer_publish(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A row came and went: the partition counts as consumed, and what the first run has made of the row is outdated."""
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    slicing = SameKeys(partition_keys(DAYS, "day", instance, asset=EDGE.consumer))
    tracked = TrackedInput(EDGE.upstream, TABLE, slicing=slicing)

    def capture() -> Capture:
        (captured,) = Capturer(source.lake, source.store).capture(
            CaptureRequest(EDGE.consumer, [tracked], target=TARGET, partitions=RunPartitions(("2026-01-02",))),
            run_id="run",
        )
        return captured.capture

    def pending() -> frozenset[str]:
        watch = PartitionWatch(source.lake.storage, source.store, EDGE.consumer, source.lake.find(TARGET))
        return watch.pending(tracked, source.lake.load(TABLE, asset="test"))

    first = capture()
    source.store.set(source.store.get(first.edge).with_committed(first, None))
    assert not pending()
    source.append([{**numbered(1)[0], 3: "wrong"}])
    late = capture()
    assert pending()
    source.table.delete(EqualTo("the title", "wrong"))
    publisher(source).commit_without_writing([capture()])
    assert not pending()
    with pytest.raises(PublishError, match="later changes"):
        publisher(source).superseded(source.lake.load(TARGET, asset="test"), [late])


def test_names_of_columns_are_unknown_if_their_schema_was_replaced_and_removed_while_a_block_runs(
    source: Source,
) -> None:
    with source.lake.client.load_table(TARGET).update_schema() as columns:
        columns.add_column("more", StringType())
    before = source.lake.load(TARGET, asset="test")
    branch = Branch("lake", TARGET, "ips_0")
    table = source.lake.client.load_table(TARGET)
    table.manage_snapshots().create_branch(before.head_snapshot_id(), branch.name).commit()
    block = Block(publisher(source), branch, before, EDGE.consumer)
    block.check()
    with source.lake.client.load_table(TARGET).update_schema() as columns:
        columns.delete_column("more")
    with source.lake.client.load_table(TARGET).update_schema() as columns:
        columns.add_column("more", StringType())
    clean_schema(source.lake.client.load_table(TARGET), 1)
    with pytest.raises(TargetColumnsChangedError, match="unknown whether"):
        block.check()
