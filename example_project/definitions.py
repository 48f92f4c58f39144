"""What Dagster loads: the assets, the catalog of their tables, and the Spark that computes them."""

import os

import dagster as dg

import dagster_ips as ips
from example_project import assets
from example_project.lake import CATALOG, SPARK_CONFIG, lake_folder

catalog = ips.IcebergCatalog(name=CATALOG, folder=str(lake_folder()))
spark = ips.LocalSparkConnect(server_folder=os.environ.get("PLAYBACK_SPARK"), spark_config=SPARK_CONFIG)

defs = ips.with_incremental(
    dg.Definitions(
        assets=[
            assets.playback,
            assets.title,
            assets.account_plan,
            assets.playback_daily,
            assets.playback_daily_agg,
            assets.playback_weekly,
            assets.account_running_total,
            assets.title_median,
            assets.by_title,
            assets.plays_per_genre,
            assets.daily_report,
        ],
        asset_checks=[assets.equals_full_recompute, assets.every_play_is_of_an_account],
        resources={"io_manager": ips.IcdcIOManager(catalog=catalog, spark=spark)},
        executor=dg.in_process_executor,
    ),
    # Dagster's daemon checks sensors every five seconds. With an interval of five, every other check comes too early.
    interval_seconds=1,
    # The daemon would sleep for the time that a tick waits.
    wait_seconds=4,
)
