"""What is known of a table's upstreams: nothing is left out or read twice, whatever runs, and it fits in few bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, NestedField

from dagster_ips.core.capture import Mode, TargetMark
from dagster_ips.core.code_of_rows import Making
from dagster_ips.core.file_set import FileSet
from dagster_ips.core.ownership import ASSET
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import StateUnreadableError, StateVersionError, TargetChangedError, UnknownPublicationError
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.ref_commits import commit_refs, dropping, pinning
from dagster_ips.iceberg.stamps import owner_properties
from dagster_ips.progress.advance import Advance, InputAdvance, Standing
from dagster_ips.progress.cursor import Copy, Cursor, known_progress
from dagster_ips.progress.progress import ChangedKeys, InputProgress, Progress, Sharing
from dagster_ips.progress.progress_text import progress_from, progress_text
from dagster_ips.progress.table_progress import (
    PIN,
    PROGRESS,
    TableProgress,
    mark_of,
    newest_progress,
    progress_before,
    table_progress,
)

UPSTREAM = "plays"
KEYS = ("a", "b", "c")
OWN = frozenset({"x", "y"})

Row = tuple[str, int]


def at(number: int) -> Watermark | None:
    """The watermark at the upstream's snapshot with this number; None before the first one."""
    return Watermark("uuid", "main", number, number, number * 1000, "0-abc") if number else None


@dataclass(frozen=True)
class Partitions:
    """A slicing: the upstream's partitions are ``there``. Each of the ``takers`` takes all of them; without any, each
    partition takes its own key.
    """

    there: frozenset[str]
    takers: frozenset[str] = frozenset()
    division: str = "by key"

    @property
    def upstream_keys(self) -> Partitions:
        return self

    @property
    def sharing(self) -> frozenset[str]:
        return self.takers

    def known(self) -> frozenset[str]:
        return self.there

    landmarks = known

    def deleted(self, landmarks: Collection[str]) -> frozenset[str]:
        return frozenset(landmarks) - self.there

    def added(self, keys: Collection[str], landmarks: Collection[str]) -> frozenset[str]:
        return frozenset(keys) - frozenset(landmarks)

    def lacks_any(self, landmarks: Collection[str]) -> bool:
        return bool(self.deleted(landmarks))

    def taken_by(self, partition: str) -> frozenset[str]:
        return self.there if self.takers else frozenset([partition])

    def made_of(self, keys: Collection[str]) -> frozenset[str]:
        found = self.there & frozenset(keys)
        return (self.takers if found else frozenset()) if self.takers else found

    def made_of_each(self, keys: Collection[str]) -> Mapping[str, frozenset[str]]:
        return {key: self.made_of([key]) for key in keys}


@dataclass(frozen=True)
class Work:
    """A run at work: what it adds to the progress, and by partition the rows at its start (None: none) and its end."""

    advance: Advance
    rows: Mapping[str, tuple[frozenset[Row] | None, frozenset[Row]]]


