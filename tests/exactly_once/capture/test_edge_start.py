"""A new consumer starts once where ``start`` says, and never skips rows without notice."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import parse_start
from dagster_ips.core.limits import Limits
from dagster_ips.core.ownership import Consent
from dagster_ips.errors import TargetChangedError, UnknownPlaceError, UpstreamRenamedError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.edge_status import Inspector
from tests.iceberg.sources import EDGE, TABLE, TARGET, Row, Source, numbered
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import copy_progress


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Three commits, none of which is consumed."""
    source = Source(tmp_path, "day")
    for number in (1, 2, 3):
        source.append(numbered(number))
    return source


def capture(  # noqa: PLR0913  # most are the capturer's
    source: Source,
    start: str,
    *,
    asked_for: Mode | None = None,
    target: str = TARGET,
    accept: int | None = None,
    upstream: str = EDGE.upstream,
) -> CapturedInput:
    tracked = [TrackedInput(upstream, TABLE, start=parse_start(start))]
    capturer = Capturer(source.lake, source.store)
    (captured,) = capturer.capture(
        CaptureRequest(EDGE.consumer, tracked, target=target, asked_for=asked_for, consent=Consent(accept)),
        run_id="run",
    )
    return captured


def holds(source: Source, captured: CapturedInput, rows: Sequence[Row]) -> bool:
    return source.scan(captured.capture.icdc_table) == source.expected(rows)


def snapshots(source: Source) -> list[int]:
    return [entry.snapshot_id for entry in source.table.history()]


def lose_cursor(source: Source) -> None:
    source.store = MemoryCursors()


def test_start_all_reads_everything(source: Source) -> None:
    captured = capture(source, "all")
    assert captured.capture.mode is Mode.FULL
    assert holds(source, captured, numbered(1, 2, 3))


@pytest.mark.parametrize("target", [TARGET, "media.missing"])
def test_start_latest_reads_what_comes_after_the_first_capture_whether_or_not_the_target_exists(
    source: Source, target: str
) -> None:
    captured = capture(source, "latest", target=target)
    assert captured.capture.mode is Mode.INCREMENTAL
    assert captured.capture.reason == "begins at the declared start of playback"
    assert holds(source, captured, [])
    source.append(numbered(4))
    source.consume(captured)
    assert holds(source, capture(source, "latest"), numbered(4))


def test_start_latest_stays_at_the_first_capture_even_if_that_is_abandoned(source: Source) -> None:
    capture(source, "latest")
    source.append(numbered(4))
    assert holds(source, capture(source, "latest"), numbered(4))
    assert holds(source, capture(source, "all"), numbered(1, 2, 3, 4))


