"""By every path, a condition selects what it selects of the same rows in memory, however a table is laid out."""

from __future__ import annotations

import dagster as dg
import pytest

from tests.histories.history import quicken
from tests.promises.conditions_by_path import ConditionsByPath, check
from tests.support.filtered_tables import LAYOUTS
from tests.support.lake import Lake
from tests.support.variants import mostly_slow

OF_SIZE = {"reads": 25, "overwrites": 44, "writes": 2}


@pytest.mark.parametrize(
    ("seed", "layout", "sizes"),
    mostly_slow(
        [
            (1, "by_p4", {"reads": 4, "overwrites": 11, "writes": 1}),
            *((n, each, OF_SIZE) for n, each in enumerate(LAYOUTS)),
        ]
    ),
)
def test_random_conditions_select_the_same_rows_by_every_path(
    lake: Lake, instance: dg.DagsterInstance, seed: int, layout: str, sizes: dict[str, int]
) -> None:
    quicken(lake)
    for namespace in ("t", "media"):
        lake.catalog.create_namespace(namespace)
    paths = ConditionsByPath(lake, instance)
    check(paths, seed, layout, **sizes)
    assert paths.wrong == []
