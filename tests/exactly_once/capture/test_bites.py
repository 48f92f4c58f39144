"""A backlog in bites: the same rows in the end, and every bite within its limits, whatever is killed or lost."""

from __future__ import annotations

import contextlib
import datetime as dt
import tempfile
from collections import Counter
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dagster_ips.core.backlog import backlog, is_pending
from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.limits import Limits
from dagster_ips.core.policy import InputPolicies, OnExpired, OnRollback
from dagster_ips.errors import SourceExpiredError, SourceRolledBackError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.edge_status import Inspector
from dagster_ips.progress.advance import Standing
from dagster_ips.progress.progress_text import progress_text
from tests.iceberg.sources import EDGE, TABLE, TARGET, Row, Rows, Source, numbered
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import consume_without_writing, copy_progress, publish

FILE_PATH = 1  # the position in PyIceberg's DataFile
UNLIMITED = Limits(cuts_files=True)
TWO = Limits(max_files=2, cuts_files=True)


class Drain:
    """A consumer of ``source``. ``held`` is what its target holds; the code under test knows only its progress."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.held: Rows = Counter()

    @property
    def state(self) -> EdgeState:
        return self.source.state

    @property
    def is_pending(self) -> bool:
        metadata = self.source.lake.load(TABLE, asset="test")
        return is_pending(self.state, table_uuid=metadata.uuid, ancestry=metadata.ancestry())

    def publish(self, captured: CapturedInput) -> None:
        """What a run does before it copies its progress: the target gets the change, with that progress."""
        capture, changes = captured.capture, captured.files.changes
        if capture.mode is Mode.INCREMENTAL and changes.is_empty:
            return
        self.held = Counter() if capture.mode is Mode.FULL else self.held
        if changes.may_remove_rows:
            self.held = self.held - self.source.scan(capture.icdc_table, tag="before")
            self.held += self.source.scan(capture.icdc_table, tag="after")
        else:
            self.held += self.source.scan(capture.icdc_table)
        standing = publish(self.source.store, self.source.lake, TARGET, [captured], copies=False)
        assert standing is Standing.MAY_PUBLISH

    def commit(self, captured: CapturedInput) -> None:
        """What a run does at its end."""
        if captured.capture.mode is Mode.INCREMENTAL and captured.files.changes.is_empty:
            consume_without_writing(self.source.store, self.source.lake, TARGET, [captured])
        else:
            copy_progress(self.source.store, self.source.lake, TARGET, EDGE.consumer)

    def bite(self, limits: Limits, *, asked_for: Mode | None = None) -> CapturedInput:
        """A run that succeeds."""
        captured = self.source.capture(asked_for=asked_for, limits=limits)
        self.publish(captured)
        self.commit(captured)
        return captured

    def lose_cursor(self) -> None:
        self.source.store = MemoryCursors()

    def drain(self, limits: Limits) -> int:
        """Run until nothing is pending; returns the number of runs."""
        count = 0
        while self.is_pending:
            self.bite(limits)
            count += 1
        return count


def in_files(*numbers: int) -> list[Row]:
    """One data file for each number."""
    return numbered(*numbers)


def shared_days(numbers: list[int]) -> list[Row]:
    """A few data files, so that deleting a row rewrites other rows."""
    return [{1: n, 2: dt.date(2026, 1, 1 + n % 3)} for n in numbers]


row_numbers = st.lists(st.integers(0, 40), min_size=1, max_size=8)
several_files = st.lists(st.integers(0, 40), min_size=3, max_size=9, unique=True).map(lambda n: in_files(*n))
some_limits = st.builds(
    lambda limit, *, cuts_files: Limits(**limit, cuts_files=cuts_files),
    st.sampled_from([{"max_files": 1}, {"max_files": 2}, {"max_files": 4}, {"max_bytes": 1}, {"max_bytes": 9000}, {}]),
    cuts_files=st.sampled_from([True, True, False]),
)


class Backlog(RuleBasedStateMachine):
    """Any history of a real table, any limits, and runs that die anywhere."""

    @initialize(version=st.sampled_from("12"), merging=st.booleans(), first=several_files, limits=some_limits)
    def create(self, *, version: str, merging: bool, first: list[Row], limits: Limits) -> None:
        self.folder = tempfile.TemporaryDirectory()
        merge = {"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": str(merging).lower()}
        self.source = Source(Path(self.folder.name), "day", format_version=version, **merge)
        self.drain = Drain(self.source)
        self.source.append(first)
        self.drain.bite(limits)

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):  # nothing was created
            self.drain.drain(Limits(max_files=2, cuts_files=True))
            assert self.drain.held == self.source.scan()
            self.folder.cleanup()

    @rule(rows=several_files)
    def append_files(self, rows: list[Row]) -> None:
        self.source.append(rows)

    @rule(numbers=row_numbers)
    def append_rows(self, numbers: list[int]) -> None:
        self.source.append(shared_days(numbers))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        there = sorted({row[0] for row in self.source.scan()})
        if there:
            self.source.table.delete(f"number = {data.draw(st.sampled_from(there))}")

    @rule(numbers=row_numbers)
    def overwrite(self, numbers: list[int]) -> None:
        self.source.table.delete("number < 20")
        self.source.append(shared_days(numbers))

    @rule(limits=some_limits, full=st.sampled_from([False, False, False, True]))
    def run(self, limits: Limits, *, full: bool) -> None:
        if not (full or self.drain.is_pending):
            return
        before = self.drain.state
        captured = self.drain.bite(limits, asked_for=Mode.FULL if full else None)
        self.check(captured, limits, before)

    @rule(limits=some_limits)
    def some_runs(self, limits: Limits) -> None:
        for _ in range(3):
            self.run(limits, full=False)

    @rule(limits=some_limits, published=st.booleans(), lost=st.booleans())
    def a_run_is_killed(self, limits: Limits, *, published: bool, lost: bool) -> None:
        captured = self.source.capture(limits=limits)
        if published:
            self.drain.publish(captured)
        if lost and self.drain.held:
            self.drain.lose_cursor()

    @rule(limits=some_limits)
    def everything_is_drained(self, limits: Limits) -> None:
        metadata = self.source.lake.load(TABLE, asset="test")
        files = self.source.table.inspect.all_data_files().num_rows
        assert self.drain.drain(limits) <= len(metadata.snapshots) + files
        assert self.drain.held == self.source.scan()

    def check(self, captured: CapturedInput, limits: Limits, before: EdgeState) -> None:
        """The bite fits the limits or can't be cut, and what is consumed whole equals what time travel shows."""
        changes, state = captured.files.changes, self.drain.state
        kind = "a bite" if captured.capture.bite else "some snapshots" if captured.share.snapshots_left else "all"
        event(f"{kind}, {'beyond' if captured.share.is_beyond else 'within'} the limits")
        size = sum(file.file_size_bytes for file in changes.added)
        within = size <= (limits.max_bytes or size) and len(changes.added) <= (limits.max_files or len(changes.added))
        assert captured.share.is_beyond is not within
        if not within and len(changes.added) > 1:
            assert self.snapshots_of(captured) == 1 or captured.capture.mode is Mode.FULL or before.file_set
            is_append = self.source.table.snapshot_by_id(captured.head.snapshot_id).summary.operation == "append"
            assert not (limits.cuts_files and (is_append or captured.capture.mode is Mode.FULL))
        if state.file_set is None and state.committed:
            assert self.drain.held == self.source.scan(snapshot_id=state.committed.snapshot_id)

    def snapshots_of(self, captured: CapturedInput) -> int:
        start = captured.capture.from_exclusive
        between = captured.source.ancestry().between(
            from_snapshot_id_exclusive=start.snapshot_id if start else None,
            to_snapshot_id_inclusive=captured.capture.to_inclusive.snapshot_id,
        )
        return len(between)


