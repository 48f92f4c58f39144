"""What an error advises to declare is tried, even if automation had given up and no new data comes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.orchestration.automate.blocked_condition import BlockedCondition
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.exactly_once.capture.test_unknown_partitions import Plays
from tests.support.lake_catalog import catalog_resource

FEW, MORE = dg.StaticPartitionsDefinition(["eu"]), dg.StaticPartitionsDefinition(["eu", "asia"])


def fingerprint(
    folder: Path, instance: dg.DagsterInstance, partitions: dg.StaticPartitionsDefinition | None, **policies: str
) -> Mapping[str, str]:
    keys = {"partition_expr": "region"} if partitions else {}

    @dg.asset(
        partitions_def=partitions,
        ins={"plays": ips.incremental(**policies)},  # type: ignore[arg-type]  # none is a number
        metadata=ips.append() | ips.table("media.out") | keys,
    )
    def out(plays: ips.IcdcView) -> DataFrame:
        return plays.added

    manager = ips.IcdcIOManager(catalog=catalog_resource(folder), spark=ips.LocalSparkConnect())
    plays: Any = ips.iceberg_asset("plays", table="media.plays")
    definitions = dg.Definitions(assets=[plays, out], resources={"io_manager": manager})
    graph = ips.with_incremental(definitions).get_repository_def().asset_graph
    context: Any = SimpleNamespace(
        asset_graph=graph,
        asset_graph_view=SimpleNamespace(instance=instance),
        key=dg.AssetKey("out"),
        evaluation_time=dt.datetime.now(dt.UTC),
    )
    condition = graph.get(context.key).automation_condition
    blocked = next(part for part in parts(condition) if isinstance(part, BlockedCondition))
    watched = blocked.watched_by(context)
    assert watched is not None
    return blocked._fingerprints(context, watched, ["eu"] if partitions else [""])


def parts(condition: dg.AutomationCondition[Any]) -> Iterator[dg.AutomationCondition[Any]]:
    yield condition
    for child in condition.children:
        yield from parts(child)


def test_another_policy_wider_partitions_and_a_reset_are_tried(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    with dg.DagsterInstance.ephemeral() as instance:
        plays = Plays(folder, instance)
        plays.create()
        plays.append([{"region": "eu"}, {"region": "asia"}])
        before = fingerprint(folder, instance, None)
        assert fingerprint(folder, instance, None) == before
        assert fingerprint(folder, instance, None, on_expired="full") != before
        few = fingerprint(folder, instance, FEW)
        assert fingerprint(folder, instance, FEW, on_unmapped="ignore") != few
        assert fingerprint(folder, instance, MORE) != few
        Administrator(plays.lake, CursorStore(instance), "media.out").reset(Edge("out", "plays"), who="me", why="test")
        assert fingerprint(folder, instance, None) != before
