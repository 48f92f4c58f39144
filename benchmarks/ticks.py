"""What a tick of the automation sensor costs with hundreds of edges: nothing pending, and everything pending.

    python -m benchmarks.ticks

Dagster and the catalog on SQLite. The tables are small: a tick reads their metadata only where a pointer moved.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

import dagster_ips as ips
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.orchestration.automate.automation_sensors import AUTOMATION_SENSOR
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.support.backends import dagster_home

TABLES = 30
READERS = 10
FIRST_DAY = dt.date(2026, 1, 1)
DAYS = 5
PARTITIONS = dg.DailyPartitionsDefinition(FIRST_DAY.isoformat())


@dataclass(frozen=True)
class Figures:
    """Seconds of the first tick, of the next with nothing pending, and of one with every edge pending."""

    first: float
    idle: float
    pending: float


def definitions(folder: Path, *, partitioned: bool) -> dg.Definitions:
    assets: list[dg.AssetSpec | dg.AssetsDefinition] = []
    for table in range(TABLES):
        assets.append(ips.iceberg_asset(f"events_{table}", table=f"media.events_{table}"))
        assets += [reader(table, number, partitioned=partitioned) for number in range(READERS)]
    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(folder=str(folder / "lake")), spark=ips.LocalSparkConnect(server_folder="unused")
    )
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


def reader(table: int, number: int, *, partitioned: bool) -> dg.AssetsDefinition:
    @dg.asset(
        name=f"reader_{table}_{number}",
        partitions_def=PARTITIONS if partitioned else None,
        ins={"source": ips.incremental(f"events_{table}")},
        metadata=ips.append() | ({"partition_expr": "day"} if partitioned else {}),
    )
    def read(source: ips.IcdcView) -> object:
        return source.added

    return read


def create(lake: LakeCatalog) -> None:
    lake.create_namespace("media")
    schema = Schema(NestedField(1, "event", LongType()), NestedField(2, "day", DateType()))
    by_day = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    for table in range(TABLES):
        lake.client.create_table(f"media.events_{table}", schema, partition_spec=by_day)


def append(lake: LakeCatalog) -> None:
    days = [FIRST_DAY + dt.timedelta(days=number) for number in range(DAYS)]
    rows = pa.table([pa.array(range(DAYS), pa.int64()), pa.array(days, pa.date32())], names=["event", "day"])
    for table in range(TABLES):
        lake.client.load_table(f"media.events_{table}").append(rows)


def consume(lake: LakeCatalog, instance: dg.DagsterInstance, *, partitioned: bool) -> None:
    """As runs that consumed everything leave the cursors."""
    store = CursorStore(instance)
    keys = [(FIRST_DAY + dt.timedelta(days=number)).isoformat() for number in range(DAYS)] if partitioned else [None]
    for table in range(TABLES):
        metadata = lake.load(f"media.events_{table}", asset="benchmark")
        head = metadata.ancestry().snapshots[0]
        for number in range(READERS):
            for key in keys:
                edge = Edge(f"reader_{table}_{number}", f"events_{table}", key)
                number_taken = store.get(edge).number + 1
                store.set(EdgeState(edge, committed=metadata.watermark_at(head, "main"), number=number_taken))


def measure(folder: Path, *, partitioned: bool) -> Figures:
    folder.mkdir()
    lake = LakeCatalog.embedded("lake", folder / "lake")
    create(lake)
    append(lake)
    repository = definitions(folder, partitioned=partitioned).get_repository_def()
    sensors = [each for each in repository.sensor_defs if each.name.startswith(AUTOMATION_SENSOR)]
    cursors: dict[str, str | None] = {}

    def tick(instance: dg.DagsterInstance, assets: int) -> None:
        found: set[dg.AssetKey] = set()
        for sensor in sensors:
            result = sensor.evaluate_tick(
                dg.build_sensor_context(
                    instance, cursor=cursors.get(sensor.name), repository_def=repository, sensor_name=sensor.name
                )
            )
            cursors[sensor.name] = result.cursor
            found |= {key for request in result.run_requests or () for key in request.asset_selection or ()}
        require(len(found) == assets, f"runs of {len(found)} assets were requested")

    with dg.DagsterInstance.from_config(dagster_home(folder / "dagster", None)) as instance:
        consume(lake, instance, partitioned=partitioned)
        first = seconds(lambda: tick(instance, 0))
        idle = min(seconds(lambda: tick(instance, 0)) for _ in range(3))
        append(lake)
        return Figures(first, idle, seconds(lambda: tick(instance, TABLES * READERS)))


def require(holds: bool, otherwise: str) -> None:  # noqa: FBT001  # as an assertion
    if not holds:
        raise AssertionError(otherwise)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def report() -> str:
    """A table of the figures, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "without partitions": measure(Path(folder, "plain"), partitioned=False),
            f"daily, {DAYS} partitions changed": measure(Path(folder, "daily"), partitioned=True),
        }
    lines = [f"| {name} | {f.first:.1f} s | {f.idle:.1f} s | {f.pending:.1f} s |" for name, f in found.items()]
    edges = f"{TABLES * READERS} edges, {READERS} each on {TABLES} tables"
    return f"""## A tick

What a tick of the automation sensors takes with {edges}, Dagster and the
catalog on SQLite: the first one, one that finds nothing pending, and one that requests a run of every asset.

| assets | first | nothing pending | everything pending |
| --- | ---: | ---: | ---: |
""" + "\n".join(lines)


if __name__ == "__main__":
    print(report())