class Life:
    """An upstream whose partitions come and go, and a consumer whose partitions hold sets of its rows."""

    def __init__(self, random: Random, *, shares: bool) -> None:
        self.random, self.shares = random, shares
        self.snapshots: list[frozenset[Row]] = [frozenset()]
        self.changed: list[frozenset[str]] = [frozenset()]
        self.unreadable: set[int] = set()
        self.oldest = 0
        self.there, self.takers = {"a"}, {"x"}
        self.table: TableProgress | None = None
        self.held: dict[str, frozenset[Row]] = {}
        self.at_work: list[Work] = []

    @property
    def head(self) -> int:
        return len(self.snapshots) - 1

    @property
    def slicing(self) -> Partitions:
        return Partitions(frozenset(self.there), frozenset(self.takers) if self.shares else frozenset())

    @property
    def partitions(self) -> frozenset[str]:
        return self.slicing.takers or self.slicing.there

    @property
    def known(self) -> InputProgress:
        return self.table.progress.inputs[UPSTREAM] if self.table else InputProgress(division="by key")

    def rows(self, mark: Watermark | None, keys: Collection[str]) -> frozenset[Row]:
        return frozenset(row for row in self.snapshots[mark.snapshot_id if mark else 0] if row[0] in keys)

    def keys_since(self, number: int) -> tuple[frozenset[str], dict[str, str]]:
        later = range(number + 1, self.head + 1)
        read = [self.changed[each] for each in later if each not in self.unreadable]
        unread = {str(each): "why" for each in later if each in self.unreadable}
        return frozenset[str]().union(*read), unread

    def look(self) -> ChangedKeys:
        """What a look finds, as it is described there."""
        known, slicing = self.known, self.slicing
        live = frozenset(key for key, number in self.snapshots[-1] if number not in self.unreadable)
        unread = {str(number): "why" for _, number in self.snapshots[-1] if number in self.unreadable}
        if not self.head:
            return ChangedKeys(None)
        if known.at is not None and known.at.snapshot_id < self.oldest:
            return ChangedKeys(at(self.head), live, {}, live, unread, is_followed=False)
        ahead = {}
        for mark in [mark for mark in known.ahead if mark.snapshot_id >= self.oldest]:
            found, unknown = self.keys_since(mark.snapshot_id)
            ahead[mark] = found | slicing.known() if unknown else found
        if known.at is None:
            return ChangedKeys(at(self.head), live, ahead, live, unread)
        keys, later = self.keys_since(known.at.snapshot_id)
        needed = live | (slicing.known() if unread else frozenset()) if known.needs_live_keys(slicing) else None
        return ChangedKeys(at(self.head), keys, ahead, needed, later)

    def pending(self) -> dict[str, Watermark | None]:
        return self.known.pending(self.slicing, self.look())  # type: ignore[arg-type]  # a double

    def unchanged(self, keys: frozenset[str], after: Watermark, to: Watermark) -> bool:
        first, last = sorted((after.snapshot_id, to.snapshot_id))
        return first >= self.oldest and not any(self.changed[n] & keys for n in range(first + 1, last + 1))

    def capture(self, partitions: Collection[str]) -> Work:
        changed, pending, slicing = self.look(), self.pending(), self.slicing
        starts = {partition: pending.get(partition, self.known.position(partition)) for partition in partitions}
        if any(start is not None and start.snapshot_id < self.oldest for start in starts.values()):
            starts = dict.fromkeys(partitions)
        then = self.known.after(partitions, slicing, changed, pending)  # type: ignore[arg-type]  # a double
        read = {
            partition: (
                self.rows(start, slicing.taken_by(partition)) if start else None,
                self.rows(changed.to, slicing.taken_by(partition)),
            )
            for partition, start in starts.items()
        }
        new = InputAdvance(UPSTREAM, changed.to, dict(starts), then)
        advance = Advance(
            self.table,
            (new,),
            tuple(partitions),
            Mode.INCREMENTAL,
            unchanged=lambda _, partition, after, to: self.unchanged(slicing.taken_by(str(partition)), after, to),
        )
        return Work(advance, read)

    def publish(self, work: Work) -> bool:
        if work.advance.standing(self.table) is not Standing.MAY_PUBLISH:
            return False
        for partition, (before, after) in work.rows.items():
            held = self.held.get(partition, frozenset())
            if before is not None:
                assert before - after <= held
                assert not (after - before) & held
                after = held - (before - after) | (after - before)  # noqa: PLW2901  # as merged
            self.held[partition] = after
        progress = progress_from(
            progress_text(work.advance.progress(self.table, made={}, lookups={})), where="a test", asset="out"
        )
        self.table = TableProgress(progress, TargetMark("target", progress.number, progress.number, 0))
        return True

    def check(self) -> None:
        """What isn't pending is right, if nothing is unknown."""
        pending = self.pending()
        for partition in self.partitions - pending.keys() if not self.unreadable else ():
            assert self.held.get(partition, frozenset()) == self.rows(at(self.head), self.slicing.taken_by(partition))

    def step(self) -> None:
        random, some = self.random, sorted(self.random.sample(KEYS, self.random.randint(1, 2)))
        match random.randrange(11):
            case 0 | 1 | 2:
                self.snapshots.append(self.snapshots[-1] | {(key, self.head + 1) for key in some})
                self.changed.append(frozenset(some))
                self.unreadable |= {self.head} if random.random() < 0.2 else set()
            case 3:
                left = frozenset(row for row in self.snapshots[-1] if row[0] != some[0])
                self.changed.append(frozenset(some[:1]) if left != self.snapshots[-1] else frozenset())
                self.snapshots.append(left)
            case 4:
                self.there ^= {some[0]}
            case 5:
                self.takers ^= {random.choice(sorted(OWN))}
                self.takers |= set() if self.takers else {"x"}
            case 6 | 7 if self.partitions:
                waiting = sorted(self.pending() if random.random() < 0.6 else self.partitions)
                self.publish(self.capture(random.sample(waiting, min(len(waiting), 2)))) if waiting else None
            case 8 if self.partitions:
                self.at_work.append(self.capture([random.choice(sorted(self.partitions))]))
            case 9 if self.at_work:
                self.publish(self.at_work.pop(random.randrange(len(self.at_work))))
            case 10 if random.random() < 0.3:
                self.oldest = random.randint(self.oldest, self.head)
            case _:
                self.unreadable.clear()

    def drain(self) -> None:
        self.unreadable.clear()
        for _ in range(3):
            if waiting := sorted(self.pending()):
                assert self.publish(self.capture(waiting))
        assert not self.pending()
        self.check()


