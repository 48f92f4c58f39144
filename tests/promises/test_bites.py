"""A backlog that several runs read in bites gives the same tables as one run without a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.core.backlog import is_pending
from dagster_ips.core.edge import Edge
from dagster_ips.errors import DeclarationError, UnfollowedChangeError
from dagster_ips.exactly_once.effects import Effect
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.progress.cursor import Copy
from dagster_ips.progress.progress import Progress
from tests.support.kinds import run_killed
from tests.support.lake import Event, Lake, events
from tests.support.pipeline import (
    agg_in_bites,
    daily_in_bites,
    expected_agg,
    expected_daily,
    materialize,
    pipeline,
    with_every_asset,
)
from tests.support.progress import copied_state

BEFORE_PUBLISH = f"after:{Effect.WRITE_BRANCH}"
BEFORE_COMMIT = f"after:{Effect.PUBLISH}"
MOST_RUNS = 30


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("event_date").agg(F.count("*").alias("plays"), F.max("seconds").alias("longest"))


@dg.asset(
    ins={"playback": ips.incremental(max_files=2)},
    metadata=ips.overwrite_partitions() | ips.table("media.totals_in_bites", partition_by=["event_date"]),
)
def totals_in_bites(playback: ips.IcdcView) -> DataFrame:
    return totals(playback.scope)


@dg.asset(ins={"playback": ips.incremental(max_files=2)}, metadata=ips.table("media.running_in_bites"))
def running_in_bites(playback: ips.IcdcView) -> ips.Overwrite:
    scope = playback.range("event_date").since("event_date")
    return ips.Overwrite(totals(playback.source).where(scope), where=scope)


ASSETS = [daily_in_bites, agg_in_bites, totals_in_bites, running_in_bites]


def days(count: int, *, first_id: int = 0) -> list[Event]:
    """Three events for each of ``count`` days: one data file per day."""
    return [
        event for day in range(count) for event in events(range(first_id + 3 * day, first_id + 3 * day + 3), day=day)
    ]


def drain(definitions: dg.Definitions, instance: dg.DagsterInstance, name: str) -> list[dict[str, Any]]:
    """Run the asset until Dagster's evaluation of the conditions requests no more runs; the metadata of each run."""
    shown, cursor = [], None
    for _ in range(MOST_RUNS):
        tick: Any = dg.evaluate_automation_conditions(defs=definitions, instance=instance, cursor=cursor)
        cursor = tick.cursor
        if not tick.get_num_requested(dg.AssetKey(name)):
            return shown
        shown.append(run(definitions, instance, name))
    pytest.fail(f"{name} is still pending after {MOST_RUNS} runs")


def run_to_the_end(
    definitions: dg.Definitions, instance: dg.DagsterInstance, lake: Lake, name: str
) -> list[dict[str, Any]]:
    """Run until nothing is pending, without asking Dagster, which takes a killed run to be still in progress."""
    shown = []
    for _ in range(MOST_RUNS):
        source = lake.catalog.load("media.playback", asset="test")
        state = copied_state(instance, Edge(name, "playback"))
        if not is_pending(state, table_uuid=source.uuid, ancestry=source.ancestry()):
            return shown
        shown.append(run(definitions, instance, name))
    pytest.fail(f"{name} is still pending after {MOST_RUNS} runs")


def run(definitions: dg.Definitions, instance: dg.DagsterInstance, name: str) -> dict[str, Any]:
    (found,) = materialize(definitions, instance, name).get_asset_materialization_events()
    return {key: value.value for key, value in found.materialization.metadata.items()}


def check(lake: Lake, name: str) -> None:
    """The table equals a recompute: of rows in Python without Spark, of totals by another query."""
    rows = list(lake.rows("media.playback").elements())
    match name:
        case "daily_in_bites":
            expected = expected_daily(rows)
        case "agg_in_bites":
            expected = expected_agg(rows)
        case _:
            of_days = "SELECT event_date, count(*), max(seconds) FROM lake.media.playback GROUP BY event_date"
            expected = Counter(tuple(row) for row in lake.sql(of_days).collect())
    assert lake.rows(f"media.{name}") == expected