def test_start_latest_of_a_table_without_snapshots_is_its_beginning(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.consume(capture(source, "latest"))
    source.append(numbered(1))
    assert holds(source, capture(source, "latest"), numbered(1))


def test_start_latest_of_a_table_without_snapshots_stays_its_beginning_even_if_that_capture_is_abandoned(
    tmp_path: Path,
) -> None:
    source = Source(tmp_path)
    capture(source, "latest")
    source.append(numbered(1))
    source.consume(captured := capture(source, "latest"))
    assert holds(source, captured, numbered(1))
    source.append(numbered(2))
    assert holds(source, capture(source, "latest"), numbered(2))


def test_a_start_at_a_snapshot_or_a_time_reads_what_comes_after_it(source: Source) -> None:
    second = source.table.history()[1]
    assert holds(source, capture(source, str(second.snapshot_id)), numbered(3))
    lose_cursor(source)
    for table in source.lake.client.list_tables("ips"):
        source.lake.client.drop_table(table)
    at = dt.datetime.fromtimestamp(second.timestamp_ms / 1000, dt.UTC)
    assert holds(source, capture(source, at.isoformat()), numbered(3))
    assert holds(source, capture(source, "2001-01-01"), numbered(1, 2, 3))


@pytest.mark.parametrize(
    ("start", "why"),
    [("12345", "isn't in its history"), ("2999-01-01", "in the future"), ("2001-01-01", "oldest retained")],
)
def test_a_start_outside_the_history_is_refused_and_nothing_is_recorded(source: Source, start: str, why: str) -> None:
    expired, oldest, newest = snapshots(source)
    source.table.maintenance.expire_snapshots().by_id(expired).commit()
    with pytest.raises(UnknownPlaceError, match=why) as raised:
        capture(source, start)
    assert re.search(rf"has snapshot {oldest} of 20.*, to snapshot {newest} of 20", str(raised.value))
    assert source.state == EdgeState(EDGE)


def test_an_expired_start_is_refused(source: Source) -> None:
    first = snapshots(source)[0]
    source.table.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(UnknownPlaceError, match=str(first)):
        capture(source, str(first))


def test_a_full_run_reads_everything_whatever_the_start_and_later_runs_continue_from_it(source: Source) -> None:
    full = capture(source, "latest", asked_for=Mode.FULL)
    assert holds(source, full, numbered(1, 2, 3))
    source.consume(full)
    source.append(numbered(4))
    assert holds(source, capture(source, "latest"), numbered(4))


def test_after_a_reset_a_consumer_begins_at_its_start_again(source: Source) -> None:
    source.consume(capture(source, "latest"))
    source.append(numbered(4))
    Administrator(source.lake, source.store, TARGET).reset(EDGE, who="me", why="test")
    captured = capture(source, "latest")
    assert (captured.capture.number, captured.capture.mode) == (2, Mode.INCREMENTAL)
    assert holds(source, captured, [])


def test_a_cursor_lost_after_a_publication_of_no_row_leaves_no_row_out(source: Source) -> None:
    source.publish(capture(source, "latest"))
    lose_cursor(source)
    source.append(numbered(4))
    assert holds(source, capture(source, "latest"), numbered(4))
    source.append(numbered(5))
    lose_cursor(source)
    assert holds(source, capture(source, "latest"), numbered(4, 5))


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_cursor_lost_after_a_publication_continues_from_there(source: Source, *, is_committed: bool) -> None:
    source.consume(capture(source, "latest"))
    source.append(numbered(4))
    captured = capture(source, "latest")
    source.publish(captured)
    if is_committed:
        source.consume(captured)
    source.append(numbered(5))
    lose_cursor(source)
    assert holds(source, capture(source, "latest"), numbered(5))


@pytest.mark.parametrize("exists", [True, False])
def test_an_asset_of_the_same_key_that_writes_another_table_begins_at_its_own_start(
    source: Source, *, exists: bool
) -> None:
    for number in (4, 5):
        source.publish(capture(source, "latest"))
        source.append(numbered(number))
    lose_cursor(source)  # in another deployment, which has no cursor of it
    if exists:
        source.lake.client.create_table("media.other", source.table.schema())
    first = str(snapshots(source)[0])
    other = capture(source, first, target="media.other")
    assert (other.capture.number, other.capture.reason) == (1, "begins at the declared start of playback")
    assert holds(source, other, numbered(2, 3, 4, 5))
    lose_cursor(source)
    assert holds(source, capture(source, "latest"), numbered(5))


def test_a_target_rolled_back_to_before_its_first_publication_is_an_error_whose_advice_works(source: Source) -> None:
    target = source.lake.client.load_table(TARGET)
    target.append(source.table.scan().to_arrow())  # someone else's rows
    (theirs,) = target.history()
    for number in (4, 5):
        source.publish(capture(source, "latest", accept=theirs.snapshot_id))
        source.append(numbered(number))
    target.refresh().manage_snapshots().rollback_to_snapshot(theirs.snapshot_id).commit()
    lose_cursor(source)
    with pytest.raises(TargetChangedError, match="dagster_ips/mode=full"):
        capture(source, "latest")
    assert holds(source, capture(source, "latest", asked_for=Mode.FULL), numbered(1, 2, 3, 4, 5))


def test_a_target_that_is_rolled_back_goes_on_from_what_it_contains_then(source: Source) -> None:
    source.publish(capture(source, "latest"))
    first = source.lake.client.load_table(TARGET).current_snapshot()
    assert first
    for number in (4, 5):
        source.append(numbered(number))
        source.publish(capture(source, "latest"))
        copy_progress(source.store, source.lake, TARGET, EDGE.consumer)
    source.lake.client.load_table(TARGET).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert holds(source, capture(source, "latest"), numbered(4, 5))


@pytest.mark.parametrize("start", ["latest", "the first snapshot"])
def test_an_upstream_that_is_renamed_leaves_no_row_out_and_doubles_none(source: Source, start: str) -> None:
    start = str(snapshots(source)[0]) if start != "latest" else start
    source.publish(captured := capture(source, start))
    source.consume(captured)
    consumed = snapshots(source)[-1]
    source.append(numbered(4))
    renamed = Edge(EDGE.consumer, "media/playback")
    with pytest.raises(UpstreamRenamedError, match=rf"as playback, up to snapshot {consumed}\. ") as raised:
        capture(source, start, upstream=renamed.upstream)
    assert f"start={consumed}" in str(raised.value)
    everything = capture(source, start, upstream=renamed.upstream, asked_for=Mode.FULL)
    assert holds(source, everything, numbered(1, 2, 3, 4))
    Administrator(source.lake, source.store, TARGET).reset(renamed, who="me", why="advised")
    assert holds(source, capture(source, str(consumed), upstream=renamed.upstream), numbered(4))


def test_a_second_table_may_be_read_from_its_start_on_later(source: Source) -> None:
    source.publish(captured := capture(source, "latest"))
    source.consume(captured)
    other = source.lake.client.create_table("media.other", source.table.schema())
    other.append(source.table.scan().to_arrow())
    inputs = [TrackedInput(EDGE.upstream, TABLE), TrackedInput("other", "media.other", start=parse_start("latest"))]
    found = Capturer(source.lake, source.store).capture(
        CaptureRequest(EDGE.consumer, inputs, target=TARGET), run_id="run"
    )
    assert [each.capture.mode for each in found] == [Mode.INCREMENTAL, Mode.INCREMENTAL]


def test_a_first_capture_is_known_as_a_beginning_until_something_is_consumed(source: Source) -> None:
    captured = capture(source, "latest")
    assert source.state.is_beginning
    source.consume(captured)
    assert (source.state.is_beginning, source.state.number) == (False, 1)


@pytest.mark.parametrize("start", ["all", "latest"])
def test_runs_after_an_empty_table_was_consumed_are_incremental(tmp_path: Path, start: str) -> None:
    source = Source(tmp_path)
    first = capture(source, start)
    assert first.capture.mode is Mode.FULL
    source.consume(first)
    still_empty = capture(source, start)
    assert (still_empty.capture.mode, still_empty.files.changes.is_empty) == (Mode.INCREMENTAL, True)
    source.consume(still_empty)
    source.append(numbered(1))
    source.append(numbered(2))
    begun = Inspector(source.lake, source.store, TARGET).status(EDGE.consumer, TrackedInput(EDGE.upstream, TABLE))
    assert begun.pending
    assert (begun.pending.is_full, begun.pending.rows) == (False, 2)
    captured = capture(source, start)
    assert captured.capture.mode is Mode.INCREMENTAL
    assert holds(source, captured, numbered(1, 2))
    source.consume(captured)
    source.append(numbered(3))
    assert holds(source, capture(source, start), numbered(3))


def test_a_formerly_empty_table_is_read_in_bites_like_any_other(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.consume(source.capture())
    source.append(numbered(1, 2, 3))
    read = []
    for _ in range(3):
        bite = source.capture(limits=Limits(max_files=1, cuts_files=True))
        assert bite.capture.mode is Mode.INCREMENTAL
        read.append(source.scan(bite.capture.icdc_table))
        source.consume(bite)
    assert sum(read, Counter()) == source.expected(numbered(1, 2, 3))
    assert [rows.total() for rows in read] == [1, 1, 1]
    assert source.capture().files.changes.is_empty
