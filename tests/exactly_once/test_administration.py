"""A person changes what counts as consumed; whatever else is running then, nothing is left out or read twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dagster_ips.core.capture import Mode
from dagster_ips.core.history_place import AtSnapshot
from dagster_ips.core.limits import Limits
from dagster_ips.core.policy import InputPolicies, OnRollback
from dagster_ips.errors import (
    CaptureNotInFlightError,
    RewindError,
    SourceExpiredError,
    StateUnreadableError,
)
from dagster_ips.exactly_once.administration import Administrator, Rewind
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.progress.cursor import Cursor, Job, RequestKind
from dagster_ips.progress.cursor_text import requests_text
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import copy_progress

TRACKED = TrackedInput(EDGE.upstream, TABLE)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Three commits, each consumed and published by its own run."""
    source = Source(tmp_path, "day")
    for number in (1, 2, 3):
        source.append(numbered(number))
        source.publish(source.capture())
        copy_progress(source.store, source.lake, TARGET, EDGE.consumer)
    return source


def administrator(source: Source) -> Administrator:
    return Administrator(source.lake, source.store, TARGET)


def snapshot(source: Source, index: int) -> int:
    return source.table.history()[index].snapshot_id


def plan(source: Source, index: int) -> Rewind:
    return administrator(source).plan_rewind(
        EDGE.consumer, TRACKED, AtSnapshot(snapshot(source, index)), may_repeat=True
    )


def rewind(source: Source, index: int) -> None:
    administrator(source).rewind(plan(source, index), who="me", why="test")


def holds(source: Source, captured: CapturedInput, *numbers: int) -> bool:
    return source.scan(captured.capture.icdc_table) == source.expected(numbered(*numbers))


def test_after_a_rewind_a_run_reads_again_up_to_the_old_watermark_and_the_next_run_continues(source: Source) -> None:
    source.append(numbered(4))
    rewind(source, 0)
    captured = source.capture()
    assert captured.capture.mode is Mode.INCREMENTAL
    assert holds(source, captured, 2, 3)
    source.consume(captured)
    assert holds(source, source.capture(), 4)


def test_a_second_rewind_includes_what_the_first_one_still_has_to_read_again(source: Source) -> None:
    rewind(source, 1)
    rewind(source, 0)
    assert holds(source, source.capture(), 2, 3)
    with pytest.raises(RewindError, match="isn't older than"):
        plan(source, 2)


def test_a_run_that_publishes_after_a_rewind_only_extends_what_is_read_again(source: Source) -> None:
    source.append(numbered(4))
    late = source.capture()
    rewind(source, 0)
    source.publish(late)
    source.append(numbered(5))
    captured = source.capture()
    assert holds(source, captured, 2, 3, 4)
    source.consume(captured)
    assert holds(source, source.capture(), 5)


def test_a_run_that_publishes_after_a_reset_does_not_undo_it(source: Source) -> None:
    source.append(numbered(4))
    late = source.capture()
    administrator(source).reset(EDGE, who="me", why="test")
    source.publish(late)
    captured = source.capture()
    assert captured.capture.mode is Mode.FULL
    assert holds(source, captured, 1, 2, 3, 4)
    source.publish(captured)
    source.append(numbered(5))
    assert holds(source, source.capture(), 5)


def test_a_stamp_from_before_a_reset_is_not_mistaken_for_a_new_publication(source: Source) -> None:
    administrator(source).reset(EDGE, who="me", why="test")
    assert source.capture().capture.mode is Mode.FULL
    assert source.state.committed is None


def test_a_full_run_ends_a_rewind(source: Source) -> None:
    rewind(source, 0)
    source.append(numbered(4))
    full = source.capture(asked_for=Mode.FULL)
    assert holds(source, full, 1, 2, 3, 4)
    source.consume(full)
    source.append(numbered(5))
    assert holds(source, source.capture(), 5)


def test_a_planned_rewind_is_refused_once_something_else_was_consumed(source: Source) -> None:
    planned = plan(source, 0)
    source.append(numbered(4))
    source.consume(source.capture())
    before = source.state
    with pytest.raises(RewindError, match="has changed since"):
        administrator(source).rewind(planned, who="me", why="test")
    assert source.state == before


def test_a_rewind_is_refused_in_the_middle_of_a_change_that_is_consumed_in_parts(source: Source) -> None:
    source.append(numbered(4, 5, 6))
    source.consume(source.capture(limits=Limits(max_files=1, cuts_files=True)))
    tracked = replace(TRACKED, policies=InputPolicies(on_rollback=OnRollback.CONTINUE))
    for each in (TRACKED, tracked):
        with pytest.raises(RewindError, match="in the middle of a change"):
            administrator(source).plan_rewind(EDGE.consumer, each, AtSnapshot(snapshot(source, 0)), may_repeat=True)


def test_a_rewind_behind_a_rollback_is_refused(source: Source) -> None:
    source.table.manage_snapshots().rollback_to_snapshot(snapshot(source, 1)).commit()
    with pytest.raises(RewindError, match="isn't older than"):
        plan(source, 0)


def test_a_rewind_whose_end_snapshot_is_expired_raises_an_error_and_leaves_nothing_out(source: Source) -> None:
    rewind(source, 0)
    end = snapshot(source, 2)
    source.append(numbered(4))
    source.table.maintenance.expire_snapshots().by_id(end).commit()
    with pytest.raises(SourceExpiredError, match="had snapshots expired"):
        source.capture()
    assert holds(source, source.capture(asked_for=Mode.FULL), 1, 2, 3, 4)


