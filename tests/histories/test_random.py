"""A few of the random histories that ``make fuzz`` runs without end."""

from __future__ import annotations

from tests.histories.fuzz import Budget, explained, run_batch
from tests.histories.history import quicken
from tests.support.lake import Lake

CAPTURES = 25
SEED = 20_261


def test_captures_of_random_histories_match_time_travel(lake: Lake) -> None:
    quicken(lake)
    budget, number = Budget(), SEED
    while budget.coverage.captures < CAPTURES:
        failure = run_batch(lake, number, budget)
        assert failure is None, explained(lake, *failure)
        number += 1
