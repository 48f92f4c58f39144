"""Random lives of an asset without partitions: after each run that isn't refused, its table equals a recompute.

Others write to its table and roll it back, a person resets it, backfills are reverted, or staged and published.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage, staged_branch
from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.edge import Edge
from dagster_ips.core.policy import InputPolicies, OnRollback
from dagster_ips.errors import IpsError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.exactly_once.publish.restorer import restored_progress
from dagster_ips.iceberg import cascade_stamps
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.ref_commits import RefCommit, commit_refs
from dagster_ips.iceberg.stamps import REVERTED, attempt_properties, computed_properties, owner_properties
from dagster_ips.orchestration.backfill.reverting import BackfillReverter, revert_cascade
from dagster_ips.orchestration.backfill.staging import StagedBackfill
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.advance import Standing
from dagster_ips.progress.cursor import ReadOnlyCursors
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PIN, PROGRESS, newest_progress, table_progress
from tests.exactly_once.capture.test_partitions_to_come import Work
from tests.support.publishing import consume_without_writing, copy_progress

TABLE = "media.plays"
SCHEMA = Schema(NestedField(1, "number", IntegerType()))
ARROW = pa.schema([("number", pa.int32())])
Rows = Counter[int]


@dataclass(frozen=True)
class Stage:
    """An asset that copies the rows of its upstream's table."""

    name: str
    table: str
    upstream: str
    source: str

    @property
    def line(self) -> Edge:
        return Edge(self.name, self.upstream)

    @property
    def tracked(self) -> TrackedInput:
        return TrackedInput(self.upstream, self.source, policies=InputPolicies(on_rollback=OnRollback.CONTINUE))


OUT = Stage("out", "media.out", "plays", TABLE)
NEXT = Stage("next", "media.next", "out", OUT.table)
STAGES = (OUT, NEXT)


