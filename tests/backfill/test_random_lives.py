"""Random lives with backfills, which are reverted, or staged and published: no row is lost, doubled or left behind."""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec

from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage, staged_branch
from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.policy import OnRollback
from dagster_ips.errors import RevertError
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.restorer import restored_progress
from dagster_ips.iceberg import cascade_stamps
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.ref_commits import RefCommit, commit_refs
from dagster_ips.iceberg.stamps import REVERTED, attempt_properties, computed_properties, owner_properties
from dagster_ips.orchestration.backfill.reverting import BackfillReverter, revert_cascade
from dagster_ips.orchestration.backfill.staging import StagedBackfill
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import SameKeys
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.advance import Standing
from dagster_ips.progress.cursor import ReadOnlyCursors
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PIN, PROGRESS, newest_progress
from tests.exactly_once.capture.test_partitions_to_come import (
    ARROW,
    BY_DAY,
    DAYS,
    LAST,
    MADE,
    TABLE,
    TARGET,
    Made,
    PartitionsToCome,
    Row,
    Work,
    _days_from,
    _window,
)

SAME_DAY = Made("day", _window(0, 0), is_by_day=True, takes=_days_from(0))
ALL = {**MADE, "the same day": SAME_DAY}
Held = dict[str, Counter[Row]]


@dataclass
class Backfill:
    """A launched backfill, what its partitions held before, and, if it is staged, what they hold on its branch."""

    record: LaunchedBackfill
    before: Held
    staged: Held = field(default_factory=dict)
    at_work: list[Work] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.record.plan.id

    @property
    def cut(self) -> int:
        return self.record.before[TARGET]


