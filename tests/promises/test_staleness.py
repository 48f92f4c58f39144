"""Dagster shows exactly the stale assets: an asset is fresh from when it has consumed everything until more comes."""

from __future__ import annotations

from collections import Counter
from random import Random

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.orchestration.run.runs import Runs
from dagster_ips.orchestration.watch.outside_sensor import OUTSIDE_TABLES_SENSOR
from tests.promises.test_tables_made_together import halves
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import DAYS, SENSOR, day, day_agg, key, run
from tests.support.pipeline import daily, daily_in_bites, expected_daily, materialize, pipeline, plays
from tests.support.ticks import told

CHAIN = ("daily", "agg", "report")


class Observed:
    """A pipeline whose outside tables a sensor watches, and the status of its assets in Dagster."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.definitions = definitions
        self.instance = instance
        self._cursor: str | None = None

    def look(self) -> int:
        """Run one tick of the sensor, as the daemon does; the number of changes that it reported."""
        found, self._cursor = told(self.definitions, self.instance, OUTSIDE_TABLES_SENSOR, self._cursor)
        for event in found:
            self.instance.report_runless_asset_event(event)
        return sum(isinstance(event, dg.AssetMaterialization) for event in found)

    def stale(self, partition: str | None = None) -> set[str]:
        """The materialized assets that aren't fresh."""
        graph = self.definitions.resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        status = {
            asset.to_user_string(): resolver.get_status(asset, partition if graph.get(asset).is_partitioned else None)
            for asset in graph.materializable_asset_keys
        }
        return {name for name, each in status.items() if each.value == "STALE"}


@pytest.mark.slow
def test_an_asset_is_stale_until_it_has_consumed_a_change_and_then_the_next_asset_is(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, plays)
    observed = Observed(definitions, instance)
    lake.create_playback(events(range(6)))
    observed.look()
    materialize(definitions, instance, *CHAIN, "plays")
    assert observed.stale() == set()
    lake.append(events(range(6, 9)))
    assert observed.look() == 1
    assert observed.stale() == {"daily", "plays"}
    for asset, stale_now in (("plays", {"daily"}), ("daily", {"agg"}), ("agg", {"report"}), ("report", set())):
        materialize(definitions, instance, asset)
        assert observed.stale() == stale_now


