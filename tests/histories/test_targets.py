"""The checks of targets notice the wrong results of a broken write mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dagster_ips.errors import RemovedRowsError
from dagster_ips.exactly_once.publish import result_writer
from tests.histories.checks import WrongCaptureError
from tests.histories.history import History, quicken
from tests.support.lake import Lake


def _history(lake: Lake, kind: str) -> History:
    quicken(lake)
    history = History(lake)
    history.write("strict", kind)
    history.do("append_by_spark", rows=(0, 5, 9))
    history.capture("strict")
    return history


def _keeps_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_writer.Result, "_gone", lambda *_: iter(()))


def _refuses_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:  # noqa: ANN401  # any arguments of ``checked``
        raise RemovedRowsError(table="t", upstream="u", problem="p", remedy="r")

    monkeypatch.setattr(result_writer.Result, "checked", refuse)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "promise"),
    [(_keeps_what_is_gone, "a target equals a recompute"), (_refuses_everything, "a target that can follow does")],
)
def test_a_target_that_keeps_a_removed_group_or_refuses_it_is_noticed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None], promise: str
) -> None:
    history = _history(lake, "merge_groups")
    history.do("delete_copy_on_write", where=("number", 5))
    break_it(monkeypatch)
    with pytest.raises(WrongCaptureError, match=promise):
        history.capture("strict")


def test_a_target_that_cannot_follow_a_removal_equals_a_recompute_after_a_full_run(lake: Lake) -> None:
    history = _history(lake, "append")
    history.do("delete_copy_on_write", where=("number", 5))
    history.capture("strict")
    assert [end for _, _, end in history.coverage.targets] == ["full", "RemovedRowsError"]
    assert history.coverage.targets["append", 2, "full"] == 2


@pytest.mark.slow
def test_a_combined_target_equals_a_recompute_however_rows_are_removed(lake: Lake) -> None:
    history = _history(lake, "combine")
    history.do("delete_copy_on_write", where=("number", 5))
    history.capture("strict")
    history.do("append_by_spark", rows=(5, 1, 2, 3))
    history.do("delete_merge_on_read", where=("number", 9))
    history.capture("strict")
    assert [end for _, _, end in history.coverage.targets] == ["full", "incremental"]
