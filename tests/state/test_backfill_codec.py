"""A backfill's record is read back unchanged, and its version tells older releases that they can't read it."""

from __future__ import annotations

import json

import pytest

from dagster_ips.core.backfill_plan import BackfillPlan, ConsumedBefore, LaunchedBackfill, PlannedStage, PlannedTable
from dagster_ips.core.file_set import FileSet
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import BackfillRecordError
from dagster_ips.state.backfill_codec import decode_backfill, encode_backfill

STAGE = PlannedStage("daily", "media.daily", ("playback",), ("2026-01-01",))
PLAN = BackfillPlan("qwertyui", 1, (STAGE,), (PlannedTable("daily", "media.daily", "1f3", 2**62),))


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_launched_backfill_is_read_back_live_or_staged(is_staged: bool) -> None:  # noqa: FBT001  # a parameter of a test
    launched = LaunchedBackfill(PLAN, "ada", 2, {"media.daily": 2**62}, is_staged=is_staged)
    text = encode_backfill(launched)
    assert decode_backfill(text, where="it") == launched
    assert json.loads(text)["plan"]["version"] == (2 if is_staged else 1)


def test_what_was_consumed_before_a_backfill_is_read_back_also_of_a_change_that_was_taken_in_part() -> None:
    at = Watermark("9d0c", "main", 8412, 7, 1767225600000)
    taken = FileSet(at, taken=100, total=10_000)
    consumed = ConsumedBefore("playback", at, None), ConsumedBefore("playback", None, None, file_set=taken)
    launched = LaunchedBackfill(PLAN, "ada", 2, {"media.daily": 7}, consumed)
    text = encode_backfill(launched)
    assert decode_backfill(text, where="it") == launched
    value = json.loads(text)
    del value["launched"]["consumed"][0]["file_set"]
    assert decode_backfill(json.dumps(value), where="it") == launched


def test_a_record_from_before_backfills_were_staged_is_read_as_a_live_one() -> None:
    launched = LaunchedBackfill(PLAN, "ada", 2, {"media.daily": 7})
    value = json.loads(encode_backfill(launched))
    del value["launched"]["is_staged"]
    assert decode_backfill(json.dumps(value), where="it") == launched


def test_a_record_of_a_newer_version_is_refused() -> None:
    value = json.loads(encode_backfill(PLAN))
    value["plan"]["version"] = 3
    with pytest.raises(BackfillRecordError, match="its version is 3, but 2 is the newest"):
        decode_backfill(json.dumps(value), where="it")
