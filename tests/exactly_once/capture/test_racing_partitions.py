"""Concurrent runs of single partitions: each partition is published once, and no run claims more than it has done."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pytest

from dagster_ips.core.capture import Mode
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
from tests.support.memory_store import MemoryCursors
from tests.support.partitioned import DAYS, key
from tests.support.publishing import look


class Runs:
    """Runs of a daily consumer that appends the new rows of ``media.playback`` to ``media.out``."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance) -> None:
        self.lake, self.store = lake, MemoryCursors()
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
        run, advance = captured.capture.run_id, captured.advance
        publisher = Publisher(self.lake.catalog, self.store, self.lake.session, run, advance=advance)
        return publisher.publish("media.out", captured.captures, result.write, consumer="out")

    def pending(self) -> dict[str, bool]:
        """The partitions that aren't up to date, each with whether it was computed before."""
        tracked = TrackedInput("playback", "media.playback", slicing=self.slicing)
        found = look(self.store, self.lake.catalog, tracked, consumer="out", target="media.out")
        return {partition: since is not None for partition, since in found.pending.items()}


@pytest.fixture
def runs(lake: Lake, instance: dg.DagsterInstance) -> Runs:
    return Runs(lake, instance)


def test_concurrent_runs_of_different_partitions_are_both_published(lake: Lake, runs: Runs) -> None:
    one, other = runs.capture(0), runs.capture(1, 2)
    runs.publish(other)
    assert runs.pending() == {key(0): False}
    runs.publish(one)
    assert runs.pending() == {}
    assert lake.rows("media.out") == lake.rows("media.playback")


@pytest.mark.parametrize("mode", [None, Mode.FULL])
def test_partitions_that_several_runs_compute_anew_are_written_once(lake: Lake, runs: Runs, mode: Mode | None) -> None:
    one, other, more = runs.capture(0, asked_for=mode), runs.capture(0, asked_for=mode), runs.capture(0, 1)
    for each in (other, one, more):
        runs.publish(each)
    assert lake.rows("media.out") == Counter(events([0, 1]) + events([10, 11], day=1))
    assert runs.pending() == {key(2): False}


def test_a_run_is_refused_as_a_whole_if_another_one_has_published_a_part(lake: Lake, runs: Runs) -> None:
    runs.publish(runs.capture(0, 1, 2))
    for day in (0, 1):
        lake.append(events([50 + day], day=day))
    overlapping, single = runs.capture(0, 1, 2), runs.capture(1)
    runs.publish(single)
    with pytest.raises(PublishError, match="another change of 2026-01-01, 2026-01-02, 2026-01-03, so run this again"):
        runs.publish(overlapping)
    assert runs.pending() == {key(0): True}
    runs.publish(runs.capture(0, 1, 2))
    assert lake.rows("media.out") == lake.rows("media.playback")


def test_late_rows_captured_twice_are_written_once(lake: Lake, runs: Runs) -> None:
    runs.publish(runs.capture(0, 1, 2))
    lake.append(events([50], day=1))
    first, second = runs.capture(1), runs.capture(1, 2)
    assert first.capture.mode is Mode.INCREMENTAL
    runs.publish(first)
    assert runs.publish(second).superseded_by
    lake.append(events([51], day=1))
    runs.publish(runs.capture(1, 2))
    assert lake.rows("media.out") == lake.rows("media.playback")
