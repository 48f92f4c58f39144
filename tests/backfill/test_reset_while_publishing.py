"""A consumer that is reset after the publication of a staged backfill was killed, and before it is continued."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage, staged_branch
from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg import cascade_stamps
from dagster_ips.iceberg.stamps import attempt_properties
from dagster_ips.orchestration.backfill.staging import StagedBackfill
from dagster_ips.progress.cursor import ReadOnlyCursors
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PIN, PROGRESS
from dagster_ips.spark.branches import Branch
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered

TABLES = {EDGE.upstream: TABLE, EDGE.consumer: TARGET}
PLAN = BackfillPlan(
    "planned1", 0, (PlannedStage("playback", TABLE, (), None), PlannedStage("daily", TARGET, ("playback",), None)), ()
)
BRANCH = staged_branch(PLAN.id)
OF_BACKFILL = cascade_stamps.properties(Cascade((PLAN.id,)))


class Staged(Source):
    """A backfill of both tables, of which the consumer was computed in several runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.append(numbered(1))
        first = self.capture()
        self.publish(first)
        self.consume(first)
        before = {table: self.head(table) for table in TABLES.values()}
        for table, head in before.items():
            self.lake.client.load_table(table).manage_snapshots().create_branch(head, BRANCH).commit()
        self.record = LaunchedBackfill(PLAN, "me", 0, before, is_staged=True)

    def head(self, table: str, branch: str = "main") -> int:
        found = self.lake.load(table, asset="test").head_snapshot_id(branch)
        assert found is not None
        return found

    def stage(self, number: int) -> None:
        rows = self.table.scan(snapshot_id=self.record.before[TABLE]).to_arrow()
        self.table.append(rows, snapshot_properties=OF_BACKFILL, branch=BRANCH)
        request = CaptureRequest(EDGE.consumer, [TrackedInput(EDGE.upstream, TABLE)], target=TARGET)
        capturer = Capturer(self.lake.on_branch(BRANCH), ReadOnlyCursors(self.store))
        (captured,) = capturer.capture(request, run_id="staged")
        assert captured.capture.number == number
        progress = captured.advance.progress(captured.advance.base, made={}, lookups={})
        said = attempt_properties(uuid.uuid4().hex, "staged") | {PROGRESS: progress_text(progress)} | OF_BACKFILL
        self.lake.client.load_table(TARGET).append(rows, snapshot_properties=said, branch=BRANCH)

    def fast_forward(self, table: str) -> None:
        changes = self.lake.client.load_table(table).manage_snapshots()
        changes.set_current_snapshot(self.head(table, BRANCH)).commit()

    def drop(self, table: str) -> None:
        self.lake.client.load_table(table).manage_snapshots().remove_branch(BRANCH).commit()

    def backfill(self, instance: dg.DagsterInstance) -> StagedBackfill:
        consumer = SimpleNamespace(edges=[EDGE], is_partitioned=False)
        lineage: Any = SimpleNamespace(
            consumers={EDGE.consumer: SimpleNamespace(consumer=consumer)},
            instance=instance,
            store=self.store,
            lake=lambda _: self.lake,
            session=lambda _: None,
            metadata=lambda asset: self.lake.find(TABLES[asset]),
            report=lambda *_, **__: None,
        )
        return StagedBackfill(lineage, self.record)


def test_the_reset_is_not_undone_by_what_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Staged(tmp_path)
    for number in (2, 3):
        source.stage(number)
    source.fast_forward(TABLE)
    Administrator(source.lake, source.store, TARGET).reset(EDGE, who="me", why="a test")
    monkeypatch.setattr(Branch, "drop", lambda branch, _: source.drop(branch.table))
    staged = source.head(TARGET, BRANCH)
    with dg.DagsterInstance.ephemeral() as instance:
        done = source.backfill(instance).publish(())
    assert (done.published, done.left) == (("playback", "daily"), ())
    assert (source.head(TARGET), source.head(TARGET, PIN)) == (staged, staged)
    assert source.capture().capture.mode is Mode.FULL
