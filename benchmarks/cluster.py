"""Two stages over many rows on a cluster and an object store: ``python -m benchmarks.cluster``.

It starts a standalone Spark cluster with two workers, an S3-compatible store and an Iceberg REST catalog, all on this
machine. Stage 1 joins events with their titles, and stage 2 keeps totals per day and account. The first run computes
everything; after that, days arrive in small commits, with late rows. At the end, both tables are compared with a
recompute. ``--full`` takes 100 million rows.
"""

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual name

import dagster_ips as ips
from benchmarks.playback.__main__ import checksum
from benchmarks.report import Report, require_same, said, table
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.local_spark.connect_server import ConnectServer, ensure_connect_server, stop_connect_server
from tests.support.backends import dagster_home
from tests.support.object_store import running_object_store
from tests.support.ports import descendants
from tests.support.rest_catalog import running_rest_catalog
from tests.support.spark_cluster import SparkCluster, running_spark_cluster

DAYS, COMMITS, LATE_PERCENT = 14, 8, 3
ACCOUNTS, TITLES, ROWS_OF_A_FILE = 200_000, 5_000, 500_000
EXECUTOR_MB = 2048
SETTINGS = {"spark.sql.shuffle.partitions": "32", "spark.ui.enabled": "false"}
SMALL_FILES = {"write.target-file-size-bytes": str(32 * 2**20)}
"""The object store of the tests reads a whole file for each request of a part of it."""
TOTALS = {"plays": "count(*)", "play_seconds": "sum(play_seconds)", "longest": "max(play_seconds)"}
Made = TypeVar("Made")


def enriched(events: DataFrame, titles: DataFrame) -> DataFrame:
    """The events with their titles' genres."""
    return events.join(F.broadcast(titles), "title_id").withColumn("is_long", F.expr("play_seconds >= 120"))


@dg.asset(
    ins={"playback": ips.incremental()},
    metadata=ips.append() | ips.table("db.daily", partition_by=["event_date"], properties=SMALL_FILES),
)
def daily(playback: ips.IcdcView, title: DataFrame) -> DataFrame:
    """Stage 1."""
    return enriched(playback.added, title)


@dg.asset(
    ins={"daily": ips.incremental()},
    metadata=ips.combine(on=["event_date", "account_id"], aggregates=TOTALS)
    | ips.table("db.by_account", partition_by=["event_date"], properties=SMALL_FILES),
)
def by_account(daily: ips.IcdcView) -> DataFrame:
    """Stage 2."""
    return daily.weighted


