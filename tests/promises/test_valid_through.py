"""A table is stamped with the time up to which it is complete; assets that wait for a complete day run once for it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.errors import DeclarationError, UnknownColumnError
from dagster_ips.iceberg.event_time import VALID_THROUGH
from tests.support.lake import FIRST_DAY, Lake, events
from tests.support.lake_definitions import manager_on
from tests.support.partitioned import DAYS, SENSOR, day, day_agg, run, week
from tests.support.pipeline import agg, daily, materialize
from tests.support.progress import copied_state

DAY = dt.timedelta(days=1)
BY_DATE: dict[str, Any] = {"valid_through": "event_date"}


def midnight(day_number: int) -> dt.datetime:
    return dt.datetime.combine(FIRST_DAY + day_number * DAY, dt.time(), dt.UTC)


def definitions(
    lake: Lake, *assets: dg.AssetSpec | dg.AssetsDefinition, source: dict[str, Any] = BY_DATE
) -> dg.Definitions:
    manager = manager_on(lake.folder, lake.spark_folder)
    playback = ips.iceberg_asset("playback", table="media.playback", **source)
    resources = {"io_manager": manager, "elsewhere": dg.mem_io_manager}
    return ips.with_incremental(dg.Definitions(assets=[playback, *assets], resources=resources))


def stamped(lake: Lake, table: str) -> dt.datetime | None:
    """The time that anyone can read from the table's newest snapshot."""
    (text,) = lake.sql(
        f"SELECT summary['{VALID_THROUGH}'] FROM lake.{table}.snapshots ORDER BY committed_at DESC LIMIT 1"
    ).collect()[0]
    return dt.datetime.fromisoformat(text) if text else None


def consumed_newest(lake: Lake, instance: dg.DagsterInstance, edge: Edge) -> dt.datetime:
    """The newest day among the rows that the edge has consumed, read by time travel."""
    committed = copied_state(instance, edge).committed
    assert committed is not None
    query = f"SELECT max(event_date) FROM lake.media.{edge.upstream} VERSION AS OF {committed.snapshot_id}"
    newest: dt.date = lake.sql(query).collect()[0][0]
    return dt.datetime.combine(newest, dt.time(), dt.UTC)


