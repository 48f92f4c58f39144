"""A few of the random histories that ``make fuzz`` runs without end."""

from __future__ import annotations

import pytest

from tests.histories.fuzz import Budget, explained, run_batch
from tests.histories.history import quicken
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

SEED = 20_261


@pytest.mark.parametrize("captures", mostly_slow([8, 25]))
def test_captures_of_random_histories_match_time_travel(lake: Lake, captures: int) -> None:
    quicken(lake)
    budget, number = Budget(), SEED
    while budget.coverage.captures < captures:
        failure = run_batch(lake, number, budget)
        assert failure is None, explained(lake, *failure)
        number += 1
