"""Two runs of one edge at once: whatever either did first, no row is written twice and none is missing."""

from __future__ import annotations

from collections import Counter

import pytest

from dagster_ips.core.capture import Mode
from dagster_ips.errors import CaptureVoidError, PublishError
from dagster_ips.state.store import MemoryEdgeStore
from dagster_ips.tracking.administration import Administrator
from dagster_ips.tracking.capturing import CapturedInput, Capturer
from dagster_ips.tracking.following import TrackedInput
from dagster_ips.tracking.publishing import Publisher
from dagster_ips.view import IcdcView
from tests.lake import Lake, events


class Runs:
    """Runs of a consumer that appends what is new in ``media.playback`` to ``media.out``."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.store = lake, MemoryEdgeStore()
        lake.sql("CREATE TABLE lake.media.out AS SELECT * FROM lake.media.playback WHERE FALSE")

    def capture(self, run_id: str, *, asked_for: Mode | None = None) -> CapturedInput:
        capturer = Capturer(self.lake.catalog, self.store)
        tracked = [TrackedInput("playback", "media.playback")]
        (captured,) = capturer.capture("out", tracked, target="media.out", asked_for=asked_for, run_id=run_id)
        return captured

    def publish(self, captured: CapturedInput) -> None:
        frame = IcdcView(captured, self.lake.session, "lake").added
        self._publisher(captured).publish(
            "media.out", [captured.capture], lambda branch, _: frame.writeTo(branch.sql_name).append(), consumer="out"
        )

    def end_without_writing(self, captured: CapturedInput) -> None:
        self._publisher(captured).commit_without_writing([captured.capture])

    def _publisher(self, captured: CapturedInput) -> Publisher:
        return Publisher(self.lake.catalog, self.store, self.lake.session, captured.capture.run_id)


@pytest.fixture
def runs(lake: Lake) -> Runs:
    lake.create_playback(events(range(3)))
    runs = Runs(lake)
    runs.publish(runs.capture("run-0000"))
    return runs


@pytest.mark.parametrize("idle_first", [True, False])
def test_a_run_with_nothing_to_write_does_not_hide_what_one_of_its_number_publishes(
    lake: Lake, runs: Runs, *, idle_first: bool
) -> None:
    idle = runs.capture("run-aaaa")
    lake.append(events([10]))
    busy = runs.capture("run-bbbb")
    assert idle.capture.number == busy.capture.number
    for end in (lambda: runs.end_without_writing(idle), lambda: runs.publish(busy))[:: 1 if idle_first else -1]:
        end()
    lake.append(events([11]))
    runs.publish(runs.capture("run-cccc"))
    assert lake.rows("media.out") == Counter(events([0, 1, 2, 10, 11]))


def test_a_full_run_overtaken_by_a_change_says_so_and_can_be_repeated(lake: Lake, runs: Runs) -> None:
    full = runs.capture("run-aaaa", asked_for=Mode.FULL)
    lake.append(events([10]))
    runs.publish(runs.capture("run-bbbb"))
    with pytest.raises(PublishError, match="computed anew"):
        runs.publish(full)
    assert lake.rows("media.out") == Counter(events([0, 1, 2, 10]))


@pytest.mark.parametrize("writes", [True, False])
def test_what_was_captured_before_a_reset_can_not_be_published_any_more(
    lake: Lake, runs: Runs, *, writes: bool
) -> None:
    lake.append(events([10]))
    late = runs.capture("run-aaaa")
    Administrator(lake.catalog, runs.store, "media.out").reset(late.capture.edge, who="me", why="wrong rows")
    before = runs.store.get(late.capture.edge)
    with pytest.raises(CaptureVoidError, match=r"a reset since, by me \(wrong rows\)"):
        (runs.publish if writes else runs.end_without_writing)(late)
    assert runs.store.get(late.capture.edge) == before
    assert lake.rows("media.out") == Counter(events([0, 1, 2]))
    assert lake.branches("media.out") == {"main"}
