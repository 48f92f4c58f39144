"""Rows that an outside table has before Dagster has their partition, in an asset that is made of all partitions."""

from __future__ import annotations

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.lake_catalog import catalog_resource
from tests.support.partitioned import follow
from tests.support.spark_resource import spark_resource

ACCOUNTS = dg.DynamicPartitionsDefinition(name="accounts")
REGIONS = dg.StaticPartitionsDefinition(["eu"])


@dg.asset(
    partitions_def=REGIONS,
    ins={"playback": ips.incremental(partition_mapping=dg.AllPartitionMapping())},
    metadata=ips.replace() | ips.table("media.regional", partition_by=["region"]) | {"partition_expr": "region"},
)
def regional(playback: ips.IcdcView) -> DataFrame:
    return playback.source.groupBy("account").count().withColumn("region", F.lit("eu"))


def test_they_are_taken_once_their_partition_is_there_and_the_asset_is_then_left_alone(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    manager = ips.IcdcIOManager(catalog=catalog_resource(lake.folder), spark=spark_resource(lake.spark_folder))
    playback = ips.iceberg_asset(
        "playback", table="media.playback", partitions_def=ACCOUNTS, metadata={"partition_expr": "account"}
    )
    definitions = ips.with_incremental(dg.Definitions(assets=[playback, regional], resources={"io_manager": manager}))
    instance.add_dynamic_partitions("accounts", ["a0", "a1"])
    lake.create_playback(events(range(6)))  # of a0, a1 and a2
    follow(definitions, instance)
    assert lake.rows("media.regional") == {("a0", 2, "eu"): 1, ("a1", 2, "eu"): 1}
    assert follow(definitions, instance) == []

    instance.add_dynamic_partitions("accounts", ["a2"])
    assert len(follow(definitions, instance)) == 1
    assert lake.rows("media.regional") == {(f"a{number}", 2, "eu"): 1 for number in range(3)}
    assert follow(definitions, instance) == []
