"""Hygiene keeps what a run reads as long as the run may be at work, and no longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ips.core.capture import Mode
from dagster_ips.exactly_once.capture.unread_history import needs_of_state
from dagster_ips.orchestration.watch.living_runs import OfLivingRuns
from tests.iceberg.sources import EDGE, TABLE, Source, numbered


@pytest.mark.parametrize(
    ("status", "is_reading"),
    [
        (dg.DagsterRunStatus.STARTED, True),
        (dg.DagsterRunStatus.CANCELING, True),
        (dg.DagsterRunStatus.CANCELED, False),
        (dg.DagsterRunStatus.FAILURE, False),
    ],
)
def test_what_a_run_left_in_flight_is_needed_until_the_run_has_ended(
    tmp_path: Path, status: dg.DagsterRunStatus, *, is_reading: bool
) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    reading = source.capture(asked_for=Mode.FULL).capture
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = create_run_for_test(instance, status=status).run_id
        source.store.set(replace(source.state, in_flight=replace(reading, run_id=run_id)))
        state = OfLivingRuns(source.store, instance).get(EDGE)
    assert bool(list(needs_of_state(state, source.lake.load(TABLE, asset="test")))) is is_reading
