"""Resets and rewinds among runs that die anywhere or publish late: in the end the target is what the source is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Mode, Stamp, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.intervention import InterventionKind
from dagster_ips.core.target import TargetHistory, settle
from dagster_ips.core.watermark import Watermark

EDGE = Edge("daily", "playback")
KEYS = st.sets(st.integers(0, 4))


class Interventions(RuleBasedStateMachine):
    """A source whose keys come and go, and a target that is merged by key with what was added and removed between.

    A run that publishes is fenced by the target's stamps alone, as if a person had intervened in the very moment
    between its last look at the cursor and its publish.
    """

    @initialize()
    def start(self) -> None:
        self.source: list[set[int]] = [set()]
        self.target: set[int] = set()
        self.main: list[tuple[Snapshot, Stamp]] = []
        self.cursor = EdgeState(EDGE)
        self.work: list[Capture] = []

    def history(self) -> TargetHistory:
        snapshots = tuple(snapshot for snapshot, _ in reversed(self.main))
        return TargetHistory("uuid", Ancestry(snapshots), self.main[-1][1] if self.main else None)

    def at(self, number: int) -> Watermark:
        return Watermark("source", "main", number, number, number * 10)

    @rule(keys=KEYS)
    def the_source_becomes(self, keys: set[int]) -> None:
        self.source.append(keys)

    @rule(asked_for_full=st.booleans())
    def a_run_captures(self, *, asked_for_full: bool) -> None:
        self.cursor = settle(self.cursor, self.history())
        is_full = asked_for_full or self.cursor.committed is None
        newest = self.history().newest
        capture = Capture(
            EDGE,
            self.cursor.next_number,
            Mode.FULL if is_full else Mode.INCREMENTAL,
            "",
            None if is_full else self.cursor.committed,
            self.at(len(self.source) - 1) if is_full else self.cursor.reread_to or self.at(len(self.source) - 1),
            "icdc",
            f"run {len(self.work)}",
            newest.target.snapshot_id if newest else None,
        )
        self.cursor = self.cursor.with_in_flight(capture)
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
            self.target = (self.target | (after - before)) - (before - after)
        number = len(self.main) + 1
        mark = TargetMark("uuid", number, number, number * 10)
        snapshot = Snapshot(number, number - 1 or None, number, number * 10, "append", "")
        self.main.append((snapshot, Stamp(capture.number, capture.mode, capture.to_inclusive, mark)))
        is_next = capture.number in (self.cursor.next_number, self.cursor.number)
        if lives_to_commit and is_next and capture.number > self.cursor.voided:
            self.cursor = self.cursor.with_committed(capture, mark)

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
        self.cursor = state.with_intervention(kind, after, who="me", why="test", at_ms=0)

    @rule()
    def the_cursor_is_lost(self) -> None:
        self.cursor = EdgeState(EDGE)

    @rule(data=st.data())
    def runs_end_in_peace(self, data: st.DataObject) -> None:
        """Nobody else is at work: one run after the other, until nothing is pending."""
        self.work = []
        for _ in range(4):
            self.a_run_captures(asked_for_full=False)
            self.a_run_publishes(data, lives_to_commit=True)
        assert self.cursor.committed == self.at(len(self.source) - 1)
        assert self.target == self.source[-1]


TestInterventions = Interventions.TestCase
TestInterventions.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
