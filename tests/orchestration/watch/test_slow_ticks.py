"""A tick reads where tables' metadata is when it begins: what happens while it goes on is no rollback."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.orchestration.declare.consumers import consumers_of
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs, WatchedTables
from tests.exactly_once.capture.test_rows_between_looks import BY_REGION, PlaysWithTarget
from tests.exactly_once.capture.test_unknown_partitions import REGIONS, TABLE, TARGET
from tests.support.lake_catalog import catalog_resource

PLAYS: Any = ips.iceberg_asset("plays", table=TABLE)


class Watching:
    """The consumer ``out`` of ``media.plays``, and what each of several processes watches of it."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, partitions: Any = None) -> None:  # noqa: ANN401  # Dagster's
        self.plays: Any = PlaysWithTarget(folder, instance)
        self.plays.create(BY_REGION)
        self.plays.store = CursorStore(instance)
        self.folder = folder

        @dg.asset(
            partitions_def=partitions,
            ins={"plays": ips.incremental()},
            metadata=ips.append() | ips.table(TARGET) | {"partition_expr": "region"},
        )
        def out(plays: ips.IcdcView) -> DataFrame:
            return plays.added

        self.graph = dg.Definitions(assets=[PLAYS, out]).resolve_asset_graph()
        metadata = {key: self.graph.get(key).metadata for key in self.graph.get_all_asset_keys()}
        (self.consumer,) = consumers_of(out, metadata, "default")

    def process(self) -> WatchedInputs:
        return WatchedInputs(WatchedTables(catalog_resource(self.folder)), self.consumer)


def test_what_a_run_has_consumed_since_the_tick_began_is_not_pending(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    watching = Watching(tmp_path / "lake", instance)
    plays, tick, slow = watching.plays, dt.datetime.now(dt.UTC), watching.process()
    plays.append([{"region": "eu"}])
    plays.compute(TrackedInput("plays", TABLE))
    slow.tables(tick=tick)
    plays.append([{"region": "eu"}])
    plays.compute(TrackedInput("plays", TABLE))
    backlogs = slow.backlogs(instance, tick=tick)
    assert backlogs is not None
    assert backlogs["plays"].is_empty


def test_partitions_without_changes_are_not_pending_if_another_tick_has_seen_more_since_the_tick_began(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    watching = Watching(tmp_path / "lake", instance, REGIONS)
    plays, tick, slow = watching.plays, dt.datetime.now(dt.UTC), watching.process()
    tracked = plays.tracked(REGIONS, "region")

    def follow(region: str) -> None:
        pending = watching.process().pending_partitions(watching.graph, instance, tick=dt.datetime.now(dt.UTC))
        assert pending == {region}
        plays.compute(tracked, region)

    for region in ("eu", "us"):
        plays.append([{"region": region}])
        follow(region)
    slow.tables(tick=tick)
    plays.append([{"region": "us"}])
    follow("us")
    assert slow.pending_partitions(watching.graph, instance, tick=tick) == frozenset()
