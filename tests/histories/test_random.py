"""A few of the random histories that ``make fuzz`` runs without end."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from tests.histories.fuzz import Budget, BudgetSpentError, explained, run_batch
from tests.histories.history import quicken
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

SEED = 20_261


@pytest.mark.parametrize("captures", mostly_slow([15, 100]))
def test_captures_of_random_histories_match_time_travel(lake: Lake, captures: int) -> None:
    quicken(lake)
    budget = Budget(captures=captures)
    with contextlib.suppress(BudgetSpentError):  # The last history is taken to its end.
        for number in itertools.count(SEED):
            failure = run_batch(lake, number, budget)
            assert failure is None, explained(lake, *failure)
