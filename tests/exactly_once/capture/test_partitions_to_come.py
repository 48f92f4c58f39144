"""Rows that arrive before their partition exists: once it does, every mapped partition has them, exactly once."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IntegerType, NestedField, StringType

from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.policy import InputPolicies, OnUnmapped
from dagster_ips.core.watermark import Watermark
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import MappedKeys
from dagster_ips.progress.advance import Standing
from tests.support.memory_store import MemoryCursors
from tests.support.publishing import consume_without_writing, copy_progress, look, publish

TABLE, TARGET = "media.plays", "media.out"
SCHEMA = Schema(
    NestedField(1, "day", DateType()), NestedField(2, "title", StringType()), NestedField(3, "number", IntegerType())
)
ARROW = pa.schema([("day", pa.date32()), ("title", pa.string()), ("number", pa.int32())])
BY_DAY = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
TODAY = dt.datetime.now(dt.UTC).date()
DAYS = tuple(TODAY + dt.timedelta(days=days) for days in range(-3, 3))
TITLE_KEYS = ("a", "b", "c", "d")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])
TITLES = dg.DynamicPartitionsDefinition(name="titles")
LAST = dg.LastPartitionMapping()

Row = tuple[dt.date, str, int]


@dataclass(frozen=True)
class Work:
    """A capture, the input that it is of, and how a run changes what its table, or its partition, holds."""

    capture: Capture
    captured: CapturedInput
    is_whole: bool
    came: Counter[Any]
    went: Counter[Any]

    @property
    def changes_nothing(self) -> bool:
        return not self.is_whole and self.came == self.went

    def applied(self, held: Counter[Any]) -> Counter[Any]:
        after = Counter[Any]() if self.is_whole else Counter(held)
        after.update(self.came)
        after.subtract(self.went)
        return Counter({row: n for row, n in after.items() if n})


def days_up_to(ahead: int) -> dg.DailyPartitionsDefinition:
    """All days from the first one, including ``ahead`` days that aren't over yet."""
    return dg.DailyPartitionsDefinition(start_date=DAYS[0].isoformat(), end_offset=ahead)


@dataclass(frozen=True)
class Made:
    """A partition mapping, and the same in Python: which of the existing upstream partitions each partition takes."""

    by: str
    mapping: dg.PartitionMapping
    is_by_day: bool
    takes: Callable[[str, frozenset[str]], frozenset[str]]


def _days_from(*offsets: int) -> Callable[[str, frozenset[str]], frozenset[str]]:
    def takes(key: str, there: frozenset[str]) -> frozenset[str]:
        return there & {str(dt.date.fromisoformat(key) + dt.timedelta(days=days)) for days in offsets}

    return takes


def _window(start: int, end: int) -> dg.PartitionMapping:
    return dg.TimeWindowPartitionMapping(start_offset=start, end_offset=end, allow_nonexistent_upstream_partitions=True)


MADE: Mapping[str, Made] = {
    "all days": Made("day", dg.AllPartitionMapping(), is_by_day=False, takes=lambda _, there: there),
    "all titles": Made("title", dg.AllPartitionMapping(), is_by_day=False, takes=lambda _, there: there),
    "the day before, too": Made("day", _window(-1, 0), is_by_day=True, takes=_days_from(-1, 0)),
    "the day after, too": Made("day", _window(0, 1), is_by_day=True, takes=_days_from(0, 1)),
    "the days around": Made("day", _window(-1, 1), is_by_day=True, takes=_days_from(-1, 0, 1)),
    "the last day": Made("day", LAST, is_by_day=False, takes=lambda _, there: frozenset([max(there)])),
    "the last title": Made("title", LAST, is_by_day=False, takes=lambda _, there: frozenset([max(there)])),
}


