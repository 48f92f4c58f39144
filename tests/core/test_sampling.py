"""A sample has the requested size, contains rows from the last change and from before it, and is repeatable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_ips.core.sampling import Sample

SHARES = st.floats(min_value=0.001, max_value=1.0)


@given(st.sets(st.integers()), SHARES, st.integers(0, 99))
def test_a_sample_has_the_requested_share_and_is_never_empty(values: set[int], share: float, seed: int) -> None:
    found = Sample(share, seed).of(values, recent=())
    assert set(found) <= values
    assert len(found) == len(set(found))
    assert min(2, len(values)) <= len(found) <= max(2, share * len(values) + 1)


@given(st.sets(st.integers(), min_size=4), st.data(), st.integers(0, 99))
def test_a_sample_contains_values_from_the_last_change_and_from_before_it(
    values: set[int], data: st.DataObject, seed: int
) -> None:
    recent = data.draw(st.sets(st.sampled_from(sorted(values)), min_size=1, max_size=len(values) - 1))
    found = Sample(0.01, seed).of(values, recent)
    assert set(found) & recent
    assert len(recent) > 1 or set(found) - recent


def test_the_same_seed_gives_the_same_sample_and_other_seeds_give_others() -> None:
    days = [f"2026-01-{day:02}" for day in range(1, 31)]
    taken = {tuple(Sample(0.1, seed).of(days, recent=())) for seed in range(200)}
    assert Sample(0.1, 5).of(days, ()) == Sample(0.1, 5).of(days[::-1], ())
    assert len(taken) > 150
    assert {day for each in taken for day in each} == set(days)


def test_a_share_of_one_is_the_whole_table() -> None:
    assert Sample(1.0, 3).of(range(9), recent={1}) == list(range(9))
    assert Sample(1.0, 3).is_everything
    assert not Sample(0.5, 3).is_everything


def test_only_some_rows_are_taken_if_there_are_few_partitions() -> None:
    assert Sample(0.01, 3).within(chosen=2, of=3) == Sample(0.015, 3)
    assert Sample(0.01, 3).within(chosen=4, of=400) == Sample(1.0, 3)
    assert Sample(0.01, 3).within(chosen=0, of=0) == Sample(1.0, 3)


def test_a_larger_share_of_a_small_table_is_taken_and_all_of_an_empty_one() -> None:
    assert Sample(0.01, 3).at_least(1000, of=2000).share == 0.5
    assert Sample(0.01, 3).at_least(1000, of=10**9).share == 0.01
    assert Sample(0.01, 3).at_least(1000, of=0).is_everything
    assert Sample(0.01, 3).at_least(1000, of=None).share == 0.01
