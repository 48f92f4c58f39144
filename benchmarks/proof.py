"""What a proof costs compared with the runs that it proves: ``python -m benchmarks.proof --rows 2000000``.

Three tables are computed from events of 100 days, and then a run processes a change in three days. The proof's seconds
come from its own result; they are shown as a share of the incremental run and of the first run, which computes
everything. Redirect the output to docs/proof.md.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual name

import dagster_ips as ips
from dagster_ips.local_spark.connect_server import ensure_connect_server, stop_connect_server
from tests.support.backends import dagster_home

DAYS = 100
SAMPLES = (0.01, 0.1, 1.0)
TABLES = ("daily", "by_account", "lifetime")
INTRODUCTION = """# What a proof costs

Written by `python -m benchmarks.proof`: {count:,} rows over {days} days, and a change of {change:,} rows in three of
those days. `daily` copies the rows with `append`. `by_account` aggregates them per day and account, and `lifetime` per
account in a table without partitions. A [proof](checks.md#proof) recomputes a sample from the inputs and compares it.
If the table has partitions, the sample consists of partitions, and little is read; otherwise it consists of keys, and
all inputs are read.
"""


@dg.asset(
    ins={"events": ips.incremental()},
    metadata=ips.append(dedup_on=["event_date", "event_id"]) | ips.table("db.daily", partition_by=["event_date"]),
)
def daily(events: ips.IcdcView) -> DataFrame:
    return events.changes.withColumn("minutes", F.floor(F.col("seconds") / 60))


@dg.asset(
    ins={"daily": ips.incremental()},
    metadata=ips.merge(on=["event_date", "account"]) | ips.table("db.by_account", partition_by=["event_date"]),
)
def by_account(daily: ips.IcdcView) -> DataFrame:
    rows = daily.affected("event_date", "account")
    return rows.groupBy("event_date", "account").agg(F.count("*").alias("plays"), F.sum("seconds").alias("seconds"))


@dg.asset(ins={"daily": ips.incremental()}, metadata=ips.merge(on=["account"]) | ips.table("db.lifetime"))
def lifetime(daily: ips.IcdcView) -> DataFrame:
    return daily.affected("account").groupBy("account").agg(F.sum("seconds").alias("seconds"))


def rows(first: int, count: int, days: str) -> str:
    day = f"date_add(DATE '2026-01-01', CAST({days} AS INT))"
    accounts = max(10, count // 20)
    return (
        f"SELECT {first} + id AS event_id, {day} AS event_date, "
        f"CAST(pmod(xxhash64(id), {accounts}) AS STRING) AS account, id % 600 AS seconds FROM range({count})"
    )


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = Path(folder) / "spark"
        catalog = ips.IcebergCatalog(folder=f"{folder}/lake")
        manager = ips.IcdcIOManager(catalog=catalog, spark=ips.LocalSparkConnect(server_folder=str(spark)))
        try:
            measure(given.rows, Path(folder), spark, catalog, manager)
        finally:
            stop_connect_server(spark)


def measure(count: int, folder: Path, spark: Path, catalog: ips.IcebergCatalog, manager: ips.IcdcIOManager) -> None:
    lake = catalog.open()
    lake.create_namespace("db")
    session = ensure_connect_server(spark).session(lake.spark_configuration())
    session.sql(
        f"CREATE TABLE lake.db.events USING iceberg PARTITIONED BY (event_date) AS {rows(0, count, f'id % {DAYS}')}"
    )
    definitions = ips.with_incremental(
        dg.Definitions(
            assets=[ips.iceberg_asset("events", table="db.events"), daily, by_account, lifetime],
            asset_checks=[ips.proof(name) for name in TABLES],
            jobs=[dg.define_asset_job(f"prove_{name}", selection=checks_of(name)) for name in TABLES],
            resources={"io_manager": manager},
        )
    )
    with dg.DagsterInstance.from_config(dagster_home(folder / "home", None)) as instance:
        full = {name: seconds_of(lambda name=name: run(definitions, instance, name)) for name in TABLES}
        session.sql(f"INSERT INTO lake.db.events {rows(count, count // DAYS, f'{DAYS} - 3 + id % 3')}")
        change = {name: seconds_of(lambda name=name: run(definitions, instance, name)) for name in TABLES}
        print(INTRODUCTION.format(count=count, days=DAYS, change=count // DAYS))
        print("| table | sample | rows compared | proof | of the incremental run | of a run over everything |")
        print("| --- | --- | --- | --- | --- | --- |")
        for name in TABLES:
            for sample in SAMPLES:
                compared, took = prove(definitions, instance, name, sample)
                shares = (
                    f"{took / change[name]:.0%} of {change[name]:.1f} s | {took / full[name]:.0%} of {full[name]:.1f} s"
                )
                print(f"| {name} | {sample:.0%} | {compared:,} | {took:.1f} s | {shares} |")
        print(f"\nOn {os.cpu_count()} cores; the load was {os.getloadavg()[0]:.1f} in the end.")


def checks_of(name: str) -> dg.AssetSelection:
    return dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey(name), "proof"))


def run(definitions: dg.Definitions, instance: dg.DagsterInstance, name: str) -> None:
    job = dg.define_asset_job(f"run_{name}", selection=dg.AssetSelection.assets(name).without_checks())
    found = dg.Definitions.merge(definitions, dg.Definitions(jobs=[job])).resolve_job_def(job.name)
    found.execute_in_process(instance=instance)


def prove(definitions: dg.Definitions, instance: dg.DagsterInstance, name: str, sample: float) -> tuple[int, float]:
    config = {"ops": {f"{name}_proof": {"config": {"sample": sample, "seed": 1}}}}
    result = definitions.resolve_job_def(f"prove_{name}").execute_in_process(instance=instance, run_config=config)
    (found,) = result.get_asset_check_evaluations()
    if not found.passed:
        raise RuntimeError(found.description)
    return int(str(found.metadata["rows compared"].value)), float(str(found.metadata["seconds"].value))


if __name__ == "__main__":
    main()