TestBacklog = Backlog.TestCase
TestBacklog.settings = settings(max_examples=3, stateful_step_count=12, deadline=None)


@pytest.mark.slow
class TestManyBacklogs(TestBacklog):
    settings = settings(TestBacklog.settings, max_examples=8)


@pytest.fixture
def drain(tmp_path: Path) -> Drain:
    """An append of ten files, four of which are consumed, by a consumer that had consumed everything before it."""
    drain = Drain(Source(tmp_path, "day"))
    drain.source.append(in_files(100))
    drain.bite(UNLIMITED)
    drain.source.append(in_files(*range(10)))
    drain.bite(TWO)
    drain.bite(TWO)
    return drain


def test_an_append_larger_than_the_limit_is_read_in_bites_of_files_from_a_fixed_snapshot(drain: Drain) -> None:
    big = drain.source.table.current_snapshot()
    drain.source.append(in_files(200))
    ends = []
    while drain.state.file_set:
        captured = drain.bite(TWO)
        assert captured.head
        assert big
        assert captured.head.snapshot_id == big.snapshot_id
        assert captured.capture.mode is Mode.INCREMENTAL
        assert captured.share.snapshots_left == 1
        ends.append(str(captured.share.bite))
    assert ends == ["files 5 to 6 of 10", "files 7 to 8 of 10", "files 9 to 10 of 10"]
    assert drain.held == drain.source.expected(in_files(100, *range(10)))
    assert drain.is_pending
    assert drain.drain(TWO) == 1
    assert drain.held == drain.source.scan()


