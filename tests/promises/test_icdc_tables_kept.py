"""A pipeline that runs forever keeps a bounded number of ICDC tables, and its results stay right."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.errors import RetentionError
from tests.support.lake import Lake, events
from tests.support.lake_definitions import manager_on
from tests.support.pipeline import daily, expected_agg, expected_daily, materialize, pipeline
from tests.support.progress import copied_state


def icdc_tables(lake: Lake) -> list[str]:
    """The names of the ICDC tables in the catalog; asserts that their folders are exactly those that exist."""
    names = [name[-1] for name in lake.catalog.client.list_tables("ips")]
    folders = [path.name for path in (lake.folder / "warehouse").rglob("_ips/*")]
    assert sorted(folders) == sorted(names)
    return names


@pytest.mark.slow
def test_the_number_of_icdc_tables_stays_bounded_over_many_runs(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental(), "daily": ips.incremental()}, metadata=ips.append() | ips.table("media.both")
    )
    def both(playback: ips.IcdcView, daily: ips.IcdcView) -> DataFrame:
        return playback.changes.unionByName(daily.changes.drop("minutes"))

    definitions = pipeline(lake.folder, lake.spark_folder, both, icdc_keep_last=2)
    rows = events(range(6))
    lake.create_playback(rows)
    for number in range(1, 6):
        materialize(definitions, instance, "daily", "agg", "both")
        if number != 3:  # round 3 adds nothing
            late = events(range(10 * number, 10 * number + 3), day=number % 2)
            lake.append(late)
            rows = rows + late
        assert Counter(name.rpartition("_")[0][:-8] for name in icdc_tables(lake)) == {
            f"{edge.slug}_{edge.id[:6]}": min(number, 2)
            for edge in map(Edge, ("daily", "agg", "both", "both"), ("playback", "daily", "playback", "daily"))
        }
    materialize(definitions, instance, "daily", "agg", "both")
    assert lake.rows("media.daily") == expected_daily(rows)
    assert lake.rows("media.agg") == expected_agg(rows)
    assert lake.rows("media.both") == Counter(rows + rows)


@pytest.mark.parametrize("setting", [{"icdc_keep_last": 0}, {"icdc_max_age_days": 0.0}])
def test_settings_that_would_keep_nothing_are_refused_before_anything_is_captured(
    tmp_path: Path, instance: dg.DagsterInstance, setting: dict[str, float]
) -> None:
    manager = manager_on(tmp_path / "lake", tmp_path / "spark", **setting)
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = ips.with_incremental(dg.Definitions(assets=[playback, daily], resources={"io_manager": manager}))
    with pytest.raises(Exception) as raised:  # noqa: PT011  # Dagster wraps the error
        materialize(definitions, instance, "daily")
    assert isinstance(raised.value.__cause__, RetentionError)
    assert copied_state(instance, Edge("daily", "playback")).committed is None
    assert not (tmp_path / "spark").exists()
