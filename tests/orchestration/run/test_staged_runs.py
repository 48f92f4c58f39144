"""Runs of a staged backfill don't get in each other's way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg

from dagster_ips.core.retention import Retention
from dagster_ips.orchestration.platform.staged_run import StagedRun
from dagster_ips.orchestration.run.runs import RunInputs, Runs
from dagster_ips.run_view import RunView
from tests.iceberg.sources import Source, numbered


def test_a_staged_run_keeps_the_tables_that_other_staged_runs_read(tmp_path: Path) -> None:
    """No cursor says that those are at work."""
    source = Source(tmp_path)
    found = []
    for number in (1, 2):
        source.append(numbered(number, number + 1))
        found.append(source.capture_and_consume())
    at_work, done = found

    def session() -> Any:  # noqa: ANN401  # never called
        raise AssertionError

    runs = Runs(source.lake, source.store, session, "ips", Retention(keep_last=1))
    views = {"playback": cast("RunView", SimpleNamespace(captured=done))}
    with dg.DagsterInstance.ephemeral() as instance:
        runs.staged_for(StagedRun("planned1", "daily", {})).drop_old_tables(RunInputs(views), instance)
        assert source.lake.find(at_work.capture.icdc_table) is not None
        runs.drop_old_tables(RunInputs(views), instance)
    assert source.lake.find(at_work.capture.icdc_table) is None
