"""The writer of a table's rows is known from its own history, even after compaction, expiry, or without stamps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.ownership import (
    ACCEPTED,
    ASSET,
    ATTEMPT,
    ForeignWrites,
    Published,
    RowCount,
    hidden_change,
    owner_of,
)

COUNTS = {"total-data-files": "9"}
OURS = {ATTEMPT: "ips_1", ASSET: "daily", "added-data-files": "1"}
ANOTHERS = {ATTEMPT: "ips_2", ASSET: "other", "added-data-files": "1"}
NOBODYS = {"added-data-files": "1"}


def history(*commits: dict[str, str] | str) -> Ancestry:
    """A history, oldest first, numbered from 1. A string is the operation of a commit without a stamp."""
    snapshots = [
        Snapshot(number, number - 1, number, number, commit, "", COUNTS | NOBODYS)
        if isinstance(commit, str)
        else Snapshot(number, number - 1, number, number, "append", "", COUNTS | commit)
        for number, commit in enumerate(commits, 1)
    ]
    return Ancestry(tuple(reversed(snapshots)))


def ids(found: Any) -> list[int]:  # noqa: ANN401  # snapshots
    return [snapshot.snapshot_id for snapshot in found]


def test_foreign_appends_overwrites_and_deletes_are_found_but_not_compactions_and_empty_commits() -> None:
    commits = history(OURS, "append", "overwrite", "delete", "unknown", "replace", {})
    assert ids(ForeignWrites.of(commits, "daily").after([1])) == [5, 4, 3, 2]


def test_what_came_before_a_table_was_taken_over_is_not_foreign() -> None:
    commits = history("append", ANOTHERS, "append", ANOTHERS, "delete", OURS, "append", OURS)
    writes = ForeignWrites.of(commits, "daily")
    assert ids(writes.after([])) == [7], "the run that took over replaced every row"
    assert ids(ForeignWrites.of(history(OURS, ANOTHERS), "daily").after([])) == [2], "another asset wrote since"
    again = ForeignWrites.of(history(ANOTHERS, OURS, "append", ANOTHERS, OURS), "daily")
    assert ids(again.after([])) == []


def test_only_foreign_writes_newer_than_the_known_snapshots_are_found() -> None:
    commits = history("append", OURS, "append", OURS, "delete")
    writes = ForeignWrites.of(commits, "daily")
    assert ids(writes.after([2])) == [5, 3]
    assert ids(writes.after([2, 4])) == [5]
    assert ids(writes.after([5])) == []
    assert ids(writes.after([99])) == [5, 3, 1], "all that is retained is newer than what was expired"


def test_writes_of_another_asset_of_this_library_count_as_foreign() -> None:
    writes = ForeignWrites.of(history(OURS, ANOTHERS, {ATTEMPT: "a block's statement"} | NOBODYS), "daily")
    assert ids(writes.after([1])) == [2]


@pytest.mark.parametrize("by_stamp", [False, True])
def test_accepted_writes_stay_accepted_and_later_ones_are_not(*, by_stamp: bool) -> None:
    accepting = OURS | {ACCEPTED: "3"} if by_stamp else OURS
    commits = history(OURS, "append", "delete", accepting, "append")
    writes = ForeignWrites.of(commits, "daily", accept=None if by_stamp else 3)
    assert ids(writes.after([1])) == [5]


def test_accepting_a_missing_snapshot_accepts_nothing() -> None:
    assert ids(ForeignWrites.of(history(OURS, "append"), "daily", accept=77).after([1])) == [2]


@given(st.lists(st.sampled_from(["own", "foreign", "compaction"]), max_size=8), st.data())
def test_every_retained_foreign_write_is_found_whatever_is_expired(kinds: list[str], data: st.DataObject) -> None:
    made = {"own": OURS, "foreign": "append", "compaction": "replace"}
    commits = history(OURS, *(made[kind] for kind in kinds))
    kept = data.draw(st.integers(1, len(commits.snapshots)))
    retained = Ancestry(commits.snapshots[:kept])
    newest_own = max(number for number, kind in enumerate(["own", *kinds], 1) if kind == "own")
    expected = [s.snapshot_id for s in retained.snapshots if s.snapshot_id > newest_own and s.operation != "replace"]
    assert ids(ForeignWrites.of(retained, "daily").after([newest_own])) == expected


def test_a_table_belongs_to_its_last_writer_or_else_to_the_asset_in_its_property() -> None:
    assert owner_of(history(OURS, ANOTHERS, "append"), {ASSET: "daily"}) == "other"
    assert owner_of(history("replace"), {ASSET: "daily"}) == "daily"
    assert owner_of(history("append"), {}) is None


@pytest.mark.parametrize(("records", "by"), [(13, None), (19, None), (20, 1), (12, -1)])
def test_deletes_left_behind_by_a_compaction_do_not_count_as_removed_rows(records: int, by: int | None) -> None:
    """Such deletes may hide rows or nothing: only a row count that fits neither case is someone's change."""
    counts = {"total-records": str(records), "total-position-deletes": "6", "total-equality-deletes": "0"}
    compaction = Snapshot(9, 8, 9, 90, "replace", "", counts)
    last = Published(5, RowCount(13, 13))
    assert hidden_change(Ancestry.of({9: compaction}, 9), last) == by


@pytest.mark.parametrize(
    ("commit", "by"),
    [
        (Snapshot(9, None, 9, 90, "replace", "", {"total-data-files": "1", "total-records": "16"}), 3),
        (Snapshot(9, None, 9, 90, "append", "", {"total-data-files": "1", "added-data-files": "1"}), None),
    ],
    ids=["a compaction", "a new beginning"],
)
def test_a_change_is_seen_even_if_expiry_has_removed_the_parent_id_of_what_follows_it(
    commit: Snapshot, by: int | None
) -> None:
    counts = {"total-records": "2", "total-position-deletes": "0", "total-equality-deletes": "0"}
    oldest = replace(commit, summary=counts | commit.summary)
    assert hidden_change(Ancestry.of({9: oldest}, 9), Published(5, RowCount(13, 13))) == by
