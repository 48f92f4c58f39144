"""A backlog is cut between snapshots, oldest first, and at least one snapshot is always taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.limits import Limits, snapshots_within

amounts = st.none() | st.tuples(st.integers(0, 5), st.integers(0, 50))
limits = st.builds(Limits, st.none() | st.integers(1, 60), st.none() | st.integers(1, 6))


def snapshot(number: int, added: tuple[int, int] | None, operation: str = "append") -> Snapshot:
    summary = {}
    if added:
        summary = {"total-data-files": "9", "added-data-files": str(added[0]), "added-files-size": str(added[1])}
    return Snapshot(number, number - 1 or None, number, number, operation, "", summary)


@given(st.lists(amounts), limits)
def test_as_many_snapshots_are_taken_as_the_limits_allow_and_at_least_one(
    added: list[tuple[int, int] | None], most: Limits
) -> None:
    count = snapshots_within([snapshot(n, each) for n, each in enumerate(added, start=1)], most)

    def fits(part: list[tuple[int, int] | None]) -> bool:
        known = [each for each in part if each]
        return len(known) == len(part) and most.allow(sum(f for f, _ in known), sum(s for _, s in known))

    if not most.is_set:
        assert count == len(added)
        return
    assert count >= min(1, len(added))
    assert count <= 1 or fits(added[:count])
    assert count == len(added) or not fits(added[: count + 1])


def test_a_compaction_adds_no_row_and_never_counts_towards_the_limits() -> None:
    backlog = [snapshot(1, (1, 10)), snapshot(2, (100, 10_000), "replace"), snapshot(3, (1, 10)), snapshot(4, (1, 10))]
    assert snapshots_within(backlog, Limits(max_files=2)) == 3


def test_a_snapshot_with_a_file_count_but_no_size_counts_as_unknown() -> None:
    unsaid = Snapshot(1, None, 1, 1, "append", "", {"total-data-files": "9", "added-data-files": "1"})
    assert snapshots_within([unsaid, snapshot(2, (1, 1))], Limits(max_bytes=1000)) == 1
