"""Tables of one step: whatever is published, reset, rewound or rolled back, no table misses a file or has it twice.

The expected files are those that PyIceberg plans to read.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pyiceberg.table import Table

from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import AtSnapshot
from dagster_ips.core.limits import Limits
from dagster_ips.core.policy import InputPolicies, OnExpired, OnRollback
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tables_together import capture_together
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.progress.advance import Standing
from dagster_ips.progress.cursor import state_of
from tests.iceberg.sources import SCHEMA
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import known_of, publish

UPSTREAMS = ("left", "right")
OUTPUTS = ("a", "b", "c")
POLICIES = InputPolicies(on_rollback=OnRollback.CONTINUE, on_expired=OnExpired.FULL)

outputs = st.sets(st.sampled_from(OUTPUTS), min_size=1).map(sorted)
upstreams = st.sampled_from(UPSTREAMS)


class Step:
    """Three outputs of two upstreams, and the files from which each output's table is made."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.lake = LakeCatalog.embedded("lake", folder)
        self.store = MemoryCursors()
        self.lake.create_namespace("media")
        for name in (*UPSTREAMS, *OUTPUTS):
            self.lake.client.create_table(f"media.{name}", SCHEMA)
        self.inputs = [TrackedInput(name, f"media.{name}", policies=POLICIES, limits=limits) for name in UPSTREAMS]
        self.held: dict[tuple[str, str], set[str]] = {}
        self._number = 0

    def table(self, name: str) -> Table:
        return self.lake.client.load_table(f"media.{name}")

    def append(self, name: str) -> None:
        """One commit of one file with three rows that are in no other file."""
        self._number += 1
        day = dt.date(2026, 1, 1)
        rows = [{"number": self._number * 10 + i, "day": day} for i in range(3)]
        columns = pa.schema([("number", pa.int32()), ("day", pa.date32())])
        self.table(name).append(pa.Table.from_pylist(rows, schema=columns))

    def live(self, name: str, snapshot_id: int | None = None) -> set[str]:
        if not self.table(name).snapshots():
            return set()
        return {task.file.file_path for task in self.table(name).scan(snapshot_id=snapshot_id).plan_files()}

    def run(
        self, selected: list[str], published: set[str] | None = None, asked_for: Mode | None = None
    ) -> dict[str, tuple[CapturedInput, ...]]:
        """A run of ``selected`` that dies once it has published ``published``; by default, it publishes all."""
        made = [CaptureRequest(name, self.inputs, f"media.{name}", asked_for) for name in selected]
        capturer = Capturer(self.lake, self.store)
        captured = capture_together(capturer, made, run_id="run")
        assert captured
        assert len({tuple(_taken(each) for each in of_one) for of_one in captured.values()}) == 1
        for name in captured.keys() & (set(selected) if published is None else published):
            self.publish(name, captured[name])
        return captured

    def state(self, name: str, upstream: str) -> EdgeState:
        known = known_of(self.store, self.lake, f"media.{name}", name)
        return state_of(Edge(name, upstream), known, self.store.get(name))

    def administrator(self, name: str) -> Administrator:
        return Administrator(self.lake, self.store, f"media.{name}")

    def reset(self, name: str, upstream: str) -> None:
        self.administrator(name).reset(Edge(name, upstream), who="w", why="w")

    def drain(self) -> int:
        """Run all outputs until everything is consumed. Each run must make progress. Returns the number of runs."""
        runs = 0
        while any(not self.is_at_head(name) for name in OUTPUTS):
            before = self.states()
            self.run(list(OUTPUTS))
            now = self.states()
            moved = [edge for edge, state in before.items() if now[edge].committed != state.committed]
            assert moved or any(state.reread_to for state in before.values())
            runs += 1
        return runs

    def states(self) -> dict[tuple[str, str], EdgeState]:
        return {(name, upstream): self.state(name, upstream) for name in OUTPUTS for upstream in UPSTREAMS}

    def is_at_head(self, name: str) -> bool:
        states = [(self.state(name, upstream), self.table(upstream)) for upstream in UPSTREAMS]
        heads = [snapshot.snapshot_id if (snapshot := table.current_snapshot()) else None for _, table in states]
        return [state.committed and state.committed.snapshot_id for state, _ in states] == heads

    def check(self) -> None:
        for name in OUTPUTS:
            for upstream in UPSTREAMS:
                assert self.held.get((name, upstream), set()) == self.live(upstream)

    def publish(self, name: str, captured: tuple[CapturedInput, ...]) -> None:
        for each in captured:
            changes, upstream = each.files.changes, each.capture.edge.upstream
            added, removed = ({file.path for file in files} for files in (changes.added, changes.removed))
            before = self.held.get((name, upstream), set()) if each.capture.mode is Mode.INCREMENTAL else set()
            assert not before & added
            assert removed <= before
            self.held[name, upstream] = before - removed | added
        assert publish(self.store, self.lake, f"media.{name}", captured) is Standing.MAY_PUBLISH


