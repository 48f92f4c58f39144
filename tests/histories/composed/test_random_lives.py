"""Some of the random lives that ``make fuzz`` runs without end: as many as ``--captures`` asks for."""

from __future__ import annotations

import pytest

from tests.histories.composed.fuzz import Budget, explained, live
from tests.histories.composed.runs import Assets

SEED = 20_261


def test_combined_assets_equal_a_recompute_through_random_lives(assets: Assets, pytestconfig: pytest.Config) -> None:
    budget, seed = Budget(captures=pytestconfig.option.captures), SEED
    while not budget.is_spent:
        failure = live(assets, seed, budget)
        assert failure is None, explained(assets, failure)
        print(budget, flush=True)
        seed += 1
