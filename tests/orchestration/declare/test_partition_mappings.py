"""Which partitions each upstream key is used by is the same whether keys are asked for together or one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.orchestration.declare.partition_definitions import partition_keys
from dagster_ips.orchestration.declare.partition_mappings import MappedKeys
from tests.support.without_spark import manager_of

HOURS = dg.HourlyPartitionsDefinition("2026-01-01-00:00", end_date="2026-01-05-00:00", timezone="Europe/Berlin")
DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-12", timezone="Europe/Berlin")
LATER_DAYS = dg.DailyPartitionsDefinition("2026-01-03", end_date="2026-01-15", timezone="Europe/Berlin")
WEEKS = dg.WeeklyPartitionsDefinition("2025-12-28", end_date="2026-01-25", timezone="Europe/Berlin")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])
TITLES = dg.DynamicPartitionsDefinition(name="titles")
OTHER_REGIONS = dg.StaticPartitionsDefinition(["asia", "us"])
BOTH = dg.MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})


def windows(**offsets: int) -> dg.PartitionMapping:
    return dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True, **offsets)


@pytest.mark.parametrize(
    ("upstream", "consumer", "mapping"),
    [
        (HOURS, DAYS, windows()),
        (DAYS, DAYS, windows()),
        (DAYS, LATER_DAYS, windows()),
        (DAYS, DAYS, windows(start_offset=-1, end_offset=1)),
        (DAYS, WEEKS, windows()),
        (WEEKS, DAYS, windows()),
        (DAYS, REGIONS, dg.AllPartitionMapping()),
        (DAYS, REGIONS, dg.LastPartitionMapping()),
        (REGIONS, OTHER_REGIONS, dg.IdentityPartitionMapping()),
        (REGIONS, OTHER_REGIONS, dg.StaticPartitionMapping({"eu": ["asia", "us"]})),
        (BOTH, BOTH, dg.IdentityPartitionMapping()),
        (BOTH, DAYS, dg.MultiToSingleDimensionPartitionMapping("day")),
    ],
)
def test_keys_asked_for_together_are_used_by_the_same_partitions_as_one_by_one_and_the_mapping_is_asked_once(
    upstream: dg.PartitionsDefinition[str],
    consumer: dg.PartitionsDefinition[str],
    mapping: dg.PartitionMapping,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        columns = {"day": "day", "region": "region"} if upstream is BOTH else "key"
        keys = partition_keys(upstream, columns, instance, asset="up")
        slicing = MappedKeys(keys, mapping, upstream, consumer, instance, "of the test")
        one_by_one = {key: slicing.made_of([key]) for key in keys.known()}
        asked, ask = 0, type(mapping).get_downstream_partitions_for_partitions

        def counted(*args: Any, **more: Any) -> Any:  # noqa: ANN401
            nonlocal asked
            asked += 1
            return ask(*args, **more)

        monkeypatch.setattr(type(mapping), "get_downstream_partitions_for_partitions", counted)
        assert slicing.made_of_each(keys.known() | {"to come"}) == {**one_by_one, "to come": frozenset()}
        assert asked == 1


@pytest.mark.parametrize("mapping", [windows(), dg.IdentityPartitionMapping()])
def test_a_partition_mapped_one_to_one_takes_its_own_key_as_dagster_says(mapping: dg.PartitionMapping) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        keys = partition_keys(DAYS, "key", instance, asset="up")
        slicing = MappedKeys(keys, mapping, DAYS, DAYS, instance, "of the test")
        for key in keys.known():
            subset = DAYS.subset_with_partition_keys([key])
            result = mapping.get_upstream_mapped_partitions_result_for_partitions(subset, DAYS, DAYS)
            assert slicing.taken_by(key) == set(result.partitions_subset.get_partition_keys()) == {key}


SOME_REGIONS = dg.StaticPartitionsDefinition(["eu"])
ONE_TO_ONE = dg.IdentityPartitionMapping()
EU_ONLY = dg.StaticPartitionMapping({"eu": "us"})


def by(days: dg.PartitionsDefinition[str], regions: dg.PartitionsDefinition[str]) -> dg.PartitionsDefinition[str]:
    return dg.MultiPartitionsDefinition({"day": days, "region": regions})


def dimensions(**mappings: dg.PartitionMapping) -> dg.PartitionMapping:
    return dg.MultiPartitionMapping({name: dg.DimensionPartitionMapping(name, each) for name, each in mappings.items()})


@pytest.mark.parametrize(
    ("upstream", "consumer", "mapping", "lost"),
    [
        (by(DAYS, REGIONS), by(DAYS, SOME_REGIONS), ONE_TO_ONE, {"2026-01-01|us", "2026-01-05|us"}),
        (by(DAYS, REGIONS), by(LATER_DAYS, REGIONS), ONE_TO_ONE, {"2026-01-01|us", "2026-01-01|eu"}),
        (by(DAYS, REGIONS), by(DAYS, TITLES), ONE_TO_ONE, set()),
        (by(DAYS, REGIONS), by(DAYS, REGIONS), dimensions(region=EU_ONLY), {"2026-01-01|us", "2026-01-05|us"}),
        (by(DAYS, REGIONS), by(WEEKS, REGIONS), dimensions(day=windows()), set()),
        (
            by(DAYS, REGIONS),
            LATER_DAYS,
            dg.MultiToSingleDimensionPartitionMapping(),
            {"2026-01-01|us", "2026-01-01|eu"},
        ),
        (DAYS, by(LATER_DAYS, REGIONS), dg.MultiToSingleDimensionPartitionMapping(), {"2026-01-01"}),
    ],
)
def test_a_key_whose_day_or_region_no_partition_can_ever_take_belongs_to_no_partition(
    upstream: dg.PartitionsDefinition[str],
    consumer: dg.PartitionsDefinition[str],
    mapping: dg.PartitionMapping,
    lost: set[str],
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        is_by_both = isinstance(upstream, dg.MultiPartitionsDefinition)
        columns = {"day": "day", "region": "region"} if is_by_both else "day"
        keys = partition_keys(upstream, columns, instance, asset="up")
        slicing = MappedKeys(keys, mapping, upstream, consumer, instance, "of the test")
        days = ("2026-01-01", "2026-01-05")
        assert slicing.lost([f"{day}|{of}" for day in days for of in ("eu", "us")] if is_by_both else days) == lost


def test_a_week_that_begins_before_the_first_day_says_how_its_run_may_read_the_days_that_exist(tmp_path: Path) -> None:
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def by_day() -> None: ...

    @dg.asset(
        partitions_def=WEEKS, ins={"by_day": ips.incremental()}, metadata=ips.replace() | {"partition_expr": "week"}
    )
    def by_week(by_day: ips.IcdcView) -> Any:  # noqa: ANN401  # a frame
        return by_day.source

    resources = {"io_manager": manager_of(tmp_path)}
    definitions = ips.with_incremental(dg.Definitions(assets=[by_day, by_week], resources=resources))
    job = definitions.resolve_implicit_global_asset_job_def()
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        result = job.execute_in_process(
            instance=instance,
            asset_selection=[by_week.key],
            partition_key="2025-12-28",
            raise_on_error=False,
        )
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    said = str(failure.step_failure_data.error)
    assert "depends on invalid partitions" in said
    assert "dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)" in said
