"""Two concurrent runs of one edge: in whatever order they act, no row is written twice and none is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from dagster_ips.core.capture import Mode
from dagster_ips.errors import BranchNotKeptError, CaptureVoidError, PublishError
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish import publisher as publishing
from dagster_ips.exactly_once.publish.publisher import Publication, Publisher
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import Cursors
from dagster_ips.progress.table_progress import PIN
from dagster_ips.run_view import RunView
from dagster_ips.spark.branches import Branch
from tests.support.backends import on_every_backend
from tests.support.lake import Lake, events
from tests.support.memory_store import MemoryCursors

RACES = 50


class Runs:
    """Runs of a consumer that appends the new rows of ``media.playback`` to ``media.out``."""

    def __init__(self, lake: Lake, store: Cursors) -> None:
        self.lake, self.store = lake, store
        lake.sql("CREATE TABLE lake.media.out AS SELECT * FROM lake.media.playback WHERE FALSE")

    def capture(self, run_id: str, *, asked_for: Mode | None = None) -> CapturedInput:
        capturer = Capturer(self.lake.catalog, self.store)
        tracked = [TrackedInput("playback", "media.playback")]
        (captured,) = capturer.capture(
            CaptureRequest("out", tracked, target="media.out", asked_for=asked_for), run_id=run_id
        )
        return captured

    def publish(self, captured: CapturedInput, session: SparkSession | None = None) -> Publication:
        session = session or self.lake.session
        frame = RunView(captured, session, "lake").added
        return self.publisher(captured, session).publish(
            "media.out", [captured.capture], lambda branch, _: frame.writeTo(branch.sql_name).append(), consumer="out"
        )

    def publisher(self, captured: CapturedInput, session: SparkSession | None = None) -> Publisher:
        run_id, session = captured.capture.run_id, session or self.lake.session
        return Publisher(self.lake.catalog, self.store, session, run_id, advance=captured.advance)

    def publish_while_others_commit(self, captured: CapturedInput, *, times: int) -> Publication:
        """Publish; each of so many ``times`` that the rows are written, a commit without rows comes in between."""

        def commit(_: Branch) -> None:
            table = self.lake.catalog.client.load_table("media.out")
            table.append(table.schema().as_arrow().empty_table())

        return self.publish_while(captured, *[commit] * times)

    def publish_while(self, captured: CapturedInput, *happen: Callable[[Branch], object]) -> Publication:
        """Publish; after the rows were written, one of these happens each time."""
        frame, left = RunView(captured, self.lake.session, "lake").added, list(happen)

        def write(branch: Branch, _: object) -> None:
            frame.writeTo(branch.sql_name).append()
            if left:
                left.pop()(branch)

        return self.publisher(captured).publish("media.out", [captured.capture], write, consumer="out")

    def end_without_writing(self, captured: CapturedInput) -> None:
        self.publisher(captured).commit_without_writing([captured.capture], "out")


@pytest.fixture
def runs(lake: Lake) -> Runs:
    lake.create_playback(events(range(3)))
    runs = Runs(lake, MemoryCursors())
    runs.publish(runs.capture("run-0000"))
    return runs


@pytest.mark.parametrize("idle_first", [True, False])
def test_a_run_with_nothing_to_write_does_not_hide_the_publication_of_a_run_of_the_same_number(
    lake: Lake, runs: Runs, *, idle_first: bool
) -> None:
    idle = runs.capture("run-aaaa")
    lake.append(events([10]))
    busy = runs.capture("run-bbbb")
    assert idle.capture.number == busy.capture.number
    for end in (lambda: runs.end_without_writing(idle), lambda: runs.publish(busy))[:: 1 if idle_first else -1]:
        end()
    lake.append(events([11]))
    runs.publish(runs.capture("run-cccc"))
    assert lake.rows("media.out") == Counter(events([0, 1, 2, 10, 11]))


def test_a_full_run_that_was_overtaken_by_a_change_replaces_it_and_the_next_run_reads_it_again(
    lake: Lake, runs: Runs
) -> None:
    full = runs.capture("run-aaaa", asked_for=Mode.FULL)
    lake.append(events([10]))
    runs.publish(runs.capture("run-bbbb"))
    frame = RunView(full, lake.session, "lake").added
    runs.publisher(full).publish(
        "media.out",
        [full.capture],
        lambda branch, _: frame.writeTo(branch.sql_name).overwrite(lit("all") == lit("all")),
        consumer="out",
    )
    assert lake.rows("media.out") == Counter(events([0, 1, 2]))
    runs.publish(runs.capture("run-cccc"))
    assert lake.rows("media.out") == Counter(events([0, 1, 2, 10]))


@pytest.mark.parametrize("writes", [True, False])
def test_a_capture_from_before_a_reset_can_no_longer_be_published(lake: Lake, runs: Runs, *, writes: bool) -> None:
    lake.append(events([10]))
    late = runs.capture("run-aaaa")
    Administrator(lake.catalog, runs.store, "media.out").reset(late.capture.edge, who="me", why="wrong rows")
    before = runs.store.get("out")
    with pytest.raises(CaptureVoidError, match=r"me did a reset since \(wrong rows\)"):
        (runs.publish if writes else runs.end_without_writing)(late)
    assert runs.store.get("out") == before
    assert lake.rows("media.out") == Counter(events([0, 1, 2]))


@pytest.mark.slow
@on_every_backend
def test_one_of_two_concurrent_publishers_wins_each_time_and_nothing_is_lost(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(3)))
    runs = Runs(lake, CursorStore(instance))
    runs.publish(runs.capture("run-0000"))
    sessions, barrier = (lake.session, lake.another_session()), Barrier(2)

    def race(captured: CapturedInput, session: SparkSession) -> Publication | PublishError:
        barrier.wait()
        try:
            return runs.publish(captured, session)
        except PublishError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        for number in range(1, RACES + 1):
            # Not the same rows: the later capture has more rows, and either run can win.
            lake.append(events([10 * number]))
            first = runs.capture(f"run-a{number:03}")
            lake.append(events([10 * number + 1]))
            second = runs.capture(f"run-b{number:03}")
            assert first.capture.number == second.capture.number
            ends = list(threads.map(race, (first, second), sessions))
            (winner,) = (end for end in ends if isinstance(end, Publication))
            (other,) = (end for end in ends if isinstance(end, PublishError))
            assert "another run has meanwhile published another change" in str(other)
            target = lake.catalog.load("media.out", asset="test")
            assert target.head_snapshot_id() == target.head_snapshot_id(PIN) == winner.snapshots[-1].snapshot_id
    runs.publish(runs.capture("run-last"))
    assert lake.rows("media.out") == lake.rows("media.playback")
    assert lake.branches("media.out") == {"main"}


def test_a_run_writes_again_until_nothing_comes_in_between(runs: Runs) -> None:
    """Dagster starts ten runs at once by default, and each of them may have to wait for all others."""
    runs.lake.append(events([3]))
    runs.publish_while_others_commit(runs.capture("a"), times=9)
    assert runs.lake.rows("media.out") == runs.lake.rows("media.playback")
    target = runs.lake.catalog.load("media.out", asset="test")
    assert target.head_snapshot_id() == target.head_snapshot_id(PIN)


def test_a_run_whose_change_another_run_publishes_while_it_writes_publishes_nothing(lake: Lake, runs: Runs) -> None:
    lake.append(events([10]))
    late, other = runs.capture("a"), runs.capture("b")
    ended = runs.publish_while(late, lambda _: runs.publish(other))
    assert ended.superseded_by is not None
    assert not ended.snapshots
    assert lake.rows("media.out") == lake.rows("media.playback")
    assert lake.branches("media.out") == {"main"}


def test_a_run_of_whose_change_another_run_publishes_a_part_while_it_writes_publishes_nothing(
    lake: Lake, runs: Runs
) -> None:
    lake.append(events([10]))
    other = runs.capture("b")
    lake.append(events([11]))
    before = lake.rows("media.out")
    with pytest.raises(PublishError, match="another run has meanwhile published another change"):
        runs.publish_while(runs.capture("a"), lambda _: runs.publish(other))
    assert lake.rows("media.out") == before + Counter(events([10]))
    runs.publish(runs.capture("c"))
    assert lake.rows("media.out") == lake.rows("media.playback")


def test_a_reset_while_a_run_writes_voids_it(lake: Lake, runs: Runs) -> None:
    lake.append(events([10]))
    captured = runs.capture("a")
    administrator = Administrator(lake.catalog, runs.store, "media.out")
    with pytest.raises(CaptureVoidError, match="me did a reset since"):
        runs.publish_while(captured, lambda _: reset(administrator, captured))
    assert lake.rows("media.out") == Counter(events([0, 1, 2]))
    assert lake.branches("media.out") == {"main"}
    assert runs.capture("b").capture.mode is Mode.FULL


def reset(administrator: Administrator, captured: CapturedInput) -> None:
    administrator.reset(captured.capture.edge, who="me", why="wrong rows")


def test_a_run_that_is_overtaken_each_time_says_so(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_MOST_ATTEMPTS", 2)
    before = runs.lake.rows("media.out")
    runs.lake.append(events([3]))
    with pytest.raises(PublishError, match=r"each of 2 times .* let fewer of them run at once"):
        runs.publish_while_others_commit(runs.capture("a"), times=2)
    assert runs.lake.rows("media.out") == before
    runs.publish(runs.capture("b"))
    assert runs.lake.rows("media.out") == runs.lake.rows("media.playback")


def test_a_published_change_that_is_rolled_back_while_a_run_writes_stays_rolled_back(lake: Lake, runs: Runs) -> None:
    """The head of main is still an ancestor of the run's branch, so a fast-forward would be possible."""
    lake.append(events([10]))
    runs.publish(runs.capture("a"))
    lake.append(events([11]))
    with pytest.raises(PublishError, match="another run has meanwhile published another change"):
        runs.publish_while(runs.capture("b"), lambda _: roll_back_one(lake))
    assert lake.rows("media.out") == Counter(events([0, 1, 2]))
    assert lake.branches("media.out") == {"main"}


