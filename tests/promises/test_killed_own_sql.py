"""A process killed between a user's own statements: the next runs leave no row duplicated or lost.

``test_kills_everywhere`` kills such runs at the other durable effects.
"""

from __future__ import annotations

import dagster as dg
import pytest

from dagster_ips.core.edge import Edge
from dagster_ips.exactly_once.effects import Effect
from tests.support.kinds import run_killed
from tests.support.lake import Lake, events
from tests.support.pipeline import expected_plays, materialize, pipeline, plays, with_every_asset
from tests.support.progress import copied_state

# The statements are the first two writes of an incremental run; the third write seals them.
BETWEEN = [f"{when}:{Effect.WRITE_BRANCH}#{time}" for time in (1, 2, 3) for when in ("before", "after")]


def run_killed_and_again(lake: Lake, instance: dg.DagsterInstance, kill: str) -> None:
    """Two normal runs, a third one killed at ``kill``, rows that arrive meanwhile, and the same run again."""
    definitions = pipeline(lake.folder, lake.spark_folder, plays)
    rows = events(range(4))
    lake.create_playback(rows)
    materialize(definitions, instance, "plays")
    rows += events(range(4, 12))
    lake.append(events(range(4, 12)))
    materialize(definitions, instance, "plays")
    lake.append(events(range(12, 18)))

    run_killed(instance.root_directory, lake, "plays", at=kill, of=with_every_asset)
    lake.append(events(range(18, 21), day=2))
    materialize(definitions, instance, "plays")
    materialize(definitions, instance, "plays")

    assert lake.rows("media.plays") == expected_plays(rows + events(range(12, 18)) + events(range(18, 21), day=2))
    state = copied_state(instance, Edge("plays", "playback"))
    assert state.committed is not None
    assert state.committed.snapshot_id == lake.catalog.load("media.playback", asset="test").head_snapshot_id()


@pytest.mark.slow
@pytest.mark.parametrize("kill", [f"after:{Effect.WRITE_BRANCH}#2", f"after:{Effect.PUBLISH}"])
def test_a_block_killed_before_or_after_its_publish_duplicates_no_row_and_loses_none(
    lake: Lake, instance: dg.DagsterInstance, kill: str
) -> None:
    run_killed_and_again(lake, instance, kill)


@pytest.mark.slow
@pytest.mark.parametrize("kill", BETWEEN)
def test_a_block_killed_before_or_after_any_statement_duplicates_no_row_and_loses_none(
    lake: Lake, instance: dg.DagsterInstance, kill: str
) -> None:
    run_killed_and_again(lake, instance, kill)
