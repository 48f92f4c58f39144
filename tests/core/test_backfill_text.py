"""A backfill's record is read back unchanged, and its version tells older releases that they can't read it."""

from __future__ import annotations

import json

import pytest

from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage, PlannedTable
from dagster_ips.core.backfill_text import decode_backfill, encode_backfill
from dagster_ips.errors import BackfillRecordError

STAGE = PlannedStage("daily", "media.daily", ("playback",), ("2026-01-01",))
PLAN = BackfillPlan("qwertyui", 1, (STAGE,), (PlannedTable("daily", "media.daily", "1f3", 2**62),))


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_launched_backfill_is_read_back_live_or_staged(is_staged: bool) -> None:  # noqa: FBT001  # a parameter of a test
    launched = LaunchedBackfill(PLAN, "ada", 2, {"media.daily": 2**62}, is_staged=is_staged)
    assert decode_backfill(encode_backfill(launched), where="it") == launched


def test_a_record_of_a_newer_version_is_refused() -> None:
    value = json.loads(encode_backfill(PLAN))
    value["plan"]["version"] = 2
    with pytest.raises(BackfillRecordError, match="its version is 2, but 1 is the newest"):
        decode_backfill(json.dumps(value), where="it")