class Backfills(PartitionsToCome):
    """The lives of partitions to come, with backfills of some partitions, live or staged."""

    @initialize(made=st.sampled_from(sorted(ALL)), spec=st.sampled_from([UNPARTITIONED_PARTITION_SPEC, BY_DAY]))
    def begin(self, made: str, spec: PartitionSpec) -> None:
        super().begin(made if made in MADE else "all days", spec)
        self.made = ALL[made]
        self.store: Any = CursorStore(self.instance)
        self.live: list[Backfill] = []
        self.waiting: Backfill | None = None
        self.backfills = 0
        self.cascade = Cascade()

    # What these lives leave out

    @rule()
    def a_backup_is_taken(self) -> None:
        pass

    @rule()
    def the_backup_is_restored_or_there_is_none(self) -> None:
        pass

    @property
    def tracked(self) -> TrackedInput:
        found = super().tracked
        return replace(found, policies=replace(found.policies, on_rollback=OnRollback.CONTINUE))

    @property
    def target(self) -> TableMetadata:
        return self.lake.load(TARGET, asset="test")

    @property
    def lineage(self) -> Any:  # noqa: ANN401  # stands in for it
        keys = partition_keys(self.consumer, "day" if self.made.is_by_day else "title", self.instance, asset="out")
        tables = {"out": TARGET, "plays": TABLE}
        return SimpleNamespace(
            instance=self.instance,
            store=self.store,
            lake=lambda _: self.lake,
            metadata=lambda asset: self.lake.load(tables[asset], asset="test"),
            inputs=lambda _: {"plays": self.tracked},
            own_slicing=lambda _: SameKeys(keys),
            partitions_def=lambda _: self.consumer,
            session=lambda _: None,
            report=lambda *_, **__: None,
        )

    def published(
        self, progress: Progress, mode: Mode, partitions: Sequence[str], branch: str | None = None, **more: str
    ) -> None:
        """Leave what a run leaves that has computed these partitions."""
        said = attempt_properties(uuid.uuid4().hex, "run") | computed_properties(mode, partitions) | more
        said |= {PROGRESS: progress_text(progress)} | owner_properties("out", None)
        said |= cascade_stamps.properties(self.cascade)
        on = {"branch": branch} if branch else {}
        table = self.lake.client.load_table(TARGET)
        table.append(ARROW.empty_table(), snapshot_properties=said, **on)
        if branch is None:
            head = table.refresh().current_snapshot().snapshot_id
            commit_refs(self.lake, TARGET, RefCommit(sets={PIN: head}, tags=[PIN]), asset="out")

    def publish(self, work: tuple[Work, ...]) -> bool:
        advance, known = work[0].captured.advance, newest_progress(self.target)
        if advance.standing(known) is not Standing.MAY_PUBLISH:
            return False
        self.published(advance.progress(known, made={}, lookups={}), advance.mode, advance.partitions)
        for each in work:
            key = each.capture.edge.key
            self.held[key] = each.applied(self.held.get(key, Counter()))
        return True

    def some(self, data: st.DataObject) -> list[str]:
        return data.draw(st.lists(st.sampled_from(self.keys_of(self.consumer)), min_size=1, max_size=3, unique=True))

    def launched(self, keys: list[str], *, is_staged: bool) -> Backfill:
        self.backfills += 1
        stage = PlannedStage("out", TARGET, ("plays",), tuple(sorted(keys)))
        plan = BackfillPlan(f"planned{self.backfills}", 0, (stage,), ())
        head = self.target.head_snapshot_id()
        assert head is not None
        self.lake.client.load_table(TARGET).manage_snapshots().create_tag(head, plan.before_tag).commit()
        record = LaunchedBackfill(plan, "me", 0, {TARGET: head}, is_staged)
        self.store.set_backfill(record)
        return Backfill(self.store.get_backfill(plan.id), {key: Counter(self.held.get(key, {})) for key in keys})

    def has_rows(self) -> bool:
        return self.target.head_snapshot_id() is not None

    # Live backfills

    @precondition(lambda self: self.has_rows() and len(self.live) < 3)
    @rule(data=st.data())
    def a_backfill_is_launched(self, data: st.DataObject) -> None:
        self.live.append(self.launched(self.some(data), is_staged=False))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def a_backfill_computes_some(self, data: st.DataObject) -> None:
        backfill = data.draw(st.sampled_from(self.live))
        there = [k for k in backfill.record.plan.root.partitions or () if k in self.keys_of(self.consumer)]
        if not there:
            return
        self.cascade = Cascade((backfill.id,))
        self.run_of(data.draw(st.lists(st.sampled_from(there), min_size=1, unique=True)), named_by_person=True)
        self.cascade = Cascade()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def a_backfill_is_reverted(self, data: st.DataObject) -> None:
        backfill = data.draw(st.sampled_from(self.live))
        reverter = BackfillReverter(self.lineage, backfill.record)
        try:
            planned = reverter._planned(None)
            wanted = reverter._restoration(planned.restored) if planned.restored else None
        except RevertError:
            return
        if wanted is None:
            return
        self.cascade = Cascade((revert_cascade(backfill.id),))
        progress = restored_progress(newest_progress(self.target), wanted)
        self.published(progress, Mode.FULL, planned.restored, **{REVERTED: backfill.id})
        self.cascade = Cascade()
        for key in planned.restored:
            self.held[key] = backfill.before[key]

    # A staged backfill

    def on_branch(self, backfill: Backfill) -> LakeCatalog:
        return self.lake.on_branch(staged_branch(backfill.id))

    def cancel(self) -> None:
        assert self.waiting is not None
        branch = staged_branch(self.waiting.id)
        self.lake.client.load_table(TARGET).manage_snapshots().remove_branch(branch).commit()
        self.waiting = None

    @precondition(lambda self: self.has_rows() and self.waiting is None)
    @rule(data=st.data())
    def a_backfill_is_staged(self, data: st.DataObject) -> None:
        self.stage(self.some(data))

    def stage(self, keys: list[str]) -> None:
        self.waiting = self.launched(keys, is_staged=True)
        changes = self.lake.client.load_table(TARGET).manage_snapshots()
        changes.create_branch(self.waiting.cut, staged_branch(self.waiting.id)).commit()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), named_by_person=st.booleans())
    def a_staged_run_captures(self, data: st.DataObject, *, named_by_person: bool) -> None:
        backfill = self.waiting
        assert backfill is not None
        if self.target.head_snapshot_id() != backfill.cut:
            self.cancel()
            return
        busy = {each.capture.edge.partition for each in backfill.at_work}
        free = [k for k in self.keys_of(self.consumer) if k not in busy]
        if not free:
            return
        self.capture_staged(data.draw(st.sampled_from(free)), named_by_person=named_by_person)

    def capture_staged(self, key: str, *, named_by_person: bool = True) -> None:
        backfill = self.waiting
        assert backfill is not None
        self.runs += 1
        (captured,) = Capturer(self.on_branch(backfill), ReadOnlyCursors(self.store)).capture(
            CaptureRequest(
                "out", [self.tracked], target=TARGET, partitions=RunPartitions((key,), named_by_person=named_by_person)
            ),
            run_id=f"run-{self.runs}",
        )
        backfill.at_work.append(self.work_of(captured.capture, captured))

    @precondition(lambda self: self.waiting and self.waiting.at_work)
    @rule()
    def a_staged_run_writes(self) -> None:
        backfill = self.waiting
        assert backfill is not None
        work = backfill.at_work.pop(0)
        advance, key = work.captured.advance, work.capture.edge.key
        known = newest_progress(self.on_branch(backfill).load(TARGET, asset="test"))
        assert advance.standing(known) is Standing.MAY_PUBLISH
        if work.changes_nothing:
            return
        progress = advance.progress(known, made={}, lookups={})
        self.published(progress, advance.mode, advance.partitions, staged_branch(backfill.id))
        backfill.staged[key] = work.applied(backfill.staged.get(key, self.held.get(key, Counter())))

    @precondition(lambda self: self.waiting and not self.waiting.at_work)
    @rule(is_killed=st.booleans())
    def the_staged_backfill_is_published(self, *, is_killed: bool = False) -> None:
        backfill = self.waiting
        assert backfill is not None
        if self.target.head_snapshot_id() == backfill.cut:
            staged = StagedBackfill(self.lineage, backfill.record)
            if self.target.head_snapshot_id(staged_branch(backfill.id)) != backfill.cut:
                assert staged._published(staged.tables()).published == ("out",)
            if not is_killed:
                staged._report(["out"])
            self.held |= backfill.staged
        self.cancel()

    @precondition(lambda self: any(self.rows_at.values()))
    @rule()
    def the_last_rows_are_rolled_back(self) -> None:
        table = self.lake.client.load_table(TABLE)
        now = table.current_snapshot()
        is_left_out = self.made.by == "title" or self.made.mapping is LAST
        if now is not None and now.parent_snapshot_id in self.rows_at and not is_left_out:
            self.set_to(now.parent_snapshot_id)

    @precondition(lambda self: self.rows_at and self.made.by == "day" and self.made.mapping is not LAST)
    @rule(data=st.data())
    def the_table_is_set_to_any_of_its_snapshots(self, data: st.DataObject) -> None:
        self.set_to(data.draw(st.sampled_from(list(self.rows_at))))

    def set_to(self, snapshot_id: int) -> None:
        changes = self.lake.client.load_table(TABLE).manage_snapshots()
        changes.set_current_snapshot(snapshot_id).commit()