@pytest.mark.slow
def test_compaction_makes_nothing_stale_and_neither_does_the_run_that_finds_no_change(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    observed = Observed(definitions, instance)
    lake.create_playback(events(range(6)))
    lake.append(events(range(6, 9)))
    observed.look()
    materialize(definitions, instance, *CHAIN)
    for table, reader in (("playback", "daily"), ("daily", "agg"), ("agg", "report")):
        before = lake.commits(f"media.{table}")
        lake.sql(f"CALL lake.system.rewrite_data_files('media.{table}', options => map('rewrite-all', 'true'))")
        assert lake.commits(f"media.{table}") > before
        assert observed.look() == 0
        assert observed.stale() == set()
        if reader != "report":
            materialize(definitions, instance, reader)
            assert observed.stale() == set()
    observed.look()
    lake.append(events(range(9, 12)))
    observed.look()
    assert observed.stale() == {"daily"}


def test_a_commit_consumed_before_the_sensor_reported_it_makes_nothing_stale(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder)
    observed = Observed(definitions, instance)
    lake.create_playback(events(range(6)))
    materialize(definitions, instance, "daily")
    assert observed.look() == 1
    assert observed.stale() == set()
    lake.append(events(range(6, 9)))
    materialize(definitions, instance, "daily")
    lake.sql("INSERT INTO lake.media.playback SELECT * FROM lake.media.playback WHERE FALSE")
    assert observed.look() == 1
    assert observed.stale() == set()
    lake.append(events(range(9, 12)))
    observed.look()
    assert observed.stale() == {"daily"}


@pytest.mark.slow
def test_an_asset_that_has_consumed_a_part_is_stale_until_it_has_the_rest(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, daily_in_bites)
    observed = Observed(definitions, instance)
    lake.create_playback([row for number in range(5) for row in events(range(3), day=number)])
    observed.look()
    for stale_after in ({"daily_in_bites"}, {"daily_in_bites"}, set()):
        materialize(definitions, instance, "daily_in_bites")
        assert observed.stale() == stale_after


@pytest.mark.slow
def test_only_its_own_changes_make_a_partition_stale(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = with_days(lake, day, day_agg)
    observed = Observed(definitions, instance)
    lake.create_playback([row for number in range(3) for row in events(range(3), day=number)])
    assert observed.look() == 3
    for asset in ("day", "day_agg"):
        run(definitions, instance, asset, key(0), key(2))
    assert [observed.stale(key(number)) for number in range(3)] == [set(), set(), set()]
    lake.append(events(range(3, 6), day=1))
    assert observed.look() == 1
    assert [observed.stale(key(number)) for number in range(3)] == [set(), {"day"}, set()]
    run(definitions, instance, "day", key(1), **SENSOR)
    assert [observed.stale(key(number)) for number in range(3)] == [set(), {"day_agg"}, set()]
    run(definitions, instance, "day_agg", key(1), **SENSOR)
    lake.sql("CALL lake.system.rewrite_data_files('media.playback', options => map('rewrite-all', 'true'))")
    assert observed.look() == 0
    for first, last in ((0, 0), (1, 1), (2, 2)):  # without a change in any of them
        run(definitions, instance, "day", key(first), key(last), **SENSOR)
    assert [observed.stale(key(number)) for number in range(3)] == [set(), set(), set()]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_partition_is_stale_exactly_if_it_changed_after_its_run_whenever_the_sensor_looked(
    lake: Lake, instance: dg.DagsterInstance, seed: int
) -> None:
    definitions, some = with_days(lake, day, day_agg), Random(seed)
    observed, numbers = Observed(definitions, instance), range(4)
    lake.create_playback([row for number in numbers for row in events(range(3), day=number)])
    observed.look()
    run(definitions, instance, "day", key(0), key(3))
    behind, event = set[int](), 10
    for _ in range(16):
        match some.choice(["commit", "commit", "run", "run", "look", "compact"]):
            case "commit":
                changed = some.sample(numbers, some.randint(1, 2))
                lake.append([row for number in changed for row in events(range(event, event + 1), day=number)])
                behind.update(changed)
                event += 1
            case "run":
                taken = some.choice(numbers)
                run(definitions, instance, "day", key(taken), **SENSOR)
                behind.discard(taken)
            case "look":
                observed.look()
                assert {n for n in numbers if "day" in observed.stale(key(n))} == behind
            case "compact":
                lake.sql("CALL lake.system.rewrite_data_files('media.playback', options => map('rewrite-all', 'true'))")
    observed.look()
    assert {n for n in numbers if "day" in observed.stale(key(n))} == behind
    for number in behind:
        run(definitions, instance, "day", key(number), **SENSOR)
    observed.look()
    assert [observed.stale(key(number)) & {"day"} for number in numbers] == [set()] * len(numbers)


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_what_a_run_published_before_it_failed_makes_the_next_asset_stale_once_a_run_has_found_it(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, *, is_partitioned: bool
) -> None:
    definitions = with_days(lake, day, day_agg) if is_partitioned else pipeline(lake.folder, lake.spark_folder)
    asset, reader, *keys = ("day", "day_agg", key(0)) if is_partitioned else ("daily", "agg")

    def materialized(name: str) -> None:
        if keys:
            run(definitions, instance, name, *keys, **SENSOR)
        else:
            materialize(definitions, instance, name)

    def stale() -> set[str]:
        return observed.stale(*keys)

    observed = Observed(definitions, instance)
    lake.create_playback(events(range(3)))
    observed.look()
    for name in (asset, reader):
        materialized(name)
    lake.append(events(range(3, 6)))
    observed.look()
    with monkeypatch.context() as patched:
        patched.setattr(Runs, "drop_old_tables", None)
        with pytest.raises(TypeError):
            materialized(asset)
    assert stale() == {asset}
    materialized(asset)
    assert stale() == {reader}
    materialized(reader)
    materialized(asset)
    assert stale() == set()


@pytest.mark.slow
def test_assets_without_partitions_read_all_partitions_of_an_outside_table(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(metadata=ips.table("media.copy"))
    def copy(playback: DataFrame) -> DataFrame:
        return playback

    definitions = with_days(lake, daily, copy)
    observed = Observed(definitions, instance)
    rows = [row for number in range(3) for row in events(range(3), day=number)]
    lake.create_playback(rows)
    for more in ([], events(range(3, 6), day=1)):
        if more:
            lake.append(more)
        rows += more
        assert observed.look() == (1 if more else 3)
        materialize(definitions, instance, "daily", "copy")
        assert lake.rows("media.daily") == expected_daily(rows)
        assert lake.rows("media.copy") == Counter(rows)
        assert observed.stale() == set()


@pytest.mark.slow
def test_a_table_that_waits_for_another_table_of_its_step_stays_stale(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, halves)
    observed = Observed(definitions, instance)
    lake.create_playback(events(range(4)))
    observed.look()
    materialize(definitions, instance, "even", "odd")
    assert observed.stale() == set()
    lake.append(events(range(4, 9)))
    observed.look()
    with pytest.raises(ValueError, match="odd"):
        materialize(definitions, instance, "even", "odd", tags={"fail": "odd"})
    assert observed.stale() == {"odd"}
    lake.append(events(range(9, 12)))
    observed.look()
    for stale_after in ({"even", "odd"}, set()):
        materialize(definitions, instance, "even", "odd")
        assert observed.stale() == stale_after


def with_days(lake: Lake, *assets: dg.AssetsDefinition) -> dg.Definitions:
    """``assets`` on the outside table, which has a partition for each day."""
    playback = ips.iceberg_asset(
        "playback", table="media.playback", partitions_def=DAYS, metadata={"partition_expr": "event_date"}
    )
    return definitions_on(lake.folder, lake.spark_folder, playback, *assets)
