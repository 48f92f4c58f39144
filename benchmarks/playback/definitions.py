"""The incremental pipeline, as Dagster loads it.

The lake is in the folder that ``PLAYBACK_BENCHMARK`` names, and ``PLAYBACK_STAGES`` says which of ``STAGES`` run.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame

import dagster_ips as ips
from benchmarks.playback.source import MEMORY
from benchmarks.playback.stages import STAGES

FOLDER = Path(os.environ["PLAYBACK_BENCHMARK"])
stages = STAGES[os.environ.get("PLAYBACK_STAGES", "wide")]


def by_change(name: str, stage_2: dict[str, Any], totals: Callable[[ips.IcdcView], DataFrame]) -> list[Any]:
    """Both stages; the second writes the rows of ``totals`` with the write mode ``stage_2``."""

    @dg.asset(
        name=f"{name}_daily",
        ins={"playback": ips.incremental()},
        metadata=ips.append() | ips.table(f"db.{name}_daily", partition_by=["event_date"]),
    )
    def daily(playback: ips.IcdcView, title: DataFrame) -> DataFrame:
        return stages.enriched(playback.added, title)

    @dg.asset(
        name=f"{name}_by_account",
        ins={"daily": dg.AssetIn(f"{name}_daily", metadata=ips.incremental().metadata)},
        metadata=stage_2 | ips.table(f"db.{name}_by_account", partition_by=["event_date"]),
    )
    def by_account(daily: ips.IcdcView) -> DataFrame:
        return totals(daily)

    return [daily, by_account]


KEYS = ["event_date", "account_id"]

defs = ips.with_incremental(
    dg.Definitions(
        assets=[
            ips.iceberg_asset("playback", table="db.playback"),
            ips.iceberg_asset("title", table="db.title"),
            *by_change("sums", ips.combine(on=KEYS, aggregates=stages.sums), lambda daily: daily.weighted),
            *by_change(
                "parts", ips.combine(on=KEYS, aggregates=stages.sums, storage="partials"), lambda daily: daily.weighted
            ),
            *by_change("keys", ips.merge(on=KEYS), lambda daily: stages.per_account(daily.affected(*KEYS))),
        ],
        resources={
            "io_manager": ips.IcdcIOManager(
                catalog=ips.IcebergCatalog(folder=str(FOLDER / "lake")),
                spark=ips.LocalSparkConnect(server_folder=str(FOLDER / "spark"), driver_memory=MEMORY),
            )
        },
        executor=dg.in_process_executor,
    )
)