TestBackfills = Backfills.TestCase
TestBackfills.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
class TestManyBackfills(TestBackfills):
    settings = settings(TestBackfills.settings, max_examples=60, derandomize=False)


@pytest.fixture
def lives() -> Iterator[Backfills]:
    found = Backfills()
    yield found
    found.teardown()


def a_row_that_is_gone_is_staged(lives: Backfills, made: str) -> str:
    """The partition that a staged run has written with a row that was gone at the next look."""
    lives.begin(made=made, spec=BY_DAY)
    lives.rows_come([(DAYS[0], "a"), (DAYS[1], "a")])
    lives.all_that_waits_is_run()
    key = lives.keys_of(lives.consumer)[0]
    lives.stage([key])
    lives.rows_come([(DAYS[0], "b")])
    lives.capture_staged(key)
    lives.a_staged_run_writes()
    lives.delete(DAYS[0], "b")
    lives.the_sensor_looks()
    return key


@pytest.mark.parametrize("made", ["the same day", "all days"])
def test_a_row_that_a_staged_run_read_and_that_was_gone_at_the_next_look_is_not_kept(
    lives: Backfills, made: str
) -> None:
    key = a_row_that_is_gone_is_staged(lives, made)
    lives.the_staged_backfill_is_published()
    assert key in lives.pending()
    lives.all_that_waits_is_run()


