"""Whatever an asset's function filters and computes, its table holds what the function makes of the source."""

from __future__ import annotations

import dagster as dg
import pytest

from tests.histories.functions import RandomFunctions
from tests.histories.history import quicken
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

SEED = 1


@pytest.mark.parametrize("seed", mostly_slow(range(SEED, SEED + 25), quick=2))
def test_random_functions_in_every_mode_equal_the_same_function_on_rows_in_memory(
    lake: Lake, instance: dg.DagsterInstance, seed: int
) -> None:
    quicken(lake)
    life = RandomFunctions(lake, instance, seed)
    life.live(4)
    print(dict(life.outcomes))