@dataclass
class Backfill:
    """A launched backfill, and the captures of its staged runs that haven't written yet."""

    record: LaunchedBackfill
    stages: tuple[Stage, ...]
    at_work: list[tuple[Stage, Work]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.record.plan.id

    @property
    def branch(self) -> str:
        return staged_branch(self.id)

    def cut(self, stage: Stage) -> int:
        return self.record.before[stage.table]


class WholeLives(RuleBasedStateMachine):
    """Two assets, one after the other."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.instance = dg.DagsterInstance.ephemeral()
        self.lake, self.store = LakeCatalog.embedded("lake", Path(self.folder.name)), CursorStore(self.instance)
        self.lake.create_namespace("media")
        self.rows: dict[str, dict[int | None, Rows]] = {}
        for table in (TABLE, OUT.table, NEXT.table):
            self.lake.client.create_table(table, SCHEMA)
            self.rows[table] = {None: Counter()}
        self.number = self.runs = self.backfills = 0
        self.at_work: list[tuple[Stage, Work]] = []
        self.live: list[Backfill] = []
        self.waiting: Backfill | None = None
        self.cascade = Cascade()
        self.add(TABLE, 2)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.instance.dispose()
            self.folder.cleanup()

    # The current state

    def load(self, table: str) -> TableMetadata:
        return self.lake.load(table, asset="test")

    def now(self, table: str) -> Rows:
        return self.rows[table][self.load(table).head_snapshot_id()]

    @property
    def lineage(self) -> Any:  # noqa: ANN401  # stands in for it
        tables = {"plays": TABLE} | {stage.name: stage.table for stage in STAGES}
        return SimpleNamespace(
            instance=self.instance,
            store=self.store,
            lake=lambda _: self.lake,
            metadata=lambda asset: self.load(tables[asset]),
            inputs=lambda asset: {stage.upstream: stage.tracked for stage in STAGES if stage.name == asset},
            own_slicing=lambda _: None,
            partitions_def=lambda _: None,
            session=lambda _: None,
            report=lambda *_, **__: None,
        )

    def append(self, table: str, rows: list[int], after: Rows) -> None:
        """A commit by others, after which the table is taken to hold ``after``."""
        self.lake.client.load_table(table).append(pa.table([pa.array(rows, pa.int32())], schema=ARROW))
        self.rows[table][self.load(table).head_snapshot_id()] = after

    def add(self, table: str, count: int) -> None:
        self.number += count
        new = list(range(self.number - count, self.number))
        self.append(table, new, self.now(table) + Counter(new))

    def drop(self, table: str, row: int) -> None:
        before = self.now(table)
        self.lake.client.load_table(table).delete(f"number = {row}")
        self.rows[table][self.load(table).head_snapshot_id()] = Counter({r: n for r, n in before.items() if r != row})

    # What others do

    @rule(count=st.integers(1, 2))
    def rows_come(self, count: int) -> None:
        self.add(TABLE, count)

    @rule(data=st.data())
    def a_row_goes(self, data: st.DataObject) -> None:
        if there := sorted(self.now(TABLE)):
            self.drop(TABLE, data.draw(st.sampled_from(there)))

    @rule(table=st.sampled_from([TABLE, OUT.table, NEXT.table]), data=st.data())
    def a_table_is_rolled_back(self, table: str, data: st.DataObject) -> None:
        history = [each.snapshot_id for each in self.load(table).ancestry().snapshots]
        earlier = [each for each in history if each in self.rows[table]][1:]
        if earlier:
            at = data.draw(st.sampled_from(earlier))
            self.lake.client.load_table(table).manage_snapshots().rollback_to_snapshot(at).commit()

    @rule(stage=st.sampled_from(STAGES), data=st.data())
    def someone_else_writes_to_a_target(self, stage: Stage, data: st.DataObject) -> None:
        before, there = self.now(stage.table), sorted(self.now(stage.table))
        if there and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(there))
            self.append(stage.table, [0], Counter({row: n for row, n in before.items() if row != gone}))
        else:
            self.add(stage.table, 1)

    @rule(stage=st.sampled_from(STAGES))
    def someone_resets_it(self, stage: Stage) -> None:
        Administrator(self.lake, self.store, stage.table).reset(stage.line, who="me", why="test")

    # Runs

    def captured(self, stage: Stage, mode: Mode | None = None, *, on: LakeCatalog | None = None) -> Work | None:
        """What a run captures; None if it is refused."""
        self.runs += 1
        store: Any = self.store if on is None else ReadOnlyCursors(self.store)
        request = CaptureRequest(stage.name, [stage.tracked], target=stage.table, asked_for=mode)
        try:
            (found,) = Capturer(on or self.lake, store).capture(request, run_id=f"run-{self.runs}")
        except IpsError:
            return None
        (capture,) = found.captures
        to, start, rows = capture.to_inclusive, capture.from_exclusive, self.rows[stage.source]
        is_whole = capture.mode is Mode.FULL
        went = rows[start.snapshot_id] if start and not is_whole else Counter[int]()
        return Work(capture, found, is_whole, rows[to.snapshot_id] if to else Counter(), went)

    def published(
        self, stage: Stage, progress: Progress, mode: Mode, after: Rows, branch: str = "main", **more: str
    ) -> None:
        self.runs += 1
        said = attempt_properties(f"a-{self.runs}", "run") | computed_properties(mode, ()) | more
        said |= {PROGRESS: progress_text(progress)} | owner_properties(stage.name, None)
        said |= cascade_stamps.properties(self.cascade)
        self.lake.client.load_table(stage.table).append(ARROW.empty_table(), snapshot_properties=said, branch=branch)
        head = self.load(stage.table).head_snapshot_id(branch)
        assert head is not None
        self.rows[stage.table][head] = after
        if branch == "main":
            commit_refs(self.lake, stage.table, RefCommit(sets={PIN: head}, tags=[PIN]), asset=stage.name)

    def publish(self, stage: Stage, work: Work, lake: LakeCatalog | None = None, branch: str = "main") -> bool:
        """As runs do; False if the work can't be published."""
        target, advance, session = (lake or self.lake).load(stage.table, asset="test"), work.captured.advance, None
        made: Any = session
        publisher = Publisher(lake or self.lake, self.store, made, work.capture.run_id, advance=advance)
        try:
            publisher.require_valid([work.capture])
            publisher.require_own(target, [work.capture], stage.name)
            known = publisher.known(target, stage.name)
        except IpsError:
            return False
        if advance.standing(known) is not Standing.MAY_PUBLISH:
            return False
        progress = publisher.progress(target, known, stage.name)
        self.published(
            stage, progress, advance.mode, work.applied(self.rows[stage.table][target.head_snapshot_id()]), branch
        )
        return True

    def run(self, stage: Stage, mode: Mode | None = None) -> bool:
        """A run; False if it was refused. If not, the table equals a recompute."""
        work = self.captured(stage, mode)
        if work is None:
            return False
        if work.changes_nothing:
            consume_without_writing(self.store, self.lake, stage.table, [work.captured])
        elif self.publish(stage, work):
            copy_progress(self.store, self.lake, stage.table, stage.name)
        else:
            return False
        assert self.now(stage.table) == self.now(stage.source), stage.name
        return True

    @rule(stage=st.sampled_from(STAGES))
    def a_run(self, stage: Stage) -> None:
        self.run(stage)

    @rule()
    def runs_that_must_succeed(self) -> None:
        for stage in STAGES:
            if not self.run(stage):
                assert self.run(stage, Mode.FULL)
                assert self.run(stage)

    @rule(stage=st.sampled_from(STAGES), mode=st.sampled_from([None, Mode.FULL]))
    def a_slow_run_captures(self, stage: Stage, mode: Mode | None) -> None:
        if (work := self.captured(stage, mode)) is not None:
            self.at_work.append((stage, work))

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), is_killed=st.booleans())
    def a_slow_run_publishes(self, data: st.DataObject, *, is_killed: bool) -> None:
        stage, work = self.at_work.pop(data.draw(st.integers(0, len(self.at_work) - 1)))
        if not work.changes_nothing and self.publish(stage, work) and not is_killed:
            copy_progress(self.store, self.lake, stage.table, stage.name)

    # Backfills

    def has_rows(self) -> bool:
        return all(self.load(stage.table).head_snapshot_id() is not None for stage in STAGES)

    def says(self, stage: Stage, plan: BackfillPlan) -> RefCommit:
        """Tags the snapshot that says what the table contains, as a launch does."""
        try:
            known = table_progress(self.load(stage.table), asset=stage.name, storage=self.lake.storage)
        except IpsError:
            known = None
        return RefCommit(sets={plan.progress_tag: known.mark.snapshot_id} if known else {}, tags=[plan.progress_tag])

    def launched(self, root: Stage, *, is_staged: bool) -> Backfill:
        self.backfills += 1
        stages = STAGES[STAGES.index(root) :]
        planned = tuple(PlannedStage(each.name, each.table, (each.upstream,), None) for each in stages)
        plan = BackfillPlan(f"planned{self.backfills}", 0, planned, ())
        before: dict[str, int] = {}
        for each in stages:
            head = self.load(each.table).head_snapshot_id()
            assert head is not None
            before[each.table] = head
            self.lake.client.load_table(each.table).manage_snapshots().create_tag(head, plan.before_tag).commit()
            commit_refs(self.lake, each.table, self.says(each, plan), asset=each.name)
        self.store.set_backfill(LaunchedBackfill(plan, "me", 0, before, is_staged))
        found = self.store.get_backfill(plan.id)
        assert isinstance(found, LaunchedBackfill)
        return Backfill(found, stages)

    @precondition(lambda self: self.has_rows() and len(self.live) < 3)
    @rule(root=st.sampled_from(STAGES))
    def a_backfill_is_launched(self, root: Stage) -> None:
        self.live.append(self.launched(root, is_staged=False))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def a_backfill_runs(self, data: st.DataObject) -> None:
        backfill = data.draw(st.sampled_from(self.live))
        self.cascade = Cascade((backfill.id,))
        self.run(backfill.stages[0], Mode.FULL)
        self.cascade = Cascade()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def a_backfill_is_reverted(self, data: st.DataObject) -> None:
        backfill = data.draw(st.sampled_from(self.live))
        root, reverter = backfill.stages[0], BackfillReverter(self.lineage, backfill.record)
        try:
            planned = reverter._planned(None)
            wanted = reverter._restoration(planned.restored) if planned.restored else None
        except IpsError:
            return
        if wanted is None:
            return
        self.cascade = Cascade((revert_cascade(backfill.id),))
        progress = restored_progress(newest_progress(self.load(root.table)), wanted)
        before = self.rows[root.table][backfill.cut(root)]
        self.published(root, progress, Mode.FULL, before, **{REVERTED: backfill.id})
        self.cascade = Cascade()

    def has_moved(self, backfill: Backfill) -> bool:
        heads = {each: self.load(each.table).head_snapshot_id() for each in backfill.stages}
        return any(head != backfill.cut(each) for each, head in heads.items())

    @rule()
    def a_staged_backfill_is_cancelled(self) -> None:
        for each in self.waiting.stages if self.waiting else ():
            if self.waiting and self.waiting.branch in self.load(each.table).branches:
                changes = self.lake.client.load_table(each.table).manage_snapshots()
                changes.remove_branch(self.waiting.branch).commit()
        self.waiting = None

    @precondition(lambda self: self.has_rows() and self.waiting is None)
    @rule(root=st.sampled_from(STAGES))
    def a_backfill_is_staged(self, root: Stage) -> None:
        self.waiting = self.launched(root, is_staged=True)
        for each in self.waiting.stages:
            changes = self.lake.client.load_table(each.table).manage_snapshots()
            changes.create_branch(self.waiting.cut(each), self.waiting.branch).commit()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def a_staged_run_captures(self, data: st.DataObject) -> None:
        backfill = self.waiting
        assert backfill is not None
        if self.has_moved(backfill):
            self.a_staged_backfill_is_cancelled()
            return
        stage = data.draw(st.sampled_from(backfill.stages))
        mode = Mode.FULL if stage is backfill.stages[0] else None
        work = self.captured(stage, mode, on=self.lake.on_branch(backfill.branch))
        if work is not None and all(other is not stage for other, _ in backfill.at_work):
            backfill.at_work.append((stage, work))

    @precondition(lambda self: self.waiting and self.waiting.at_work)
    @rule()
    def a_staged_run_writes(self) -> None:
        backfill = self.waiting
        assert backfill is not None
        stage, work = backfill.at_work.pop()
        if not work.changes_nothing:
            self.publish(stage, work, self.lake.on_branch(backfill.branch), backfill.branch)

    @precondition(lambda self: self.waiting and not self.waiting.at_work)
    @rule(most=st.integers(1, 2), is_killed=st.booleans())
    def the_staged_backfill_is_published(self, most: int, *, is_killed: bool) -> None:
        """Table after table; it may be killed after the first one, and nobody continues it."""
        backfill = self.waiting
        assert backfill is not None
        staged = StagedBackfill(self.lineage, backfill.record)
        if not self.has_moved(backfill):
            some = staged.tables()[:most]
            done = staged._published(some).published
            if not is_killed:
                staged._report(done)
        self.a_staged_backfill_is_cancelled()

    @invariant()
    def no_row_is_there_twice(self) -> None:
        for of_table in getattr(self, "rows", {}).values():
            for rows in of_table.values():
                assert all(n == 1 for n in rows.values())


TestWholeLives = WholeLives.TestCase
TestWholeLives.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
class TestManyWholeLives(TestWholeLives):
    settings = settings(TestWholeLives.settings, max_examples=100, derandomize=False)
