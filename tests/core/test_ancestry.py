"""An interval is determined from parent ids, or not at all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_ips.core.ancestry import Ancestry, Snapshot

Tree = dict[int, Snapshot]


def snapshot(number: int, parent: int | None, operation: str = "append") -> Snapshot:
    return Snapshot(number, parent, number, number * 10, operation, f"snap-{number}.avro")


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Snapshots 1..n, each with an earlier parent or none; some are expired."""
    size = draw(st.integers(1, 9))
    tree = {n: snapshot(n, draw(st.sampled_from([*range(max(1, n - 3), n), None]))) for n in range(1, size + 1)}
    expired = draw(st.sets(st.integers(1, size), max_size=2))
    return {number: found for number, found in tree.items() if number not in expired}


def generations(tree: Tree, start: int) -> list[int]:
    """``start`` and its retained ancestors, newest first, by recursion over parents."""
    if start not in tree:
        return []
    parent = tree[start].parent_id
    return [start, *(generations(tree, parent) if parent is not None else [])]


@settings(max_examples=200, deadline=None)
@given(trees(), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_between_returns_the_commits_after_start_up_to_end_or_none_if_one_is_not_an_ancestor(
    tree: Tree, head: int, start: int, end: int
) -> None:
    ancestry = Ancestry.of(tree, head)
    found = ancestry.between(from_snapshot_id_exclusive=start, to_snapshot_id_inclusive=end)
    known = generations(tree, head)
    if end in known and start in generations(tree, end):
        assert found is not None
        assert [s.snapshot_id for s in found] == sorted(set(generations(tree, end)) - set(generations(tree, start)))
    else:
        assert found is None


@settings(deadline=None)
@given(trees(), st.integers(1, 9))
def test_adjacent_intervals_have_no_gap_and_no_overlap(tree: Tree, head: int) -> None:
    ancestry = Ancestry.of(tree, head)
    ids = [s.snapshot_id for s in reversed(ancestry.snapshots)]
    steps = [ancestry.between(from_snapshot_id_exclusive=a, to_snapshot_id_inclusive=b) for a, b in pairwise(ids)]
    assert [[s.snapshot_id for s in step or ()] for step in steps] == [[number] for number in ids[1:]]


@settings(deadline=None)
@given(trees(), st.integers(1, 9))
def test_the_snapshots_of_an_ancestry_follow_parent_ids_however_they_are_accessed(tree: Tree, head: int) -> None:
    expected = [tree[number] for number in generations(tree, head)]
    found = Ancestry.of(tree, head).snapshots
    assert list(found) == expected
    assert (bool(found), len(found), found == tuple(expected)) == (bool(expected), len(expected), True)
    assert [found[at] for at in range(-len(expected), len(expected))] == expected * 2
    assert list(found[1::2]) == expected[1::2]
    with pytest.raises(IndexError):
        found[len(expected)]


@settings(deadline=None)
@given(trees(), st.integers(1, 9))
def test_an_interval_without_a_start_contains_every_retained_ancestor(tree: Tree, head: int) -> None:
    ancestry = Ancestry.of(tree, head)
    found = ancestry.between(from_snapshot_id_exclusive=None, to_snapshot_id_inclusive=head)
    assert found == (tuple(reversed(ancestry.snapshots)) or None)


def test_the_interval_from_a_snapshot_to_itself_is_empty() -> None:
    ancestry = Ancestry.of({1: snapshot(1, None)}, 1)
    assert ancestry.between(from_snapshot_id_exclusive=1, to_snapshot_id_inclusive=1) == ()


def test_an_interval_that_runs_backwards_is_none() -> None:
    ancestry = Ancestry.of({1: snapshot(1, None), 2: snapshot(2, 1)}, 2)
    assert ancestry.between(from_snapshot_id_exclusive=2, to_snapshot_id_inclusive=1) is None


def test_a_table_without_snapshots_has_no_head_and_no_intervals() -> None:
    ancestry = Ancestry.of({}, None)
    assert ancestry.head is None
    assert ancestry.between(from_snapshot_id_exclusive=None, to_snapshot_id_inclusive=1) is None


def test_a_compaction_of_everything_is_not_the_beginning_of_a_history() -> None:
    everything = {"total-data-files": "1", "added-data-files": "1"}
    written, compacted = (Snapshot(7, None, 7, 70, kind, "", everything) for kind in ("append", "replace"))
    assert Ancestry((written,)).is_whole
    assert not Ancestry((compacted,)).is_whole


def test_the_newest_change_is_never_a_commit_that_only_moved_rows_or_wrote_none() -> None:
    counts = {"total-data-files": "3"}
    append = Snapshot(1, None, 1, 10, "append", "m1", counts | {"added-data-files": "3"})
    compaction = Snapshot(2, 1, 2, 20, "replace", "m2", counts | {"added-data-files": "1", "deleted-data-files": "3"})
    nothing = Snapshot(3, 2, 3, 30, "overwrite", "m3", counts)
    silent = Snapshot(4, 3, 4, 40, "overwrite", "m4")  # it may have done anything
    by_id = {snapshot.snapshot_id: snapshot for snapshot in (append, compaction, nothing, silent)}
    assert [Ancestry.of(by_id, head).newest_change for head in (1, 2, 3, 4)] == [append, append, append, silent]
    assert Ancestry.of({2: compaction, 3: nothing}, 3).newest_change is None
