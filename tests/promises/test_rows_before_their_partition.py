"""Rows of an outside table for which Dagster has no partition yet, in an asset that reads all partitions."""

from __future__ import annotations

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.errors import UnmappedRowsError
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import SENSOR, follow, run

ACCOUNTS = dg.DynamicPartitionsDefinition(name="accounts")
REGIONS = dg.StaticPartitionsDefinition(["eu"])


@dg.asset(
    partitions_def=REGIONS,
    ins={"playback": ips.incremental(partition_mapping=dg.AllPartitionMapping())},
    metadata=ips.replace() | ips.table("media.regional", partition_by=["region"]) | {"partition_expr": "region"},
)
def regional(playback: ips.IcdcView) -> DataFrame:
    return playback.source.groupBy("account").count().withColumn("region", F.lit("eu"))


def made_of(
    lake: Lake, accounts: dg.PartitionsDefinition[str], asset: dg.AssetsDefinition = regional
) -> dg.Definitions:
    playback = ips.iceberg_asset(
        "playback", table="media.playback", partitions_def=accounts, metadata={"partition_expr": "account"}
    )
    return definitions_on(lake.folder, lake.spark_folder, playback, asset)


def test_rows_without_a_partition_are_consumed_once_it_is_added_and_then_nothing_runs(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = made_of(lake, ACCOUNTS)
    instance.add_dynamic_partitions("accounts", ["a0", "a1"])
    lake.create_playback(events(range(6)))  # rows of a0, a1 and a2
    follow(definitions, instance)
    assert lake.rows("media.regional") == {("a0", 2, "eu"): 1, ("a1", 2, "eu"): 1}
    assert follow(definitions, instance) == []

    instance.add_dynamic_partitions("accounts", ["a2"])
    assert len(follow(definitions, instance)) == 1
    assert lake.rows("media.regional") == {(f"a{number}", 2, "eu"): 1 for number in range(3)}
    assert follow(definitions, instance) == []


def test_rows_of_a_partition_deleted_for_a_while_are_consumed_when_it_is_back(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = made_of(lake, ACCOUNTS)
    instance.add_dynamic_partitions("accounts", ["a0", "a1"])
    lake.create_playback(events([0, 1, 3, 4]))
    follow(definitions, instance)
    assert lake.rows("media.regional") == {("a0", 2, "eu"): 1, ("a1", 2, "eu"): 1}

    instance.delete_dynamic_partition("accounts", "a0")
    assert len(follow(definitions, instance)) == 1
    assert lake.rows("media.regional") == {("a1", 2, "eu"): 1}
    assert follow(definitions, instance) == []
    lake.append(events([7]))
    follow(definitions, instance)
    assert lake.rows("media.regional") == {("a1", 3, "eu"): 1}, "while it is gone, its rows are of no partition"

    instance.add_dynamic_partitions("accounts", ["a0"])
    assert len(follow(definitions, instance)) == 1
    assert lake.rows("media.regional") == {("a0", 2, "eu"): 1, ("a1", 3, "eu"): 1}
    assert follow(definitions, instance) == []


@dg.asset(
    partitions_def=REGIONS,
    ins={"playback": ips.incremental(partition_mapping=dg.AllPartitionMapping(), on_unmapped="ignore")},
    metadata=ips.replace() | ips.table("media.known", partition_by=["region"]) | {"partition_expr": "region"},
)
def known(playback: ips.IcdcView) -> DataFrame:
    return playback.source.groupBy("account").count().withColumn("region", F.lit("eu"))


def test_rows_left_out_are_consumed_once_the_definition_is_widened(lake: Lake, instance: dg.DagsterInstance) -> None:
    def follow_with(*accounts: str) -> None:
        follow(made_of(lake, dg.StaticPartitionsDefinition(accounts), known), instance)

    lake.create_playback(events(range(6)))
    follow_with("a0", "a1")
    assert lake.rows("media.known") == {("a0", 2, "eu"): 1, ("a1", 2, "eu"): 1}
    follow_with("a0", "a1", "a2")
    assert lake.rows("media.known") == {(f"a{number}", 2, "eu"): 1 for number in range(3)}
    lake.append(events([7]))
    follow_with("a1", "a2")
    assert lake.rows("media.known") == {("a1", 3, "eu"): 1, ("a2", 2, "eu"): 1}
    follow_with("a0", "a1", "a2")
    assert lake.rows("media.known") == {("a0", 2, "eu"): 1, ("a1", 3, "eu"): 1, ("a2", 2, "eu"): 1}


@pytest.mark.slow
def test_rows_of_partitions_that_a_definition_has_lost_are_an_error(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = made_of(lake, dg.StaticPartitionsDefinition(["a0", "a1", "a2"]))
    lake.create_playback(events(range(6)))
    follow(definitions, instance)
    lake.append(events([7]))
    narrowed = made_of(lake, dg.StaticPartitionsDefinition(["a1", "a2"]))
    with pytest.raises(UnmappedRowsError, match="a0"):
        run(narrowed, instance, "regional", "eu", **SENSOR)
    run(definitions, instance, "regional", "eu", **SENSOR)
    assert lake.rows("media.regional") == {("a0", 2, "eu"): 1, ("a1", 3, "eu"): 1, ("a2", 2, "eu"): 1}
