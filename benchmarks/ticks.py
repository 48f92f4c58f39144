"""What a tick of the automation sensors costs: ``python -m benchmarks.ticks``.

It measures 1 to 1,000 tables, up to 10,000 edges, and one asset with 15,000 partitions: the first tick, one that finds
nothing pending, and one with every edge pending, which must request a run of every asset. Dagster and the catalog are
on SQLite.
"""

import datetime as dt
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import dagster as dg
import pyarrow as pa
import sqlalchemy as db
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

import dagster_ips as ips
from benchmarks.made_tables import MadeTable, Shape
from benchmarks.report import Report, said, table
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.stamps import owner_properties
from dagster_ips.orchestration.automate.automation_sensors import AUTOMATION_SENSOR
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PROGRESS
from tests.support.backends import dagster_home

FIRST_DAY = dt.date(1970, 1, 1)
CHANGED = 5
"""The number of days that a commit has rows of; they are the last days."""


@dataclass(frozen=True)
class Case:
    """The number of tables, of assets that read each table, and of daily partitions of each asset, 0 if it has none."""

    tables: int
    readers: int
    days: int = 0

    @property
    def edges(self) -> int:
        return self.tables * self.readers * max(1, self.days)

    @property
    def keys(self) -> list[str]:
        return [(FIRST_DAY + dt.timedelta(days=day)).isoformat() for day in range(self.days)]


CASES = (Case(1, 1), Case(100, 1), Case(30, 10), Case(30, 10, days=5), Case(1, 1, days=15_000))
FULL_CASES = (Case(1_000, 1), Case(1_000, 10))


@dataclass(frozen=True)
class Figures:
    """The seconds of three ticks, and bytes: of the edges in tables and Dagster's database, and of sensors' cursors."""

    first: float
    idle: float
    pending: float
    stored_bytes: int
    cursor_bytes: int


def definitions(folder: Path, case: Case) -> dg.Definitions:
    end = (FIRST_DAY + dt.timedelta(days=case.days)).isoformat()
    partitions = dg.DailyPartitionsDefinition(FIRST_DAY.isoformat(), end_date=end) if case.days else None
    assets: list[dg.AssetSpec | dg.AssetsDefinition] = []
    for number in range(case.tables):
        assets.append(ips.iceberg_asset(f"events_{number}", table=f"media.events_{number}"))
        assets += [reader(number, each, partitions) for each in range(case.readers)]
    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(folder=str(folder / "lake")), spark=ips.LocalSparkConnect(server_folder="unused")
    )
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


def reader(table: int, number: int, partitions: dg.PartitionsDefinition[str] | None) -> dg.AssetsDefinition:
    @dg.asset(
        name=f"reader_{table}_{number}",
        partitions_def=partitions,
        ins={"source": ips.incremental(f"events_{table}")},
        metadata=ips.append()
        | ips.table(f"media.reader_{table}_{number}")
        | ({"partition_expr": "p"} if partitions else {}),
    )
    def read(source: ips.IcdcView) -> object:
        return source.added

    return read


def created(lake: LakeCatalog, case: Case) -> list[MadeTable]:
    """Create the tables, each with a file for every day."""
    lake.create_namespace("media")
    shape = Shape(snapshots=2, files=max(CHANGED, case.days))
    made = [MadeTable(lake, f"media.events_{number}", shape, by_day=True) for number in range(case.tables)]
    for each in made:
        each.create()
    return made


def append(made: MadeTable) -> None:
    """Commit rows of the last days."""
    made.append_all(range(made.shape.files - CHANGED, made.shape.files))


def consume(lake: LakeCatalog, case: Case) -> int:
    """Publish a table for each reader that has consumed everything, as runs leave it; returns the progress's bytes."""
    schema, stored = Schema(NestedField(1, "p", StringType())), 0
    for number in range(case.tables):
        metadata = lake.load(f"media.events_{number}", asset="benchmark")
        at = metadata.watermark_at(metadata.ancestry().snapshots[0], "main")
        for each in range(case.readers):
            asset = f"reader_{number}_{each}"
            division = "p by 0 0 * * * in UTC as %Y-%m-%d" if case.days else None
            progress = Progress(1, {f"events_{number}": InputProgress(at, division=division)})
            stamp = owner_properties(asset, None) | {PROGRESS: progress_text(progress)}
            target = lake.client.create_table(f"media.{asset}", schema)
            target.append(pa.table({"p": pa.array([], pa.string())}), snapshot_properties=stamp)
            stored += len(stamp[PROGRESS])
    return stored


def measure(folder: Path, case: Case) -> Figures:
    folder.mkdir()
    lake = LakeCatalog.embedded("lake", folder / "lake")
    made = created(lake, case)
    repository = definitions(folder, case).get_repository_def()
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
        stored = consume(lake, case)
        first = seconds(lambda: tick(instance, 0))
        idle = min(seconds(lambda: tick(instance, 0)) for _ in range(3))
        for each in made:
            append(each)
        pending = seconds(lambda: tick(instance, case.tables * case.readers))
        in_cursors = sum(len(cursor or "") for cursor in cursors.values())
        return Figures(first, idle, pending, stored + stored_bytes(instance), in_cursors)


def stored_bytes(instance: dg.DagsterInstance) -> int:
    query = "SELECT coalesce(sum(length(key) + length(value)), 0) FROM kvs WHERE key LIKE 'dagster_ips:%'"
    with instance.run_storage.connect() as connection:
        return int(connection.execute(db.text(query)).scalar())


def require(holds: bool, otherwise: str) -> None:  # noqa: FBT001  # as an assertion
    if not holds:
        raise AssertionError(otherwise)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def line(case: Case, found: Figures) -> list[str]:
    sizes = [f"{case.tables:,}", f"{case.tables * case.readers:,}", f"{case.days:,}" if case.days else "none"]
    ticks = [f"{each:.2f} s" for each in (found.first, found.idle, found.pending)]
    return [*sizes, *ticks, f"{found.stored_bytes / case.edges:,.0f}", f"{found.cursor_bytes:,}"]


def main() -> None:
    report = Report.from_arguments("ticks", __doc__)
    found: list[tuple[Case, Figures]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(CASES + FULL_CASES * report.is_full):
            found.append((case, measure(Path(folder, str(number)), case)))
            said(f"{case}: {found[-1][1]}")
    heads = ["tables", "assets", "partitions of each", "first", "nothing pending", "everything pending"]
    heads += ["bytes stored per edge", "sensors' cursors, bytes"]
    report.publish(
        f"""# What a sensor tick costs

Written by `python -m benchmarks.ticks`. How long a tick of the automation sensors takes, with Dagster and the catalog
on SQLite: the first tick, one that finds nothing pending, and one that requests a run of every asset after each table
had a commit of {CHANGED} days. An edge is an input of an asset or, if the asset is partitioned, of each partition.

{report.conditions()}

{table(heads, [line(*each) for each in found], words=0)}

- With everything pending, three quarters of a tick are queries to Dagster's event log, three for each asset. One of
  them is this library's: whether the last run failed. In a profile of 30 assets, the tables' metadata took 4 %.
- The first tick of a partitioned asset reads every file's partition values, so it grows with the number of files.

[10,000 edges](edges.md) shows what the database costs with very many edges.""",
        [{**asdict(case), **asdict(figures)} for case, figures in found],
    )


if __name__ == "__main__":
    main()