@pytest.mark.parametrize("asset", [ASSETS[0], *(pytest.param(asset, marks=pytest.mark.slow) for asset in ASSETS[1:])])
def test_a_backlog_drains_by_itself_and_the_table_equals_a_recompute(
    lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition
) -> None:
    name = asset.key.to_user_string()
    definitions = pipeline(lake.folder, lake.spark_folder, asset)
    lake.create_playback(days(5))
    first = drain(definitions, instance, name)
    check(lake, name)
    is_cut = asset in (daily_in_bites, agg_in_bites)
    assert len(first) == (3 if is_cut else 1)
    assert ("files 1 to 2 of 5" if is_cut else "more than its limit") in first[0]["summary"]

    lake.append(days(3, first_id=100))
    lake.append(days(1, first_id=200))
    lake.append(days(1, first_id=300))
    later = drain(definitions, instance, name)
    check(lake, name)
    assert [run["files captured"] for run in later] == ([2, 1, 2] if is_cut else [3, 2])
    assert "2 later snapshots are left" in later[0]["summary"]


@pytest.mark.slow
@pytest.mark.parametrize("asset", [daily_in_bites, agg_in_bites], ids=lambda asset: asset.key.to_user_string())
def test_after_deletes_updates_and_compactions_between_bites_the_table_equals_a_recompute(
    lake: Lake, instance: dg.DagsterInstance, asset: dg.AssetsDefinition
) -> None:
    name = asset.key.to_user_string()
    definitions = pipeline(lake.folder, lake.spark_folder, asset)
    lake.create_playback(days(2))
    lake.append(days(2, first_id=100))
    lake.sql(
        "ALTER TABLE lake.media.playback SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'copy-on-write')"
    )
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (1, 101)")  # the first read has delete files
    materialize(definitions, instance, name)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 102")
    lake.sql("UPDATE lake.media.playback SET seconds = seconds + 100 WHERE event_id = 0")
    lake.append(days(4, first_id=200))
    lake.sql("CALL lake.system.rewrite_data_files(table => 'media.playback', options => map('min-input-files', '2'))")
    lake.append(events(range(300, 303), day=1))
    run_to_the_end(definitions, instance, lake, name)
    check(lake, name)


@pytest.mark.slow
@pytest.mark.everywhere
@pytest.mark.parametrize("kill", [BEFORE_PUBLISH, BEFORE_COMMIT])
@pytest.mark.parametrize("name", ["daily_in_bites", "agg_in_bites"])
def test_a_run_killed_between_bites_duplicates_no_row_and_loses_none(
    lake: Lake, instance: dg.DagsterInstance, name: str, kill: str
) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, daily_in_bites, agg_in_bites)
    lake.create_playback(days(5))
    materialize(definitions, instance, name)
    lake.append(days(1, first_id=100))

    run_killed(instance.root_directory, lake, name, at=kill, of=with_every_asset)
    run_to_the_end(definitions, instance, lake, name)

    check(lake, name)
    state = copied_state(instance, Edge(name, "playback"))
    assert state.file_set is None


def test_a_cursor_lost_between_bites_changes_nothing(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = pipeline(lake.folder, lake.spark_folder, daily_in_bites)
    lake.create_playback(days(5))
    materialize(definitions, instance, "daily_in_bites")
    CursorStore(instance).set_copy("daily_in_bites", Copy(Progress()))
    shown = run_to_the_end(definitions, instance, lake, "daily_in_bites")
    check(lake, "daily_in_bites")
    assert [run["playback: bite"] for run in shown] == ["files 3 to 4 of 5", "files 5 to 5 of 5"]


def test_an_input_that_is_only_joined_may_be_read_in_bites(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        ins={"playback": ips.incremental(max_files=2), "account": ips.incremental(max_files=1)},
        metadata=ips.append() | ips.table("media.with_plan"),
    )
    def with_plan(playback: ips.IcdcView, account: ips.IcdcView) -> DataFrame:
        return playback.added.join(account.source, "account", "left").select("event_id", "plan")

    account = ips.iceberg_asset("account", table="media.account")
    definitions = pipeline(lake.folder, lake.spark_folder, with_plan, account)
    lake.create_playback(days(5))
    lake.sql("CREATE TABLE lake.media.account (account STRING, plan STRING)")
    for number in range(4):
        lake.sql(f"INSERT INTO lake.media.account VALUES ('a{number}', 'p{number}')")
    joined = "SELECT event_id, plan FROM lake.media.playback LEFT JOIN lake.media.account USING (account)"

    drain(definitions, instance, "with_plan")
    assert lake.rows("media.with_plan") == Counter(tuple(row) for row in lake.sql(joined).collect())

    lake.sql("INSERT INTO lake.media.account VALUES ('a9', 'p9')")
    with pytest.raises(UnfollowedChangeError):
        run(definitions, instance, "with_plan")


def test_an_append_that_joins_bites_with_rows_of_later_bites_is_refused(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        ins={"playback": ips.incremental(max_files=2), "plans": ips.incremental()},
        metadata=ips.append() | ips.table("media.joined"),
    )
    def joined(playback: ips.IcdcView, plans: ips.IcdcView) -> DataFrame:
        old = playback.source.exceptAll(playback.added)
        new = playback.added.join(plans.source, "account")
        return new.unionByName(old.join(plans.added, "account"))

    lake.create_playback(days(5))
    lake.sql("CREATE TABLE lake.media.plans AS SELECT 'a0' AS account, 'small' AS plan")
    plans = ips.iceberg_asset("plans", table="media.plans")
    definitions = pipeline(lake.folder, lake.spark_folder, joined, plans)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="would have to be recomputed"):  # Dagster wraps the error
        materialize(definitions, instance, "joined")
    assert lake.commits("media.joined") == 0


