"""How long the demo waits. ``make demo-check`` tests the whole demo."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from example_project.demo import __main__ as demo


def wait(events: list[int], tasks: list[int], *, caught_up_after: int) -> int:
    """How often the demo looked before it was satisfied. It sees ``events`` and ``tasks``, whose last value repeats."""
    looks = 0

    def seen(of: list[int]) -> int:
        return of[min(looks, len(of) - 1)]

    def is_caught_up() -> bool:
        nonlocal looks
        looks += 1
        return looks == caught_up_after

    pipeline: Any = mock.Mock(failures=list, is_caught_up=is_caught_up, newest_event=lambda: seen(events))
    meter: Any = mock.Mock(tasks=lambda: seen(tasks))
    services: Any = mock.Mock(log_tail=lambda _: "a tick found nothing")
    demo._await_caught_up(services, pipeline, meter, 0.1, lambda _: None)
    return looks


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_LOOK_SECONDS", 0.02)


@pytest.mark.parametrize("moves", ["events", "tasks"])
def test_the_demo_waits_as_long_as_anything_happens_in_dagster_or_spark(moves: str) -> None:
    going, still = list(range(40)), [7]
    events, tasks = (going, still) if moves == "events" else (still, going)
    assert wait(events, tasks, caught_up_after=40) == 40


def test_the_demo_gives_up_when_nothing_happens_and_shows_the_log_of_the_daemon() -> None:
    with pytest.raises(SystemExit, match=r"(?s)nothing happened in Dagster or Spark .*a tick found nothing") as ended:
        wait([1], [1], caught_up_after=1_000_000)
    assert "did not follow" in str(ended.value)
