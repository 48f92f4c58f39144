"""What runs, sensors, persons and others do at once, in any order and killed anywhere, leaves a table right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_ips.core.ownership import ForeignWrites
from dagster_ips.errors import MetadataUnreadableError
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.publish import publisher
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.exactly_once.target_table import target_ownership
from dagster_ips.iceberg.ref_commits import RefCommit, publication
from dagster_ips.progress import cursor as cursor_module
from dagster_ips.progress.advance import Advance, Standing
from dagster_ips.progress.table_progress import PIN
from tests.interleavings import life as lives
from tests.interleavings.life import WrongRowsError, life

Undo = Callable[[pytest.MonkeyPatch], None]
_MOST_LIVES = 60


def test_main_holds_what_its_progress_says_after_each_switch_and_ends_as_its_inputs() -> None:
    happened: Counter[str] = Counter()
    for seed in range(100):
        happened += life(seed).counts
    assert {"published, full", "published, incremental", "found it published, incremental", "killed"} <= set(happened)
    assert {"had nothing to write", "resets", "rewinds", "reverts", "ticks"} <= set(happened)
    assert {f"refused, {each}Error" for each in ("Publish", "CaptureVoid", "ForeignWrite")} <= set(happened)


@pytest.mark.slow
def test_many_lives_end_well() -> None:
    for seed in range(1000, 4000):
        life(seed)


def _whatever_another_run_did(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Advance, "standing", lambda *_: Standing.MAY_PUBLISH)


def _all_partitions_are_advanced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Advance, "_rebased", lambda _, each, __: each.then)


def _requests_are_never_asked_about(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Publisher, "require_valid", lambda *_: None)
    patch.setattr(Advance, "_is_before_a_request", lambda *_: False)


def _the_tag_is_set_only_once(patch: pytest.MonkeyPatch) -> None:
    was_set: set[str] = set()

    def without_pin(branch: str, **given: Any) -> RefCommit:  # noqa: ANN401  # as in the function
        found = publication(branch, **{**given, "pin": None if given["expected"] in was_set else given["pin"]})
        was_set.add(str(given["head"]))
        return (
            found
            if PIN not in found.sets or given["expected"] is None
            else replace(found, sets={"main": given["head"]}, tags=())
        )

    patch.setattr(publisher, "publication", without_pin)


def _any_copy_counts(patch: pytest.MonkeyPatch) -> None:
    def copied(found: Any, cursor: Any, target: Any) -> Any:  # noqa: ANN401, ARG001  # as in the function
        return replace(found, progress=cursor.copy.progress) if found is not None and cursor.copy else found

    for module in (cursor_module, lives):
        patch.setattr(module, "known_progress", copied)


def _nothing_came_or_went(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Capturer, "_is_unchanged", lambda *_, **__: True)


def _refs_may_be_set_to_what_expired(patch: pytest.MonkeyPatch) -> None:
    def expected_only(change: RefCommit, table: Any) -> None:  # noqa: ANN401  # as in the method
        replace_sets = RefCommit(expects=change.expects, drops=())
        possible(replace_sets, table)

    possible = RefCommit.require_possible
    patch.setattr(RefCommit, "require_possible", expected_only)


def _expired_writes_of_others_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def left(target: Any, asset: str, known: Any) -> Any:  # noqa: ANN401  # as in the function
        found = known and ForeignWrites.of(target.ancestry(), asset).after([known.known_to.snapshot_id])
        return known.known_to if found else None

    patch.setattr(publisher, "left_unknown", left)
    patch.setattr(target_ownership, "_has_expired", lambda *_, **__: False)


def _live(first: int) -> None:
    for seed in range(first, first + _MOST_LIVES):
        life(seed)


UNDONE: dict[str, tuple[Undo, int]] = {
    "whatever another run did": (_whatever_another_run_did, 1),
    "all partitions are advanced": (_all_partitions_are_advanced, 4),
    "requests are never asked about": (_requests_are_never_asked_about, 114),
    "the tag is set only once": (_the_tag_is_set_only_once, 61),
    "any copy counts": (_any_copy_counts, 0),
    "nothing came or went": (_nothing_came_or_went, 1),
    "refs may be set to what expired": (_refs_may_be_set_to_what_expired, 338),
    "expired writes of others are forgotten": (_expired_writes_of_others_are_forgotten, 1581),
}
"""Rules of the code, each with how it is undone, and the first seed of the lives in which one goes wrong then."""


@pytest.mark.parametrize("rule", UNDONE)
def test_a_life_goes_wrong_without(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    undo, first = UNDONE[rule]
    undo(monkeypatch)
    with pytest.raises((WrongRowsError, MetadataUnreadableError)):
        _live(first)