@settings(max_examples=150, deadline=None, phases=[Phase.generate])  # shrinking finds nothing shorter in a seed
@given(st.integers(0, 2**32), st.booleans())
def test_what_is_not_pending_holds_the_upstream_as_it_is_and_no_change_is_written_twice(
    seed: int,
    shares: bool,  # noqa: FBT001  # drawn
) -> None:
    random = Random(seed)
    life = Life(random, shares=shares)
    for _ in range(40):
        life.step()
        life.check()
        if random.random() < 0.1:
            life.drain()
    life.drain()


def test_an_upstream_without_snapshots_leaves_nothing_pending_once_it_was_looked_at() -> None:
    life = Life(Random(0), shares=True)
    assert life.publish(life.capture(["x"]))
    assert life.pending() == {}


def test_rows_of_keys_without_a_partition_are_untaken_until_it_is_added_and_computed_anew() -> None:
    one = Partitions(frozenset("a"))
    progress = InputProgress(at(1), division="by key").after(
        ["a"], one, ChangedKeys(at(2), frozenset("ab")), {"a": at(1)}
    )  # type: ignore[arg-type]  # a double
    assert (progress.at, progress.behind, progress.untaken) == (at(2), {}, {"b": at(1)})
    both, nothing = Partitions(frozenset("ab")), ChangedKeys(at(2))
    assert progress.pending(both, nothing) == {"b": None}  # type: ignore[arg-type]  # a double
    assert not progress.after(["b"], both, nothing, {"b": None}).untaken  # type: ignore[arg-type]  # a double


def test_as_long_as_the_keys_of_a_file_are_unknown_the_partitions_of_runs_are_ahead() -> None:
    both, known = Partitions(frozenset("ab")), InputProgress(at(1), division="by key")
    changed = ChangedKeys(at(2), frozenset("a"), unread={"a file": "it can't be read"})
    progress = known.after(["a"], both, changed, {"a": at(1)})  # type: ignore[arg-type]  # a double
    assert (progress.at, progress.behind, progress.ahead) == (at(1), {"a": at(2)}, [at(2)])
    read = ChangedKeys(at(2), frozenset("ab"), ahead={at(2): frozenset()})  # type: ignore[dict-item]  # it isn't None
    assert progress.pending(both, read) == {"b": at(1)}  # type: ignore[arg-type]  # a double


def test_partitions_that_take_the_same_keys_are_computed_anew_if_one_of_these_is_deleted() -> None:
    progress = InputProgress(at(3), division="by key", sharing=Sharing(OWN, frozenset("ab")))
    changed = ChangedKeys(at(3), live=frozenset("ab"))
    assert progress.pending(Partitions(frozenset("ab"), OWN), changed) == {}  # type: ignore[arg-type]  # a double
    less = Partitions(frozenset("a"), OWN)
    assert progress.pending(less, changed) == {"x": None, "y": None}  # type: ignore[arg-type]  # a double


def test_a_partition_at_the_watermark_of_all_is_not_behind() -> None:
    progress = InputProgress(at(2), behind={"a": at(1), "b": None}).joined({"a": at(2), "c": at(3)})
    assert progress.behind == {"b": None, "c": at(3)}


def table(number: int, **inputs: InputProgress) -> TableProgress:
    return TableProgress(Progress(number, inputs), TargetMark("target", number, number, 0))


def unpartitioned(*, start: int = 1, end: int = 2, mode: Mode = Mode.INCREMENTAL) -> Advance:
    new = InputAdvance(UPSTREAM, at(end), {None: at(start)}, InputProgress(at(end)))
    return Advance(table(1, plays=InputProgress(at(start))), (new,), mode=mode)