@pytest.mark.parametrize("limit", [{"max_files": 0}, {"max_bytes": -1}, {"max_files": 1.5}, {"max_bytes": True}])
def test_a_limit_that_no_bite_can_meet_is_refused_when_it_is_declared(limit: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="whole number above 0"):
        ips.incremental(**limit)


def test_a_limit_for_an_asset_that_every_run_computes_in_full_is_refused_at_load(tmp_path: Path) -> None:
    @dg.asset(ins={"playback": ips.incremental(max_files=2)}, metadata=ips.replace() | ips.table("media.copied"))
    def copied(playback: ips.IcdcView) -> DataFrame:
        return playback.source

    with pytest.raises(DeclarationError, match="only cost more"):
        pipeline(tmp_path, tmp_path, copied)


Change = Callable[[Lake, int], object]
CHANGES: dict[str, Change] = {
    "append a few files": lambda lake, n: lake.append(days(2, first_id=1000 * n)),
    "append many files": lambda lake, n: lake.append(days(5, first_id=1000 * n)),
    "delete rows": lambda lake, n: lake.sql(f"DELETE FROM lake.media.playback WHERE event_id % 5 = {n % 5}"),
    "update rows": lambda lake, n: lake.sql(
        f"UPDATE lake.media.playback SET seconds = seconds + 60 WHERE event_id % 4 = {n % 4}"
    ),
    "overwrite a day": lambda lake, n: lake.sql(
        f"INSERT OVERWRITE lake.media.playback SELECT {1000 * n}L, DATE '2026-01-02', 'a1', 9L"
    ),
    "compact": lambda lake, _: lake.sql(
        "CALL lake.system.rewrite_data_files(table => 'media.playback', options => map('rewrite-all', 'true'))"
    ),
    "keep deletes beside": lambda lake, _: lake.sql(
        "ALTER TABLE lake.media.playback SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'merge-on-read')"
    ),
}
RUNS = tuple(f"run {asset.key.to_user_string()}" for asset in ASSETS)


@pytest.mark.slow
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from([*CHANGES, *CHANGES, *RUNS]), min_size=5, max_size=12))
def test_after_any_history_with_any_runs_in_between_the_tables_equal_a_recompute(
    lake: Lake, steps: Sequence[str]
) -> None:
    for table in ("playback", *(asset.key.to_user_string() for asset in ASSETS)):
        lake.catalog.drop(f"media.{table}")
    lake.create_playback(days(3))
    lake.session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    definitions = pipeline(lake.folder, lake.spark_folder, *ASSETS)
    with dg.DagsterInstance.ephemeral() as instance:
        for number, step in enumerate(steps, start=1):
            if step in CHANGES:
                CHANGES[step](lake, number)
            else:
                materialize(definitions, instance, step.removeprefix("run "))
        for asset in ASSETS:
            run_to_the_end(definitions, instance, lake, asset.key.to_user_string())
            check(lake, asset.key.to_user_string())