class PartitionsToCome(RuleBasedStateMachine):
    """Plays, partitioned in Dagster by day or title, and one consumer with partitions made from several of these.

    What each partition of the consumer holds is computed from the intervals of its captures and the table's rows at
    each snapshot.
    """

    @initialize(made=st.sampled_from(sorted(MADE)), spec=st.sampled_from([UNPARTITIONED_PARTITION_SPEC, BY_DAY]))
    def begin(self, made: str, spec: PartitionSpec) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.instance = dg.DagsterInstance.ephemeral()
        self.lake, self.store = LakeCatalog.embedded("lake", Path(self.folder.name)), MemoryCursors()
        self.lake.create_namespace("media")
        self.lake.client.create_table(TABLE, SCHEMA, partition_spec=spec)
        self.lake.client.create_table(TARGET, SCHEMA)
        self.made, self.ahead, self.number = MADE[made], 0, 0
        self.instance.add_dynamic_partitions("titles", ["a"])
        self.rows_at: dict[int, Counter[Row]] = {}
        self.held: dict[str, Counter[Row]] = {}
        self.runs = 0
        self.at_work: list[tuple[Work, ...]] = []
        self.backup = MemoryCursors()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.instance.dispose()
            self.folder.cleanup()

    # The current state

    @property
    def upstream(self) -> dg.PartitionsDefinition[str]:
        return days_up_to(self.ahead) if self.made.by == "day" else TITLES

    @property
    def consumer(self) -> dg.PartitionsDefinition[str]:
        return days_up_to(self.ahead) if self.made.is_by_day else REGIONS

    @property
    def tracked(self) -> TrackedInput:
        keys = partition_keys(self.upstream, self.made.by, self.instance, asset="plays")
        slicing = MappedKeys(keys, self.made.mapping, self.upstream, self.consumer, self.instance, "of the test")
        policies = InputPolicies(on_unmapped=OnUnmapped.IGNORE if self.made.mapping is LAST else OnUnmapped.ERROR)
        return TrackedInput("plays", TABLE, policies=policies, slicing=slicing)

    def keys_of(self, definition: dg.PartitionsDefinition[str]) -> list[str]:
        return list(definition.get_partition_keys(dynamic_partitions_store=self.instance))

    def pending(self) -> frozenset[str]:
        return frozenset(look(self.store, self.lake, self.tracked, consumer="out", target=TARGET).pending)

    def taken(self, key: str, at: Watermark | None) -> Counter[Row]:
        """The table's rows at a snapshot that a partition takes, by the partitions that exist now."""
        keys = self.made.takes(key, frozenset(self.keys_of(self.upstream)))
        rows = self.rows_at[at.snapshot_id] if at else Counter[Row]()
        place = 0 if self.made.by == "day" else 1
        return Counter({row: n for row, n in rows.items() if str(row[place]) in keys})

    def capture(self, keys: list[str], *, named_by_person: bool = False) -> tuple[Work, ...]:
        self.runs += 1
        (captured,) = Capturer(self.lake, self.store).capture(
            CaptureRequest(
                "out", [self.tracked], target=TARGET, partitions=RunPartitions(tuple(keys), named_by_person)
            ),
            run_id=f"run-{self.runs}",
        )
        return tuple(self.work_of(capture, captured) for capture in captured.captures)

    def work_of(self, capture: Capture, captured: CapturedInput) -> Work:
        key, before = capture.edge.key, capture.from_exclusive
        is_whole = capture.mode is Mode.FULL or before is None
        went = Counter[Row]() if is_whole else self.taken(key, before)
        return Work(capture, captured, is_whole, self.taken(key, capture.to_inclusive), went)

    def publish(self, work: tuple[Work, ...]) -> bool:
        """Publish the work; returns whether the target took it. It doesn't if another run has published since."""
        if publish(self.store, self.lake, TARGET, [work[0].captured], copies=False) is not Standing.MAY_PUBLISH:
            return False
        for each in work:
            key = each.capture.edge.key
            self.held[key] = each.applied(self.held.get(key, Counter()))
        return True

    def commit(self) -> None:
        copy_progress(self.store, self.lake, TARGET, "out")

    def run_of(self, keys: list[str], *, named_by_person: bool = False) -> None:
        """An undisturbed run; it publishes if there is something to write."""
        work = self.capture(keys, named_by_person=named_by_person)
        if all(each.changes_nothing for each in work):
            consume_without_writing(self.store, self.lake, TARGET, [work[0].captured])
        else:
            assert self.publish(work)
            self.commit()

    # Events

    @rule(rows=st.lists(st.tuples(st.sampled_from(DAYS), st.sampled_from(TITLE_KEYS)), min_size=1, max_size=3))
    def rows_come(self, rows: list[tuple[dt.date, str]]) -> None:
        new = [(*row, self.number + place) for place, row in enumerate(rows)]
        self.number += len(new)
        table = self.lake.client.load_table(TABLE)
        before = self.rows_at.get(head.snapshot_id, Counter()) if (head := table.current_snapshot()) else Counter()
        columns = [pa.array(values, field.type) for values, field in zip(zip(*new, strict=True), ARROW, strict=True)]
        table.append(pa.table(columns, schema=ARROW))
        self.rows_at[table.refresh().current_snapshot().snapshot_id] = before + Counter(new)

    @precondition(lambda self: any(self.rows_at.values()))
    @rule(data=st.data())
    def rows_go(self, data: st.DataObject) -> None:
        if before := self.rows_at[self.lake.client.load_table(TABLE).current_snapshot().snapshot_id]:
            self.delete(*data.draw(st.sampled_from(sorted(before)))[:2])

    def delete(self, day: dt.date, title: str) -> None:
        table = self.lake.client.load_table(TABLE)
        before = self.rows_at[table.current_snapshot().snapshot_id]
        table.delete(f"day = '{day}' and title = '{title}'")
        left = Counter({row: n for row, n in before.items() if row[:2] != (day, title)})
        self.rows_at[table.refresh().current_snapshot().snapshot_id] = left

    @rule()
    def a_partition_comes(self) -> None:
        self.ahead = min(self.ahead + 1, 3)
        self.instance.add_dynamic_partitions("titles", [TITLE_KEYS[self.ahead]])

    @precondition(lambda self: self.made.by == "title" and self.made.mapping is not LAST)
    @rule(data=st.data())
    def a_partition_goes_or_is_back(self, data: st.DataObject) -> None:
        title = data.draw(st.sampled_from(TITLE_KEYS[: self.ahead + 1]))
        if self.instance.has_dynamic_partition("titles", title):
            self.instance.delete_dynamic_partition("titles", title)
        else:
            self.instance.add_dynamic_partitions("titles", [title])

    @rule()
    def the_sensor_looks(self) -> None:
        self.pending()

    @rule(data=st.data())
    def a_run_of_some_that_wait(self, data: st.DataObject) -> None:
        waiting = sorted(self.pending())
        if waiting:
            self.run_of(data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True)))

    @rule(data=st.data())
    def a_run_of_any(self, data: st.DataObject) -> None:
        every = self.keys_of(self.consumer)
        self.run_of(data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=3, unique=True)))

    @rule(data=st.data())
    def a_slow_run_captures(self, data: st.DataObject) -> None:
        self.at_work.append(self.capture([data.draw(st.sampled_from(self.keys_of(self.consumer)))]))

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), is_killed=st.booleans())
    def a_slow_run_publishes(self, data: st.DataObject, *, is_killed: bool) -> None:
        work = self.at_work.pop(data.draw(st.integers(0, len(self.at_work) - 1)))
        if self.publish(work) and not is_killed:
            self.commit()

    @rule()
    def a_backup_is_taken(self) -> None:
        self.backup = deepcopy(self.store)

    @rule(is_lost=st.booleans())
    def the_backup_is_restored_or_there_is_none(self, *, is_lost: bool) -> None:
        self.store = MemoryCursors() if is_lost else deepcopy(self.backup)

    @rule()
    def all_that_waits_is_run(self) -> None:
        if waiting := sorted(self.pending()):
            self.run_of(waiting)
        assert self.pending() == frozenset()
        head = self.lake.load(TABLE, asset="test")
        at = head.watermark_at(head.ancestry().head, "main") if head.ancestry().head else None
        for key in self.keys_of(self.consumer):
            assert self.held.get(key, Counter()) == self.taken(key, at), key

    @invariant()
    def no_row_is_there_twice(self) -> None:
        for rows in getattr(self, "held", {}).values():
            assert all(n == 1 for n in rows.values())