@pytest.mark.parametrize(
    ("now", "standing"),
    [
        (table(1, plays=InputProgress(at(1))), Standing.MAY_PUBLISH),
        (table(2, plays=InputProgress(at(1))), Standing.MAY_PUBLISH),
        (table(2, plays=InputProgress(at(2))), Standing.DONE),
        (table(2, plays=InputProgress(at(3))), Standing.PARTLY_DONE),
        (table(2, plays=InputProgress(at(1), files=FileSet(at(2), 1, 2))), Standing.PARTLY_DONE),  # type: ignore[arg-type]  # it isn't None
        (table(2), Standing.PARTLY_DONE),
        (None, Standing.PARTLY_DONE),
    ],
    ids=["as captured", "published by a run of no change", "same", "more", "a part of it", "nothing known", "replaced"],
)
def test_a_change_is_published_only_on_what_it_begins_at(now: TableProgress | None, standing: Standing) -> None:
    assert unpartitioned().standing(now) is standing
    assert unpartitioned(mode=Mode.FULL).standing(now) is Standing.MAY_PUBLISH


def test_a_run_that_fulfils_no_request_does_not_undo_what_one_has_done_since() -> None:
    now = table(2, plays=InputProgress(at(1)))
    now = replace(now, progress=replace(now.progress, obeyed=7))
    assert unpartitioned().standing(now) is Standing.PARTLY_DONE
    assert unpartitioned(mode=Mode.FULL).progress(now, made={}, lookups={}).obeyed == 7


watermarks = st.builds(
    Watermark,
    st.uuids().map(str),
    st.sampled_from(["main", "audit"]),
    st.integers(1, 2**63 - 1),
    st.integers(0, 10**6),
    st.integers(0, 2**42),
    st.none() | st.just("3-1f"),
)
some_keys = st.dictionaries(st.text(max_size=8), st.none() | watermarks, max_size=5)
names = st.frozensets(st.text(max_size=5), max_size=4)
inputs = st.builds(
    InputProgress,
    st.none() | watermarks,
    some_keys,
    some_keys,
    st.none() | st.builds(FileSet, watermarks, st.integers(0, 9), st.integers(10, 99)),
    st.none() | st.text(min_size=1, max_size=20),
    st.none() | st.builds(Sharing, names, names),
    st.booleans(),
)
makings = st.builds(
    Making, st.lists(st.text(max_size=5), max_size=3).map(tuple), st.none() | st.text(max_size=4), st.none()
)
marks = st.builds(TargetMark, st.uuids().map(str), st.integers(1, 2**63 - 1), st.integers(0), st.integers(0))
progresses = st.builds(
    Progress,
    st.integers(0, 10**6),
    st.dictionaries(st.text(max_size=8), inputs, max_size=3),
    made=st.dictionaries(st.none() | st.text(max_size=5), makings, max_size=4),
    code=st.none() | st.text(min_size=1, max_size=9),
    lookups=st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=9), max_size=3),
    obeyed=st.integers(0, 2**42),
    known_to=st.none() | marks,
)


@settings(max_examples=200, deadline=None)
@given(progresses)
def test_a_progress_is_the_same_after_it_was_text(progress: Progress) -> None:
    assert progress_from(progress_text(progress), where="a test", asset="out") == progress


