"""The target's stamps decide and the cursor remembers, whatever is killed, expired or rolled back in between."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Mode, Stamp, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import Bite
from dagster_ips.core.target import (
    Standing,
    TargetHistory,
    committed,
    settle,
    shows_all_since,
    standing_of,
    unexpected_change,
)
from dagster_ips.core.watermark import Watermark

EDGE = Edge("daily", "playback")
FILES = 3


def files_of(capture: Capture) -> list[tuple[int, int]]:
    """The files of the source that a capture contains; each commit added FILES files."""
    start = capture.from_exclusive.snapshot_id if capture.from_exclusive else 0
    end = capture.to_inclusive.snapshot_id if capture.to_inclusive else 0
    files = [(commit, file) for commit in range(start + 1, end + 1) for file in range(FILES)]
    return files[capture.bite.first : capture.bite.end] if capture.bite else files


class OneEdge(RuleBasedStateMachine):
    """A source that grows, runs that die anywhere, and a target that others change as well.

    The model is what the target holds: (commit of the source, file) for each snapshot that brought it. The code under
    test knows only the stamps.
    """

    @initialize(has_sequence_numbers=st.booleans())
    def start(self, *, has_sequence_numbers: bool) -> None:
        self.sequenced = has_sequence_numbers
        self.source = 1
        self.uuid = 1
        self.cursor = EdgeState(EDGE)
        self.main: list[tuple[Snapshot, Stamp | None]] = []
        self.held: dict[int, list[tuple[int, int]]] = {}
        self.work: Capture | None = None
        self.published: Stamp | None = None
        self.tampered = False
        self.clock = 0

    def history(self) -> TargetHistory:
        newest = next((stamp for _, stamp in reversed(self.main) if stamp), None)
        ancestry = Ancestry(tuple(snapshot for snapshot, _ in reversed(self.main)))
        return TargetHistory(str(self.uuid), ancestry, newest)

    def commit_to_target(self, capture: Capture | None) -> Stamp | None:
        self.clock += 1
        sequence = self.clock if self.sequenced else 0
        parent = self.main[-1][0].snapshot_id if self.main else None
        snapshot = Snapshot(self.clock, parent, sequence, self.clock * 10, "append", "")
        mark = TargetMark(str(self.uuid), snapshot.snapshot_id, sequence, snapshot.timestamp_ms)
        stamp = None
        if capture and capture.to_inclusive:
            partly = (capture.from_exclusive, capture.bite) if capture.bite and not capture.bite.is_last else ()
            stamp = Stamp(capture.number, capture.mode, capture.to_inclusive, mark, *partly)
            if capture.mode is Mode.FULL:
                self.held.clear()
            self.held[self.clock] = files_of(capture)
        self.main.append((snapshot, stamp))
        return stamp

    @rule(rows=st.integers(0, 2))
    def the_source_grows(self, rows: int) -> None:
        self.source += rows

    @precondition(lambda self: not self.tampered)
    @rule(run=st.integers(0, 3), most=st.none() | st.integers(1, 3))
    def a_run_captures(self, run: int, most: int | None) -> None:
        """Capture everything if nothing is consumed by the cursor, else what is new; at most ``most`` files of it."""
        self.cursor = settle(self.cursor, self.history())
        self.published = None
        committed, consumed = self.cursor.committed, self.cursor.file_set
        mode = Mode.INCREMENTAL if committed or consumed else Mode.FULL
        to = consumed.to_inclusive if consumed else Watermark("source", "main", self.source, self.source, self.source)
        first = consumed.taken if consumed else 0
        whole = Capture(EDGE, self.cursor.next_number, mode, "", committed, to, "icdc", f"{run}", None)
        total = len(files_of(whole))
        bite = Bite(first, min(first + (most or total), total), total)
        self.work = replace(whole, bite=bite if consumed or not bite.is_last else None)
        self.cursor = self.cursor.with_in_flight(self.work)

    @precondition(lambda self: self.work and not self.work.bite and self.cursor.next_number == self.work.number)
    @precondition(lambda self: self.cursor.committed)
    @rule()
    def another_run_of_that_number_has_nothing_to_write(self) -> None:
        assert self.work
        idle = replace(self.work, run_id="idle", to_inclusive=self.cursor.committed)
        self.cursor = self.cursor.with_committed(idle, None)

    @precondition(lambda self: self.work and not self.published)
    @rule()
    def it_publishes(self) -> None:
        self.published = self.commit_to_target(self.work)

    @precondition(lambda self: self.work and self.published)
    @rule()
    def it_commits(self) -> None:
        assert self.work
        assert self.published
        self.cursor = self.cursor.with_committed(self.work, self.published.target)
        assert self.cursor.in_flight is None
        self.work = self.published = None

    @rule()
    def it_is_killed(self) -> None:
        self.work = self.published = None

    @precondition(lambda self: not self.work)
    @rule()
    def the_cursor_is_lost(self) -> None:
        self.cursor = EdgeState(EDGE)
        self.tampered = False  # what the cursor said is forgotten: the remaining stamps decide

    @rule()
    def someone_else_appends_to_the_target(self) -> None:
        self.commit_to_target(None)

    @precondition(lambda self: len(self.main) > 1 and not self.tampered)
    @rule(data=st.data())
    def old_snapshots_expire(self, data: st.DataObject) -> None:
        self.cursor = settle(self.cursor, self.history())
        self.main = self.main[data.draw(st.integers(1, len(self.main) - 1)) :]

    @precondition(lambda self: self.main and not self.work and not self.tampered)
    @rule(data=st.data())
    def the_target_is_rolled_back(self, data: st.DataObject) -> None:
        self.cursor = settle(self.cursor, self.history())
        kept = data.draw(st.integers(0, len(self.main) - 1))
        for snapshot, _ in self.main[kept:]:
            self.held.pop(snapshot.snapshot_id, None)
        marked = self.cursor.target and self.cursor.target.snapshot_id
        self.tampered = any(snapshot.snapshot_id == marked for snapshot, _ in self.main[kept:])
        # Even if the marked snapshot had expired before: an empty table can't hold what was published.
        self.tampered |= marked is not None and kept == 0
        self.main = self.main[:kept]

    @precondition(lambda self: not self.work and not self.tampered)
    @rule()
    def the_target_is_replaced(self) -> None:
        self.cursor = settle(self.cursor, self.history())
        self.main = []
        self.held.clear()
        self.commit_to_target(None)
        self.tampered = self.cursor.target is not None

    @precondition(lambda self: not self.work and not self.tampered)
    @rule()
    def the_target_is_created_again(self) -> None:
        self.cursor = settle(self.cursor, self.history())
        self.uuid += 1
        self.main = []
        self.held.clear()
        self.tampered = self.cursor.target is not None

    @precondition(lambda self: self.tampered)
    @rule()
    def a_full_run_rebuilds_it(self) -> None:
        to = Watermark("source", "main", self.source, self.source, self.source)
        state = settle(self.cursor, self.history())
        rebuilt = Capture(EDGE, state.next_number, Mode.FULL, "", None, to, "icdc", "full", None)
        stamp = self.commit_to_target(rebuilt)
        assert stamp
        self.cursor = state.with_in_flight(rebuilt).with_committed(rebuilt, stamp.target)
        self.tampered = False

    @invariant()
    def settled_state_is_what_the_newest_stamp_or_the_cursor_vouches_for(self) -> None:
        newest, known = self.history().newest, self.cursor.target
        settled = settle(self.cursor, self.history())
        assert settle(settled, self.history()) == settled
        # The model numbers snapshots as they are committed, whatever happens to them.
        is_news = newest and (not known or newest.target.snapshot_id > known.snapshot_id)
        if newest and is_news:
            assert settled.number == max(self.cursor.number, newest.number)
            consumed = settled.file_set.to_inclusive if settled.file_set else settled.committed
            assert (consumed, settled.target) == (newest.to_inclusive, newest.target)
            assert settled.in_flight is None
        else:
            assert settled is self.cursor

    @invariant()
    def the_target_holds_no_file_twice_and_every_file_that_the_state_calls_consumed(self) -> None:
        held = [file for files in self.held.values() for file in files]
        assert len(held) == len(set(held))
        state = settle(self.cursor, self.history())
        if not self.tampered and self.history().newest and state.target:
            committed = state.committed.snapshot_id if state.committed else 0
            consumed = {(commit, file) for commit in range(1, committed + 1) for file in range(FILES)}
            if state.file_set:
                rest = Capture(EDGE, 1, Mode.INCREMENTAL, "", state.committed, state.file_set.to_inclusive, "", "", 1)
                consumed |= set(files_of(rest)[: state.file_set.taken])
            assert set(held) == consumed

    @invariant()
    def a_target_that_lost_what_was_published_is_noticed_and_nothing_else_is(self) -> None:
        assert (unexpected_change(self.cursor, self.history()) is not None) == self.tampered


TestOneEdge = OneEdge.TestCase
TestOneEdge.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_missing_target_does_not_count_as_changed() -> None:
    state = EdgeState(EDGE, number=3, target=TargetMark("uuid", 1, 1, 10))
    assert unexpected_change(state, None) is None
    assert settle(state, None) is state


def test_a_rollback_is_noticed_even_after_later_writes() -> None:
    state = EdgeState(EDGE, number=2, target=TargetMark("uuid", 2, 2, 20))
    root, other = Snapshot(1, None, 1, 10, "append", ""), Snapshot(3, 1, 3, 30, "append", "")
    history = TargetHistory("uuid", Ancestry((other, root)), None)
    assert "rolled back" in str(unexpected_change(state, history))


def test_a_replaced_target_is_noticed_although_its_snapshots_are_all_newer() -> None:
    state = EdgeState(EDGE, number=2, target=TargetMark("uuid", 2, 2, 20))
    replaced = TargetHistory("uuid", Ancestry((Snapshot(3, None, 3, 30, "append", ""),)), None)
    expired = TargetHistory("uuid", Ancestry((Snapshot(3, 2, 3, 30, "append", ""),)), None)
    assert "CREATE OR REPLACE" in str(unexpected_change(state, replaced))
    assert unexpected_change(state, expired) is None


def test_a_commit_leaves_the_capture_of_another_run_in_flight() -> None:
    to = Watermark("source", "main", 1, 1, 1)
    mine, other = (Capture(EDGE, 1, Mode.FULL, "", None, to, "icdc", run, None) for run in ("mine", "other"))
    assert EdgeState(EDGE).with_in_flight(other).with_committed(mine, None).in_flight == other


def test_a_commit_that_published_nothing_keeps_the_earlier_mark() -> None:
    mark = TargetMark("uuid", 1, 1, 10)
    capture = Capture(EDGE, 2, Mode.INCREMENTAL, "", None, Watermark("source", "main", 1, 1, 1), "icdc", "run", None)
    assert EdgeState(EDGE, number=1, target=mark).with_committed(capture, None).target == mark


def test_the_partitions_that_a_run_left_out_are_known_from_its_stamp_alone() -> None:
    to, target = Watermark("source", "main", 1, 1, 1), TargetMark("uuid", 1, 1, 10)
    capture = Capture(EDGE, 1, Mode.FULL, "", None, to, "icdc", "run", None, left_out=frozenset(["day-1"]))
    stamp = Stamp(1, Mode.FULL, to, target, left_out=capture.left_out)
    assert EdgeState(EDGE).with_committed(capture, target).left_out == {"day-1"}
    for known in (EdgeState(EDGE), EdgeState(EDGE, left_out=frozenset(["day-2"])), EdgeState(EDGE, in_flight=capture)):
        assert known.with_stamp(stamp).left_out == {"day-1"}
    assert known.with_stamp(replace(stamp, left_out=frozenset())).left_out == set()


def test_if_the_left_out_partitions_of_a_run_are_unknown_everything_is_recomputed() -> None:
    to, target = Watermark("source", "main", 1, 1, 1), TargetMark("uuid", 1, 1, 10)
    stamp = Stamp(1, Mode.INCREMENTAL, to, target, left_out=None, run_id="run")
    own = Capture(EDGE, 1, Mode.INCREMENTAL, "", to, to, "icdc", "run", None, left_out=frozenset(["day-1"]))
    for in_flight in (None, replace(own, run_id="another"), replace(own, number=2)):
        found = EdgeState(EDGE, committed=to, in_flight=in_flight).with_stamp(stamp)
        assert (found.committed, found.number, found.target) == (None, 1, target)
    found = EdgeState(EDGE, committed=to, in_flight=own).with_stamp(stamp)
    assert (found.committed, found.left_out) == (to, {"day-1"})


def test_the_partitions_that_a_run_left_out_are_known_although_another_run_has_captured_since() -> None:
    to, target = Watermark("source", "main", 1, 1, 1), TargetMark("uuid", 1, 1, 10)
    without = Capture(EDGE, 1, Mode.FULL, "", None, to, "icdc", "without", None, left_out=frozenset(["day-1"]))
    for number in (1, 2):
        after = replace(without, number=number, run_id="after", left_out=frozenset())  # the day has a partition by now
        state = EdgeState(EDGE).with_in_flight(without).with_in_flight(after)
        one = Stamp(1, Mode.FULL, to, target, left_out=without.left_out)
        published = committed(state, without, history_of(ONE, newest=one))
        assert (published.left_out, published.in_flight) == ({"day-1"}, after)
        other = Stamp(number, Mode.FULL, to, target)
        assert committed(state, after, history_of(ONE, newest=other)).left_out == set()


def history_of(*snapshots: Snapshot, newest: Stamp | None = None, announced: int | None = None) -> TargetHistory:
    """The history of a target with these snapshots, newest first."""
    return TargetHistory("uuid", Ancestry(snapshots), newest, announced)


ONE, TWO, THREE, FOUR = (Snapshot(n, n - 1 or None, n, n * 10, "append", "") for n in (1, 2, 3, 4))


def capture_after(mark: Snapshot) -> Capture:
    """A change to publish, captured when ``mark`` was the last published snapshot."""
    to, known = Watermark("source", "main", 9, 9, 9), TargetMark("uuid", mark.snapshot_id, mark.sequence_number, 0)
    at = mark.snapshot_id
    return Capture(
        EDGE, 9, Mode.INCREMENTAL, "", to, to, "icdc", "run", at, target=replace(known, timestamp_ms=at * 10)
    )


def test_a_run_may_publish_to_a_target_that_was_only_maintained_meanwhile() -> None:
    assert standing_of(capture_after(TWO), history_of(FOUR, announced=2)) is Standing.MAY_PUBLISH
    assert standing_of(capture_after(TWO), history_of(FOUR, THREE, announced=2)) is Standing.MAY_PUBLISH


def test_a_run_may_not_publish_if_an_expired_stamp_may_hide_another_publication() -> None:
    assert standing_of(capture_after(TWO), history_of(FOUR, announced=3)) is Standing.UNKNOWN
    full = replace(capture_after(TWO), mode=Mode.FULL, from_exclusive=None)
    assert standing_of(full, history_of(FOUR, announced=3)) is Standing.MAY_PUBLISH


def test_a_run_may_not_publish_to_a_target_that_was_rolled_back_meanwhile() -> None:
    assert standing_of(capture_after(TWO), history_of(ONE, announced=2)) is Standing.CHANGED


def test_a_change_is_not_added_to_another_table_that_took_the_target_s_place_while_the_run_worked() -> None:
    """Its stamp had expired already when the run began, so there's none to miss."""
    late = replace(capture_after(TWO), after_stamp=None)
    assert standing_of(late, history_of(FOUR, announced=2)) is Standing.MAY_PUBLISH, "the stamp had only expired"
    for others in ((), (ONE,)):
        another = TargetHistory("another", Ancestry(others), None, None)
        assert standing_of(late, another) is Standing.CHANGED
        full = replace(late, mode=Mode.FULL, from_exclusive=None)
        assert standing_of(full, another) is Standing.MAY_PUBLISH, "it brings every row itself"


def test_only_an_announced_publication_can_be_hidden_by_expiry() -> None:
    mark = capture_after(TWO).target
    assert shows_all_since(mark, history_of(FOUR, announced=2))
    assert not shows_all_since(mark, history_of(FOUR, announced=3))
    assert not shows_all_since(None, history_of(FOUR, announced=3))
    assert shows_all_since(mark, history_of(THREE, TWO, announced=4)), "announced, and never published"
    assert shows_all_since(None, history_of(TWO, ONE, announced=4)), "its whole history is there"
    assert shows_all_since(mark, history_of(FOUR)), "nobody announces: what others publish isn't known by that"
