"""A few of the random lives that ``make fuzz`` runs for as long as one likes."""

from __future__ import annotations

from tests.histories.composed.fuzz import Budget, explained, live
from tests.histories.composed.runs import Assets

CAPTURES = 30
SEED = 20_261


def test_what_is_put_together_equals_a_recompute_through_random_lives(assets: Assets) -> None:
    budget, seed = Budget(captures=CAPTURES), SEED
    while not budget.is_spent:
        failure = live(assets, seed, budget)
        assert failure is None, explained(assets, failure)
        seed += 1
