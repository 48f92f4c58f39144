"""A lake with Dagster in this process: assets that follow a table ``db.events``, run one at a time."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

import dagster_ips as ips
from benchmarks.lake import NAME
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.local_spark.connect_server import ConnectServer, ensure_connect_server, stop_connect_server
from tests.support.backends import dagster_home


@dataclass(frozen=True)
class DagsterLake:
    """A lake and its Dagster. ``definitions`` contain the assets; tables are in the namespace ``db`` of ``lake``."""

    definitions: dg.Definitions
    instance: dg.DagsterInstance
    lake: LakeCatalog
    session: SparkSession
    server: ConnectServer

    def run(self, asset: str) -> str:
        """Materialize one asset; returns the run's id."""
        job = dg.define_asset_job(f"run_{asset}", selection=dg.AssetSelection.assets(asset).without_checks())
        found = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[job])).resolve_job_def(job.name)
        return found.execute_in_process(instance=self.instance).run_id

    def run_job(self, name: str, config: Mapping[str, Any]) -> None:
        """Run a job of the definitions."""
        self.definitions.resolve_job_def(name).execute_in_process(instance=self.instance, run_config=dict(config))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query's result."""
        return [tuple(row) for row in self.session.sql(sql).collect()]


@contextlib.contextmanager
def dagster_lake(assets: Sequence[dg.AssetsDefinition]) -> Iterator[DagsterLake]:
    """A temporary lake; ``assets`` may read the outside table ``events``, which the caller must create."""
    with tempfile.TemporaryDirectory() as folder:
        spark = Path(folder) / "spark"
        catalog = ips.IcebergCatalog(folder=f"{folder}/lake")
        manager = ips.IcdcIOManager(catalog=catalog, spark=ips.LocalSparkConnect(server_folder=str(spark)))
        events = ips.iceberg_asset("events", table="db.events")
        definitions = ips.with_incremental(dg.Definitions(assets=[events, *assets], resources={"io_manager": manager}))
        try:
            server = ensure_connect_server(spark)
            lake = catalog.open()
            lake.create_namespace("db")
            session = server.session(lake.spark_configuration())
            if lake.name != NAME:
                raise ValueError(lake.name)
            with dg.DagsterInstance.from_config(dagster_home(Path(folder) / "home", None)) as instance:
                yield DagsterLake(definitions, instance, lake, session, server)
        finally:
            stop_connect_server(spark)