def test_a_first_read_larger_than_the_limit_replaces_the_target_once_and_then_continues(tmp_path: Path) -> None:
    drain = Drain(Source(tmp_path, "day"))
    for day in range(4):
        drain.source.append(in_files(day, day + 10))
    captured = [drain.bite(Limits(max_files=3, cuts_files=True))]
    assert captured[0].capture.reason == "nothing has been consumed from playback yet"
    drain.source.append(in_files(50))
    while drain.is_pending:
        captured.append(drain.bite(Limits(max_files=3, cuts_files=True)))
    assert [str(each.share.bite) for each in captured[:3]] == [
        f"files {n} of 8" for n in ("1 to 3", "4 to 6", "7 to 8")
    ]
    assert [each.capture.mode for each in captured] == [Mode.FULL, *[Mode.INCREMENTAL] * 3]
    assert drain.held == drain.source.scan()


def test_a_bite_takes_one_file_even_if_that_exceeds_the_limit_in_bytes(drain: Drain) -> None:
    captured = drain.bite(Limits(max_bytes=1, cuts_files=True))
    assert len(captured.files.changes.added) == 1
    assert captured.share.is_beyond
    assert drain.drain(Limits(max_bytes=1, cuts_files=True)) == 5


def test_the_rest_is_one_bite_once_the_limit_is_removed(drain: Drain) -> None:
    assert str(drain.bite(UNLIMITED).share.bite) == "files 5 to 10 of 10"
    assert drain.held == drain.source.scan()


def test_a_cursor_lost_between_bites_costs_nothing(drain: Drain) -> None:
    before = drain.state
    drain.lose_cursor()
    captured = drain.bite(TWO)
    assert str(captured.share.bite) == "files 5 to 6 of 10"
    assert captured.capture.from_exclusive == before.committed
    drain.drain(TWO)
    assert drain.held == drain.source.scan()


def test_a_full_run_between_bites_starts_over_from_the_current_snapshot(drain: Drain) -> None:
    drain.source.append(in_files(200))
    captured = drain.bite(Limits(max_files=5, cuts_files=True), asked_for=Mode.FULL)
    assert str(captured.share.bite) == "files 1 to 5 of 12"
    drain.drain(TWO)
    assert drain.held == drain.source.scan()


def test_a_killed_full_run_between_bites_does_not_change_their_position(drain: Drain) -> None:
    drain.source.capture(asked_for=Mode.FULL, limits=TWO)
    assert str(drain.bite(TWO).share.bite) == "files 5 to 6 of 10"


def test_an_append_whose_snapshot_expires_between_bites_is_refused_with_the_number_of_unread_files(
    drain: Drain,
) -> None:
    state, big = drain.state, drain.source.table.current_snapshot()
    assert big
    drain.source.append(in_files(200))
    drain.source.table.maintenance.expire_snapshots().by_id(big.snapshot_id).commit()
    with pytest.raises(SourceExpiredError, match="to read 6 of its 10 files, which aren't consumed yet"):
        drain.source.capture(limits=TWO)
    assert drain.state == state
    captured = drain.source.capture(limits=TWO, policies=InputPolicies(on_expired=OnExpired.FULL))
    assert captured.capture.mode is Mode.FULL


