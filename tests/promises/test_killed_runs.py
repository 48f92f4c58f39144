"""A process killed around its publish or the creation of its table: the next runs leave no row duplicated or lost."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from dagster_ips.core.edge import Edge
from dagster_ips.exactly_once import effects
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.orchestration.declare.declarations import DATA_VERSION_TAG
from tests.support import partitioned
from tests.support.kinds import run_killed
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_agg, expected_daily, materialize, pipeline
from tests.support.progress import copied_state, state_in
from tests.support.ticks import requested, told
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
    state = state_in(lake.catalog, f"media.{asset}", Edge(asset, UPSTREAM[asset]))
    head = lake.catalog.load(f"media.{UPSTREAM[asset]}", asset="test").head_snapshot_id()
    assert state.committed is not None
    assert state.committed.snapshot_id == head


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
    state = copied_state(instance, Edge("daily", "playback"))
    assert state.number == 2


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """In this context, each run ends as soon as it has copied what it consumed, before Dagster records its result."""

    def end(now: Effect, when: str) -> None:
        if (now, when) == (Effect.COPY_PROGRESS, "after"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(effects, "observers", [end])
        yield patched


def unreported(definitions: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None) -> list[tuple[str, ...]]:
    """Which assets, with which partition and version, the sensor reports; they are reported."""
    found, _ = told(definitions, instance, "ips_killed_runs", cursor)
    for each in found:
        instance.report_runless_asset_event(each)
    return sorted(
        (each.asset_key.to_user_string(), each.partition or "", each.tags[DATA_VERSION_TAG]) for each in found
    )


def test_readers_with_conditions_of_dagsters_follow_what_a_run_published_before_it_was_killed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(deps=["daily"], automation_condition=dg.AutomationCondition.eager())
    def follows() -> None: ...

    made = pipeline(lake.folder, lake.spark_folder)
    definitions = dg.Definitions.merge(made, dg.Definitions(assets=[follows]))
    rows = events(range(9))
    lake.create_playback(rows)
    materialize(definitions, instance, "daily", "follows")
    _, before = requested(definitions, instance)
    _, cursor = told(made, instance, "ips_killed_runs")
    assert unreported(made, instance, cursor) == []
    more = events(range(9, 12))
    lake.append(more)

    run_killed(instance.root_directory, lake, "daily", at=f"after:{Effect.COPY_PROGRESS}", of=pipeline)
    (run,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    assert unreported(made, instance, cursor) == []  # As far as Dagster knows, it is still at work.
    instance.report_run_failed(run)
    assert "follows" not in requested(definitions, instance, before)[0]
    head = lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    assert unreported(made, instance, cursor) == [("daily", "", str(head))]

    assert "follows" in requested(definitions, instance, before)[0]
    assert unreported(made, instance, cursor) == []
    assert lake.rows("media.daily") == expected_daily(rows + more)


def test_of_a_killed_run_of_several_partitions_those_that_it_published_are_reported(
    lake: Lake, instance: dg.DagsterInstance, killed: pytest.MonkeyPatch
) -> None:
    definitions = partitioned.partitioned(lake.folder, lake.spark_folder)
    lake.create_playback(events(range(4)) + events(range(4, 8), day=1) + events(range(8, 9), day=2))
    _, cursor = told(definitions, instance, "ips_killed_runs")
    with pytest.raises(KeyboardInterrupt):
        partitioned.run(definitions, instance, "day", partitioned.key(0), partitioned.key(1))
    killed.undo()
    head = str(lake.catalog.load("media.day", asset="test").head_snapshot_id())
    assert unreported(definitions, instance, cursor) == [("day", partitioned.key(each), head) for each in (0, 1)]
    partitioned.run(definitions, instance, "day", partitioned.key(2))
    assert unreported(definitions, instance, cursor) == []
