"""Pipelines of random shape over an outside table. The code of one asset can be changed, for all rows or for some."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.backfill.backfilled_pipeline import BackfilledPipeline
from tests.support.lake import Event, Lake
from tests.support.lake_definitions import manager_on
from tests.support.partitioned import DAYS, FROM_DAYS, WEEKS

ROWS = "rows"
"""The kind of an asset with the columns of the outside table, from one upstream. The other kinds aggregate."""
SUMS = ("per day and account", "per day", "of two", "per week", "per account", "combined")


@dataclass(frozen=True)
class Node:
    """An asset of a ``kind``, with its upstreams. An asset of kind ROWS adds ``more`` to the seconds of each row."""

    name: str
    kind: str
    upstreams: tuple[str, ...]
    more: int = 0
    is_merged: bool = True

    @property
    def table(self) -> str:
        return f"media.{self.name}"


@dataclass(frozen=True)
class Graph:
    """``changed`` is the asset whose code can be changed: it then adds 1,000 seconds to rows of ``accounts``."""

    nodes: tuple[Node, ...]
    changed: str
    accounts: tuple[str, ...]

    @property
    def changes_all(self) -> bool:
        return len(self.accounts) == 3

    def stages(self) -> list[Node]:
        """``changed`` and the assets downstream of it, each after its upstreams."""
        found = {self.changed}
        for node in self.nodes:
            if found & set(node.upstreams):
                found.add(node.name)
        return [node for node in self.nodes if node.name in found]


def random_graph(rng: random.Random) -> Graph:
    """One to four assets of kind ROWS, and two to five that aggregate."""
    rows: list[Node] = []
    for number in range(rng.randint(1, 4)):
        upstream = rng.choice(["playback", *(each.name for each in rows)])
        rows.append(Node(f"rows_{number}", ROWS, (upstream,), more=rng.randint(0, 9), is_merged=rng.random() < 0.5))
    sums: list[Node] = []
    for number in range(rng.randint(2, 5)):
        kind = rng.choice(SUMS if len(rows) > 1 else [each for each in SUMS if each != "of two"])
        upstreams = rng.sample([each.name for each in rows], 2 if kind == "of two" else 1)
        sums.append(Node(f"sums_{number}", kind, tuple(upstreams)))
    accounts = rng.choice([("a0", "a1", "a2"), ("a1",)])
    return Graph((*rows, *sums), rng.choice(rows).name, accounts)


def definitions_of(lake_folder: Path, spark_folder: Path, graph: Graph, *, is_changed: bool) -> dg.Definitions:
    """The pipeline, with the original or the changed code of one asset."""
    manager = manager_on(lake_folder, spark_folder, icdc_keep_last=1)
    assets = [_asset(node, graph, is_changed=is_changed and node.name == graph.changed) for node in graph.nodes]
    playback = ips.iceberg_asset("playback", table="media.playback")
    return ips.with_incremental(dg.Definitions(assets=[playback, *assets], resources={"io_manager": manager}))


def _asset(node: Node, graph: Graph, *, is_changed: bool) -> dg.AssetsDefinition:
    by_week, is_whole = node.kind == "per week", node.kind in ("per account", "combined")
    column = None if is_whole else "week" if by_week else "event_date"
    where = ips.table(node.table, partition_by=[column] if column else [])

    @dg.asset(
        name=node.name,
        code_version=f"{node.more}{' changed' if is_changed else ''}",
        partitions_def=None if is_whole else WEEKS if by_week else DAYS,
        ins={name: ips.incremental(partition_mapping=FROM_DAYS if by_week else None) for name in node.upstreams},
        metadata=_written(node) | where | ({"partition_expr": column} if column else {}),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def made(**views: ips.IcdcView) -> DataFrame:
        return _result(node, list(views.values()), graph.accounts if is_changed else ())

    return made


def _written(node: Node) -> dict[str, Any]:
    match node.kind:
        case "rows":
            on = ["event_date", "event_id"]
            return ips.merge(on=on) if node.is_merged else ips.append(remove_on=on)
        case "per day and account":
            return ips.merge(on=["event_date", "account"])
        case "per day":
            return ips.overwrite_partitions()
        case "per account":
            return ips.merge(on=["account"])
        case "combined":
            return ips.combine(on=["account"], aggregates={"plays": "count(*)", "seconds": "sum(seconds)"})
    return ips.replace()


def _result(node: Node, views: Sequence[ips.IcdcView], accounts: Sequence[str]) -> DataFrame:
    (view, *others) = views
    if node.kind == ROWS:
        more = F.when(F.col("account").isin(*accounts), 1000).otherwise(0) if accounts else F.lit(0)
        return view.added.withColumn("seconds", (F.col("seconds") + more + node.more).cast("bigint"))
    if node.kind == "combined":
        return view.weighted
    match node.kind:
        case "per day and account":
            groups = view.affected("event_date", "account").groupBy("event_date", "account")
        case "per account":
            groups = view.affected("account").groupBy("account")
        case "per day":
            groups = view.scope.groupBy("event_date")
        case "per week":
            groups = view.source.groupBy(F.expr("date_sub(event_date, dayofweek(event_date) - 1)").alias("week"))
        case _:
            groups = view.source.unionByName(others[0].source).groupBy("event_date")
    return groups.agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


class RandomPipeline(BackfilledPipeline):
    """A random graph on a lake of ten days."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, folder: Path, graph: Graph) -> None:
        super().__init__(lake, instance, folder)
        self.graph, self.is_changed = graph, False
        self.TABLES = tuple(node.table for node in graph.nodes)
        self.LAST = graph.stages()[-1].name

    @property
    def definitions(self) -> dg.Definitions:
        return definitions_of(self.lake.folder, self.lake.spark_folder, self.graph, is_changed=self.is_changed)

    @property
    def file(self) -> Path:
        path = self.folder / f"{'changed' if self.is_changed else 'first'}_definitions.py"
        path.write_text(
            "from pathlib import Path\n\nfrom tests.backfill.random_graph import Graph, Node, definitions_of\n\n"
            f"defs = definitions_of(Path({str(self.lake.folder)!r}), Path({str(self.lake.spark_folder)!r}), "
            f"{self.graph!r}, is_changed={self.is_changed})\n"
        )
        return path

    def rows(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """The rows of each table, without the hidden columns of ``combine``."""
        frames = {table: self.lake.session.table(f"lake.{table}") for table in self.TABLES}
        return {
            table: Counter(tuple(row) for row in frame.select(_shown(frame)).collect())
            for table, frame in frames.items()
        }

    def right(self, days: Sequence[str] = ()) -> Mapping[str, Counter[tuple[Any, ...]]]:
        """What the tables must hold, without Spark: rows of ``days`` by the changed code, others by the original."""
        made: dict[str, list[Event]] = {"playback": self.events}
        found: dict[str, Counter[tuple[Any, ...]]] = {}
        for node in self.graph.nodes:
            rows = [row for name in node.upstreams for row in made[name]]
            if node.kind == ROWS:
                is_changed = node.name == self.graph.changed
                made[node.name] = [
                    (
                        i,
                        d,
                        a,
                        s + node.more + (1000 if is_changed and str(d) in days and a in self.graph.accounts else 0),
                    )
                    for i, d, a, s in rows
                ]
                found[node.table] = Counter(made[node.name])
            else:
                found[node.table] = _sums(node.kind, rows)
        return found


def _shown(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if not name.startswith("_ips_")]


def _sums(kind: str, rows: Sequence[Event]) -> Counter[tuple[Any, ...]]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for _, date, account, seconds in rows:
        match kind:
            case "per day and account":
                key: tuple[Any, ...] = (date, account)
            case "per account" | "combined":
                key = (account,)
            case "per week":
                key = (date - dt.timedelta(days=(date.weekday() + 1) % 7),)
            case _:
                key = (date,)
        groups.setdefault(key, []).append(seconds)
    return Counter((*key, len(each), sum(each)) for key, each in groups.items())
