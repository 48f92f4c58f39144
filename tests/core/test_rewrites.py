"""A compaction is traced to the files that it read, however often they were rewritten, and never by guessing."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.rewrites import Rewrite, merged, without_change


def rewrite(inputs: str, outputs: str) -> Rewrite:
    return rewrite_of(set(inputs), set(outputs))


def rewrite_of(inputs: set[str], outputs: set[str]) -> Rewrite:
    return Rewrite(frozenset(inputs), frozenset(outputs))


def test_a_compaction_of_old_files_changes_nothing() -> None:
    only = rewrite("ab", "c")
    assert without_change([only], added={"c"}, removed={"a", "b"}, disturbed=set()) == [only]


def test_a_compaction_of_old_and_new_files_is_traced_to_the_new_ones() -> None:
    (found,) = without_change([rewrite("an", "c")], added={"c"}, removed={"a"}, disturbed=set())
    assert found.inputs == {"a", "n"}


def test_a_compaction_of_only_new_files_counts_as_added_rows() -> None:
    assert not without_change([rewrite("mn", "c")], added={"c"}, removed=set(), disturbed=set())


def test_a_compaction_of_a_compaction_is_traced_to_the_first_files() -> None:
    steps = [rewrite("ab", "c"), rewrite("cn", "d"), rewrite("d", "ef")]
    (found,) = without_change(steps, added={"e", "f"}, removed={"a", "b"}, disturbed=set())
    assert (found.inputs, found.outputs) == ({"a", "b", "n"}, {"e", "f"})


def test_a_compaction_whose_result_is_gone_again_is_not_traced() -> None:
    assert not without_change([rewrite("ab", "cd")], added={"c"}, removed={"a", "b"}, disturbed=set())


def test_a_compaction_of_files_with_deleted_rows_is_not_traced() -> None:
    for where in "ac":
        assert not without_change([rewrite("ab", "c")], added={"c"}, removed={"a", "b"}, disturbed={where})


def test_a_compaction_of_a_compaction_with_deleted_rows_is_not_traced() -> None:
    steps = [rewrite("a", "b"), rewrite("b", "c")]
    assert not without_change(steps, added={"c"}, removed={"a"}, disturbed={"b"})


@given(st.data())
def test_whatever_is_rewritten_every_row_is_in_exactly_one_place(data: st.DataObject) -> None:
    """Files contain rows, and a rewrite moves those that are left. A traced rewrite has the same rows on both sides."""
    rows = {f"old{i}": {f"o{i}"} for i in range(3)} | {f"new{i}": {f"n{i}"} for i in range(2)}
    held, live, steps = dict(rows), set(rows), []
    disturbed = set[str]()
    for number in range(data.draw(st.integers(1, 5))):
        disturbed |= data.draw(st.sets(st.sampled_from(sorted(live)), max_size=1))
        inputs = data.draw(st.sets(st.sampled_from(sorted(live)), min_size=1))
        output = f"out{number}"
        held[output] = set().union(*[held[path] for path in inputs - disturbed])
        steps.append(rewrite_of(inputs, {output}))
        live = (live - inputs) | {output}
    added, removed = live - set(rows), {path for path in rows if path.startswith("old")} - live
    for group in merged(steps):
        assert group.inputs <= set(rows)
        assert group.outputs <= live
    for group in without_change(steps, added=added, removed=removed, disturbed=disturbed):
        assert group.inputs & removed
        moved = set().union(*[held[path] for path in group.inputs])
        assert moved == set().union(*[held[path] for path in group.outputs])


class CountedFiles(frozenset[str]):
    """Files of which it is counted how often they are compared with others."""

    compared = 0

    def __ror__(self, others: AbstractSet[str]) -> CountedFiles:  # type: ignore[override]  # of this kind
        return CountedFiles(frozenset(others).union(self))

    def __and__(self, others: AbstractSet[object]) -> frozenset[str]:
        CountedFiles.compared += 1
        return frozenset(self).intersection(others)


def test_the_partitions_of_a_compaction_are_not_compared_with_each_other() -> None:
    of_days = [Rewrite(frozenset([f"{n}a", f"{n}b"]), CountedFiles([f"{n}c"])) for n in range(50)]
    again = [Rewrite(frozenset([f"{n}c", f"{n}d"]), CountedFiles([f"{n}e"])) for n in range(0, 50, 2)]
    found = merged([*of_days, *again])
    assert len(found) == 50
    assert [sorted(each.outputs) for each in found[-2:]] == [["46e"], ["48e"]]
    assert found[-1].files == {"48a", "48b", "48c", "48d", "48e"}
    assert CountedFiles.compared <= 75
