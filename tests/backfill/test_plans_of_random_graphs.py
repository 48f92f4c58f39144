"""For pipelines of any shape, a plan names what then runs; a result, staged or live, equals a recompute and reverts.

The environment variable ``SEEDS`` is the number of pipelines, and ``FIRST_SEED`` is the seed of the first one.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from dagster_ips.orchestration.run.run_metadata import of_run
from tests.backfill.random_graph import RandomPipeline, random_graph
from tests.support.lake import Event, Lake, events

pytestmark = pytest.mark.slow
FIRST = int(os.environ.get("FIRST_SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SEEDS", "4")))
ROWS = 5000
"""Rows per day: enough that a file's size depends on its rows."""


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture
def pipeline(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> RandomPipeline:
    """Ten days with a few late rows, consumed by all assets."""
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    found = RandomPipeline(lake, instance, tmp_path, random_graph(rng))
    lake.create_playback()
    found.arrive(*(row for day in range(10) for row in rows(rng, day, ROWS, day * 100_000)))
    for late in range(2):
        found.arrive(
            *(
                row
                for day in rng.sample(range(10), 3)
                for row in rows(rng, day, 30, day * 100_000 + late * 9_000 + 50_000)
            )
        )
    assert found.rows() == found.right()
    return found


def rows(rng: random.Random, day: int, count: int, first: int) -> list[Event]:
    return [
        (i, date, account, rng.randrange(10**9)) for i, date, account, _ in events(range(first, first + count), day=day)
    ]


def span(rng: random.Random) -> list[str]:
    first, last = sorted(rng.sample(range(1, 11), 2))
    return [f"2026-01-{day:02}" for day in range(first, last + 1)]


def test_a_plan_names_exactly_what_then_runs(pipeline: RandomPipeline, rng: random.Random) -> None:
    days, root = span(rng), pipeline.graph.changed
    pipeline.is_changed = True
    plan = pipeline.told("plan", root, "--partitions", f"{days[0]}..{days[-1]}")
    assert [stage["asset"] for stage in plan["stages"]] == [node.name for node in pipeline.graph.stages()]
    before = newest(pipeline)
    pipeline.says("launch", plan["id"], "--yes")
    pipeline.backfill(plan["id"])
    pipeline.follow()
    assert pipeline.rows() == pipeline.right(days)

    ran = {node.name: made_since(pipeline, node.name, before) for node in pipeline.graph.nodes}
    for name, (partitions, captured) in ran.items():
        stage = next((each for each in plan["stages"] if each["asset"] == name), None)
        if stage is None:
            assert not partitions, name
            continue
        planned = Counter(stage["partitions"] or [None])
        read = Counter({size: sum(each[size] for each in stage["reads"]) for size in ("files", "rows", "size_bytes")})
        if name == root:
            assert (partitions, captured) == (planned, read), name
            continue
        assert partitions.keys() <= planned.keys(), name
        assert captured["rows"] <= read["rows"], name
        if pipeline.graph.changes_all:
            assert (partitions.keys(), captured["rows"]) == (planned.keys(), read["rows"]), name
            assert captured["size_bytes"] == pytest.approx(read["size_bytes"], rel=0.1), name


def test_a_staged_backfill_is_published_exactly_as_its_diff_said_and_can_be_reverted(
    pipeline: RandomPipeline, rng: random.Random, seed: int
) -> None:
    days, stages = span(rng), [node.name for node in pipeline.graph.stages()]
    pipeline.is_changed = True
    before, after = pipeline.right(), pipeline.right(days)
    plan = pipeline.plan(stages[0], "--partitions", f"{days[0]}..{days[-1]}")
    pipeline.says("launch", plan, "--staged", "--yes")
    pipeline.stage(plan, *stages)
    assert pipeline.rows() == before
    for stage in pipeline.told("diff", plan)["stages"]:
        told, table = stage["total"], f"media.{stage['asset']}"
        came, went = (after[table] - before[table]).total(), (before[table] - after[table]).total()
        assert (told["added"] + told["changed"], told["removed"] + told["changed"]) == (came, went), (seed, stage)
    pipeline.says("publish", plan, "--yes")
    assert pipeline.follow() == []
    assert pipeline.rows() == after
    pipeline.is_changed = False
    pipeline.says("revert", plan, "--yes")
    pipeline.follow()
    assert pipeline.rows() == before


def newest(pipeline: RandomPipeline) -> int:
    found = pipeline.instance.event_log_storage.get_maximum_record_id()
    assert found is not None
    return found


def made_since(pipeline: RandomPipeline, asset: str, before: int) -> tuple[Counter[str | None], Counter[str]]:
    """How often each partition was computed, and the captured sizes that the runs report."""
    records = pipeline.instance.fetch_materializations(dg.AssetKey(asset), limit=1000).records
    partitions: Counter[str | None] = Counter()
    captured: dict[str, Counter[str]] = {}
    for record in records:
        made = record.asset_materialization
        if record.storage_id > before and made is not None:
            partitions[made.partition] += 1
            shown = {
                size: made.metadata.get(of_run(f"{name} captured"), made.metadata.get(f"{name} captured"))
                for size, name in (("files", "files"), ("rows", "rows"), ("size_bytes", "bytes"))
            }
            captured[record.run_id] = Counter({size: int(str(found.value)) for size, found in shown.items() if found})
    return partitions, sum(captured.values(), Counter())
