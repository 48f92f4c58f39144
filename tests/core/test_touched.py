"""Partitions are computed and an upstream is looked at, both at any time: each change is read exactly once.

Some files can't be read at the time of a look, so the keys that they changed are unknown until they can, if ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.touched import FoundKeys, LineState, first_of
from dagster_ips.core.watermark import Watermark

LINE = Edge("daily", "playback")
KEYS = "ab"
STEPS = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from([{"a"}, {"b"}, {"a", "b"}, set()])),
    st.tuples(st.just("commit unreadable"), st.sampled_from([{"a"}, {"b"}, {"a", "b"}, set()])),
    st.tuples(st.just("becomes readable"), st.integers(0, 3)),
    st.tuples(st.just("is gone"), st.integers(0, 3)),
    st.tuples(st.just("look"), st.just("and remember")),
    st.tuples(st.just("commit and look"), st.sampled_from([{"a"}, {"b"}])),
    st.tuples(st.just("run"), st.sampled_from(KEYS)),
    st.tuples(st.just("begin"), st.sampled_from(KEYS)),
    st.tuples(st.just("end"), st.sampled_from(KEYS)),
    st.tuples(st.just("look"), st.just("only")),
    st.tuples(st.just("write"), st.integers(0, 3)),
)


CLOCKS = st.none() | st.lists(st.integers(0, 50_000), min_size=1, max_size=5)
"""How many milliseconds the clocks of committers are ahead, in turn, for a table of version 1; None is version 2."""


@dataclass
class Model:
    """A table in which each commit changes some keys, and consumers that record what they have really read."""

    clocks: list[int] | None = None
    commits: list[set[str]] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    line: LineState = field(default_factory=lambda: LineState(LINE))
    looks: list[LineState] = field(default_factory=list)
    states: dict[str, EdgeState] = field(default_factory=lambda: {key: EdgeState(LINE.of(key)) for key in KEYS})
    running: dict[str, int] = field(default_factory=dict)
    read: dict[str, list[int]] = field(default_factory=lambda: {key: [] for key in KEYS})

    def at(self, number: int) -> Watermark:
        if self.clocks is None:
            return Watermark("uuid", "main", snapshot_id=number, sequence_number=number, timestamp_ms=number)
        clock = number * 1000 + self.clocks[number % len(self.clocks)]
        return Watermark("uuid", "main", snapshot_id=number, sequence_number=0, timestamp_ms=clock)

    def changes(self, key: str, after: int, up_to: int) -> list[int]:
        """The commits in ``(after, up_to]`` that changed ``key``, counted from one."""
        return [n for n in range(after + 1, up_to + 1) if key in self.commits[n - 1]]

    def needed(self, key: str, after: int, up_to: int) -> list[int]:
        """The commits that a partition must see. If it was never computed, it needs none whose files are gone again."""
        spared = self.gone if self.states[key].committed is None else set()
        return [n for n in self.changes(key, after, up_to) if n not in spared]

    def look(self, line: LineState) -> LineState:
        """The line after a look, by the rules of ``line_look.look`` and ``pending_partitions``."""
        head = len(self.commits)
        if not head:
            return line
        line = self.look_again(line)
        if line.scanned and line.scanned.snapshot_id == head:
            return self.without_consumed(line)
        after = line.scanned.snapshot_id if line.scanned else 0
        computed = [key for key in KEYS if line.scanned is None and self.states[key].committed]
        readable = [n for n in range(after + 1, head + 1) if n not in self.unreadable]
        changed = {key for n in readable for key in self.commits[n - 1]}
        unread = {str(n): "why" for n in range(after + 1, head + 1) if n in self.unreadable}
        return self.without_consumed(
            line.looked_at(self.at(head), FoundKeys(frozenset({*changed, *computed}), unread, frozenset(unread)))
        )

    def look_again(self, line: LineState) -> LineState:
        """Look again at the unread files that can be read by now."""
        for path in list(line.unread):
            if int(path) in self.gone:
                line = line.gone_unread(path, FoundKeys())
            elif int(path) not in self.unreadable:
                line = line.told(path, self.commits[int(path) - 1])
        return line

    def without_consumed(self, line: LineState) -> LineState:
        """The line without what need not be remembered."""
        line = line.without([key for key in line.touched if not line.is_pending(self.states[key], [key])])
        return line.without_consumed_unread(list(self.states.values()))

    def begin(self, key: str) -> None:
        """Like ``_captured``, but the capture is also recorded as in flight."""
        self._captured(key)
        if key in self.running:
            edge, head = LINE.of(key), self.at(self.running[key])
            capture = Capture(edge, 1, Mode.INCREMENTAL, "", self.states[key].committed, head, "t", "r", None)
            self.states[key] = self.states[key].with_in_flight(capture)

    def _captured(self, key: str) -> None:
        """A run of ``key`` captures everything from the start of the line up to the head; in full if it never ran."""
        if not self.commits:
            return
        head, state = len(self.commits), self.states[key]
        line = self.look(self.line) if self.line.scanned else self.line
        start = line.start_of(state, [key])
        if state.committed is None:
            self.running[key] = head
            self.read[key] = self.changes(key, 0, head)
            return
        assert start is not None
        assert start.snapshot_id >= state.committed.snapshot_id
        # Before the start, there is nothing that the partition hasn't read.
        assert self.changes(key, state.committed.snapshot_id, start.snapshot_id) == []
        self.running[key] = head
        self.read[key] += self.changes(key, start.snapshot_id, head)

    def end(self, key: str) -> None:
        """Commit the run of ``key``."""
        if key in self.running:
            state = self.states[key]
            self.states[key] = EdgeState(state.edge, committed=self.at(self.running.pop(key)))

    def step(self, step: str, what: Any) -> None:  # noqa: ANN401, C901  # a case for each kind of step, and an argument of another type for each
        """Do one step."""
        match step:
            case "commit":
                self.commits.append(set(what))
            case "commit unreadable":
                self.commits.append(set(what))
                self.unreadable.add(len(self.commits))
            case "becomes readable" if self.unreadable:
                self.unreadable.discard(sorted(self.unreadable)[what % len(self.unreadable)])
            case "is gone" if self.unreadable:
                self.gone.add(sorted(self.unreadable)[what % len(self.unreadable)])
            case "commit and look":
                self.commits.append(set(what))
                self.line = self.look(self.line)
            case "look":
                self.looks.append(self.look(self.line))
                self.line = self.looks[-1] if what == "and remember" else self.line
            case "write" if self.looks:
                # Another process writes the result of an earlier look.
                self.line = self.looks[what % len(self.looks)]
            case "begin" if what not in self.running:
                self.begin(what)
            case "end":
                self.end(what)
            case "run" if what not in self.running:
                self.begin(what)
                self.end(what)

    def check_complete(self) -> None:
        """Up to the point to which everything counts as consumed, no key has an unconsumed change."""
        line = self.look(self.line)
        for key, state in self.states.items():
            pending = line.is_pending(state, [key])
            complete = line.consumed_up_to(state, [key]) if pending else line.scanned
            unread = [each.changed.since for each in line.unread.values()]
            if complete is not None and None not in unread:
                first = first_of([complete, *unread])
                consumed = state.committed.snapshot_id if state.committed else 0
                assert first is None or self.needed(key, consumed, first.snapshot_id) == [], key


@given(st.lists(STEPS, max_size=30), CLOCKS)
@settings(max_examples=1500)
def test_everything_that_counts_as_consumed_is_really_consumed_at_any_time(
    steps: list[tuple[str, Any]], clocks: list[int] | None
) -> None:
    model = Model(clocks)
    for step, what in steps:
        model.step(step, what)
        model.check_complete()


@given(st.lists(STEPS, max_size=30), CLOCKS)
@settings(max_examples=1500)
def test_each_partition_reads_each_change_once_whenever_looks_happen(
    steps: list[tuple[str, Any]], clocks: list[int] | None
) -> None:
    model = Model(clocks)
    for step, what in steps:
        model.step(step, what)
    for key in KEYS:
        model.end(key)
    model.unreadable = model.gone
    for _ in range(3):
        model.line = model.look(model.line)
        for key in KEYS:
            if model.line.is_pending(model.states[key], [key]):
                model.begin(key)
                model.end(key)

    for key in KEYS:
        needed = model.needed(key, 0, len(model.commits))
        left = {n for n in needed if str(n) in model.line.unread}
        assert {n: model.read[key].count(n) for n in model.read[key]} == dict.fromkeys(model.read[key], 1), key
        assert set(needed) - left <= set(model.read[key]), key
