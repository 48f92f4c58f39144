"""What a plan says of random graphs, against what really runs. RANDOM_PLANS=SEED:COUNT makes others and more."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from random import Random

import dagster as dg
import pytest

from tests.backfill.random_graphs import Graph, RandomPipeline, random_graph
from tests.support.lake import Lake, events

pytestmark = pytest.mark.slow

_LOG = logging.getLogger(__name__)
SEED, COUNT = map(int, os.environ.get("RANDOM_PLANS", "1:6").split(":"))


def ran_since(instance: dg.DagsterInstance, asset: str, after: int) -> set[str]:
    """The partitions that were materialised after a storage id; an empty text of an asset without."""
    records = instance.fetch_materializations(dg.AssetKey(asset), limit=1000).records
    return {record.partition_key or "" for record in records if record.storage_id > after}


def newest(instance: dg.DagsterInstance, graph: Graph) -> int:
    ids = [
        record.storage_id
        for node in graph.nodes
        for record in instance.fetch_materializations(dg.AssetKey(node.name), limit=1).records
    ]
    return max(ids)


def follows_parts(graph: Graph, asset: str) -> bool:
    """Whether partitions alone tell what changes: nothing without partitions is on any way from the root to it."""
    node = next(each for each in graph.nodes if each.name == asset)
    reached = [name for name in node.reads if name == graph.root or reaches(graph, name)]
    return all(graph.kind(name) != "whole" and (name == graph.root or follows_parts(graph, name)) for name in reached)


def reaches(graph: Graph, asset: str) -> bool:
    node = next((each for each in graph.nodes if each.name == asset), None)
    return node is not None and any(name == graph.root or reaches(graph, name) for name in node.reads)


@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_a_plan_says_what_really_runs(
    seed: int, lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    random = Random(seed)
    graph = random_graph(random)
    pipeline = RandomPipeline(graph, lake, instance, tmp_path)
    for number, table in enumerate("ab"):
        # Each account has an event on each day, so that whatever is computed anew holds rows.
        rows = [e for day in range(14) for e in events([1000 * number + 10 * day + i for i in range(6)], day=day)]
        lake.create_playback(rows, f"media.outside_{table}")
    pipeline.follow()
    pipeline.deploy(bug=False)

    partitions = pipeline.chosen(random)
    named = [word for key in partitions or () for word in ("--partition", key)]
    plan = pipeline.told("plan", graph.root, *named)
    planned = {stage["asset"]: stage for stage in plan["stages"]}
    after = newest(instance, graph)
    pipeline.says("launch", plan["id"], "--yes")
    pipeline.run_root(plan["id"], partitions)
    pipeline.follow()

    ran = {node.name: parts for node in graph.nodes if (parts := ran_since(instance, node.name, after))}
    status = pipeline.told("status", plan["id"])
    assert not status["is_open"], (graph, status)
    assert ran[graph.root] == set(partitions or [""])
    assert ran.keys() <= planned.keys(), graph
    read = {stage["asset"]: stage for stage in status["stages"]}
    for asset, stage in planned.items():
        may = {""} if stage["partitions"] is None else set(stage["partitions"])
        assert ran.get(asset, set()) <= may, (graph, asset)
        if graph.changes == "all" and (asset == graph.root or follows_parts(graph, asset)):
            assert ran.get(asset, set()) == may, (graph, asset)
        done = {part for part, state in read[asset]["parts"].items() if state == "done"}
        assert done == ran.get(asset, set()), (graph, asset, read[asset])
    root = read[graph.root]
    assert root["rows"] == root["planned_rows"], graph
    assert root["size_bytes"] == root["planned_bytes"], graph
    _LOG.info("seed %s: root %s, %s rows change, %s", seed, graph.root, graph.changes, graph.nodes)
    for asset, stage in read.items():
        _LOG.info("%s: %s", asset, {name: value for name, value in stage.items() if name != "parts"})