def test_an_append_that_is_rolled_back_between_bites_is_refused_or_removed_once_it_is_all_consumed(
    drain: Drain,
) -> None:
    first = drain.source.table.history()[0].snapshot_id
    drain.source.table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(SourceRolledBackError):
        drain.source.capture(limits=TWO)
    continuing = InputPolicies(on_rollback=OnRollback.CONTINUE)
    while drain.is_pending:
        captured = drain.source.capture(limits=TWO, policies=continuing)
        drain.publish(captured)
        drain.commit(captured)
    assert drain.held == drain.source.scan() == drain.source.expected(in_files(100))


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_rollback_behind_an_append_that_is_consumed_in_part_waits_for_a_run_to_report_it(
    drain: Drain, *, is_followed: bool
) -> None:
    assert drain.state.committed
    drain.source.table.manage_snapshots().rollback_to_snapshot(drain.state.committed.snapshot_id).commit()
    if is_followed:
        drain.source.append([])
    metadata = drain.source.lake.load(TABLE, asset="test")
    waiting = backlog(drain.state, table_uuid=metadata.uuid, ancestry=metadata.ancestry())
    assert not waiting.is_known
    assert waiting.is_due(now_ms=0, min_bytes=1_000_000)


def test_what_is_left_of_an_append_is_shown_as_pending(drain: Drain) -> None:
    drain.source.append(in_files(200))
    tracked = TrackedInput(EDGE.upstream, TABLE)
    pending = Inspector(drain.source.lake, drain.source.store, TARGET).status(EDGE.consumer, tracked).pending
    assert pending
    assert (pending.is_full, pending.snapshots, pending.files, pending.rows) == (False, 2, 7, 7)


def test_changes_that_cannot_be_cut_are_read_whole_and_reported_as_beyond_the_limit(drain: Drain) -> None:
    drain.drain(UNLIMITED)
    drain.source.append(in_files(*range(20, 26)))
    captured = drain.bite(Limits(max_files=2, cuts_files=False))
    assert (captured.share.is_beyond, captured.share.bite, len(captured.files.changes.added)) == (True, None, 6)
    with drain.source.table.transaction() as overwrite:
        overwrite.delete("number = 3")
        overwrite.overwrite(drain.source.table.scan(row_filter="number < 3").to_arrow(), "number < 3")
    drain.drain(TWO)
    assert drain.held == drain.source.scan()


def test_a_target_that_is_rebuilt_between_bites_begins_with_the_first_file(drain: Drain) -> None:
    drain.source.lake.client.drop_table(TARGET)
    captured = drain.source.capture(limits=TWO)
    assert captured.capture.mode is Mode.FULL
    assert captured.capture.reason == "nothing has been consumed from playback yet"
    assert str(captured.share.bite) == "files 1 to 2 of 11"


def append_listed_files(source: Source, count: int) -> None:
    """One append of ``count`` files that are only listed, because a capture doesn't open them."""
    snapshot = source.table.current_snapshot()
    assert snapshot
    (manifest,) = snapshot.manifests(source.table.io)
    (entry,) = manifest.fetch_manifest_entry(source.table.io)
    with source.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for number in range(count):
            listed = deepcopy(entry.data_file)
            listed[FILE_PATH] = f"{entry.data_file.file_path}-{number}"
            append.append_data_file(listed)


def test_the_state_of_an_append_of_ten_thousand_files_in_bites_is_small(tmp_path: Path) -> None:
    drain = Drain(Source(tmp_path))
    drain.source.append(in_files(1))
    drain.bite(UNLIMITED)
    append_listed_files(drain.source, 10_000)
    captured = drain.source.capture(limits=Limits(max_files=1000, cuts_files=True))
    assert len(captured.files.changes.added) == 1000
    drain.source.consume(captured)
    assert drain.state.file_set
    assert drain.state.file_set.left == 9000
    copy = drain.source.store.get(EDGE.consumer).copy
    assert copy
    assert len(progress_text(copy.progress)) < 500
