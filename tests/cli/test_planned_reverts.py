"""What a revert would do is shown before anything is done. Looking needs no Spark."""

from __future__ import annotations

from click.testing import CliRunner, Result

from dagster_ips.cli.main import main
from dagster_ips.core.backfill_plan import BackfillPlan, ConsumedBefore, LaunchedBackfill, PlannedStage, PlannedTable
from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.iceberg import cascade_stamps
from dagster_ips.iceberg.stamps import stamp_properties
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.cli.idle_lake import EDGE, IdleLake
from tests.support.lake import events


def backfilled(lake: IdleLake) -> str:
    """Leave the tables and the record of a backfill that recomputed ``daily``; returns its id."""
    source = lake.catalog.load("media.playback", asset="test")
    head = source.ancestry().head
    assert head is not None
    at = source.watermark_at(head, "main")
    first = Capture(EDGE, 1, Mode.FULL, "test", None, at, "ips.none", "its first run", None)
    made = stamp_properties((first,), attempt="its first run", run_id="its first run")
    rows = lake.catalog.client.load_table("media.playback").scan().to_arrow()
    lake.catalog.client.load_table("media.daily").append(rows, made)
    target = lake.catalog.load("media.daily", asset="test")
    before = target.head_snapshot_id()
    assert before is not None
    plan = BackfillPlan(
        "planned1",
        0,
        (PlannedStage("daily", "media.daily", ("playback",), None),),
        (PlannedTable("daily", "media.daily", target.uuid, before),),
    )
    launched = LaunchedBackfill(plan, "me", 0, {"media.daily": before}, (ConsumedBefore("playback", at, None),))
    CursorStore(lake.instance).set_backfill(launched)
    table = lake.catalog.client.load_table("media.daily")
    table.manage_snapshots().create_tag(before, plan.before_tag).commit()
    capture = Capture(EDGE, 2, Mode.FULL, "test", None, at, "ips.none", "a run", None)
    stamps = stamp_properties((capture,), attempt="a run", run_id="a run")
    table.append(table.scan().to_arrow(), stamps | cascade_stamps.properties(Cascade((plan.id,))))
    return plan.id


def said(lake: IdleLake, backfill: str) -> Result:
    return CliRunner().invoke(main, ["backfill", "revert", "-f", str(lake.file), backfill, "--dry-run"])


def test_a_dry_run_shows_the_reason_for_which_the_revert_would_be_refused(idle_lake: IdleLake) -> None:
    backfill = backfilled(idle_lake)
    assert "restores the previous rows of all of it" in said(idle_lake, backfill).output
    idle_lake.catalog.client.drop_table("media.playback")
    idle_lake.create_playback(events(range(3)))
    refused = said(idle_lake, backfill)
    assert refused.exit_code == 1
    assert "have expired or were rolled back or replaced" in refused.output
