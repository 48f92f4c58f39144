"""Random pipelines of daily, weekly, static and unpartitioned assets, in the first of which code can be changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.backfill.three_stages import ThreeStages
from tests.support.lake import Lake

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-15")
WEEKS = dg.WeeklyPartitionsDefinition(start_date="2025-12-28", end_date="2026-01-18")
ACCOUNTS = dg.StaticPartitionsDefinition(["a0", "a1", "a2"])
FROM_DAYS = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)
_COLUMNS = ("event_id", "event_date", "account", "seconds")
_KINDS: dict[str, tuple[dg.PartitionsDefinition[str] | None, str | None]] = {
    "days": (DAYS, "event_date"),
    "weeks": (WEEKS, "week"),
    "static": (ACCOUNTS, "account"),
    "whole": (None, None),
}
_READS = {
    "days": ("outside", "days"),
    "weeks": ("days", "weeks"),
    "static": ("outside", "whole", "static"),
    "whole": ("outside", "days", "weeks", "static", "whole"),
}


@dataclass(frozen=True)
class Node:
    """An asset: its kind, and what it reads; ``outside`` are the two tables from outside."""

    name: str
    kind: str
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """Nodes in order, and what the root's changed code changes: all rows, or those of an account."""

    nodes: tuple[Node, ...]
    root: str
    changes: str

    def kind(self, name: str) -> str:
        return next((node.kind for node in self.nodes if node.name == name), "outside")


def random_graph(random: Random) -> Graph:
    """From 3 to 7 assets; each kind reads what can be followed by it."""
    nodes: list[Node] = []
    while len(nodes) < random.randint(3, 7):
        kind = random.choice(list(_KINDS))
        kinds = {"outside_a": "outside", "outside_b": "outside", **{node.name: node.kind for node in nodes}}
        near = [name for name, each in kinds.items() if each in _READS[kind]]
        if near:
            # What was made last is read more often, so that there are chains as well as fans.
            reads = {random.choice(near[-3:]), *random.sample(near, random.randint(0, 1))}
            nodes.append(Node(f"n{len(nodes)}_{kind}", kind, tuple(sorted(reads))))
    read = {name for node in nodes for name in node.reads}
    roots = [node.name for node in nodes if node.name in read] or [nodes[0].name]
    return Graph(tuple(nodes), random.choice(roots), random.choice(["all", "all", "a1"]))


def graph_definitions(lake_folder: Path, spark_folder: Path, text: str, *, changed: bool) -> dg.Definitions:
    """The pipeline of a graph as JSON."""
    told = json.loads(text)
    nodes = tuple(Node(each["name"], each["kind"], tuple(each["reads"])) for each in told["nodes"])
    graph = Graph(nodes, told["root"], told["changes"])
    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(folder=str(lake_folder)),
        spark=ips.LocalSparkConnect(server_folder=str(spark_folder)),
        icdc_keep_last=1,
    )
    outside = [ips.iceberg_asset(f"outside_{each}", table=f"media.outside_{each}") for each in "ab"]
    assets = [_asset(graph, node, changed=changed and node.name == graph.root) for node in nodes]
    return ips.with_incremental(dg.Definitions(assets=[*outside, *assets], resources={"io_manager": manager}))


def _asset(graph: Graph, node: Node, *, changed: bool) -> dg.AssetsDefinition:
    definition, column = _KINDS[node.kind]
    mode = ips.replace() if node.kind == "weeks" else ips.merge(on=["event_id", *([column] if column else [])])
    partitioned = {"partition_expr": column} if column else {}

    def compute(**views: ips.IcdcView) -> DataFrame:
        # Ids are made to differ by input, as rows of one event may come on several ways.
        frames = [
            (view.source if node.kind == "weeks" else view.added)
            .select(*_COLUMNS)
            .withColumn("event_id", F.col("event_id") * 10 + number)
            for number, (_, view) in enumerate(sorted(views.items()))
        ]
        rows = reduce(DataFrame.unionByName, frames)
        if changed:
            is_changed = F.expr("true") if graph.changes == "all" else F.col("account") == graph.changes
            rows = rows.withColumn("seconds", F.when(is_changed, F.col("seconds") + 1).otherwise(F.col("seconds")))
        sunday = F.expr("date_sub(event_date, dayofweek(event_date) - 1)")
        return rows.withColumn("week", sunday) if node.kind == "weeks" else rows

    def mapping(upstream: str) -> dict[str, Any]:
        from_days = node.kind == "weeks" and graph.kind(upstream) == "days"
        return {"partition_mapping": FROM_DAYS} if from_days else {}

    return dg.asset(
        name=node.name,
        partitions_def=definition,
        code_version="changed" if changed else "first",
        ins={f"from_{name}": ips.incremental(key=name, **mapping(name)) for name in node.reads},
        metadata=mode | ips.table(f"media.{node.name}", partition_by=[column] if column else []) | partitioned,
        backfill_policy=dg.BackfillPolicy.single_run() if definition else None,
    )(compute)


class RandomPipeline(ThreeStages):
    """A graph on a lake, its root's code as it was first, or changed; and ``dagster-ips`` on it."""

    def __init__(self, graph: Graph, lake: Lake, instance: dg.DagsterInstance, folder: Path) -> None:
        super().__init__(lake, instance, folder)
        self.graph = graph

    @property
    def definitions(self) -> dg.Definitions:
        text = json.dumps(asdict(self.graph))
        return graph_definitions(self.lake.folder, self.lake.spark_folder, text, changed=not self.has_bug)

    @property
    def file(self) -> Path:
        path = self.folder / f"{'first' if self.has_bug else 'changed'}_graph.py"
        path.write_text(
            "from pathlib import Path\n\nfrom tests.backfill.random_graphs import graph_definitions\n\n"
            f"defs = graph_definitions(Path({str(self.lake.folder)!r}), Path({str(self.lake.spark_folder)!r}), "
            f"{json.dumps(asdict(self.graph))!r}, changed={not self.has_bug})\n"
        )
        return path

    def chosen(self, random: Random) -> list[str] | None:
        """Some partitions of the root; None of one without."""
        definition, _ = _KINDS[self.graph.kind(self.graph.root)]
        if definition is None:
            return None
        keys = list(definition.get_partition_keys())
        return sorted(random.sample(keys, random.randint(1, len(keys))))

    def run_root(self, backfill_id: str, partitions: list[str] | None) -> None:
        """What the daemon does: a run of each stretch of partitions, and the end of the backfill."""
        found = self.instance.get_backfill(backfill_id)
        assert found is not None
        tags = {**found.tags, "dagster/backfill": backfill_id}
        root = dg.AssetKey(self.graph.root)
        if partitions is None:
            job = self.definitions.resolve_implicit_global_asset_job_def()
            assert job.execute_in_process(instance=self.instance, asset_selection=[root], tags=tags).success
        else:
            for first, last in _stretches(self.graph.kind(self.graph.root), partitions):
                self.run(self.graph.root, first, last, **tags)
        self.instance.update_backfill(found.with_status(type(found.status).COMPLETED_SUCCESS))


def _stretches(kind: str, partitions: list[str]) -> Iterator[tuple[str, str]]:
    definition, _ = _KINDS[kind]
    assert definition is not None
    keys = list(definition.get_partition_keys())
    first = last = partitions[0]
    for key in partitions[1:]:
        if keys.index(key) != keys.index(last) + 1:
            yield first, last
            first = key
        last = key
    yield first, last
