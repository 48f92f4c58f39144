"""Concurrent runs of single partitions: each partition is published once, and no run claims more than it has done."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pytest

from dagster_ips.core.capture import Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.write_mode import Append
from dagster_ips.errors import PublishError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.publisher import Publication, Publisher
from dagster_ips.exactly_once.publish.result_writer import Result
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import SameKeys
from dagster_ips.run_view import RunView
from tests.support.lake import Lake, events
from tests.support.memory_store import MemoryEdgeStore
from tests.support.partitioned import DAYS, key


class Runs:
    """Runs of a daily consumer that appends the new rows of ``media.playback`` to ``media.out``."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance) -> None:
        self.lake, self.store = lake, MemoryEdgeStore()
        lake.create_playback([e for d in range(3) for e in events([d * 10, d * 10 + 1], day=d)])
        lake.sql(
            "CREATE TABLE lake.media.out PARTITIONED BY (event_date) AS SELECT * FROM lake.media.playback WHERE FALSE"
        )
        self.slicing = SameKeys(partition_keys(DAYS, "event_date", instance, asset="out"))

    def capture(self, *days: int, asked_for: Mode | None = None) -> CapturedInput:
        tracked = [TrackedInput("playback", "media.playback", slicing=self.slicing)]
        (captured,) = Capturer(self.lake.catalog, self.store).capture(
            CaptureRequest(
                "out",
                tracked,
                target="media.out",
                asked_for=asked_for,
                partitions=RunPartitions(tuple(key(d) for d in days)),
            ),
            run_id=f"run-{days}",
        )
        return captured

    def publish(self, captured: CapturedInput) -> Publication:
        view = RunView(captured, self.lake.session, "lake")
        result = Result(view.added, Append(), captured.capture.mode, [view.change], partitions=captured.rows)
        publisher = Publisher(self.lake.catalog, self.store, self.lake.session, captured.capture.run_id)
        return publisher.publish("media.out", captured.captures, result.write, consumer="out")

    def committed(self, day: int) -> bool:
        return self.store.get(Edge("out", "playback", key(day))).committed is not None


@pytest.fixture
def runs(lake: Lake, instance: dg.DagsterInstance) -> Runs:
    return Runs(lake, instance)


def test_concurrent_runs_of_different_partitions_are_both_published(lake: Lake, runs: Runs) -> None:
    one, other = runs.capture(0), runs.capture(1, 2)
    runs.publish(other)
    runs.publish(one)
    assert lake.rows("media.out") == lake.rows("media.playback")


@pytest.mark.parametrize("mode", [None, Mode.FULL])
def test_the_second_of_two_runs_of_one_partition_writes_nothing(lake: Lake, runs: Runs, mode: Mode | None) -> None:
    one, other = runs.capture(0, asked_for=mode), runs.capture(0, asked_for=mode)
    runs.publish(other)
    assert runs.publish(one).superseded_by
    assert lake.rows("media.out") == Counter(events([0, 1]))


def test_a_run_names_what_it_did_not_write_if_another_run_published_a_part(lake: Lake, runs: Runs) -> None:
    overlapping, single = runs.capture(0, 1, 2), runs.capture(1)
    runs.publish(single)
    with pytest.raises(PublishError, match=r"other 2 \(2026-01-01 to 2026-01-03\) were not written"):
        runs.publish(overlapping)
    assert [runs.committed(day) for day in range(3)] == [False, True, False]
    runs.publish(runs.capture(0, 1, 2))
    assert lake.rows("media.out") == lake.rows("media.playback")


def test_late_rows_captured_twice_are_written_once(lake: Lake, runs: Runs) -> None:
    runs.publish(runs.capture(0, 1, 2))
    lake.append(events([50], day=1))
    first, second = runs.capture(1), runs.capture(1, 2)
    assert first.capture.mode is Mode.INCREMENTAL
    runs.publish(first)
    with pytest.raises(PublishError, match="2026-01-03"):
        runs.publish(second)
    lake.append(events([51], day=1))
    runs.publish(runs.capture(1, 2))
    assert lake.rows("media.out") == lake.rows("media.playback")