def test_a_rewind_is_planned_from_what_a_target_that_was_rolled_back_contains(source: Source) -> None:
    target = source.lake.client.load_table(TARGET)
    target.manage_snapshots().rollback_to_snapshot(target.history()[1].snapshot_id).commit()
    with pytest.raises(RewindError, match="isn't older than"):
        plan(source, 1)
    rewind(source, 0)
    captured = source.capture()
    assert holds(source, captured, 2)
    source.publish(captured)
    assert holds(source, source.capture(), 3)


def test_a_rewind_of_what_was_published_before_a_rollback_reads_nothing_twice(source: Source) -> None:
    """The rollback had taken back more than the rewind: the next run goes on from there."""
    rewind(source, 1)
    target = source.lake.client.load_table(TARGET)
    target.manage_snapshots().rollback_to_snapshot(target.history()[0].snapshot_id).commit()
    captured = source.capture()
    source.publish(captured)
    read = source.scan(captured.capture.icdc_table) + source.scan(source.capture().capture.icdc_table)
    assert read == source.expected(numbered(2, 3))


def test_what_persons_ask_for_is_recorded_with_who_why_and_what_and_old_requests_are_dropped(source: Source) -> None:
    end = source.state.committed
    rewind(source, 0)
    (done,) = requested(source).requests
    assert (done.kind, done.who, done.why) == (RequestKind.REWIND, "me", "test")
    assert done.after
    assert (done.before, done.after.snapshot_id) == (end, snapshot(source, 0))
    for number in range(20):
        administrator(source).reset(EDGE, who="me", why=f"number {number}")
    kept = requested(source).requests
    assert [each.why for each in kept] == [f"number {n}" for n in range(15, 20)]
    assert [each.id for each in kept] == sorted({each.id for each in kept})
    assert len(requests_text(kept)) < 5000


def requested(source: Source) -> Cursor:
    return source.store.get(EDGE.consumer)


class Damaged(MemoryCursors):
    """Cursors in which someone else has overwritten a value of the asset's."""

    def __init__(self, of: MemoryCursors, part: str) -> None:
        self._texts = {**of._texts, (EDGE.consumer, part): "{}"}


def test_a_damaged_copy_changes_nothing(source: Source) -> None:
    source.append(numbered(4))
    source.store = Damaged(source.store, "copy")
    assert holds(source, source.capture(), 4)


@pytest.mark.parametrize("part", ["asked", "job"])
def test_an_unreadable_cursor_is_reported_and_rebuilt_by_a_reset(source: Source, part: str) -> None:
    source.store = Damaged(source.store, part)
    with pytest.raises(StateUnreadableError):
        source.capture()
    administrator(source).reset(EDGE, who="me", why="damaged")
    assert source.state.committed is None
    captured = source.capture()
    assert captured.capture.mode is Mode.FULL
    source.publish(captured)
    source.append(numbered(4))
    assert holds(source, source.capture(), 4)


@pytest.mark.parametrize("is_stamped", [False, True])
def test_a_job_that_wrote_one_part_of_a_first_read_can_commit_it(tmp_path: Path, *, is_stamped: bool) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(1, 2))
    part = source.capture(limits=Limits(max_files=1, cuts_files=True))
    progress = part.advance.progress(part.advance.base, made={}, lookups={})
    source.store.set_job(EDGE.consumer, Job((part.capture,), progress))
    if is_stamped:
        source.publish(part)
    administrator(source).commit(EDGE.consumer, [EDGE.upstream], "run")
    assert source.store.get(EDGE.consumer).job is None
    assert source.state.file_set
    assert source.state.file_set.taken == 1
    read = [source.scan(each.capture.icdc_table) for each in (part, source.capture())]
    assert read[0] + read[1] == source.expected(source.rows)
    with pytest.raises(CaptureNotInFlightError, match="nothing is in flight"):
        administrator(source).commit(EDGE.consumer, [EDGE.upstream], "run")


def test_what_a_job_reported_to_have_written_is_read_again_once_its_target_is_rolled_back(source: Source) -> None:
    """Nothing but the report says what the job wrote, and the report is of rows that are gone."""
    source.append(numbered(4))
    target = source.lake.client.load_table(TARGET)
    for _ in range(2):
        target.append(target.scan(limit=0).to_arrow())
    source.consume(source.capture())
    assert source.capture().files.changes.is_empty
    target.refresh().manage_snapshots().rollback_to_snapshot(target.history()[-2].snapshot_id).commit()
    again = source.capture()
    assert source.scan(again.capture.icdc_table) == source.expected(numbered(4))


def test_a_job_that_reports_after_a_reset_does_not_undo_it(source: Source) -> None:
    source.append(numbered(4))
    late = source.capture()
    progress = late.advance.progress(late.advance.base, made={}, lookups={})
    source.store.set_job(EDGE.consumer, Job((late.capture,), progress))
    administrator(source).reset(EDGE, who="me", why="wrong rows")
    with pytest.raises(CaptureNotInFlightError, match="me did a reset since"):
        administrator(source).commit(EDGE.consumer, [EDGE.upstream], "run")
    assert source.capture().capture.mode is Mode.FULL


def test_a_commit_before_any_capture_says_that_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(CaptureNotInFlightError, match="no capture has been committed yet"):
        administrator(Source(tmp_path)).commit(EDGE.consumer, [EDGE.upstream], "daily:123")
