"""The ICDC table of a partition whose run failed goes with the others of its age, also if nothing captures it again."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_ips.core.retention import Retention
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.orchestration.run.runs import RunInputs, Runs
from dagster_ips.run_view import RunView
from tests.exactly_once.capture.test_partitions_to_come import BY_DAY, DAYS, TARGET, PartitionsToCome


@pytest.fixture
def lives() -> Iterator[PartitionsToCome]:
    found = PartitionsToCome()
    yield found
    found.teardown()


@pytest.mark.parametrize(
    ("status", "is_kept"), [(dg.DagsterRunStatus.STARTED, True), (dg.DagsterRunStatus.FAILURE, False)]
)
def test_what_a_partition_has_in_flight_is_kept_only_until_its_run_has_ended(
    lives: PartitionsToCome, status: dg.DagsterRunStatus, *, is_kept: bool
) -> None:
    lives.begin(made="the day before, too", spec=BY_DAY)
    lives.rows_come([(DAYS[0], "a"), (DAYS[1], "a")])
    first, other = lives.keys_of(lives.consumer)[:2]
    run_id = create_run_for_test(lives.instance, status=status).run_id
    request = CaptureRequest("out", [lives.tracked], target=TARGET, partitions=RunPartitions((first,)))
    (left,) = Capturer(lives.lake, lives.store).capture(request, run_id=run_id)
    (done,) = lives.capture([other])
    assert lives.publish((done,))
    lives.commit()

    def session() -> Any:  # noqa: ANN401  # never called
        raise AssertionError

    runs = Runs(lives.lake, lives.store, session, "ips", Retention(keep_last=1))
    view = SimpleNamespace(captured=SimpleNamespace(capture=done.capture))
    runs.drop_old_tables(RunInputs({"plays": cast("RunView", view)}), lives.instance)
    assert (lives.lake.find(left.capture.icdc_table) is not None) is is_kept
    assert lives.lake.find(done.capture.icdc_table) is not None
