"""A partition mapping to an outside table is checked when definitions load, not in every tick."""

from __future__ import annotations

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declare.consumers import consumers_of
from tests.support.without_spark import manager_of

DAYS = dg.DailyPartitionsDefinition("2026-01-01")
COUNTRIES = dg.StaticPartitionsDefinition(["de", "fr"])
BY_DATE = {"partition_expr": "event_date"}


def load(
    outside: dg.PartitionsDefinition[str] | None,
    own: dg.PartitionsDefinition[str],
    mapping: dg.PartitionMapping | None = None,
    *,
    is_looked_up: bool = False,
) -> None:
    playback = ips.iceberg_asset("playback", table="media.playback", partitions_def=outside, metadata=BY_DATE)
    late = ips.iceberg_asset("late", table="media.late")
    mapped = dg.AssetIn("playback", partition_mapping=mapping)
    ins = {"source": ips.incremental("late"), "mapped": mapped} if is_looked_up else None

    @dg.asset(
        partitions_def=own,
        ins=ins or {"source": ips.incremental("playback", partition_mapping=mapping)},
        metadata=ips.append() | BY_DATE,
    )
    def by_key(source: ips.IcdcView, **_: object) -> object:
        return source.added

    manager = manager_of("/unused")
    made = ips.with_incremental(dg.Definitions(assets=[playback, late, by_key], resources={"io_manager": manager}))
    dg.Definitions.validate_loadable(made)


@pytest.mark.parametrize("is_looked_up", [False, True])
@pytest.mark.parametrize(
    ("outside", "own", "mapping", "why"),
    [
        (DAYS, dg.DailyPartitionsDefinition("2026-01-01", timezone="Europe/Berlin"), None, "Timezones"),
        (COUNTRIES, DAYS, dg.TimeWindowPartitionMapping(), "TimeWindowPartitionsDefinition"),
        (DAYS, COUNTRIES, None, "must match"),
        (COUNTRIES, DAYS, dg.MultiToSingleDimensionPartitionMapping(), "multipartitioned"),
    ],
    ids=["time zone", "no time windows", "other keys", "no dimensions"],
)
def test_a_mapping_that_does_not_fit_an_outside_table_is_refused(
    outside: dg.PartitionsDefinition[str],
    own: dg.PartitionsDefinition[str],
    mapping: dg.PartitionMapping | None,
    why: str,
    *,
    is_looked_up: bool,
) -> None:
    with pytest.raises(DeclarationError, match=f"by_key: .*those of playback: .*{why}"):
        load(outside, own, mapping, is_looked_up=is_looked_up)


def test_mappings_that_fit_are_accepted() -> None:
    load(DAYS, DAYS)
    load(DAYS, dg.WeeklyPartitionsDefinition("2026-01-04"))
    load(DAYS, COUNTRIES, dg.AllPartitionMapping())
    load(COUNTRIES, COUNTRIES, dg.StaticPartitionMapping({"de": "fr"}))


@pytest.mark.parametrize(
    "mapping",
    [
        dg.TimeWindowPartitionMapping(start_offset=-6),
        dg.TimeWindowPartitionMapping(),
        dg.StaticPartitionMapping({"de": "2026-01-01"}),
        dg.MultiToSingleDimensionPartitionMapping(),
        dg.LastPartitionMapping(),
        dg.SpecificPartitionsPartitionMapping(["2026-01-01"]),
        dg.AllPartitionMapping(),
        dg.IdentityPartitionMapping(),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("is_looked_up", [False, True])
def test_a_mapping_to_a_table_without_partitions_is_refused_unless_it_says_what_is_read_anyway(
    mapping: dg.PartitionMapping, *, is_looked_up: bool
) -> None:
    says_the_same = dg.AllPartitionMapping if is_looked_up else dg.IdentityPartitionMapping
    if isinstance(mapping, says_the_same):
        load(None, DAYS, mapping, is_looked_up=is_looked_up)
    else:
        with pytest.raises(DeclarationError, match=r"by_key: its input playback .*no partitions.* Declare the p"):
            load(None, DAYS, mapping, is_looked_up=is_looked_up)


def test_a_run_without_with_incremental_refuses_such_a_mapping_too(instance: dg.DagsterInstance) -> None:
    mapped = ips.incremental(partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-6))

    @dg.asset(partitions_def=DAYS, ins={"playback": mapped}, metadata=ips.append() | BY_DATE)
    def by_day(playback: ips.IcdcView) -> object:
        return playback.added

    (consumer,) = consumers_of(by_day, {by_day.key: by_day.metadata_by_key[by_day.key]}, "media")
    playback = ips.iceberg_asset("playback", table="media.playback")
    with pytest.raises(DeclarationError, match="no partitions"):
        consumer.tracked(dg.Definitions(assets=[playback, by_day]).resolve_asset_graph(), instance)


def test_resources_of_other_assets_may_be_added_later() -> None:
    days = ips.iceberg_asset("playback", table="media.playback", partitions_def=DAYS, metadata=BY_DATE)

    @dg.asset(partitions_def=DAYS, ins={"playback": ips.incremental()}, metadata=ips.append() | BY_DATE)
    def by_day(playback: ips.IcdcView) -> object:
        return playback.added

    @dg.asset(io_manager_key="files", required_resource_keys={"mail"}, deps=["by_day"])
    def mailed() -> None: ...

    sensor = dg.AutomationConditionSensorDefinition("own", target="*", use_user_code_server=True)
    late = dg.Definitions(resources={"files": dg.mem_io_manager, "mail": dg.ResourceDefinition.none_resource()})
    made = dg.Definitions([days, by_day, mailed], resources={"io_manager": manager_of("/unused")}, sensors=[sensor])
    dg.Definitions.validate_loadable(dg.Definitions.merge(ips.with_incremental(made), late))


def test_a_sensor_that_the_daemon_evaluates_is_refused_before_resources_are_added() -> None:

    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append())
    def plays(playback: ips.IcdcView) -> object:
        return playback.added

    @dg.asset(io_manager_key="files")
    def mailed() -> None: ...

    sensor = dg.AutomationConditionSensorDefinition("own", target="*", use_user_code_server=False)
    outside = ips.iceberg_asset("playback", table="media.playback")
    made = dg.Definitions([outside, plays, mailed], resources={"io_manager": manager_of("/unused")}, sensors=[sensor])
    with pytest.raises(DeclarationError, match="plays: your sensor own should evaluate"):
        ips.with_incremental(made)
