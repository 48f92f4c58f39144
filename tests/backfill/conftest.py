"""A pipeline of three stages with a switch in its business logic, and the command line on it."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from tests.backfill.three_stages import ThreeStages
from tests.support.lake import Lake


@pytest.fixture
def stages(lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ThreeStages:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    return ThreeStages(lake, instance, tmp_path)
