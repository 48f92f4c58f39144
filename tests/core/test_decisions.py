"""Mode, pending and retry: small decisions that cost rows or money if they are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.backlog import is_pending
from dagster_ips.core.capture import EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.file_set import FileSet
from dagster_ips.core.mode_decision import decide_mode
from dagster_ips.core.retry import MOST_FAILURES, RetryState
from dagster_ips.core.watermark import Watermark

EDGE = Edge("daily", "playback")
TABLE = "the-table"
NO_FILES = {"total-data-files": "7"}
A_FILE = {"added-data-files": "1", "total-data-files": "8"}

keys = st.text(max_size=60)


def history(*commits: tuple[str, dict[str, str]]) -> Ancestry:
    """Snapshots 1, 2, …, each the parent of the next; the last one is the head."""
    snapshots = {
        n: Snapshot(n, n - 1 or None, n, n * 10, operation, "", summary)
        for n, (operation, summary) in enumerate(commits, start=1)
    }
    return Ancestry.of(snapshots, len(commits) or None)


def consumed(number: int, table: str = TABLE) -> EdgeState:
    return EdgeState(EDGE, committed=Watermark(table, "main", number, number, number * 10), number=1)


def in_bites(number: int) -> EdgeState:
    to = Watermark(TABLE, "main", number, number, number * 10)
    return replace(consumed(number), committed=None, file_set=FileSet(to, 1, 3))


@pytest.mark.parametrize(
    ("state", "commits", "pending"),
    [
        (EdgeState(EDGE), [], False),
        (EdgeState(EDGE), [("append", NO_FILES)], True),
        (consumed(1), [("append", A_FILE)], False),
        (consumed(1), [("append", A_FILE), ("append", A_FILE)], True),
        (consumed(1), [("append", A_FILE), ("append", NO_FILES)], False),
        (consumed(1), [("append", A_FILE), ("append", NO_FILES), ("append", A_FILE)], True),
        (consumed(1), [("append", A_FILE), ("append", {})], True),
        (consumed(1), [("append", A_FILE), ("delete", NO_FILES)], True),
        (consumed(1), [("append", A_FILE), ("unknown", {})], True),
        (consumed(1, "another-table"), [("append", A_FILE)], True),
        (consumed(9), [("append", A_FILE)], True),
        (in_bites(1), [("append", A_FILE)], True),
    ],
    ids=[
        "a table without snapshots holds nothing to do",
        "what was never consumed is pending",
        "what is consumed is not pending",
        "an append is pending",
        "a commit that changed no row wakes nobody",
        "an append behind an empty commit is pending",
        "a summary that does not say is taken for a change",
        "a delete is pending",
        "an unknown operation is pending",
        "a re-created table is pending, so that a run says so",
        "a rolled back or expired watermark is pending, so that a run says so",
        "a change of which some files are left is pending, though nothing follows it",
    ],
)
def test_pending_means_that_a_capture_would_find_something_or_fail(
    state: EdgeState, commits: list[tuple[str, dict[str, str]]], *, pending: bool
) -> None:
    assert is_pending(state, table_uuid=TABLE, ancestry=history(*commits)) is pending


@given(
    was_consumed=st.lists(st.booleans(), min_size=1),
    target_exists=st.booleans(),
    asked_for=st.sampled_from([None, *Mode]),
)
def test_a_run_is_incremental_only_if_every_input_was_consumed_and_the_target_exists(
    *, was_consumed: list[bool], target_exists: bool, asked_for: Mode | None
) -> None:
    states = [consumed(1) if seen else EdgeState(EDGE) for seen in was_consumed]
    decided = decide_mode(states, asked_for=asked_for, target_exists=target_exists)
    expected = Mode.INCREMENTAL if all(was_consumed) and target_exists else Mode.FULL
    assert decided.mode is (Mode.FULL if asked_for is Mode.FULL else expected)
    assert decided.reason


def test_a_first_read_in_bites_continues_and_does_not_start_over() -> None:
    assert decide_mode([in_bites(1)], asked_for=None, target_exists=True).mode is Mode.INCREMENTAL
    assert decide_mode([in_bites(1)], asked_for=Mode.FULL, target_exists=True).mode is Mode.FULL
    assert decide_mode([in_bites(1)], asked_for=None, target_exists=False).mode is Mode.FULL


def test_the_reason_of_a_full_run_names_the_new_input() -> None:
    new = EdgeState(replace(EDGE, upstream="plans"))
    reason = decide_mode([consumed(1), new], asked_for=None, target_exists=True).reason
    assert "plans" in reason
    assert "playback" not in reason


def test_without_a_failure_nothing_is_blocked() -> None:
    assert not RetryState().is_blocked(seconds_since_failure=0)


@given(st.integers(1, MOST_FAILURES - 1), st.floats(0, 10**6))
def test_each_failure_in_a_row_waits_four_times_longer(failures: int, seconds: float) -> None:
    state = RetryState()
    for run in range(failures):
        state = state.after_failure("same", f"run {run}")
    assert state.is_blocked(seconds_since_failure=seconds) == (seconds < (30, 120, 480, 1920)[failures - 1])


@given(st.integers(MOST_FAILURES, MOST_FAILURES + 3), st.floats(0, 10**12))
def test_after_the_fifth_failure_only_new_data_or_code_tries_again(failures: int, seconds: float) -> None:
    state = RetryState("same", failures, "run")
    assert state.is_blocked(seconds_since_failure=seconds)
    assert state.after_failure("other", "next run") == RetryState("other", 1, "next run")


def test_a_failed_run_is_counted_once_however_often_it_is_seen() -> None:
    once = RetryState().after_failure("same", "run 1")
    assert once.after_failure("same", "run 1") == once
    assert once.after_failure("same", "run 2").failures == 2


@given(keys, keys, keys, keys)
def test_different_edges_never_share_an_id(one: str, two: str, three: str, four: str) -> None:
    left, right = Edge(one, two), Edge(three, four)
    assert (left.id == right.id) == (left == right)


@given(keys, keys)
def test_a_slug_is_fit_for_a_table_name(consumer: str, upstream: str) -> None:
    slug = Edge(consumer, upstream).slug
    assert len(slug) <= 82
    assert not set(slug) - set("abcdefghijklmnopqrstuvwxyz0123456789_")