class Ticks:
    """Dagster's evaluation of the conditions, tick after tick."""

    def __init__(self, defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self._defs, self._instance, self._cursor = defs, instance, None

    def requested(self, asset: str) -> set[str | None]:
        """The partitions of ``asset`` that the next tick requests; None stands for an asset without partitions."""
        result = dg.evaluate_automation_conditions(self._defs, self._instance, cursor=self._cursor)
        self._cursor = result.cursor  # type: ignore[assignment]
        key = dg.AssetKey(asset)
        if not result.get_num_requested(key):
            return set()
        return result.get_requested_partitions(key) or {None}


@dg.asset(io_manager_key="elsewhere", deps=["daily"], automation_condition=ips.valid_through("daily", every=DAY))
def mailed() -> None: ...


@dg.asset(
    io_manager_key="elsewhere",
    deps=["daily"],
    partitions_def=DAYS,
    automation_condition=ips.valid_through("daily") & dg.AutomationCondition.missing(),
)
def mailed_days() -> None: ...


@dg.asset(
    ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.daily", partition_by=["event_date"])
)
def daily_of_one(playback: ips.IcdcView) -> DataFrame:
    return playback.added.where("account = 'a1'").withColumn("minutes", F.lit(0))


@pytest.mark.slow
def test_a_table_is_complete_up_to_what_it_consumed_and_late_rows_do_not_move_that_back(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = definitions(lake, daily, agg)
    lake.create_playback(events(range(3), day=4))
    result = materialize(defs, instance, "daily", "agg")
    shown = result.asset_materializations_for_node("agg")[0].metadata["valid through"]
    assert shown == dg.MetadataValue.timestamp(midnight(4))
    for number, arrived in enumerate((2, 6, 5), start=1):
        lake.append(events(range(10 * number, 10 * number + 3), day=arrived))
        materialize(defs, instance, "daily")
        assert stamped(lake, "media.daily") == consumed_newest(lake, instance, Edge("daily", "playback"))
        assert stamped(lake, "media.agg") == midnight(4), "what it has not consumed doesn't make it complete"
    materialize(defs, instance, "agg")
    assert stamped(lake, "media.agg") == stamped(lake, "media.daily") == midnight(6)


@pytest.mark.slow
def test_an_undeclared_input_leaves_completeness_unknown_and_one_without_event_time_does_not_limit_it(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"playback": ips.incremental(), "other": ips.incremental()}, metadata=ips.table("media.joined"))
    def joined(playback: ips.IcdcView, other: ips.IcdcView) -> ips.Overwrite:
        return ips.Overwrite(playback.source.unionByName(other.source), "TRUE")

    lake.create_playback(events(range(3), day=3))
    lake.create_playback(events(range(3), day=1), "media.other")
    for declared, expected in ((None, None), ("always", midnight(3)), ("event_date", midnight(1))):
        other = ips.iceberg_asset("other", table="media.other", valid_through=declared)
        materialize(definitions(lake, other, joined), instance, "joined", tags={"dagster_ips/mode": "full"})
        assert stamped(lake, "media.joined") == expected


def test_an_asset_runs_once_for_each_complete_day_and_not_for_late_rows(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = definitions(lake, daily, mailed, mailed_days)
    ticks = Ticks(defs, instance)
    assert ticks.requested("mailed") == set()
    lake.create_playback(events(range(3), day=0) + events(range(3, 6), day=1))
    assert ticks.requested("mailed") == set(), "daily has not consumed it"
    materialize(defs, instance, "daily")
    assert ticks.requested("mailed") == {None}
    assert ticks.requested("mailed") == {None}, "until it ran"
    materialize(defs, instance, "mailed")
    assert ticks.requested("mailed") == set()
    for late in (0, 1):
        lake.append(events(range(10 * late + 10, 10 * late + 13), day=late))
        materialize(defs, instance, "daily")
        assert ticks.requested("mailed") == set()
    lake.append(events(range(40, 43), day=2))
    materialize(defs, instance, "daily")
    assert ticks.requested("mailed_days") == {"2026-01-01", "2026-01-02"}
    run(defs, instance, "mailed_days", "2026-01-01", "2026-01-02")
    assert ticks.requested("mailed_days") == set()
    assert ticks.requested("mailed") == {None}


def test_a_day_becomes_complete_even_if_nothing_had_to_be_written(lake: Lake, instance: dg.DagsterInstance) -> None:
    defs = definitions(lake, daily_of_one, _waits_for("daily_of_one"))
    ticks = Ticks(defs, instance)
    lake.create_playback(events([1], day=0))
    materialize(defs, instance, "daily_of_one")
    assert ticks.requested("waits") == {None}, "the first midnight"
    materialize(defs, instance, "waits")
    commits = lake.commits("media.daily")
    lake.append(events([2, 3], day=3))  # no row of account a1
    materialize(defs, instance, "daily_of_one")
    assert lake.commits("media.daily") == commits
    assert ticks.requested("waits") == {None}


def test_an_outside_job_can_stamp_a_day_as_complete_without_adding_a_row(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = definitions(lake, daily, agg, _waits_for("agg"), source={})
    ticks = Ticks(defs, instance)
    lake.create_playback(events(range(3), day=0))
    materialize(defs, instance, "daily", "agg")
    assert ticks.requested("waits") == set(), "nothing says up to when playback is complete"
    nothing = lake.catalog.client.load_table("media.playback").scan().to_arrow().slice(0, 0)
    table = lake.catalog.client.load_table("media.playback")
    table.append(nothing, snapshot_properties={VALID_THROUGH: midnight(1).isoformat()})
    assert ticks.requested("waits") == {None}
    assert ticks.requested("agg") == set(), "and nobody else runs for it"


@pytest.mark.slow
def test_a_day_is_complete_once_all_changed_partitions_were_computed(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        io_manager_key="elsewhere",
        deps=["day_agg"],
        partitions_def=DAYS,
        automation_condition=ips.valid_through("day_agg"),
    )
    def mailed_agg() -> None: ...

    defs = definitions(lake, day, day_agg, week, mailed_agg)
    ticks = Ticks(defs, instance)
    lake.create_playback([event for number in range(4) for event in events([number], day=number)])
    run(defs, instance, "day", "2026-01-01", "2026-01-03", **SENSOR)
    assert stamped(lake, "media.day") is None, "a day was never computed"
    run(defs, instance, "day", "2026-01-04", **SENSOR)
    assert stamped(lake, "media.day") == midnight(3)
    run(defs, instance, "day_agg", "2026-01-01", "2026-01-04", **SENSOR)
    complete = {"2026-01-01", "2026-01-02", "2026-01-03"}
    assert ticks.requested("mailed_agg") == complete
    lake.append(events([11], day=1) + events([15], day=5))
    assert ticks.requested("mailed_agg") == complete, "what isn't consumed is as it was"
    run(defs, instance, "day", "2026-01-06", **SENSOR)
    assert stamped(lake, "media.day") == midnight(3), "the late row's day waits"
    run(defs, instance, "day", "2026-01-02", **SENSOR)
    assert stamped(lake, "media.day") == midnight(5)
    run(defs, instance, "day_agg", "2026-01-06", **SENSOR)
    assert ticks.requested("mailed_agg") == complete
    run(defs, instance, "day_agg", "2026-01-02", **SENSOR)
    assert ticks.requested("mailed_agg") == complete | {"2026-01-04", "2026-01-05"}


def _waits_for(upstream: str) -> dg.AssetsDefinition:
    condition = ips.valid_through(upstream, every=DAY)

    @dg.asset(io_manager_key="elsewhere", deps=[upstream], automation_condition=condition)
    def waits() -> None: ...

    return waits


def test_valid_through_declarations_that_cannot_work_are_refused_when_definitions_load(lake: Lake) -> None:
    with pytest.raises(DeclarationError, match="neither an outside table nor an incremental asset"):
        definitions(lake, daily, _waits_for("dayly"))
    wrong = mailed_days.map_asset_specs(
        lambda spec: spec.replace_attributes(automation_condition=ips.valid_through("daily", every=DAY))
    )
    with pytest.raises(DeclarationError, match="its own partitions already define"):
        definitions(lake, daily, wrong)
    wrong = mailed.map_asset_specs(
        lambda spec: spec.replace_attributes(automation_condition=~ips.valid_through("daily"))
    )
    with pytest.raises(DeclarationError, match="every="):
        definitions(lake, daily, wrong)
    with pytest.raises(DeclarationError, match="lateness"):
        definitions(lake, source={"valid_through": "at", "lateness": -DAY})


def test_an_unknown_valid_through_column_fails_the_run_and_consumes_nothing(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(3)))
    defs = definitions(lake, daily, source={"valid_through": "evnt_date"})
    with pytest.raises(UnknownColumnError, match="evnt_date"):
        materialize(defs, instance, "daily")
    assert copied_state(instance, Edge("daily", "playback")).committed is None


@pytest.mark.slow
def test_an_asset_that_follows_a_branch_is_as_complete_as_the_branch(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(ins={"daily": ips.incremental(ref="reviewed")}, metadata=ips.append() | ips.table("media.published"))
    def published(daily: ips.IcdcView) -> DataFrame:
        return daily.added

    defs = definitions(lake, daily, published, _waits_for("published"))
    ticks = Ticks(defs, instance)
    lake.create_playback(events([1], day=0))
    materialize(defs, instance, "daily")
    lake.sql("ALTER TABLE lake.media.daily CREATE BRANCH reviewed")
    materialize(defs, instance, "published")
    assert ticks.requested("waits") == {None}
    materialize(defs, instance, "waits")
    lake.append(events([2], day=3))
    materialize(defs, instance, "daily")
    assert ticks.requested("waits") == set(), "main is ahead of what was reviewed"
    lake.sql("CALL lake.system.fast_forward('media.daily', 'reviewed', 'main')")
    materialize(defs, instance, "published")
    assert ticks.requested("waits") == {None}


def test_rows_that_wait_for_a_dynamic_partition_hold_back_their_days(lake: Lake, instance: dg.DagsterInstance) -> None:
    accounts = dg.DynamicPartitionsDefinition(name="accounts")
    both = dg.MultiPartitionsDefinition({"day": DAYS, "account": accounts})

    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental(partition_mapping=dg.MultiToSingleDimensionPartitionMapping("day"))},
        metadata=ips.replace()
        | ips.table("media.plays", partition_by=["event_date"])
        | {"partition_expr": "event_date"},
    )
    def plays(playback: ips.IcdcView) -> DataFrame:
        return playback.source.groupBy("event_date").count()

    @dg.asset(
        io_manager_key="elsewhere",
        deps=["plays"],
        partitions_def=DAYS,
        automation_condition=ips.valid_through("plays") & dg.AutomationCondition.missing(),
    )
    def mailed_plays() -> None: ...

    by = {"day": "event_date", "account": "account"}
    source = BY_DATE | {"partitions_def": both, "metadata": {"partition_expr": by}}
    defs = definitions(lake, plays, mailed_plays, source=source)
    ticks = Ticks(defs, instance)
    instance.add_dynamic_partitions("accounts", ["a0", "a1"])
    lake.create_playback(events([0, 1], day=0))
    lake.append(events([3, 4], day=1))
    run(defs, instance, "plays", "2026-01-01", "2026-01-02", **SENSOR)
    assert ticks.requested("mailed_plays") == {"2026-01-01"}
    lake.append(events([5], day=1))  # a row of a2
    lake.append(events([6], day=2))
    lake.append(events([9], day=4_000))  # a row of a future day
    run(defs, instance, "plays", "2026-01-03", **SENSOR)
    assert stamped(lake, "media.plays") == midnight(1)
    assert ticks.requested("mailed_plays") == {"2026-01-01"}, "a row of the second day isn't in"
    instance.add_dynamic_partitions("accounts", ["a2"])
    run(defs, instance, "plays", "2026-01-02", **SENSOR)
    assert ticks.requested("mailed_plays") >= {"2026-01-01", "2026-01-02", "2026-01-03"}
