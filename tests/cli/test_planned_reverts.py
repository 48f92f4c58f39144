"""What a revert would do is shown before anything is done. Looking needs no Spark."""

from __future__ import annotations

from click.testing import CliRunner, Result

from dagster_ips.cli.main import main
from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage, PlannedTable
from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.iceberg import cascade_stamps
from dagster_ips.iceberg.stamps import attempt_properties, computed_properties
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PROGRESS
from tests.cli.idle_lake import IdleLake
from tests.support.lake import events


def backfilled(lake: IdleLake) -> str:
    """Leave the tables and the record of a backfill that recomputed ``daily``; returns its id."""
    source = lake.catalog.load("media.playback", asset="test")
    head = source.ancestry().head
    assert head is not None
    at = source.watermark_at(head, "main")

    def said_by(run: str, number: int) -> dict[str, str]:
        progress = Progress(number, {"playback": InputProgress(at)})
        stamp = attempt_properties(run, run) | computed_properties(Mode.FULL, ())
        return stamp | {PROGRESS: progress_text(progress)}

    rows = lake.catalog.client.load_table("media.playback").scan().to_arrow()
    lake.catalog.client.load_table("media.daily").append(rows, said_by("its first run", 1))
    target = lake.catalog.load("media.daily", asset="test")
    before = target.head_snapshot_id()
    assert before is not None
    plan = BackfillPlan(
        "planned1",
        0,
        (PlannedStage("daily", "media.daily", ("playback",), None),),
        (PlannedTable("daily", "media.daily", target.uuid, before),),
    )
    launched = LaunchedBackfill(plan, "me", 0, {"media.daily": before})
    CursorStore(lake.instance).set_backfill(launched)
    table = lake.catalog.client.load_table("media.daily")
    table.manage_snapshots().create_tag(before, plan.before_tag).commit()
    of_backfill = cascade_stamps.properties(Cascade((plan.id,)))
    table.append(table.scan().to_arrow(), said_by("a run", 2) | of_backfill)
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
