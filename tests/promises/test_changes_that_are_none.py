"""A commit that changes no row: what runs after it, and what doesn't."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster import AutomationCondition
from pyspark.sql import DataFrame

import dagster_ips as ips
from tests.support.lake import Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.pipeline import materialize
from tests.support.ticks import requested

CHANGED = AutomationCondition.any_deps_match(AutomationCondition.data_version_changed())


@dg.asset(ins={"playback": ips.incremental()}, metadata=ips.append(remove_on=["event_id"]) | ips.table("media.kept"))
def kept(playback: ips.IcdcView) -> DataFrame:
    return playback.added


@dg.asset(metadata=ips.table("media.at_once"), automation_condition=AutomationCondition.eager())
def at_once(kept: DataFrame) -> DataFrame:
    return kept.groupBy("event_date").count()


@dg.asset(
    metadata=ips.table("media.by_version"),
    automation_condition=AutomationCondition.eager().replace("any_deps_updated", CHANGED),
)
def by_version(kept: DataFrame) -> DataFrame:
    return kept.groupBy("event_date").count()


SAME_ROWS = [
    "CALL lake.system.rewrite_data_files('media.playback', options => map('rewrite-all', 'true'))",
    "UPDATE lake.media.playback SET seconds = seconds",
    "INSERT OVERWRITE lake.media.playback SELECT * FROM lake.media.playback",
]


@pytest.mark.parametrize("statement", SAME_ROWS, ids=["compaction", "update", "overwrite"])
def test_after_a_change_that_is_none_only_those_run_who_follow_every_materialization(
    lake: Lake, instance: dg.DagsterInstance, statement: str
) -> None:
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = definitions_on(lake.folder, lake.spark_folder, playback, kept, at_once, by_version)
    lake.create_playback(events(range(6)))
    materialize(definitions, instance, "kept", "at_once", "by_version")
    _, cursor = requested(definitions, instance)

    def follow() -> set[str]:
        nonlocal cursor
        ran: set[str] = set()
        for _ in range(2):
            now, cursor = requested(definitions, instance, cursor)
            for asset in sorted(now):
                materialize(definitions, instance, asset)
            ran |= now
        return ran

    lake.sql(statement)
    commits = lake.commits("media.kept")
    assert follow() == {"kept", "at_once"}
    assert lake.commits("media.kept") == commits
    lake.append(events([7], day=1))
    assert follow() == {"kept", "at_once", "by_version"}