@given(progresses, st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_a_damaged_text_is_refused_or_is_a_progress_and_a_newer_one_is_refused(progress: Progress, end: int) -> None:
    text = progress_text(progress)
    try:
        assert isinstance(progress_from(text[: end % len(text)], where="a test", asset="out"), Progress)
    except StateUnreadableError as error:
        assert "a test" in str(error)  # noqa: PT017  # either outcome is right
    newer = text.replace('"version":', '"version":9', 1)
    with pytest.raises(StateVersionError, match="a test"):
        progress_from(newer, where="a test", asset="out")


@pytest.mark.parametrize("is_sparse", [False, True], ids=["of all", "of every third"])
def test_thousands_of_partitions_that_are_behind_take_few_bytes_each(*, is_sparse: bool) -> None:
    step = 3 if is_sparse else 1
    keys = [
        f"customer-{number:06}|2026-{number % 12 + 1:02}-{number % 28 + 1:02}" for number in range(0, 8000 * step, step)
    ]
    progress = Progress(5, {UPSTREAM: InputProgress(at(9), dict.fromkeys(keys, at(7)), division="by key")})
    text = progress_text(progress)
    assert progress_from(text, where="a test", asset="out") == progress
    assert len(text) < 60 * len(keys)


class Target:
    """``media.out``, published by PyIceberg."""

    def __init__(self, folder: Path) -> None:
        self.lake, self.number = LakeCatalog.embedded("lake", folder), 0
        self.lake.create_namespace("media")
        self.lake.client.create_table("media.out", Schema(NestedField(1, "n", IntegerType())))

    @property
    def table(self) -> Table:
        return self.lake.client.load_table("media.out")

    def publish(self) -> int:
        """A publication with its number; returns its snapshot."""
        self.number += 1
        snapshot = self.commit(owner_properties("out", None) | {PROGRESS: progress_text(Progress(self.number))})
        commit_refs(self.lake, "media.out", pinning(PIN, at=snapshot), asset="out")
        return snapshot

    def commit(self, properties: Mapping[str, str] | None = None) -> int:
        table = self.table
        row = pa.table({"n": pa.array([1], pa.int32())})
        table.append(row, snapshot_properties=dict(properties or {}))
        return int(table.refresh().current_snapshot().snapshot_id)

    def expire(self, *snapshots: int) -> None:
        self.table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()

    def roll_back(self, snapshot: int) -> None:
        self.table.manage_snapshots().rollback_to_snapshot(snapshot).commit()

    @property
    def known(self) -> int | None:
        """The number of the publication that the table contains."""
        found = table_progress(self.lake.find("media.out"), asset="out", storage=self.lake.storage)
        assert found is None or (found.asset, found.snapshot and found.snapshot.snapshot_id) == (
            "out",
            found.mark.snapshot_id,
        )
        return found.progress.number if found else None


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def test_a_table_without_a_publication_contains_nothing_known(target: Target) -> None:
    assert table_progress(None, asset="out", storage=target.lake.storage) is None
    assert target.known is None
    target.commit()
    assert target.known is None


def test_the_newest_publication_in_the_history_counts_whoever_wrote_after_it(target: Target) -> None:
    first = target.publish()
    target.publish()
    target.commit()
    assert target.known == 2
    metadata = target.lake.load("media.out", asset="test")
    before = progress_before(metadata, first)
    assert before
    assert before.progress.number == 1


def test_a_table_that_was_rolled_back_contains_what_it_contained_then(target: Target) -> None:
    first = target.publish()
    target.publish()
    target.roll_back(first)
    assert target.known == 1


def test_a_table_that_was_taken_back_to_before_all_publications_is_refused(target: Target) -> None:
    before = target.commit()
    target.publish()
    target.roll_back(before)
    with pytest.raises(TargetChangedError, match="dagster_ips/mode=full"):
        _ = target.known


def test_the_tag_keeps_the_last_publication_if_the_history_has_lost_it(target: Target) -> None:
    target.publish()
    target.publish()
    later = [target.commit() for _ in range(3)]
    target.expire(*later[:2])
    assert target.known == 2
    shown = newest_progress(target.lake.load("media.out", asset="test"))
    assert shown
    assert shown.progress.number == 2


def test_a_table_whose_last_publication_has_expired_without_a_tag_is_refused(target: Target) -> None:
    published = target.publish()
    with target.table.transaction() as change:
        change.set_properties({ASSET: "out"})
    commit_refs(target.lake, "media.out", dropping([PIN]), asset="out")
    target.commit()
    assert target.known == 1
    target.expire(published)
    with pytest.raises(UnknownPublicationError, match="ips_progress"):
        _ = target.known


def reported(target: Target) -> Cursor:
    """What Dagster's storage has once a job has reported that it has written the table as it is now."""
    return Cursor(Copy(Progress(9), mark_of(target.lake.load("media.out", asset="test")), is_reported=True))


def number_known(target: Target, cursor: Cursor) -> int | None:
    found = target.lake.load("media.out", asset="test")
    known = known_progress(table_progress(found, asset="out", storage=target.lake.storage), cursor, found)
    return known.progress.number if known else None


@pytest.mark.parametrize("is_published", [True, False], ids=["after a publication", "never published"])
def test_what_a_job_reported_does_not_count_once_its_table_is_rolled_back(
    target: Target, *, is_published: bool
) -> None:
    before = target.publish() if is_published else target.commit()
    written = target.commit()
    cursor = reported(target)
    target.commit()
    assert number_known(target, cursor) == 9
    target.roll_back(before)
    assert number_known(target, cursor) == (1 if is_published else None)
    target.commit()
    target.expire(written)
    assert number_known(target, cursor) == (1 if is_published else None)


def test_what_a_job_reported_counts_although_its_snapshot_has_expired(target: Target) -> None:
    first, written = target.commit(), target.commit()
    cursor = reported(target)
    target.commit()
    target.expire(first, written)
    assert number_known(target, cursor) == 9


def test_what_a_job_reported_of_an_empty_table_counts(target: Target) -> None:
    cursor = reported(target)
    target.commit()
    assert number_known(target, cursor) == 9
