"""Tables declared by queries in a real lake are what the queries give, whatever happens to the tables they read."""

from __future__ import annotations

from random import Random

import dagster as dg
import pytest

from tests.histories.history import quicken
from tests.query import differential_on_spark, handwritten_on_spark, tpch_on_spark
from tests.support.lake import Lake
from tests.support.variants import mostly_slow


@pytest.mark.parametrize(("seed", "queries"), mostly_slow([(2, 3), (6, 6)]))
def test_random_queries_are_maintained_in_a_lake(
    lake: Lake, instance: dg.DagsterInstance, seed: int, queries: int
) -> None:
    quicken(lake)
    found = differential_on_spark.run(lake, instance, seed=seed, queries=queries, changes=3)
    assert found.wrong == []
    assert found.figures["combine"] + found.figures["keys"] + found.figures["append"] > queries // 2, found.figures


@pytest.mark.slow
def test_the_queries_of_tpch_are_maintained_in_a_lake(lake: Lake, instance: dg.DagsterInstance) -> None:
    random = Random(1)
    found = tpch_on_spark.run(tpch_on_spark.made(lake, instance, 0.001, random), 2, random)
    assert found.wrong == []
    assert all(found.figures[each] for each in ("combine", "keys")), found.figures


@pytest.mark.slow
def test_handwritten_queries_are_maintained_in_a_lake(lake: Lake, instance: dg.DagsterInstance) -> None:
    found = handwritten_on_spark.run(lake, instance, seed=1, rounds=3, names=[])
    assert found.wrong == []
    assert all(found.figures[each] for each in ("append", "combine", "keys")), found.figures
