"""Rollback, expiry, replacement and re-creation are distinguished; what can be followed is followed exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.interval import Break, Interval, interval_since
from dagster_ips.core.watermark import Watermark


def snapshot(number: int, parent: int | None, operation: str = "append", **summary: str) -> Snapshot:
    return Snapshot(number, parent, number, 1000 + number, operation, f"list-{number}", summary)


def chain(*numbers: int) -> dict[int, Snapshot]:
    """Snapshots that follow each other; each adds one file."""
    files = {"added-data-files": "1"}
    parents = (None, *numbers)
    return {
        n: snapshot(n, parent, **files, **{"total-data-files": str(index + 1)})
        for index, (n, parent) in enumerate(zip(numbers, parents, strict=False))
    }


def since(
    consumed: int, retained: dict[int, Snapshot], head: int | None, *, uuid: str = "u", is_proved: bool = True
) -> Interval | Break:
    mark = Watermark("u", "main", consumed, consumed, 1000 + consumed)
    ancestry = Ancestry.of(retained, head)
    return interval_since(mark, table_uuid=uuid, retained=retained, ancestry=ancestry, descends=lambda _: is_proved)


@given(length=st.integers(1, 9), data=st.data())
def test_later_commits_are_followed_oldest_first(length: int, data: st.DataObject) -> None:
    consumed = data.draw(st.integers(1, length))
    history = chain(*range(1, length + 1))
    found = since(consumed, history, length)
    assert isinstance(found, Interval)
    assert [s.snapshot_id for s in found.snapshots] == list(range(consumed + 1, length + 1))
    assert found.start == history[consumed]
    assert not found.abandoned


class OnlyThese(dict[int, Snapshot]):
    """A history that fails if any other snapshot is looked up."""

    def get(self, key: int, _: object = None) -> Snapshot:  # type: ignore[override]  # Ancestry calls it like this
        return self[key]


def test_snapshots_older_than_the_watermark_are_not_read() -> None:
    history = chain(*range(1, 10))
    found = since(7, OnlyThese({number: history[number] for number in (7, 8, 9)}), 9)
    assert found == Interval(history[7], (history[8], history[9]))


@given(data=st.data())
def test_after_a_rollback_the_interval_starts_at_the_nearest_common_ancestor(data: st.DataObject) -> None:
    common = data.draw(st.integers(1, 4))
    consumed = data.draw(st.integers(common + 1, 6))
    history = chain(*range(1, 7))
    new = data.draw(st.integers(0, 3))
    parents = [common, *range(7, 7 + new)]
    history |= {n: snapshot(n, parent) for n, parent in zip(range(7, 7 + new), parents, strict=False)}
    found = since(consumed, history, parents[-1] if new else common)
    assert isinstance(found, Interval)
    assert [s.snapshot_id for s in found.snapshots] == list(range(7, 7 + new))
    assert [s.snapshot_id for s in found.abandoned] == list(range(consumed, common, -1))
    assert not found.is_append_only


def test_a_table_with_another_uuid_counts_as_recreated() -> None:
    assert since(1, chain(1), 1, uuid="another") is Break.RECREATED


def test_a_history_that_starts_over_counts_as_replaced() -> None:
    assert since(2, chain(1, 2) | chain(3, 4), 4) is Break.REPLACED
    assert since(2, chain(3, 4), 4) is Break.REPLACED
    assert since(2, chain(1, 2), None) is Break.REPLACED


def test_an_expired_watermark_whose_child_is_retained_is_followed() -> None:
    history = chain(1, 2, 3, 4)
    del history[1], history[2]
    found = since(2, history, 4)
    assert isinstance(found, Interval)
    assert found.start is None
    assert [s.snapshot_id for s in found.snapshots] == [3, 4]


def test_an_expired_watermark_is_followed_even_if_expiry_removed_the_parent_id_of_its_child() -> None:
    history = chain(1, 2, 3, 4)
    orphan = snapshot(3, None, **history[3].summary)
    found = since(2, {3: orphan, 4: history[4]}, 4)
    assert isinstance(found, Interval)
    assert [s.snapshot_id for s in found.snapshots] == [3, 4]
    assert since(1, {3: orphan, 4: history[4]}, 4) is Break.EXPIRED
    # If the table had been rolled back to 1, now also expired, only the files in the next commit would look different.
    assert since(2, {3: orphan, 4: history[4]}, 4, is_proved=False) is Break.EXPIRED


def test_an_expired_watermark_with_its_child_expired_is_lost() -> None:
    history = chain(1, 2, 3, 4, 5)
    del history[1], history[2], history[3]
    assert since(2, history, 5) is Break.EXPIRED


def test_a_hole_in_the_middle_counts_as_expiry_and_not_as_a_rollback() -> None:
    history = chain(1, 2, 3, 4, 5)
    del history[2], history[4]
    assert since(2, history, 5) is Break.EXPIRED


@pytest.mark.parametrize("expired", [{2}, {3, 4}, {2, 3, 4}])
def test_a_consumed_snapshot_kept_by_a_tag_beyond_a_hole_counts_as_expiry_and_not_as_a_rollback(
    expired: set[int],
) -> None:
    history = {number: found for number, found in chain(1, 2, 3, 4, 5).items() if number not in expired}
    assert since(1, history, 5) is Break.EXPIRED


def test_in_version_1_small_clock_differences_do_not_count_as_a_rollback() -> None:
    def at(number: int, parent: int, seconds: int) -> Snapshot:
        return Snapshot(number, parent, 0, seconds * 1000, "append", "")

    mark = Watermark("u", "main", 5, 0, 100_000)
    for seconds, what in ((95, Break.EXPIRED), (105, Break.EXPIRED), (20, Break.ROLLED_BACK)):
        ancestry = Ancestry((at(8, 7, seconds),))
        found = interval_since(mark, table_uuid="u", retained={}, ancestry=ancestry, descends=lambda _: False)
        assert found is what


def test_a_rollback_whose_snapshots_were_expired_is_still_a_rollback() -> None:
    history = chain(1, 2, 3)
    del history[3]
    history[4] = snapshot(4, 2)
    assert since(3, history, 4) is Break.ROLLED_BACK


@pytest.mark.parametrize("taken", ["deleted-data-files", "added-delete-files"])
def test_an_append_whose_summary_mentions_removals_does_not_count_as_an_append(taken: str) -> None:
    root = snapshot(1, None)
    strange = Interval(root, (snapshot(2, 1), snapshot(3, 2, **{taken: "1"})))
    assert not strange.is_append_only
    assert strange.first_removal == strange.snapshots[1]
    assert Interval(root, strange.snapshots[:1]).is_append_only


@pytest.mark.parametrize("operation", ["delete", "overwrite"])
def test_a_commit_that_found_nothing_to_remove_is_followed_even_if_what_was_consumed_has_expired(
    operation: str,
) -> None:
    """A nightly DELETE of old rows finds none on most nights, and an INSERT OVERWRITE of a new day replaces nothing."""
    counts = (
        {"total-data-files": "3", "added-data-files": "1"} if operation == "overwrite" else {"total-data-files": "2"}
    )
    harmless = snapshot(3, 2, operation, **counts)
    found = since(2, {3: harmless}, 3)
    assert found == Interval(None, (harmless,))
    assert found.first_removal is None
    for count in ("deleted-data-files", "deleted-records", "added-delete-files", "removed-delete-files"):
        removing = snapshot(3, 2, operation, **counts, **{count: "1"})
        assert Interval(None, (removing,)).first_removal == removing
    silent = snapshot(3, 2, operation)
    assert Interval(None, (silent,)).first_removal == silent
