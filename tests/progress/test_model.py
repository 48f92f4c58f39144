"""What a published snapshot says of its table is right and is enough: the promises, and what each rule is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.progress.model import World, WrongRowsError, life
from tests.progress.rules import RULES, Control
from tests.progress.targets import Steps, Table
from tests.progress.upstreams import SLOTS

FOUND_BY_CHANCE = {  # A rule, and a seed whose life goes wrong without it.
    "evidence stays where main is in doubt": 1045970,
    "compare and swap": 8,
    "rebase only if the keys hold what they held": 0,
    "others stay behind": 1,
    "a redefined key is done in full": 70,
    "an unreadable change is done in full": 9,
    "a rewind reads again, and begins where the key is": 14,
    "a request is closed by its number in Progress": 139,
    "each table of a step has its own Progress": 11,
    "foreign commits are noticed": 8,
    "a bite is recorded": 0,
    "a revert brings its Progress": 48,
    "Progress comes with the last commit": 313,
}


@settings(max_examples=150, derandomize=True)
@given(st.randoms(use_true_random=True))
def test_main_holds_what_its_progress_says_and_ends_as_its_upstreams(random: Random) -> None:
    life(random)


def test_many_lives_go_through_everything_and_none_goes_wrong() -> None:
    lived = sum((life(Random(seed)).counts for seed in range(200)), start=World(Random(0)).counts)
    everything = {"published", "rebased", "given up", "bites", "empty commits", "of several tables", "killed"}
    everything |= {"went on from a pin", "resets", "rewinds", "reverts", "staged and published", "staged in vain"}
    assert everything <= set(lived)


@pytest.mark.parametrize("rule", sorted(FOUND_BY_CHANCE))
def test_without_the_rule_a_life_goes_wrong(rule: str) -> None:
    life(Random(FOUND_BY_CHANCE[rule]))
    with pytest.raises(WrongRowsError):
        life(Random(FOUND_BY_CHANCE[rule]), Control(frozenset({rule})))


class Chosen(Random):
    """No chance: runs take the keys that are named here, in one commit each."""

    keys: Sequence[str] = ("A", "B", "C")

    def random(self) -> float:
        return 0.5

    def randint(self, a: int, b: int) -> int:  # noqa: ARG002 — the base class names it.
        return b

    def choice(self, seq: Any) -> Any:  # noqa: ANN401 — as the base class.
        return seq[0]

    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:  # noqa: ANN401 — as the base class.
        return [one for one in population if one in self.keys][:k] or list(population)[:k]


class Scene:
    """A world in which only happens what a test says."""

    def __init__(self, control: Control) -> None:
        self.random = Chosen()
        self.world = World(self.random, control)
        self.table: Table = self.world.tables[0]
        self.rows_change()

    def rows_change(self) -> None:
        """Each key gets another row for the one it had: as many as before, so that counting rows tells nothing."""
        for upstream in self.world.upstreams.values():
            upstream.next_row += 1
            upstream.commit(dict.fromkeys(SLOTS[:3], frozenset({upstream.next_row})) | {"d": frozenset()})

    def run(self, keys: str = "ABC", owner: str | None = None) -> Steps:
        """A run that has captured and not written yet."""
        self.random.keys = keys
        run = self.world.run(self.table, owner=owner)
        captures = self.world.counts["captures"]
        while self.world.counts["captures"] == captures and next(run, self) is not self:
            pass
        return run

    def finish(self, run: Steps) -> None:
        for _ in run:
            self.world.check()

    def publish(self, run: Steps) -> None:
        """Up to where main has moved, and nothing else."""
        published = self.world.counts["published"]
        while self.world.counts["published"] == published:
            next(run)
        self.world.check()

    def forget(self) -> None:
        """Maintenance leaves of main only its head, and of the rest what refs hold."""
        self.table.compact(self.random)
        self.table.compact(self.random)
        self.table.expire(1)
        self.world.check()


def a_slow_run_pins_late(scene: Scene) -> None:
    slow = scene.run()
    scene.publish(slow)
    scene.rows_change()
    scene.finish(scene.run())
    scene.finish(slow)
    scene.forget()


def main_goes_back_and_is_forgotten(scene: Scene) -> None:
    scene.finish(scene.run())
    first = scene.table.refs["main"]
    scene.rows_change()
    scene.finish(scene.run())
    scene.table.refs["main"] = first
    scene.forget()


def a_run_is_killed_before_its_pin(scene: Scene) -> None:
    scene.finish(scene.run())
    scene.rows_change()
    killed = scene.run()
    scene.publish(killed)
    killed.close()
    scene.forget()


def main_goes_back_while_older_pins_are_dropped(scene: Scene) -> None:
    scene.finish(scene.run())
    oldest = scene.table.refs["main"]
    scene.rows_change()
    scene.finish(scene.run())
    scene.table.pins.add(oldest)
    scene.forget()
    between = scene.table.refs["main"]
    scene.rows_change()
    scene.finish(scene.run())
    scene.table.pins.add(oldest)
    scene.table.refs["main"] = between
    scene.table.expire(1)
    scene.world.check()


def a_reset_is_answered_by_another_run(scene: Scene) -> None:
    scene.finish(scene.run("C"))
    old_code = scene.run("A")
    scene.world.code += 1
    scene.world.ask(scene.table, {"A"})
    scene.finish(scene.run("B"))
    scene.finish(old_code)


def another_owner_published_first(scene: Scene) -> None:
    scene.finish(scene.run("A", owner="an intruder"))
    scene.finish(scene.run("B"))


def somebody_writes_after_a_reset_was_asked_for(scene: Scene) -> None:
    scene.finish(scene.run())
    scene.table.append_by_another("A", 10_000)
    scene.world.ask(scene.table, {"A", "B", "C"})
    scene.table.append_by_another("A", 10_001)
    scene.finish(scene.run())


SCENES: list[tuple[str, Callable[[Scene], None]]] = [
    ("a numbered pin for each publication", a_slow_run_pins_late),
    ("unproved ancestry is unknown", main_goes_back_and_is_forgotten),
    ("unproved ancestry is unknown", a_run_is_killed_before_its_pin),
    ("a pin that main went back from makes it unknown", main_goes_back_while_older_pins_are_dropped),
    ("a request stays with who didn't see it", a_reset_is_answered_by_another_run),
    ("one owner", another_owner_published_first),
    ("a reset gives up only what was there", somebody_writes_after_a_reset_was_asked_for),
]


@pytest.mark.parametrize(("rule", "scene"), SCENES)
def test_a_scene_goes_wrong_only_without_its_rule(rule: str, scene: Callable[[Scene], None]) -> None:
    scene(Scene(Control()))
    with pytest.raises(WrongRowsError):
        scene(Scene(Control(frozenset({rule}))))


def test_each_rule_is_shown_to_be_needed() -> None:
    assert set(RULES) == set(FOUND_BY_CHANCE) | {rule for rule, _ in SCENES}