@dataclass
class Source:
    """Writes ``db.playback``: ``rows`` a day."""

    session: SparkSession
    rows: int
    days: int = 0
    _made: int = 0

    def create(self) -> None:
        """Create an empty source, and the titles."""
        self.session.sql(
            "CREATE TABLE lake.db.playback "
            "(event_id BIGINT, account_id INT, title_id INT, play_seconds INT, event_date DATE) "
            "USING iceberg PARTITIONED BY (event_date) "
            "TBLPROPERTIES ('write.distribution-mode' = 'none', 'write.spark.fanout.enabled' = 'true')"
        )
        self.session.sql(
            "CREATE TABLE lake.db.title USING iceberg AS SELECT /*+ COALESCE(1) */ CAST(id AS INT) AS title_id, "
            f"concat('genre ', id % 20) AS genre FROM range({TITLES})"
        )

    def past(self) -> None:
        """Add the events of ``DAYS`` days, a day at a time."""
        for _ in range(DAYS):
            self._insert(self._day(0), self.rows)
            self.days += 1

    def arrive(self) -> None:
        """Add one more day in small commits, with their share of late rows."""
        late = f"CAST(pmod(xxhash64(id, 5), {DAYS - 1}) AS INT) + 1"
        day = f"CASE WHEN pmod(xxhash64(id, 4), 100) < {LATE_PERCENT} THEN {self._day(late)} ELSE {self._day(0)} END"
        for _ in range(COMMITS):
            self._insert(day, self.rows // COMMITS)
        self.days += 1

    def _day(self, before: object) -> str:
        return f"date_sub(date_add(DATE '2026-01-01', {self.days}), {before})"

    def _insert(self, day: str, rows: int) -> None:
        columns = {
            "event_id": "id",
            "account_id": f"CAST(pmod(xxhash64(id, 1), {ACCOUNTS}) AS INT)",
            "title_id": f"CAST(pmod(xxhash64(id, 2), {TITLES}) AS INT)",
            "play_seconds": "CAST(pmod(xxhash64(id, 3), 7200) AS INT)",
            "event_date": day,
        }
        listed = ", ".join(f"{sql} AS {name}" for name, sql in columns.items())
        parts = -(-rows // ROWS_OF_A_FILE)
        ids = f"range({self._made}, {self._made + rows}, 1, {parts})"
        self.session.sql(f"INSERT INTO lake.db.playback SELECT {listed} FROM {ids}").collect()
        self._made += rows


@dataclass
class Timed:
    """What was done, in order, and how many seconds it took."""

    seconds: dict[str, float] = field(default_factory=dict)

    def __call__(self, what: str, do: Callable[[], Made]) -> Made:
        """Do it and note its time."""
        started = time.monotonic()
        made = do()
        self.seconds[what] = time.monotonic() - started
        said(f"{what}: {self.seconds[what]:.0f} s")
        return made


@dataclass(frozen=True)
class Deployment:
    """Everything that runs: the pipeline's definitions, Dagster, Spark's driver and its cluster."""

    definitions: dg.Definitions
    instance: dg.DagsterInstance
    catalog: ips.IcebergCatalog
    driver: ConnectServer
    cluster: SparkCluster

    def run(self) -> None:
        """Materialize both stages in one run."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        job.execute_in_process(instance=self.instance, asset_selection=[daily.key, by_account.key])

    def most_memory(self) -> dict[str, int]:
        """The most MB that each process had in memory at any time, according to Linux."""
        executors = {pid for worker in self.cluster.workers for pid in descendants(worker.pid)}
        found = {"Dagster's run": _most_mb("self"), "Spark's driver": _most_mb(self.driver.pid)}
        return found | {f"executor {number}": _most_mb(pid) for number, pid in enumerate(sorted(executors), start=1)}


def _most_mb(pid: int | str) -> int:
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) // 1024


@contextlib.contextmanager
def deployed() -> Iterator[Deployment]:
    """A new deployment with an empty catalog."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_object_store() as store,
        running_rest_catalog(store) as rest,
        running_spark_cluster(Path(folder) / "cluster", executor_mb=EXECUTOR_MB) as cluster,
        dg.DagsterInstance.from_config(dagster_home(Path(folder) / "home", None)) as instance,
    ):
        spark = Path(folder) / "spark"
        config = cluster.server_config | SETTINGS
        catalog = ips.IcebergCatalog(properties=rest.properties)
        resource = ips.LocalSparkConnect(server_folder=str(spark), server_config=config, extra_jars=["aws"])
        outside = [ips.iceberg_asset(name, table=f"db.{name}") for name in ("playback", "title")]
        manager = ips.IcdcIOManager(catalog=catalog, spark=resource)
        definitions = ips.with_incremental(
            dg.Definitions(assets=[*outside, daily, by_account], resources={"io_manager": manager})
        )
        try:
            driver = ensure_connect_server(**resource.server_options(), say=said)
            yield Deployment(definitions, instance, catalog, driver, cluster)
        finally:
            stop_connect_server(spark)


def measure(rows: int) -> dict[str, Any]:
    """The figures for ``rows`` a day."""
    timed = Timed()
    with deployed() as deployment:
        lake = deployment.catalog.open()
        for namespace in ("db", "ips"):
            lake.create_namespace(namespace)
        session = deployment.driver.session(lake.spark_configuration())
        source = Source(session, rows)
        source.create()
        timed(f"write {DAYS * rows:,} events", source.past)
        timed("first run, which computes everything", deployment.run)
        for number in (1, 2):
            timed(f"day {number} arrives: {rows:,} events in {COMMITS} commits", source.arrive)
            timed(f"run after day {number}", deployment.run)
        memory = deployment.most_memory()
        require_right(session, timed)
        tables = {name: _size(lake, name) for name in ("playback", "daily", "by_account")}
    return {"rows a day": rows, "seconds": timed.seconds, "most MB": memory, "tables": tables}


def require_right(session: SparkSession, timed: Timed) -> None:
    """Fail if a table differs from a recompute from the source."""
    right = enriched(session.table("lake.db.playback"), session.table("lake.db.title"))
    totals = right.groupBy("event_date", "account_id").agg(*[F.expr(sql).alias(name) for name, sql in TOTALS.items()])
    for name, wanted in (("daily", right), ("by_account", totals)):
        expected = timed(f"recompute {name}, to compare", partial(checksum, wanted))
        require_same(checksum(session.table(f"lake.db.{name}")), expected, of=name)
        said(f"{name} equals a recompute")


def _size(lake: LakeCatalog, name: str) -> dict[str, int]:
    head = lake.load(f"db.{name}", asset=name).ancestry().head
    return {of: int(head.summary[f"total-{of}"]) for of in ("records", "data-files", "files-size")} if head else {}


INTRODUCTION = f"""# Two stages on a cluster

Written by `python -m benchmarks.cluster`. A standalone Spark cluster has two workers, each with one core and
{EXECUTOR_MB:,} MB. The catalog is an Iceberg REST server, and the tables are in an S3-compatible store. All of it runs
on one machine. Stage 1 appends events that are joined with their titles; stage 2 combines them into totals per day and
account. {LATE_PERCENT}% of the rows of a day that arrives are late, spread over the {DAYS - 1} days before. At the end,
both tables were compared with a recompute from the source. The store is a test server written in Python, so yours will
be faster.
"""


def main() -> None:
    report = Report.from_arguments("cluster", __doc__)
    found = measure(7_150_000 if report.is_full else 300_000)
    steps = [(what, f"{seconds:,.0f}") for what, seconds in found["seconds"].items()]
    sizes = [
        (name, f"{size['records']:,}", f"{size['data-files']:,}", f"{size['files-size'] // 10**6:,}")
        for name, size in found["tables"].items()
    ]
    memory = [(process, f"{mb:,}") for process, mb in found["most MB"].items()]
    parts = [
        INTRODUCTION,
        table(["step", "s"], steps),
        table(["table", "rows", "files", "MB"], sizes),
        table(["process", "most MB in memory"], memory),
        report.conditions(),
    ]
    report.publish("\n\n".join(part.strip() for part in parts), found)


if __name__ == "__main__":
    main()