def _taken(captured: CapturedInput) -> tuple[object, ...]:
    capture, files = captured.capture, captured.files.changes
    start, end = capture.from_exclusive, capture.to_inclusive
    paths = tuple(file.path for file in files.added), tuple(file.path for file in files.removed)
    return capture.mode, start and start.snapshot_id, end and end.snapshot_id, paths


class Together(RuleBasedStateMachine):
    """Any history of two real tables, and any runs of any outputs that die anywhere."""

    @initialize(limits=st.sampled_from([Limits(), Limits(), Limits(max_files=1), Limits(max_files=2)]))
    def create(self, limits: Limits) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.step = Step(Path(self.folder.name), limits)

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):  # nothing was created
            event(f"{self.step.drain()} runs until all were together")
            self.step.check()
            self.folder.cleanup()

    @rule(name=upstreams)
    def append(self, name: str) -> None:
        self.step.append(name)

    @rule(name=upstreams, data=st.data())
    def delete(self, name: str, data: st.DataObject) -> None:
        there = sorted(self.step.table(name).scan().to_arrow()["number"].to_pylist())
        if there:
            self.step.table(name).delete(f"number = {data.draw(st.sampled_from(there))}")

    @rule(name=upstreams, back=st.integers(1, 3))
    def roll_back(self, name: str, back: int) -> None:
        history = self.step.table(name).history()
        if len(history) > back:
            earlier = history[-1 - back].snapshot_id
            with contextlib.suppress(ValueError):  # it isn't an ancestor, because of an earlier rollback
                self.step.table(name).manage_snapshots().rollback_to_snapshot(earlier).commit()

    @rule(selected=outputs, published=st.sets(st.sampled_from(OUTPUTS)))
    def run(self, selected: list[str], published: set[str]) -> None:
        self.step.run(selected, published)

    @rule(selected=outputs)
    def run_fully(self, selected: list[str]) -> None:
        assert sorted(self.step.run(selected, asked_for=Mode.FULL)) == selected

    @rule(name=st.sampled_from(OUTPUTS), upstream=upstreams)
    def reset(self, name: str, upstream: str) -> None:
        self.step.reset(name, upstream)

    @rule(name=st.sampled_from(OUTPUTS), upstream=upstreams, back=st.integers(1, 3))
    def rewind(self, name: str, upstream: str, back: int) -> None:
        """Rewind by ``back`` snapshots of the upstream, if they are in its history, as the command requires."""
        state = self.step.state(name, upstream)
        source = self.step.lake.load(f"media.{upstream}", asset="test")
        history = source.ancestry().snapshots
        ids = [snapshot.snapshot_id for snapshot in history]
        if not state.committed or state.committed.snapshot_id not in ids[:-back] or state.reread_to:
            return
        if state.file_set:
            return
        after = history[ids.index(state.committed.snapshot_id) + back]
        administrator, tracked = self.step.administrator(name), self.step.inputs[UPSTREAMS.index(upstream)]
        planned = administrator.plan_rewind(name, tracked, AtSnapshot(after.snapshot_id), may_repeat=True)
        administrator.rewind(planned, who="w", why="w")
        # Rows that are read again overwrite existing ones, as if the table still had its rows of that time.
        self.step.held[name, upstream] = self.step.live(upstream, after.snapshot_id)

    @rule()
    def all_are_drained(self) -> None:
        self.step.drain()
        self.step.check()


TestTogether = pytest.mark.slow(Together.TestCase)
TestTogether.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


@pytest.fixture
def step(tmp_path: Path) -> Step:
    step = Step(tmp_path, Limits())
    step.append("left")
    step.append("right")
    step.run(list(OUTPUTS))
    return step


def test_outputs_with_the_same_watermarks_are_captured_together(step: Step) -> None:
    step.append("left")
    assert sorted(step.run(list(OUTPUTS))) == ["a", "b", "c"]
    assert all(step.is_at_head(name) for name in OUTPUTS)


def test_an_output_that_is_behind_first_catches_up_alone_with_the_next_one_in_each_input(step: Step) -> None:
    step.append("left")
    step.run(["b", "c"])
    step.append("right")
    step.run(["c"])
    step.append("left")
    order = [sorted(step.run(list(OUTPUTS))) for _ in range(3)]
    assert order == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert all(step.is_at_head(name) for name in OUTPUTS)
    step.check()


def test_outputs_that_are_ahead_of_each_other_meet_again(step: Step) -> None:
    step.append("left")
    step.append("right")
    step.run(["a"])
    step.append("right")
    step.run(["b"])
    step.append("left")
    step.run(["a"])
    step.drain()
    step.check()


def test_an_output_without_a_watermark_is_first_computed_alone_and_then_all_continue(step: Step) -> None:
    step.reset("b", "right")
    step.append("left")
    captured = step.run(list(OUTPUTS))
    assert {name: of_one[0].capture.mode for name, of_one in captured.items()} == {"b": Mode.FULL}
    assert sorted(step.run(list(OUTPUTS))) == ["a", "c"]
    step.append("left")
    assert sorted(step.run(list(OUTPUTS))) == ["a", "b", "c"]
    step.check()