def test_a_compaction_that_is_rolled_back_while_a_run_writes_stays_rolled_back(lake: Lake, runs: Runs) -> None:
    lake.append(events([10]))
    runs.publish(runs.capture("a"))
    lake.sql("CALL lake.system.rewrite_data_files('media.out', options => map('rewrite-all', 'true'))")
    lake.append(events([11]))
    runs.publish_while(runs.capture("b"), lambda _: roll_back_one(lake))
    assert lake.rows("media.out") == lake.rows("media.playback")
    assert not any(each.only_moves for each in lake.catalog.load("media.out", asset="test").ancestry().snapshots)


def roll_back_one(lake: Lake) -> None:
    before = lake.catalog.load("media.out", asset="test").ancestry().snapshots[1].snapshot_id
    lake.sql(f"CALL lake.system.rollback_to_snapshot('media.out', {before})")


def test_a_run_whose_branch_is_dropped_while_it_writes_publishes_no_part_of_its_result(lake: Lake, runs: Runs) -> None:
    """A statement that is at work when the branch is dropped creates it again when it commits."""
    lake.append(events([10]))
    captured = runs.capture("a")

    def create_again(branch: Branch) -> None:
        branch.drop(lake.session)
        branch.create(lake.session, head=lake.catalog.load("media.out", asset="test").ancestry().head)
        lake.session.table("lake.media.out").limit(1).writeTo(branch.sql_name).append()

    with pytest.raises(PublishError, match="lacks a part of the result"):
        runs.publish_while(captured, create_again)
    assert lake.rows("media.out") == Counter(events([0, 1, 2]))
    runs.publish(runs.capture("b"))
    assert lake.rows("media.out") == lake.rows("media.playback")


def test_nothing_is_written_to_a_table_whose_catalog_does_not_keep_branches(
    lake: Lake, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append(events([10]))
    captured = runs.capture("run-aaaa")
    head = lake.catalog.load("media.out", asset="out").raw
    monkeypatch.setattr(Publisher, "create_branch", lambda *_, **__: None)
    with pytest.raises(BranchNotKeptError, match=r"media\.out: catalog lake doesn't keep branches"):
        runs.publish(captured)
    assert lake.catalog.load("media.out", asset="out").raw == head
    monkeypatch.undo()
    runs.publish(runs.capture("run-bbbb"))
    assert lake.rows("media.out") == Counter(events([0, 1, 2, 10]))
