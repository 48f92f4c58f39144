"""A partitioned asset's table that someone rolled back: the partitions that lost rows are pending again."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.orchestration.declare.consumers import consumers_of
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.watch.asset_completeness import Completeness, Tick
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs, WatchedTables
from tests.exactly_once.capture.test_rows_between_looks import PlaysWithTarget
from tests.exactly_once.capture.test_unknown_partitions import REGIONS, TARGET, days_ago
from tests.support.lake_catalog import catalog_resource


@dg.asset(
    partitions_def=REGIONS,
    ins={"plays": ips.incremental()},
    metadata=ips.append() | ips.table(TARGET) | {"partition_expr": "region"},
)
def out(plays: ips.IcdcView) -> DataFrame:
    return plays.added


@pytest.mark.parametrize("how", ["rolled back", "an older version is registered"])
def test_partitions_that_lost_rows_are_pending_until_they_are_computed_again(tmp_path: Path, how: str) -> None:
    upstream: Any = ips.iceberg_asset("plays", table="media.plays", valid_through="day")
    graph = dg.Definitions(assets=[upstream, out]).resolve_asset_graph()
    with dg.DagsterInstance.ephemeral() as instance:
        plays: Any = PlaysWithTarget(tmp_path / "lake", instance)
        plays.create()
        plays.store = CursorStore(instance)
        metadata = {key: graph.get(key).metadata for key in graph.get_all_asset_keys()}
        (consumer,) = consumers_of(out, metadata, "default")
        watched = WatchedInputs(WatchedTables(catalog_resource(tmp_path / "lake")), consumer)

        def pending() -> frozenset[str] | None:
            return watched.pending_partitions(graph, instance, tick=dt.datetime.now(dt.UTC))

        def is_complete() -> bool:
            tick = Tick(graph, instance, dt.datetime.now(dt.UTC))
            return Completeness({out.key: watched}, {}).of(out.key, tick) is not None

        tracked = plays.tracked(REGIONS, "region")
        plays.append([{"region": region, "day": days_ago(1)} for region in ("eu", "us")])
        assert pending() == {"eu", "us"}
        plays.compute(tracked, "eu")
        target = plays.lake.client.load_table(TARGET)
        first, older = target.current_snapshot(), target.metadata_location
        plays.compute(tracked, "us")
        assert pending() == set()
        assert is_complete()
        if how == "rolled back":
            target.refresh().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
        else:
            plays.lake.client.drop_table(TARGET)
            plays.lake.client.register_table(TARGET, older)
        assert pending() == {"us"}
        assert not is_complete()
        plays.append([{"region": "eu", "number": 3}])
        plays.compute(tracked, "eu")
        assert pending() == {"us"}
        again = plays.capture(tracked, "us")
        plays.publish(again)
        assert pending() == set()
        assert is_complete()
