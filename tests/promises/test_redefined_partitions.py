"""An asset's partitions are redefined while its table has rows: no change is lost, and none is read twice."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import DAYS, SENSOR, WEEKS, follow, run
from tests.support.pipeline import materialize
from tests.support.variants import mostly_slow

ACCOUNTS = dg.StaticPartitionsDefinition(["a0", "a1", "a2"])
DAYS_OF_ACCOUNTS = dg.MultiPartitionsDefinition({"day": DAYS, "account": ACCOUNTS})
MONTHS = dg.MonthlyPartitionsDefinition(start_date="2026-01-01")
SUNDAY, MONDAY, TUESDAY = 3, 4, 5


def copy(
    lake: Lake, partitions: dg.PartitionsDefinition[str] | None, expression: object = "event_date"
) -> dg.Definitions:
    """An asset with these partitions that appends the added rows to its table."""

    @dg.asset(
        partitions_def=partitions,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | ips.table("media.copy") | {"partition_expr": expression},
    )
    def copy(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    playback = ips.iceberg_asset("playback", table="media.playback")
    return definitions_on(lake.folder, lake.spark_folder, playback, copy)


@pytest.mark.parametrize(
    ("partitions", "expression"),
    [
        pytest.param(WEEKS, "event_date", id="weeks"),  # a week has the same key as its first day
        pytest.param(MONTHS, "event_date", id="months", marks=pytest.mark.slow),
        pytest.param(ACCOUNTS, "account", id="accounts", marks=pytest.mark.slow),
        pytest.param(
            DAYS_OF_ACCOUNTS, {"day": "event_date", "account": "account"}, id="two dimensions", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize("expires", mostly_slow([True, False]), ids=["history expired", "history kept"])
def test_daily_partitions_can_be_redefined_and_restored_while_changes_wait(
    lake: Lake,
    instance: dg.DagsterInstance,
    partitions: dg.PartitionsDefinition[str],
    expression: object,
    *,
    expires: bool,
) -> None:
    days, others = copy(lake, DAYS), copy(lake, partitions, expression)
    lake.create_playback(events(range(4)) + events(range(10, 14), day=SUNDAY) + events(range(20, 24), day=MONDAY))
    follow(days, instance)
    late = events([14], day=SUNDAY) + events([24], day=MONDAY) + events([30], day=TUESDAY)
    lake.append(late)
    run(days, instance, "copy", "2026-01-04", **SENSOR)
    follow(others, instance)
    assert lake.rows("media.copy") == lake.rows("media.playback")
    assert follow(others, instance) == []

    lake.append(events([15], day=SUNDAY) + events([25], day=MONDAY))
    follow(others, instance)
    if expires:
        lake.maintain("media.copy")
    lake.append(events([26], day=MONDAY))
    follow(days, instance)
    assert lake.rows("media.copy") == lake.rows("media.playback")
    assert follow(days, instance) == []


@pytest.mark.slow
@pytest.mark.parametrize("expires", [False, True], ids=["history kept", "history expired"])
def test_an_asset_can_be_partitioned_for_a_while(lake: Lake, instance: dg.DagsterInstance, *, expires: bool) -> None:
    whole, days = copy(lake, None), copy(lake, DAYS)
    lake.create_playback(events(range(4)) + events(range(10, 14), day=SUNDAY))
    for day in (SUNDAY, MONDAY):
        materialize(whole, instance, "copy")
        lake.append(events([50 + day], day=day))
        follow(days, instance)
        assert lake.rows("media.copy") == lake.rows("media.playback")
        if expires:
            lake.maintain("media.copy")
        lake.append(events([60 + day], day=day))
        materialize(whole, instance, "copy")
        assert lake.rows("media.copy") == lake.rows("media.playback")
    result = materialize(whole, instance, "copy")
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["mode"].value == "incremental"


@pytest.mark.slow
def test_another_column_can_hold_the_keys_of_an_upstream(lake: Lake, instance: dg.DagsterInstance) -> None:
    def counts_by(column: str) -> dg.Definitions:
        @dg.asset(
            partitions_def=DAYS,
            ins={"loads": ips.incremental()},
            metadata=ips.replace() | ips.table("media.counts") | {"partition_expr": "day"},
        )
        def counts(loads: ips.IcdcView) -> DataFrame:
            return loads.source.groupBy(F.col(column).alias("day")).agg(F.count("*").alias("events"))

        loads = ips.iceberg_asset(
            "loads", table="media.loads", partitions_def=DAYS, metadata={"partition_expr": column}
        )
        return definitions_on(lake.folder, lake.spark_folder, loads, counts)

    lake.catalog.create_namespace("media")
    lake.sql("CREATE TABLE lake.media.loads (event_date DATE, load_date DATE)")
    row = "(DATE '2026-01-0{}', DATE '2026-01-0{}')"
    for event, load in (2, 2), (2, 3), (3, 3), (4, 5):
        lake.sql(f"INSERT INTO lake.media.loads VALUES {row.format(event, load)}")
    for column in ("event_date", "load_date", "event_date"):
        follow(counts_by(column), instance)
        recomputed = lake.sql(f"SELECT {column}, count(*) FROM lake.media.loads GROUP BY 1").collect()
        assert lake.rows("media.counts") == Counter(map(tuple, recomputed))
        assert follow(counts_by(column), instance) == []


@pytest.mark.slow
def test_a_partition_whose_result_is_empty_is_not_requested_forever(lake: Lake, instance: dg.DagsterInstance) -> None:
    def none(definition: dg.PartitionsDefinition[str]) -> dg.Definitions:
        @dg.asset(
            partitions_def=definition,
            ins={"playback": ips.incremental()},
            metadata=ips.append() | ips.table("media.none") | {"partition_expr": "event_date"},
        )
        def none(playback: ips.IcdcView) -> DataFrame:
            return playback.added.where("event_id > 90")

        playback = ips.iceberg_asset("playback", table="media.playback")
        return definitions_on(lake.folder, lake.spark_folder, playback, none)

    lake.create_playback(events(range(4)) + events(range(10, 14), day=SUNDAY) + events([99], day=MONDAY))
    for definition in (DAYS, WEEKS, DAYS):
        follow(none(definition), instance)
        lake.append(events([5], day=SUNDAY))
        follow(none(definition), instance)
        assert follow(none(definition), instance) == []
    assert lake.rows("media.none") == dict.fromkeys(events([99], day=MONDAY), 1)
