"""How often a run asks Spark to compute something, per write mode: an additional query fails these tests.

Queries are counted, not timed, so that the result doesn't depend on the machine. docs/cost.md says what each is for.
"""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pytest

from dagster_ips.local_spark.connect_server import ConnectServer
from tests.support.lake import Lake, events
from tests.support.modes import MODES
from tests.support.partitioned import SENSOR, key, run
from tests.support.pipeline import materialize, pipeline
from tests.support.spark_requests import watched

FIRST = {
    "append": ["replace_rows"],
    "merge_groups": ["replace_rows", "refuse_repeated_keys"],
    "combine_groups": ["replace_rows"],
    "overwrite_partitions": ["replace_rows"],
    "append_of_days": ["overwrite_matching"],
    "merge_of_days": ["overwrite_matching", "refuse_repeated_keys"],
}
LATE_AND_NEW = {
    "append": ["append_rows"],
    "append_removing": ["append_rows"],
    "append_once": ["_touched", "append_rows"],
    "merge_groups": ["_survey", "_survey_matched", "update_matched", "merge_rows"],
    "merge_rows": ["_survey", "_survey_matched", "merge_rows"],
    "merge_latest": ["_survey", "_survey_matched", "update_matched", "merge_rows"],
    "combine_groups": ["_add_all"],
    "overwrite_partitions": ["replace_partitions"],
    "overwrite_where": ["found", "overwrite_matching"],
    "replace": ["replace_rows"],
    "own_sql": ["sql", "append_rows"],
    "append_of_days": ["append_rows"],
    "merge_of_days": ["_survey", "_survey_matched", "update_matched", "merge_rows"],
}
NEW_DAY = {
    "append": ["append_rows"],
    "append_once": ["_touched", "append_rows"],
    "append_of_days": ["append_rows"],
    "merge_groups": ["_survey", "merge_rows"],
    "merge_rows": ["_survey", "merge_rows"],
    "merge_latest": ["_survey", "merge_rows"],
    "combine_groups": ["_add_by_one_query"],
    "overwrite_partitions": ["replace_partitions"],
    "overwrite_where": ["overwrite_matching"],
}
REMOVED = {
    "append_removing": ["has_no_change", "_require_no_live_rows", *["remove_rows"] * 3, "append_rows"],
    "merge_groups": ["has_no_change", "_survey", "_survey_matched", "update_matched"],
    "combine_groups": ["has_no_change", "by", "_add_by_a_look", "update_matched"],
    "overwrite_partitions": ["has_no_change", "replace_partitions"],
    "replace": ["has_no_change", "replace_rows"],
}
EVERY_DAY = ["append", "combine_groups", "merge_groups"]


class Runs:
    """Runs of assets on a small table, with the queries that they send to Spark."""

    def __init__(self, lake: Lake, instance: dg.DagsterInstance, server: ConnectServer, names: list[str]) -> None:
        self.assets = {asset.key.to_user_string(): asset for asset in MODES if asset.key.to_user_string() in names}
        self._definitions = pipeline(lake.folder, lake.spark_folder, *self.assets.values())
        self._instance, self._server = instance, server

    def queries(self, days: tuple[int, int] = (0, 2)) -> dict[str, list[str]]:
        """By asset, the functions of the library that asked Spark to compute something."""
        found = {}
        for name in self.assets:
            with watched(self._server) as requests:
                self.run(name, days)
            found[name] = [each.purpose for each in requests.with_jobs()]
        return found

    def run(self, name: str, days: tuple[int, int]) -> None:
        if self.assets[name].partitions_def is None:
            materialize(self._definitions, self._instance, name)
        else:
            run(self._definitions, self._instance, name, *map(key, days), **SENSOR)


def _of(expected: dict[str, list[str]], found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: queries for name, queries in expected.items() if name in found}


@pytest.mark.parametrize(
    "names", [EVERY_DAY, pytest.param(sorted({*LATE_AND_NEW} - {*EVERY_DAY}), marks=pytest.mark.slow)]
)
def test_a_run_computes_what_its_write_mode_needs_and_nothing_else(
    lake: Lake, instance: dg.DagsterInstance, spark_server: ConnectServer, names: list[str]
) -> None:
    runs = Runs(lake, instance, spark_server, names)
    lake.create_playback(events(range(30)) + events(range(30, 60), day=1))
    first = runs.queries()
    assert {name: first[name] for name in _of(FIRST, first)} == _of(FIRST, first)
    lake.append(events(range(60, 63)) + events(range(63, 66), day=2))
    assert runs.queries() == _of(LATE_AND_NEW, first)
    lake.append(events(range(70, 73), day=3))
    new = runs.queries((3, 3))
    assert {name: new[name] for name in _of(NEW_DAY, new)} == _of(NEW_DAY, new)


@pytest.mark.slow
def test_a_run_that_follows_removed_rows_computes_what_it_needs_and_nothing_else(
    lake: Lake, instance: dg.DagsterInstance, spark_server: ConnectServer
) -> None:
    runs = Runs(lake, instance, spark_server, list(REMOVED))
    lake.create_playback(events(range(30)) + events(range(30, 60), day=1))
    runs.queries()
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 31")
    assert runs.queries() == REMOVED


def test_a_run_asks_spark_for_settings_and_columns_only_where_it_must(
    lake: Lake, instance: dg.DagsterInstance, spark_server: ConnectServer
) -> None:
    runs = Runs(lake, instance, spark_server, ["append_of_days", "combine_groups"])
    lake.create_playback(events(range(30)) + events(range(30, 60), day=1))
    runs.queries()
    lake.append(events(range(60, 63)) + events(range(63, 66), day=1))
    found = {}
    for name in runs.assets:
        with watched(spark_server) as requests:
            runs.run(name, (0, 1))
        found[name] = Counter(each.kind for each in requests)
    assert found["append_of_days"] <= Counter(config=12, analyze=5, execute=7)
    assert found["combine_groups"] <= Counter(config=15, analyze=7, execute=7)
