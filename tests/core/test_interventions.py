"""Resets and rewinds among runs that die anywhere or publish late: in the end, the target equals the source."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Mode, Stamp, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.intervention import InterventionKind
from dagster_ips.core.target import TargetHistory, committed, settle
from dagster_ips.core.watermark import Watermark

EDGE = Edge("daily", "playback")
KEYS = st.sets(st.integers(0, 4))


class Interventions(RuleBasedStateMachine):
    """A source whose keys come and go, and a target merged by key with the rows added and removed in between.

    Only the target's stamps fence a run that publishes, as if a person had intervened exactly between the run's last
    look at the cursor and its publish. Between a run's look and its first write, others may do anything, and the run's
    writes overwrite theirs: only a person's interventions are stored apart.
    """

    @initialize()
    def start(self) -> None:
        self.source: list[set[int]] = [set()]
        self.target: set[int] = set()
        self.main: list[tuple[Snapshot, Stamp]] = []
        self.of_runs, self.of_person = EdgeState(EDGE), EdgeState(EDGE)
        self.looks: list[tuple[EdgeState, Stamp | None, int]] = []
        self.work: list[Capture] = []

    @property
    def cursor(self) -> EdgeState:
        return self.of_runs.unless_voided_by(self.of_person)

    def history(self) -> TargetHistory:
        snapshots = tuple(snapshot for snapshot, _ in reversed(self.main))
        return TargetHistory("uuid", Ancestry(snapshots), self.main[-1][1] if self.main else None)

    def at(self, number: int) -> Watermark:
        return Watermark("source", "main", number, number, number * 10)

    @rule(keys=KEYS)
    def the_source_becomes(self, keys: set[int]) -> None:
        self.source.append(keys)

    @rule()
    def a_run_looks(self) -> None:
        self.of_runs = settle(self.cursor, self.history())
        self.looks.append((self.of_runs, self.history().newest, len(self.source) - 1))

    @precondition(lambda self: self.looks)
    @rule(data=st.data(), asked_for_full=st.booleans())
    def a_run_captures(self, data: st.DataObject, *, asked_for_full: bool) -> None:
        state, newest, head = self.looks.pop(data.draw(st.integers(0, len(self.looks) - 1)))
        is_full = asked_for_full or state.committed is None
        capture = Capture(
            EDGE,
            state.next_number,
            Mode.FULL if is_full else Mode.INCREMENTAL,
            "",
            None if is_full else state.committed,
            self.at(head) if is_full else state.reread_to or self.at(head),
            "icdc",
            f"run {len(self.work)}",
            newest.target.snapshot_id if newest else None,
            target=state.target,
        )
        self.of_runs = state.with_in_flight(capture)
        self.work.append(capture)

    @precondition(lambda self: self.work)
    @rule(data=st.data(), lives_to_commit=st.booleans())
    def a_run_publishes(self, data: st.DataObject, *, lives_to_commit: bool) -> None:
        capture = self.work.pop(data.draw(st.integers(0, len(self.work) - 1)))
        newest = self.history().newest
        is_overtaken = newest is not None and newest.number >= capture.number
        if is_overtaken or (newest.target.snapshot_id if newest else None) != capture.after_stamp:
            return
        assert capture.to_inclusive
        after = self.source[capture.to_inclusive.snapshot_id]
        if capture.from_exclusive is None:
            self.target = set(after)
        else:
            before = self.source[capture.from_exclusive.snapshot_id]
            if before == after:
                if lives_to_commit and capture.number > self.cursor.voided:
                    self.of_runs = committed(self.cursor, capture, None)
                return
            self.target = (self.target | (after - before)) - (before - after)
        number = len(self.main) + 1
        mark = TargetMark("uuid", number, number, number * 10)
        snapshot = Snapshot(number, number - 1 or None, number, number * 10, "append", "")
        self.main.append((snapshot, Stamp(capture.number, capture.mode, capture.to_inclusive, mark)))
        if lives_to_commit:
            self.of_runs = committed(self.cursor, capture, self.history())

    @rule()
    def a_person_resets(self) -> None:
        self.intervene(InterventionKind.RESET, None)

    @rule(data=st.data())
    def a_person_rewinds(self, data: st.DataObject) -> None:
        held = settle(self.cursor, self.history()).holds_up_to
        if held is not None and held.snapshot_id > 0:
            to = data.draw(st.integers(0, held.snapshot_id - 1))
            self.intervene(InterventionKind.REWIND, self.at(to))

    def intervene(self, kind: InterventionKind, after: Watermark | None) -> None:
        state = settle(self.cursor, self.history())
        newest = self.history().newest
        if kind is InterventionKind.RESET:
            state = replace(state, target=newest.target if newest else None)
        self.of_person = state.with_intervention(kind, after, who="me", why="test", at_ms=0)

    @rule()
    def the_cursor_is_lost(self) -> None:
        self.of_runs = self.of_person = EdgeState(EDGE)
        self.looks = []

    @rule(data=st.data())
    def runs_end_in_peace(self, data: st.DataObject) -> None:
        """Nothing else is running: one run after another, until nothing is pending."""
        for _ in range(4):
            self.looks, self.work = [], []
            self.a_run_looks()
            self.a_run_captures(data, asked_for_full=False)
            self.a_run_publishes(data, lives_to_commit=True)
        assert self.cursor.committed == self.at(len(self.source) - 1)
        assert self.target == self.source[-1]


TestInterventions = Interventions.TestCase
TestInterventions.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
