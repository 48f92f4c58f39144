"""A process killed around its publish or the creation of its table: the next runs leave no row duplicated or lost."""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_ips.core.edge import Edge
from dagster_ips.exactly_once import effects
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.support.kinds import run_killed
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_agg, expected_daily, materialize, pipeline
from tests.support.variants import mostly_slow

BEFORE_PUBLISH = f"after:{Effect.WRITE_BRANCH}"
BEFORE_COMMIT = f"after:{Effect.PUBLISH}"
UPSTREAM = {"daily": "playback", "agg": "daily"}


def run_killed_and_again(lake: Lake, instance: dg.DagsterInstance, asset: str, kill: str) -> None:
    """Two normal rounds, a third one killed at ``kill``, rows that arrive meanwhile, and the same run again."""
    definitions = pipeline(lake.folder, lake.spark_folder)
    rows = events(range(12)) + events(range(12, 20), day=1)
    lake.create_playback(rows)
    materialize(definitions, instance, "daily", "agg")
    late = events(range(20, 26))
    lake.append(late)
    if asset == "agg":
        materialize(definitions, instance, "daily")

    run_killed(instance.root_directory, lake, asset, at=kill, of=pipeline)
    later = events(range(26, 30), day=2)
    lake.append(later)
    materialize(definitions, instance, "daily")
    materialize(definitions, instance, "agg")
    materialize(definitions, instance, "daily", "agg")

    everything = rows + late + later
    assert lake.rows("media.daily") == expected_daily(everything)
    assert lake.rows("media.agg") == expected_agg(everything)
    state = CursorStore(instance).get(Edge(asset, UPSTREAM[asset]))
    head = lake.catalog.load(f"media.{UPSTREAM[asset]}", asset="test").head_snapshot_id()
    assert state.committed is not None
    assert state.committed.snapshot_id == head
    assert state.in_flight is None


@pytest.mark.parametrize(
    ("asset", "kill"),
    mostly_slow(
        [("daily", BEFORE_PUBLISH), ("agg", BEFORE_COMMIT), ("daily", BEFORE_COMMIT), ("agg", BEFORE_PUBLISH)], quick=2
    ),
)
def test_a_run_killed_around_its_publish_duplicates_no_row_and_loses_none(
    lake: Lake, instance: dg.DagsterInstance, asset: str, kill: str
) -> None:
    run_killed_and_again(lake, instance, asset, kill)


@pytest.mark.parametrize(
    "kill", mostly_slow([f"after:{Effect.CREATE_TARGET}", f"before:{Effect.CREATE_TARGET}", BEFORE_COMMIT])
)
def test_a_killed_first_run_is_completed_by_the_second(lake: Lake, instance: dg.DagsterInstance, kill: str) -> None:
    rows = events(range(9))
    lake.create_playback(rows)

    run_killed(instance.root_directory, lake, "daily", at=kill, of=pipeline)
    materialize(pipeline(lake.folder, lake.spark_folder), instance, "daily")

    assert lake.rows("media.daily") == expected_daily(rows)


def test_a_killed_run_that_had_published_is_committed_without_reading_its_rows_again(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(9)))
    run_killed(instance.root_directory, lake, "daily", at=BEFORE_COMMIT, of=pipeline)
    commits = lake.commits("media.daily")

    result = materialize(pipeline(lake.folder, lake.spark_folder), instance, "daily")

    assert lake.commits("media.daily") == commits
    (materialization,) = result.get_asset_materialization_events()
    assert materialization.materialization.metadata["rows captured"].value == 0


def test_a_publication_whose_answer_is_lost_is_found_in_the_table_itself(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(now: Effect, when: str) -> None:
        if (now, when) == (Effect.PUBLISH, "after"):
            raise OSError

    definitions, rows = pipeline(lake.folder, lake.spark_folder), events(range(6))
    lake.create_playback(rows)
    monkeypatch.setattr(effects, "observers", [lose])
    materialize(definitions, instance, "daily")
    more = events(range(6, 9))
    lake.append(more)
    materialize(definitions, instance, "daily")
    assert lake.rows("media.daily") == expected_daily(rows + more)
    state = CursorStore(instance).get(Edge("daily", "playback"))
    assert (state.number, state.in_flight) == (2, None)