def test_a_run_that_began_before_a_publication_and_captures_after_it_does_not_undo_what_that_stored(
    lives: Backfills,
) -> None:
    key = a_row_that_is_gone_is_staged(lives, "the same day")
    capturer = Capturer(lives.lake, lives.store)
    began = capturer.look(CaptureRequest("out", [lives.tracked], target=TARGET, partitions=RunPartitions((key,))))
    lives.the_staged_backfill_is_published()
    (captured,) = capturer.take(began, run_id="run")
    assert not lives.publish(tuple(lives.work_of(each, captured) for each in captured.captures))
    lives.all_that_waits_is_run()


def test_a_partition_that_a_staged_run_read_and_that_was_deleted_before_the_next_look_is_not_kept(
    lives: Backfills,
) -> None:
    lives.begin(made="all titles", spec=BY_DAY)
    lives.rows_come([(DAYS[0], "a")])
    lives.all_that_waits_is_run()
    lives.stage(["eu"])
    lives.instance.add_dynamic_partitions("titles", ["b"])
    lives.rows_come([(DAYS[0], "b")])
    lives.capture_staged("eu")
    lives.a_staged_run_writes()
    lives.instance.delete_dynamic_partition("titles", "b")
    lives.the_staged_backfill_is_published()
    lives.all_that_waits_is_run()


def test_rows_that_a_run_without_a_stamp_kept_are_not_kept_after_another_rollback(lives: Backfills) -> None:
    """The run had nothing to write, so its partition's last stamp says that it has read more, which is gone as well."""
    lives.begin(made="the same day", spec=BY_DAY)
    lives.rows_come([(DAYS[0], "a")])
    lives.all_that_waits_is_run()
    lives.rows_come([(DAYS[0], "b")])
    lives.rows_come([(DAYS[1], "c")])
    key = lives.keys_of(lives.consumer)[0]
    lives.run_of([key])
    lives.the_last_rows_are_rolled_back()
    lives.run_of([key])
    lives.the_last_rows_are_rolled_back()
    lives.all_that_waits_is_run()


@pytest.mark.parametrize("comes", [None, DAYS[1]], ids=["nothing follows", "another day's row follows"])
def test_rows_that_a_run_read_between_two_rollbacks_are_not_kept(lives: Backfills, comes: dt.date | None) -> None:
    """The last look was before the first rollback. Its snapshot is newer than what the run read."""
    lives.begin(made="the same day", spec=BY_DAY)
    lives.rows_come([(DAYS[0], "a"), (DAYS[1], "a")])
    lives.rows_come([(DAYS[0], "b")])
    lives.delete(DAYS[0], "b")
    lives.all_that_waits_is_run()
    lives.the_last_rows_are_rolled_back()
    lives.run_of([str(DAYS[0])])
    lives.the_last_rows_are_rolled_back()
    if comes is not None:
        lives.rows_come([(comes, "c")])
    assert str(DAYS[0]) in lives.pending()
    lives.all_that_waits_is_run()


