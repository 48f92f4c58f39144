"""Runs that overlap read and write the cursor and the target in any order: none undoes the work of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.types import StringType

from dagster_ips.core.capture import Mode
from dagster_ips.errors import CaptureVoidError, PublishError, RefMovedError, TargetColumnsChangedError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publication, Publisher
from dagster_ips.exactly_once.publish.statement_block import Block
from dagster_ips.iceberg.icdc.icdc_tables import Tag
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import SameKeys
from dagster_ips.progress.cursor import Cursor
from dagster_ips.progress.table_progress import PIN
from dagster_ips.spark.branches import Branch
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, clean_schema, numbered
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import copy_progress, look
from tests.support.publishing import publish as publish_rows

NO_SESSION: Any = None
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """One commit, published and consumed."""
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    publish(source, source.capture())
    return source


def target_of(source: Source) -> TableMetadata:
    return source.lake.load(TARGET, asset="test")


def publisher(source: Source, *captured: CapturedInput) -> Publisher:
    told = {"advance": captured[0].advance} if captured else {}
    return Publisher(source.lake, source.store, NO_SESSION, "run", **told)


def superseded(source: Source, captured: CapturedInput) -> Publication | None:
    return publisher(source, captured).superseded(target_of(source), captured.captures, EDGE.consumer)


def publish(source: Source, captured: CapturedInput) -> None:
    """What a run does once it has computed its rows, here by PyIceberg."""
    assert superseded(source, captured) is None
    source.publish(captured)
    copy_progress(source.store, source.lake, TARGET, EDGE.consumer)


def write_nothing(source: Source, captured: CapturedInput) -> None:
    publisher(source, captured).commit_without_writing(captured.captures, EDGE.consumer)


def delete(source: Source, number: int) -> None:
    source.table.delete(EqualTo("number", number))


def reset(source: Source) -> None:
    Administrator(source.lake, source.store, TARGET).reset(EDGE, who="me", why="wrong rows")


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


@pytest.mark.parametrize("last", ["publishes", "writes nothing"])
def test_a_run_that_published_and_a_run_of_the_same_number_that_wrote_nothing_both_count(
    source: Source, last: str
) -> None:
    source.append(numbered(2))
    busy = source.capture()
    idle = source.capture()
    ends = [lambda: publish(source, busy), lambda: write_nothing(source, idle)]
    for end in ends if last == "writes nothing" else reversed(ends):
        end()
    assert source.state.target is not None
    assert source.state.target.snapshot_id == target_of(source).head_snapshot_id()
    assert source.capture().files.changes.is_empty


class Interrupted(MemoryCursors):
    """Cursors for which something happens right before or right after one is read for the first time."""

    def __init__(
        self,
        of: MemoryCursors,
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self._texts, self.before, self.after = of._texts, before, after

    def get(self, asset: str) -> Cursor:
        if (before := self.before) is not None:
            self.before = None
            before()
        found = super().get(asset)
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

    def captured() -> Sequence[CapturedInput]:
        return Capturer(source.lake, source.store).capture(request, run_id="run")

    publish_rows(source.store, source.lake, TARGET, captured())
    source.append(numbered(2))
    idle, stored = captured(), source.store
    other = Publisher(source.lake, stored, NO_SESSION, "idle", advance=idle[0].advance)

    def ends() -> None:
        other.commit_without_writing([each.capture for each in idle], EDGE.consumer)

    source.store = Interrupted(stored, after=ends)
    assert len({each.capture.from_exclusive for each in captured()}) == 1
    assert all(each.files.changes.is_empty for each in captured())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_begins_while_another_one_publishes_does_not_take_the_target_to_be_rolled_back(
    source: Source, when: str
) -> None:
    """Its cursor may be older than the target that it reads after it, or newer than the one that it knew."""
    source.append(numbered(2))
    other = source.capture()
    source.append(numbered(3))
    stored = source.store

    def ends() -> None:
        publish_rows(stored, source.lake, TARGET, [other])

    source.store = Interrupted(stored, **{when: ends})
    captured = source.capture()
    assert captured.capture.mode is Mode.INCREMENTAL
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(3))


def test_a_run_that_looked_before_a_reset_and_writes_after_it_does_not_undo_it(source: Source) -> None:
    source.append(numbered(2))
    capturer = Capturer(source.lake, source.store)
    looked = capturer.look(CaptureRequest(EDGE.consumer, [TrackedInput(EDGE.upstream, TABLE)], target=TARGET))
    reset(source)
    (late,) = capturer.take(looked, run_id="late")
    for end in (write_nothing, publish):
        with pytest.raises(CaptureVoidError, match="me did a reset since"):
            end(source, late)

    captured = source.capture()
    assert captured.capture.mode is Mode.FULL
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(1, 2))
    publish(source, captured)
    source.append(numbered(3))
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))


def test_a_reset_while_a_run_publishes_is_done_by_the_next_run(source: Source) -> None:
    """The run had checked that nobody asked for anything, and copies its progress after the person has."""
    source.append(numbered(2))
    late = source.capture()
    assert superseded(source, late) is None
    reset(source)
    source.publish(late)
    copy_progress(source.store, source.lake, TARGET, EDGE.consumer)
    captured = source.capture()
    assert captured.capture.mode is Mode.FULL
    publish(source, captured)
    assert source.capture().capture.mode is Mode.INCREMENTAL


def test_a_run_that_captured_before_a_reset_was_done_publishes_nothing_after_it(source: Source) -> None:
    source.append(numbered(2))
    late = source.capture()
    reset(source)
    publish(source, source.capture())
    with pytest.raises(CaptureVoidError):
        superseded(source, late)
    source.store = MemoryCursors()  # Without the cursor, the target shows it.
    with pytest.raises(PublishError, match="published another change"):
        superseded(source, late)


def test_what_a_person_asked_of_an_input_that_was_removed_since_does_not_stop_the_runs(source: Source) -> None:
    Administrator(source.lake, source.store, TARGET).reset(EDGE, who="me", why="wrong rows")
    request = CaptureRequest(EDGE.consumer, [TrackedInput("plans", TABLE)], target=TARGET)
    (captured,) = Capturer(source.lake, source.store).capture(request, run_id="run")
    assert superseded(source, captured) is None


def test_a_change_that_another_run_has_published_is_not_published_again(source: Source) -> None:
    source.append(numbered(2))
    first, second = source.capture(), source.capture()
    publish(source, first)
    ended = superseded(source, second)
    assert ended is not None
    assert ended.superseded_by is not None
    assert ended.superseded_by.mark.snapshot_id == target_of(source).head_snapshot_id()
    assert not ended.snapshots


def test_a_run_of_which_another_one_has_published_a_part_publishes_nothing_and_can_be_repeated(source: Source) -> None:
    source.append(numbered(2))
    part = source.capture()
    source.append(numbered(3))
    late = source.capture()
    publish(source, part)
    with pytest.raises(PublishError, match="another run has meanwhile published another change"):
        superseded(source, late)
    repeated = source.capture()
    assert source.scan(repeated.capture.icdc_table) == source.expected(numbered(3))
    publish(source, repeated)


def test_a_run_on_whose_target_someone_committed_without_changing_a_row_is_published_on_that(source: Source) -> None:
    source.append(numbered(2))
    captured = source.capture()
    target = source.lake.client.load_table(TARGET)
    target.append(target.scan(limit=0).to_arrow())  # stands for a compaction
    publish(source, captured)
    assert source.capture().files.changes.is_empty


def test_a_run_whose_target_was_rolled_back_meanwhile_publishes_nothing(source: Source) -> None:
    before = target_of(source).head_snapshot_id()
    source.append(numbered(2))
    publish(source, source.capture())
    source.append(numbered(3))
    captured = source.capture()
    source.lake.client.load_table(TARGET).manage_snapshots().rollback_to_snapshot(before or 0).commit()
    with pytest.raises(PublishError, match="another run has meanwhile published another change"):
        superseded(source, captured)
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(2, 3))


class Days:
    """A consumer of ``source`` that is partitioned by its days."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, *numbers: int) -> None:
        self.source = Source(folder, "day")
        self.source.append(numbered(*numbers))
        slicing = SameKeys(partition_keys(DAYS, "day", instance, asset=EDGE.consumer))
        self.tracked = TrackedInput(EDGE.upstream, TABLE, slicing=slicing)

    def capture(self, *days: str) -> CapturedInput:
        (captured,) = Capturer(self.source.lake, self.source.store).capture(
            CaptureRequest(EDGE.consumer, [self.tracked], target=TARGET, partitions=RunPartitions(days)), run_id="run"
        )
        return captured

    def publish(self, captured: CapturedInput) -> None:
        publish(self.source, captured)

    @property
    def pending(self) -> set[str]:
        source = self.source
        return {*look(source.store, source.lake, self.tracked, consumer=EDGE.consumer, target=TARGET).pending}


