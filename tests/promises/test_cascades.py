"""All runs that follow from one change share one tag, whatever stage they belong to."""

from __future__ import annotations

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.core.cascade import short
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import AtSnapshot
from dagster_ips.exactly_once.administration import Administrator
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.cascade_stamps import CASCADE
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.run.cascade_tag import CASCADE_TAG
from tests.support.lake import Lake, events
from tests.support.partitioned import SENSOR, follow, partitioned, run
from tests.support.pipeline import materialize, pipeline, plays

BACKFILL = "qwertyui"


def found_by(instance: dg.DagsterInstance, cascade: str) -> list[str]:
    """The assets of the runs that have the tag."""
    runs = instance.get_runs(filters=dg.RunsFilter(tags={CASCADE_TAG: short(cascade)}))
    return sorted(key.to_user_string() for run in runs for key in run.asset_selection or ())


def head(lake: Lake, table: str) -> str:
    """The cascade that an outside commit starts."""
    return short(str(lake.catalog.load(table, asset="test").head_snapshot_id()))


def stamp(lake: Lake, table: str) -> str:
    newest = lake.catalog.load(table, asset="test").ancestry().head
    assert newest is not None
    return newest.summary[CASCADE]


@pytest.mark.slow
def test_runs_that_follow_a_backfill_launched_by_a_person_are_tagged_with_its_id(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = partitioned(lake.folder, lake.spark_folder)
    lake.create_playback([event for number in range(3) for event in events([number], day=number)])
    run(defs, instance, "day", "2026-01-01", "2026-01-02", **{"dagster/backfill": BACKFILL})
    follow(defs, instance)
    # The day that the backfill left out runs by itself and isn't part of it.
    assert set(found_by(instance, BACKFILL)) == {"day", "day_agg", "week"}
    assert "day" in found_by(instance, head(lake, "media.playback"))
    newest, oldest, _root = lake.catalog.load("media.day_agg", asset="test").ancestry().snapshots
    assert BACKFILL in oldest.summary[CASCADE].split(",")
    assert newest.summary[CASCADE] == head(lake, "media.playback")


@pytest.mark.slow
@pytest.mark.everywhere
def test_runs_that_follow_an_outside_commit_are_tagged_with_its_snapshot_down_to_normal_assets(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = pipeline(lake.folder, lake.spark_folder, plays)
    lake.create_playback(events(range(6)))
    for assets in (("daily", "plays"), ("agg",), ("report",)):
        materialize(defs, instance, *assets, tags=SENSOR)
    first = head(lake, "media.playback")
    assert found_by(instance, first) == ["agg", "daily", "plays", "report"]

    lake.append(events(range(6, 9)))
    outside = head(lake, "media.playback")
    result = materialize(defs, instance, "daily", tags=SENSOR)
    for assets in ("plays", "agg", "report"):
        materialize(defs, instance, assets, tags=SENSOR)
    assert found_by(instance, outside) == ["agg", "daily", "plays", "report"]
    assert stamp(lake, "media.agg") == stamp(lake, "media.plays") == stamp(lake, "media.report") == outside
    (made,) = result.asset_materializations_for_node("daily")
    assert made.metadata["cascade"] == dg.MetadataValue.md(
        f"[{outside}](/runs?q%5B%5D=tag%3Adagster_ips%2Fcascade%3D{outside})"
    )


@pytest.mark.slow
def test_a_run_that_consumes_several_cascades_names_them_all_and_one_without_changes_names_none(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    defs = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(3)))
    materialize(defs, instance, "daily", "agg")
    commits = []
    for start in (3, 6):
        lake.append(events(range(start, start + 3)))
        commits.insert(0, head(lake, "media.playback"))
        materialize(defs, instance, "daily", tags=SENSOR)
    started = materialize(defs, instance, "daily", tags={"dagster_ips/mode": "full"}).run_id
    materialize(defs, instance, "agg", tags=SENSOR)
    assert stamp(lake, "media.agg") == ",".join([short(started), *commits])
    assert found_by(instance, started) == ["agg", "daily"]
    result = materialize(defs, instance, "agg", tags=SENSOR)
    assert CASCADE_TAG not in instance.get_run_by_id(result.run_id).tags  # type: ignore[union-attr]
    assert "cascade" not in result.asset_materializations_for_node("agg")[0].metadata


@pytest.mark.slow
def test_the_run_after_a_rewind_or_reset_starts_a_new_cascade(lake: Lake, instance: dg.DagsterInstance) -> None:
    defs = pipeline(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(3)))
    materialize(defs, instance, "daily", "agg", tags=SENSOR)
    first = lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    assert first is not None
    lake.append(events(range(3, 6)))
    materialize(defs, instance, "daily", tags={"dagster_ips/mode": "full", "dagster/backfill": BACKFILL})
    materialize(defs, instance, "agg", tags=SENSOR)
    assert stamp(lake, "media.agg") == BACKFILL

    administrator = Administrator(lake.catalog, CursorStore(instance), "media.agg")
    rewind = administrator.plan_rewind("agg", TrackedInput("daily", "media.daily"), AtSnapshot(first), may_repeat=True)
    lake.sql("DELETE FROM lake.media.agg WHERE account = 'a0'")
    administrator.rewind(rewind, who="me", why="test")  # it takes the table as it is
    again = materialize(defs, instance, "agg", tags=SENSOR).run_id
    assert stamp(lake, "media.agg") == short(again)
    administrator.reset(Edge("agg", "daily"), who="me", why="test")
    anew = materialize(defs, instance, "agg", tags=SENSOR).run_id
    assert stamp(lake, "media.agg") == short(anew)
    lake.append(events(range(6, 9)))
    materialize(defs, instance, "daily", "agg", tags=SENSOR)
    assert stamp(lake, "media.agg") == head(lake, "media.playback")


def test_a_failed_run_is_found_by_its_cascade_too(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append() | ips.table("media.broken"))
    def broken(playback: ips.IcdcView) -> object:
        raise dg.Failure(playback.table)

    defs = pipeline(lake.folder, lake.spark_folder, broken)
    lake.create_playback(events(range(3)))
    job = defs.resolve_implicit_global_asset_job_def()
    selection = [dg.AssetKey("broken")]
    assert not job.execute_in_process(
        instance=instance, asset_selection=selection, tags=SENSOR, raise_on_error=False
    ).success
    assert found_by(instance, head(lake, "media.playback")) == ["broken"]
