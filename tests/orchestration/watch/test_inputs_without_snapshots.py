"""An asset one of whose inputs nobody has ever written to: what its runs have published is known all the same."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.orchestration.declare.consumers import consumers_of
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.watch import killed_runs
from dagster_ips.orchestration.watch.watched_tables import WatchedInputs, WatchedTables
from dagster_ips.progress.advance import Standing
from tests.exactly_once.capture.test_rows_between_looks import PlaysWithTarget
from tests.exactly_once.capture.test_unknown_partitions import REGIONS, SCHEMA, TABLE, TARGET
from tests.support.lake_catalog import catalog_resource
from tests.support.publishing import publish


@dg.asset(
    partitions_def=REGIONS,
    ins={"corrections": ips.incremental(), "plays": ips.incremental()},
    metadata=ips.replace() | ips.table(TARGET) | {"partition_expr": "region"},
)
def out(corrections: ips.IcdcView, plays: ips.IcdcView) -> DataFrame:
    return plays.source.union(corrections.source)


class PlaysWithCorrections(PlaysWithTarget):
    """Its runs also read ``media.corrections``, which has no snapshot."""

    def create(self, *_: Any, **__: str) -> None:  # noqa: ANN401  # as in Plays
        super().create()
        self.lake.client.create_table("media.corrections", SCHEMA)

    def compute(self, tracked: TrackedInput, *keys: str) -> None:
        empty = TrackedInput("corrections", "media.corrections", slicing=tracked.slicing)
        request = CaptureRequest("out", [empty, tracked], target=TARGET, partitions=RunPartitions(keys))
        captured = Capturer(self.lake, self.store).capture(request, run_id="run")
        row = self.lake.client.load_table(TABLE).scan().to_arrow().slice(0, 1)
        assert publish(self.store, self.lake, TARGET, captured, row) is Standing.MAY_PUBLISH


@dataclass(frozen=True)
class Watching:
    plays: Any
    watched: WatchedInputs
    graph: Any
    instance: dg.DagsterInstance

    def compute(self, region: str) -> None:
        self.plays.append([{"region": region}])
        assert self.pending() == {region}
        self.plays.compute(self.plays.tracked(REGIONS, "region"), region)

    def pending(self) -> frozenset[str] | None:
        return self.watched.pending_partitions(self.graph, self.instance, tick=dt.datetime.now(dt.UTC))


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Watching]:
    upstreams = [ips.iceberg_asset(name, table=f"media.{name}") for name in ("corrections", "plays")]
    graph = dg.Definitions(assets=[*upstreams, out]).resolve_asset_graph()
    metadata = {key: graph.get(key).metadata for key in graph.get_all_asset_keys()}
    (consumer,) = consumers_of(out, metadata, "default")
    with dg.DagsterInstance.ephemeral() as instance:
        plays: Any = PlaysWithCorrections(tmp_path / "lake", instance)
        plays.create()
        plays.store = CursorStore(instance)
        watched = WatchedInputs(WatchedTables(catalog_resource(tmp_path / "lake")), consumer)
        yield Watching(plays, watched, graph, instance)


def test_partitions_that_a_rollback_of_the_table_took_away_are_pending(watching: Watching) -> None:
    watching.compute("eu")
    target = watching.plays.lake.client.load_table(TARGET)
    first = target.current_snapshot()
    watching.compute("us")
    assert watching.pending() == set()
    target.refresh().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert watching.pending() == {"us"}


def test_what_a_killed_run_has_published_is_reported(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    watching.compute("eu")
    run = dg.DagsterRun(job_name="job", run_id="run", status=dg.DagsterRunStatus.FAILURE)
    watching.instance.run_storage.add_run(run)
    monkeypatch.setattr(killed_runs, "failed_runs", lambda *_, **__: {"eu": SimpleNamespace(dagster_run=run)})
    (event,) = killed_runs._unrecorded(watching.watched, watching.instance)
    assert (event.asset_key, event.partition) == (out.key, "eu")