def test_a_run_of_a_partition_that_a_later_run_found_unchanged_leaves_it_pending(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """A row came and went: the partition counts as consumed, until the first run publishes the row all the same."""
    days = Days(tmp_path, instance, 1)
    days.publish(days.capture("2026-01-02"))
    assert not days.pending
    days.source.append([{**numbered(1)[0], 3: "wrong"}])
    late = days.capture("2026-01-02")
    assert days.pending
    days.source.table.delete(EqualTo("the title", "wrong"))
    write_nothing(days.source, days.capture("2026-01-02"))
    assert not days.pending
    days.publish(late)
    assert days.pending == {"2026-01-02"}
    (gone,) = days.source.scan(days.capture("2026-01-02").capture.icdc_table, tag=Tag.BEFORE)
    assert "wrong" in gone


def test_runs_of_other_partitions_that_captured_at_the_same_time_are_both_published(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    days = Days(tmp_path, instance, 1, 2, 3)
    first, second = days.capture("2026-01-02"), days.capture("2026-01-03", "2026-01-04")
    days.publish(first)
    assert days.pending == {"2026-01-03", "2026-01-04"}
    days.publish(second)
    assert not days.pending
    days.source.append(numbered(2, 3))
    first, second, third = (days.capture(*keys) for keys in (("2026-01-03",), ("2026-01-04",), ("2026-01-04",)))
    days.publish(second)
    assert days.pending == {"2026-01-03"}
    days.publish(first)
    assert superseded(days.source, third) is not None
    assert not days.pending


def test_main_and_the_tag_that_keeps_the_progress_move_in_one_commit_and_the_branch_goes_with_them(
    source: Source,
) -> None:
    source.append(numbered(2))
    captured, before, branch = source.capture(), target_of(source), Branch("lake", TARGET, "ips_0")
    table = source.lake.client.load_table(TARGET)
    head = before.head_snapshot_id()
    assert head
    table.manage_snapshots().create_branch(head, branch.name).commit()
    table.append(table.scan(limit=0).to_arrow(), branch=branch.name)
    now = target_of(source)
    assert (now.head_snapshot_id(), now.head_snapshot_id(PIN)) == (head, head)
    publisher(source, captured).make_main(branch, before, now, asset=EDGE.consumer)
    after, new = target_of(source), now.head_snapshot_id(branch.name)
    assert after.raw["metadata-log"][-1]["metadata-file"] == now.metadata_location
    assert (after.head_snapshot_id(), after.head_snapshot_id(PIN)) == (new, new)
    assert branch.name not in after.branches
    with pytest.raises(RefMovedError):
        publisher(source, captured).make_main(branch, before, after, asset=EDGE.consumer)
    assert target_of(source).raw == after.raw


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
