"""What the demo's Dagster loads: the two stages of the example's pipeline, and two assets that follow from them."""

import dagster as dg

import dagster_ips as ips
from example_project import assets
from example_project.definitions import catalog, spark

defs = ips.with_incremental(
    dg.Definitions(
        assets=[
            assets.playback,
            assets.title,
            assets.playback_daily,
            assets.playback_daily_agg,
            assets.plays_per_genre,
            assets.daily_report,
        ],
        resources={"io_manager": ips.IcdcIOManager(catalog=catalog, spark=spark)},
        executor=dg.in_process_executor,
    ),
    interval_seconds=1,
    wait_seconds=4,
)