def test_partitions_whose_rows_a_run_at_work_read_between_two_rollbacks_are_pending_at_once(lives: Backfills) -> None:
    lives.begin(made="all days", spec=UNPARTITIONED_PARTITION_SPEC)
    lives.rows_come([(DAYS[0], "a")])
    lives.delete(DAYS[0], "a")
    lives.rows_come([(DAYS[0], "a")])
    lives.delete(DAYS[0], "a")
    lives.the_last_rows_are_rolled_back()
    work = lives.capture(["eu"])
    lives.the_last_rows_are_rolled_back()
    assert lives.publish(work)
    assert lives.pending() == {"eu", "us"}
    lives.all_that_waits_is_run()


@pytest.mark.parametrize("is_looked_at", [True, False], ids=["looked at", "not looked at"])
@pytest.mark.parametrize("then", ["a row comes", "the rows go", "the rollback is taken back"])
def test_rows_that_a_run_read_after_a_rollback_are_neither_read_again_nor_kept(
    lives: Backfills, then: str, *, is_looked_at: bool
) -> None:
    """The other partition, which is made of the same rows, is still pending then."""
    lives.begin(made="all days", spec=UNPARTITIONED_PARTITION_SPEC)
    lives.rows_come([(DAYS[0], "a")])
    lives.all_that_waits_is_run()
    lives.rows_come([(DAYS[0], "b")])
    lives.delete(DAYS[0], "b")
    lives.all_that_waits_is_run()
    last = lives.lake.load(TABLE, asset="test").head_snapshot_id()
    assert last is not None
    lives.the_last_rows_are_rolled_back()
    if is_looked_at:
        lives.the_sensor_looks()
    lives.run_of(["eu"])
    match then:
        case "a row comes":
            lives.rows_come([(DAYS[0], "c")])
        case "the rows go":
            lives.delete(DAYS[0], "b")
        case _:
            lives.set_to(last)
    lives.all_that_waits_is_run()


def test_a_partition_that_was_computed_of_an_upstream_without_rows_waits_for_nothing(lives: Backfills) -> None:
    lives.begin(made="all days", spec=UNPARTITIONED_PARTITION_SPEC)
    lives.run_of(["eu"])
    lives.all_that_waits_is_run()
    lives.rows_come([(DAYS[0], "a")])
    assert lives.pending() == {"eu", "us"}
    lives.all_that_waits_is_run()


def test_after_a_rollback_that_is_taken_back_partitions_are_computed_once(lives: Backfills) -> None:
    lives.begin(made="the same day", spec=BY_DAY)
    lives.rows_come([(DAYS[0], "a")])
    lives.rows_come([(DAYS[0], "b")])
    lives.all_that_waits_is_run()
    last = lives.lake.load(TABLE, asset="test").head_snapshot_id()
    assert last is not None
    lives.the_last_rows_are_rolled_back()
    assert lives.pending() == {str(DAYS[0])}
    lives.set_to(last)
    lives.all_that_waits_is_run()


@pytest.mark.parametrize("comes", ["before", "after"])
@pytest.mark.parametrize("day", DAYS[:2], ids=["to its day", "to another day"])
def test_rows_that_a_staged_run_read_after_a_rollback_are_not_read_again(
    lives: Backfills, comes: str, day: dt.date
) -> None:
    """If they come before its publication, a look comes as well, which is the first one since the rollback."""
    lives.begin(made="the same day", spec=BY_DAY)
    lives.rows_come([(DAYS[0], "a"), (DAYS[1], "a")])
    lives.rows_come([(DAYS[0], "b")])
    lives.delete(DAYS[0], "b")
    lives.all_that_waits_is_run()
    lives.the_last_rows_are_rolled_back()
    lives.stage([str(DAYS[0])])
    lives.capture_staged(str(DAYS[0]))
    lives.a_staged_run_writes()
    if comes == "before":
        lives.rows_come([(day, "c")])
        lives.the_sensor_looks()
    lives.the_staged_backfill_is_published()
    if comes == "after":
        lives.rows_come([(day, "c")])
    lives.all_that_waits_is_run()