TestPartitionsToCome = PartitionsToCome.TestCase
TestPartitionsToCome.settings = settings(
    max_examples=15,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a failure would take minutes
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
class TestManyPartitionsToCome(TestPartitionsToCome):
    settings = settings(TestPartitionsToCome.settings, max_examples=40)


def test_a_row_that_went_while_a_run_was_at_work_on_its_partition_is_removed_from_it() -> None:
    """The sensor looks once, when the row is gone already, and before the run has published it."""
    lives = PartitionsToCome()
    lives.begin(made="all days", spec=UNPARTITIONED_PARTITION_SPEC)
    try:
        lives.rows_come([(DAYS[0], "a")])
        lives.all_that_waits_is_run()
        lives.rows_come([(DAYS[0], "b")])
        slow = lives.capture(["eu"])
        lives.delete(DAYS[0], "b")
        lives.the_sensor_looks()
        assert lives.publish(slow)
        lives.commit()
        lives.all_that_waits_is_run()
    finally:
        lives.teardown()


def test_a_partition_recomputed_while_its_upstream_partition_was_gone_gets_those_rows_once_it_is_back() -> None:
    lake = PartitionsToCome()
    lake.begin(made="all titles", spec=UNPARTITIONED_PARTITION_SPEC)
    lake.instance.add_dynamic_partitions("titles", ["b"])
    lake.rows_come([(DAYS[0], "a"), (DAYS[0], "b")])
    lake.all_that_waits_is_run()
    lake.instance.delete_dynamic_partition("titles", "b")
    lake.run_of(["eu"], named_by_person=True)
    lake.instance.add_dynamic_partitions("titles", ["b"])
    assert lake.pending() == {"eu", "us"}  # The other one was to be recomputed without them.
    lake.all_that_waits_is_run()
    lake.teardown()


@pytest.mark.parametrize("is_anew", [False, True], ids=["a change", "all rows"])
@pytest.mark.parametrize("others_run", [False, True], ids=["first", "after another run"])
def test_rows_whose_partition_comes_while_a_run_is_at_work_are_not_left_out(*, is_anew: bool, others_run: bool) -> None:
    """The run doesn't take them, and the other run finds that the partition at work takes them, too."""
    lives = PartitionsToCome()
    lives.begin(made="all titles", spec=UNPARTITIONED_PARTITION_SPEC)
    try:
        lives.rows_come([(DAYS[0], "a")])
        lives.all_that_waits_is_run()
        lives.rows_come([(DAYS[0], "a"), (DAYS[0], "b")])
        slow = lives.capture(["eu"], named_by_person=is_anew)
        lives.a_partition_comes()
        if others_run:
            lives.run_of(["us"])
        if lives.publish(slow):
            lives.commit()
        lives.all_that_waits_is_run()
    finally:
        lives.teardown()


@pytest.mark.parametrize("made", ["the last day", "the last title"])
def test_a_new_last_partition_replaces_the_rows_of_the_one_before(made: str) -> None:
    lives = PartitionsToCome()
    lives.begin(made=made, spec=UNPARTITIONED_PARTITION_SPEC)
    try:
        lives.rows_come([(DAYS[2], "a")])
        lives.all_that_waits_is_run()
        lives.rows_come([(DAYS[3], "b")])
        for _ in range(2):  # The second one has no rows.
            lives.a_partition_comes()
            lives.all_that_waits_is_run()
    finally:
        lives.teardown()


@pytest.mark.parametrize("loses", [True, False], ids=["lost", "restored"])
@pytest.mark.parametrize("made", ["all days", "the day after, too"])
def test_lost_or_restored_cursors_forget_no_row_that_waits_for_its_partition(made: str, *, loses: bool) -> None:
    lives = PartitionsToCome()
    lives.begin(made=made, spec=UNPARTITIONED_PARTITION_SPEC)
    try:
        lives.rows_come([(DAYS[0], "a")])
        lives.all_that_waits_is_run()
        lives.a_backup_is_taken()
        lives.rows_come([(DAYS[2], "a"), (DAYS[3], "a")])  # for today and tomorrow, whose partitions don't exist yet
        lives.all_that_waits_is_run()
        lives.run_of(lives.keys_of(lives.consumer))
        assert lives.pending() == frozenset()
        lives.the_backup_is_restored_or_there_is_none(is_lost=loses)
        lives.a_partition_comes()
        lives.all_that_waits_is_run()
    finally:
        lives.teardown()


def test_a_partition_that_comes_during_a_capture_is_taken_or_left_out() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("titles", ["a"])
        keys = partition_keys(TITLES, "title", instance, asset="plays")
        slicing = MappedKeys(keys, dg.AllPartitionMapping(), TITLES, REGIONS, instance, "of the test")
        taken = slicing.taken_by("eu")
        instance.add_dynamic_partitions("titles", ["b"])
        made = slicing.made_of_each({"a", "b"})
        assert [key for key in "ab" if "eu" in made[key]] == sorted(taken) == sorted(slicing.taken_by("eu")) == ["a"]
