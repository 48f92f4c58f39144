"""The assets on the test's own lake."""

from __future__ import annotations

import dagster as dg
import pytest

from tests.histories.composed.runs import Assets
from tests.histories.history import quicken
from tests.support.lake import Lake


@pytest.fixture
def assets(lake: Lake, instance: dg.DagsterInstance) -> Assets:
    quicken(lake)
    return Assets(lake, instance)
