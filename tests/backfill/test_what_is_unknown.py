"""What a plan, a diff or a revert can't know, it says; nothing unknown is taken for nothing. Looking needs no Spark."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.iceberg import code_stamps
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.stamps import mark, stamp_properties
from dagster_ips.orchestration.backfill.desk import BackfillDesk
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.backfill.test_following import definitions
from tests.support.lake import SCHEMA, Lake, events

EDGE = Edge("first", "playback")


class QuietLake(Lake):
    """A lake without Spark, with the table of the first of two stages; its runs leave only what they say."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance, self.code = folder, instance, "1"
        self.catalog = LakeCatalog.embedded("lake", folder)
        self.create_playback(events(range(3)))
        self.catalog.client.create_table("media.first", SCHEMA)

    @property
    def desk(self) -> BackfillDesk:
        return BackfillDesk.of([definitions(self.folder, code=self.code)], self.instance)

    def compute(self, *partitions: str, tags: dict[str, str] | None = None) -> None:
        """Leave what a full run of the first stage leaves."""
        source, target = (self.catalog.load(f"media.{name}", asset="test") for name in ("playback", "first"))
        head = source.ancestry().head
        assert head is not None
        at = source.watermark_at(head, "main")
        captures = [Capture(EDGE.of(key), 1, Mode.FULL, "", None, at, "", "a run", None) for key in partitions]
        said = code_stamps.properties(target, captures, self.code, declared="so", replaces_all=True)
        said |= stamp_properties(tuple(captures), attempt="a run", run_id="a run") | (tags or {})
        table = self.catalog.client.load_table("media.first")
        with table.transaction() as change:
            change.set_properties(code_stamps.lasting_properties(target, [said]))
        table.append(self.catalog.client.load_table("media.playback").scan().to_arrow(), said)
        target = self.catalog.load("media.first", asset="test")
        published = target.ancestry().head
        assert published is not None
        there = mark(published, target.uuid)
        states = [EdgeState(each.edge, committed=at, number=1, target=there) for each in captures]
        CursorStore(self.instance).set(*states)

    def expire(self) -> None:
        """Expire all snapshots of the first stage's table but the newest."""
        table = self.catalog.client.load_table("media.first")
        *old, _ = [each.snapshot_id for each in table.snapshots()]
        table.maintenance.expire_snapshots().by_ids(old).commit()


@pytest.fixture
def quiet(tmp_path: Path, instance: dg.DagsterInstance) -> QuietLake:
    return QuietLake(tmp_path, instance)


def test_partitions_of_older_code_are_found_although_their_snapshots_have_expired(quiet: QuietLake) -> None:
    quiet.compute("a")
    quiet.compute("b")
    quiet.expire()
    quiet.code = "2"
    assert quiet.desk.of_older_code("first") == ["a", "b"]
    quiet.compute("b")
    quiet.expire()
    assert quiet.desk.of_older_code("first") == ["a"]
