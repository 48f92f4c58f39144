"""Stamps expire, but a target of appends never gets a change twice, whoever dies and whatever is restored."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Mode, Stamp, TargetMark
from dagster_ips.core.edge import Edge
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


@dataclass
class Run:
    """A run at work. It announced the snapshot ``snapshot_id``, based on the head ``base``."""

    capture: Capture
    snapshot_id: int = 0
    base: int = 0


class Expiry(RuleBasedStateMachine):
    """Runs that append to a table, concurrently and in any order, while others maintain it.

    Older metadata files still list expired snapshots, until these files are gone as well. The cursor may come from a
    backup.
    """

    @initialize(has_sequence_numbers=st.booleans())
    def start(self, *, has_sequence_numbers: bool) -> None:
        self.sequenced = has_sequence_numbers
        self.source = 1
        self.held: list[int] = []
        self.main: list[tuple[Snapshot, Stamp | None]] = []
        self.retained = self.listed = 0
        self.announced: int | None = None
        self.cursor = self.backup = EdgeState(EDGE)
        self.runs: list[Run] = []
        self.clock = 0

    def history(self, mark: TargetMark | None, *, begins_at: int | None = None) -> TargetHistory:
        """The history as a run reads it: with expired snapshots only if it must."""
        shown = self.main[self.retained if begins_at is None else begins_at :][::-1]
        newest = next((stamp for _, stamp in shown if stamp), None)
        history = TargetHistory("uuid", Ancestry(tuple(each for each, _ in shown)), newest, self.announced)
        is_enough = shows_all_since(settle(EdgeState(EDGE, target=mark), history).target, history)
        return history if is_enough or begins_at is not None else self.history(mark, begins_at=self.listed)

    @property
    def head(self) -> int:
        return self.main[-1][0].snapshot_id if self.main else 0

    def pick(self, data: st.DataObject) -> Run:
        return data.draw(st.sampled_from(self.runs))

    @rule()
    def the_source_grows(self) -> None:
        self.source += 1

    @rule(asked_for_full=st.booleans())
    def a_run_captures(self, *, asked_for_full: bool) -> None:
        self.captures(asked_for_full=asked_for_full)

    def captures(self, *, asked_for_full: bool = False) -> bool:
        """A run captures; returns whether it isn't refused."""
        history = self.history(self.cursor.target)
        state = settle(self.cursor, history)
        assert unexpected_change(state, history) is None
        mode = Mode.FULL if asked_for_full or state.committed is None else Mode.INCREMENTAL
        if mode is Mode.INCREMENTAL:
            if not shows_all_since(state.target, history):
                assert self.listed > 0, "it is refused although nothing is unknown"
                return False
            assert state.committed
            assert sorted(self.held) == list(range(1, state.committed.snapshot_id + 1))
        to = Watermark("source", "main", self.source, self.source, self.source)
        after = history.newest.target.snapshot_id if history.newest else None
        start = state.committed if mode is Mode.INCREMENTAL else None
        run = f"run {self.clock}"
        capture = Capture(EDGE, state.next_number, mode, "", start, to, "icdc", run, after, target=state.target)
        self.cursor = state.with_in_flight(capture)
        self.runs.append(Run(capture))
        return True

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def it_writes_and_announces(self, data: st.DataObject) -> None:
        run = self.pick(data)
        if standing_of(run.capture, self.history(run.capture.target)) is not Standing.MAY_PUBLISH:
            self.runs.remove(run)
            return
        self.clock += 1
        run.snapshot_id, run.base = self.clock, self.head
        self.announced = self.clock

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), lives_to_commit=st.booleans())
    def it_publishes(self, data: st.DataObject, *, lives_to_commit: bool) -> None:
        run = self.pick(data)
        if not run.snapshot_id or run.base != self.head:
            return
        self.runs.remove(run)
        capture = run.capture
        start = capture.from_exclusive.snapshot_id if capture.from_exclusive else 0
        assert capture.to_inclusive
        if capture.mode is Mode.FULL:
            self.held = []
        self.held += range(start + 1, capture.to_inclusive.snapshot_id + 1)
        self.commit_to_target(run.snapshot_id, capture)
        if lives_to_commit:
            self.cursor = committed(self.cursor, capture, self.history(None))

    @rule()
    def someone_compacts(self) -> None:
        self.clock += 1
        self.commit_to_target(self.clock, None)

    def commit_to_target(self, snapshot_id: int, capture: Capture | None) -> None:
        self.clock += 1
        sequence, at = (self.clock if self.sequenced else 0), self.clock * 10
        snapshot = Snapshot(snapshot_id, self.head or None, sequence, at, "append", "")
        mark = TargetMark("uuid", snapshot_id, sequence, at)
        stamp = (
            Stamp(capture.number, capture.mode, capture.to_inclusive, mark)
            if capture and capture.to_inclusive
            else None
        )
        self.main.append((snapshot, stamp))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def it_is_killed(self, data: st.DataObject) -> None:
        self.runs.remove(self.pick(data))

    @precondition(lambda self: self.main)
    @rule(keeps=st.integers(1, 2), loses_metadata=st.booleans())
    def snapshots_expire(self, keeps: int, *, loses_metadata: bool) -> None:
        self.retained = max(self.retained, len(self.main) - keeps)
        if loses_metadata:
            self.listed = self.retained

    @rule()
    def dagster_is_backed_up(self) -> None:
        self.backup = self.cursor

    @rule()
    def the_backup_is_restored(self) -> None:
        self.cursor = self.backup

    @rule(data=st.data())
    def runs_end_in_peace(self, data: st.DataObject) -> None:
        """One run after another. If a run is refused, the error advises a full run, and that one succeeds."""
        self.runs = []
        if not self.captures():
            assert self.captures(asked_for_full=True)
        self.it_writes_and_announces(data)
        self.it_publishes(data, lives_to_commit=True)
        assert sorted(self.held) == list(range(1, self.source + 1))
        assert self.captures()

    @invariant()
    def nothing_is_there_twice_and_nothing_is_left_out_in_between(self) -> None:
        assert sorted(self.held) == list(range(1, len(self.held) + 1))


TestExpiry = Expiry.TestCase
TestExpiry.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_a_snapshot_that_rewrote_every_file_does_not_show_that_nothing_has_expired() -> None:
    """PyIceberg removes the parent's id when it expires the parent, as if the table began with this snapshot."""
    counts = {"total-data-files": "1", "added-data-files": "1", "deleted-data-files": "1"}
    rewritten = Snapshot(9, None, 9, 9, "overwrite", "", counts)
    history = TargetHistory("u", Ancestry.of({9: rewritten}, 9), None, announced=3)
    assert not shows_all_since(TargetMark("u", 2, 2, 2), history)
    assert unexpected_change(EdgeState(EDGE, target=TargetMark("u", 3, 3, 3)), history) is None
