"""Hygiene keeps what a run reads as long as the run may be at work, and no longer."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ips.core.capture import Mode
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.capture.unread_history import needs_of_others
from dagster_ips.orchestration.watch.run_at_work import RunsAtWork
from dagster_ips.progress.cursor import Job
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered


def needs_anything(source: Source, instance: dg.DagsterInstance) -> bool:
    """Whether hygiene keeps anything of the table for runs; what their consumer has consumed is known otherwise."""
    at_work = {}

    def is_at_work(consumer: str, run_id: str) -> bool:
        found = at_work.setdefault(consumer, RunsAtWork(instance, source.store, consumer))
        return found(run_id)

    table = source.lake.load(TABLE, asset="test")
    needs = needs_of_others(source.lake, source.store, table, icdc_namespace="ips", but=[EDGE], is_at_work=is_at_work)
    return bool(list(needs))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    return source


@pytest.mark.parametrize(
    ("status", "is_reading"),
    [
        (dg.DagsterRunStatus.STARTED, True),
        (dg.DagsterRunStatus.CANCELING, True),
        (dg.DagsterRunStatus.CANCELED, False),
        (dg.DagsterRunStatus.FAILURE, False),
    ],
)
def test_what_a_run_has_captured_is_needed_until_the_run_has_ended(
    source: Source, status: dg.DagsterRunStatus, *, is_reading: bool
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = create_run_for_test(instance, status=status).run_id
        request = CaptureRequest(
            EDGE.consumer, [TrackedInput(EDGE.upstream, TABLE)], target=TARGET, asked_for=Mode.FULL
        )
        Capturer(source.lake, source.store).capture(request, run_id=run_id)
        assert needs_anything(source, instance) is is_reading


def test_what_a_job_has_captured_is_needed_until_it_reports(source: Source) -> None:
    request = CaptureRequest(EDGE.consumer, [TrackedInput(EDGE.upstream, TABLE)], target=TARGET)
    with dg.DagsterInstance.ephemeral() as instance:
        (given,) = Capturer(source.lake, source.store).capture(request, run_id="daily:1")
        progress = given.advance.progress(given.advance.base, made={}, lookups={})
        source.store.set_job(EDGE.consumer, Job((given.capture,), progress))
        assert needs_anything(source, instance)
        Administrator(source.lake, source.store, TARGET).commit(EDGE.consumer, [EDGE.upstream], "daily:1")
        assert not needs_anything(source, instance)
