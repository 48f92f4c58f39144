"""The log explains what a run did, and the tables' snapshots show what followed from a change."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.core.cascade import short
from dagster_ips.core.log_lines import Event, LogLine
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.orchestration.run.cascade_tag import CASCADE_TAG
from tests.cli.conftest import Terminal
from tests.cli.idle_lake import IdleLake
from tests.support.at_effect import at
from tests.support.lake import events
from tests.support.lake_definitions import manager_on
from tests.support.pipeline import materialize

CAPTURE = {
    "input": "playback",
    "upstream": "playback",
    "source": "media.playback",
    "number": 2,
    "mode": "incremental",
    "reason": "it continues",
    "from_exclusive": 1,
    "from_ms": 0,
    "to_inclusive": 2,
    "to_ms": 1000,
    "files": 9,
    "files_added": 6,
    "rows": 2_949,
    "rows_added": 1_472,
    "bytes": 10_000,
    "icdc_table": "ips.sums",
}
AUTOMATIC = {"dagster/sensor_name": "ips_automation"}


def explained(terminal: Terminal, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(terminal.says("explain", run_id, "--json"))
    return found


def test_a_run_is_explained_from_what_it_read_to_what_it_committed(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(6)))
    first = materialize(terminal.definitions, terminal.instance, "daily")
    lake.append(events(range(6, 9), day=1))
    second = materialize(terminal.definitions, terminal.instance, "daily", tags=AUTOMATIC)

    assert explained(terminal, first.run_id)["assets"][0]["captured"][0]["mode"] == "full"
    before, after = (
        snapshot.snapshot_id
        for snapshot in reversed(lake.catalog.load("media.playback", asset="test").ancestry().snapshots)
    )
    told = explained(terminal, second.run_id[:8])
    assert told["run"] == second.run_id
    assert told["status"] == "SUCCESS"
    assert told["cascade"] == short(str(after))
    daily = next(each for each in told["assets"] if each["asset"] == "daily")
    (read,) = daily["captured"]
    assert (read["from_exclusive"], read["to_inclusive"]) == (str(before), str(after))
    assert (read["files"], read["rows"]) == ("1", "3")
    assert (read["files_added"], read["rows_added"]) == ("1", "3")
    target = lake.catalog.load("media.daily", asset="test")
    assert daily["published"]["snapshot"] == str(target.head_snapshot_id())
    assert daily["written"]["rows_added"] == "3"
    assert daily["committed"] == [{"asset": "daily", "upstream": "playback", "number": "2", "to_inclusive": str(after)}]

    text = terminal.says("explain", second.run_id)
    assert "Follows from the commit of " in text
    assert f"to media.playback (snapshot {after})" in text
    assert "daily: incremental (continues from" in text
    assert "1 file, 3 rows" in text
    assert f"published  snapshot {target.head_snapshot_id()} of media.daily" in text

    again = materialize(terminal.definitions, terminal.instance, "daily")
    assert "skipped    nothing was written: no change" in terminal.says("explain", again.run_id)


def test_a_run_that_failed_is_explained_by_its_cause_and_what_stays_pending(terminal: Terminal) -> None:
    lake, job = terminal.lake, terminal.definitions.resolve_implicit_global_asset_job_def()
    lake.create_playback(events(range(3)))
    lake.sql("ALTER TABLE lake.media.playback RENAME COLUMN seconds TO played")
    daily = [dg.AssetKey("daily")]
    failed = job.execute_in_process(instance=terminal.instance, asset_selection=daily, raise_on_error=False)
    told = terminal.says("explain", failed.run_id)
    assert "FAILURE" in told.splitlines()[0]
    assert "committed  nothing, so the changes it read stay pending" in told
    (line,) = [line for line in told.splitlines() if line.startswith("  failed")]
    assert "seconds" in line, "the cause, and not Dagster's own error above it"
    assert terminal.status("daily")[0]["pending"]["rows"] == 3


def test_what_a_run_published_that_was_stopped_right_after_is_consumed(terminal: Terminal) -> None:
    terminal.lake.create_playback(events(range(3)))

    def stop() -> None:
        raise KeyboardInterrupt

    job = terminal.definitions.resolve_implicit_global_asset_job_def()
    with at("before:copy_progress", stop), pytest.raises(BaseException):  # noqa: B017, PT011  # whatever Dagster makes of it
        job.execute_in_process(instance=terminal.instance, asset_selection=[dg.AssetKey("daily")])
    (run,) = terminal.instance.get_runs()
    told = terminal.says("explain", run.run_id)
    head = terminal.lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    assert f"published  snapshot {head} of media.daily" in told
    assert "committed  with the publication" in told
    assert terminal.status("daily")[0]["number"] == 1


def test_a_cascade_is_shown_with_all_its_runs_and_commits(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(6)))
    materialize(terminal.definitions, terminal.instance, "daily", "agg")
    lake.append(events([7], day=3))
    source = lake.catalog.load("media.playback", asset="test").head_snapshot_id()
    daily = materialize(terminal.definitions, terminal.instance, "daily", tags=AUTOMATIC)
    agg = materialize(terminal.definitions, terminal.instance, "agg", tags=AUTOMATIC)
    report = materialize(terminal.definitions, terminal.instance, "report", tags=AUTOMATIC)

    told = json.loads(terminal.says("cascade", str(source), "--json"))
    assert [each["run"] for each in told["runs"]] == [daily.run_id, agg.run_id, report.run_id]
    assert [[p["table"] for p in each["published"]] for each in told["runs"]] == [
        ["media.daily"],
        ["media.agg"],
        ["media.report"],
    ]
    head = lake.catalog.load("media.agg", asset="test").head_snapshot_id()
    assert told["runs"][1]["published"][0]["snapshot_id"] == str(head)
    assert told["published_by_deleted_runs"] == []
    text = terminal.says("cascade", str(source))
    assert text.startswith("The commit of ")
    assert f"to media.playback (snapshot {source})" in text
    listed = terminal.says("cascade")
    assert f"to media.playback (snapshot {source})" in listed
    assert json.loads(terminal.says("cascade", "--json"))[0]["runs"] == 3

    terminal.instance.delete_run(daily.run_id)
    told = json.loads(terminal.says("cascade", str(source), "--json"))
    assert [each["run"] for each in told["runs"]] == [agg.run_id, report.run_id]
    (deleted,) = told["published_by_deleted_runs"]
    assert (deleted["run"], deleted["table"]) == (daily.run_id, "media.daily")


def test_many_cascades_are_listed_with_one_look_at_each_table(
    idle_lake: IdleLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = idle_lake.catalog.load("media.playback", asset="test").head_snapshot_id()
    for cascade in (str(head), "12345", "a backfill", "another"):
        idle_lake.instance.add_run(dg.DagsterRun(job_name="any", tags={CASCADE_TAG: cascade}))
    find, looked = LakeCatalog.find, []
    monkeypatch.setattr(LakeCatalog, "find", lambda lake, table: [looked.append(table), find(lake, table)][1])
    listed = json.loads(idle_lake.says("cascade", "--json"))
    assert {each["cascade"]: each["started_by"] for each in listed}["another"] == "backfill another"
    assert f"media.playback (snapshot {head})" in listed[-1]["started_by"]
    assert sorted(looked) == ["media.daily", "media.playback"]


@pytest.mark.parametrize(
    ("why", "told"), [("this is the best strategy", "append"), ("no keys: x", "append (no keys: x)")]
)
def test_the_run_of_a_query_is_explained_with_its_strategy(idle_lake: IdleLake, why: str, told: str) -> None:
    @dg.asset
    def sums() -> dg.MaterializeResult[None]:
        context = dg.AssetExecutionContext.get()
        context.log.info(str(LogLine.of(Event.CAPTURE, asset="sums", **CAPTURE)))
        return dg.MaterializeResult(metadata={"refresh": "append", "refresh, why not better": why})

    run = dg.materialize([sums], instance=idle_lake.instance)
    assert f"\n  refreshed  {told}\n" in idle_lake.says("explain", run.run_id)
    (asset,) = json.loads(idle_lake.says("explain", run.run_id, "--json"))["assets"]
    assert asset["refresh"]["strategy"] == "append"


def test_files_that_were_added_are_counted_apart(idle_lake: IdleLake) -> None:
    @dg.asset
    def sums() -> None:
        dg.AssetExecutionContext.get().log.info(str(LogLine.of(Event.CAPTURE, asset="sums", **CAPTURE)))

    run = dg.materialize([sums], instance=idle_lake.instance)
    said = idle_lake.says("explain", run.run_id)
    assert "6 files added (1,472 rows), 3 files removed or with deleted rows (1,477 rows), together 10.0 kB" in said


def test_unknown_runs_and_cascades_are_refused_with_advice(terminal: Terminal) -> None:
    assert "has no run 'nosuchrun'" in terminal.refuses("explain", "nosuchrun")
    assert "belongs to a cascade '12345'" in terminal.refuses("cascade", "12345")
    terminal.lake.create_playback(events(range(2)))
    for _ in range(2):
        materialize(terminal.definitions, terminal.instance, "daily")
    assert "Several runs have an id that starts with ''" in terminal.refuses("explain", "")


def test_a_run_with_its_own_sql_is_explained_as_well(terminal: Terminal) -> None:
    text = terminal.file.read_text()
    terminal.file.write_text(f"from tests.support.pipeline import plays\n{text.replace('))', '), plays)')}")
    scope: dict[str, Any] = {}
    exec(compile(terminal.file.read_text(), str(terminal.file), "exec"), scope)  # noqa: S102  # as Dagster loads it
    terminal.lake.create_playback(events(range(5)))
    run = materialize(scope["defs"], terminal.instance, "plays")
    (told,) = explained(terminal, run.run_id)["assets"]
    assert told["captured"][0]["rows"] == "5"
    head = terminal.lake.catalog.load("media.plays", asset="test").head_snapshot_id()
    assert told["published"]["snapshot"] == str(head)
    assert told["is_consumed"]
    idle = materialize(scope["defs"], terminal.instance, "plays")
    (told,) = explained(terminal, idle.run_id)["assets"]
    assert told["skipped"]["reason"] == "the statements didn't change the table"


def test_the_partitions_of_a_run_are_explained_in_one_line(terminal: Terminal) -> None:
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")

    @dg.asset(
        ins={"playback": ips.incremental(partition_column="event_date")},
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run(),
        metadata=ips.overwrite_partitions()
        | ips.table("media.by_day", partition_by=["event_date"])
        | {"partition_expr": "event_date"},
    )
    def by_day(playback: ips.IcdcView) -> DataFrame:
        return playback.scope

    lake = terminal.lake
    manager = manager_on(lake.folder, lake.spark_folder)
    playback = ips.iceberg_asset("playback", table="media.playback")
    definitions = ips.with_incremental(dg.Definitions([playback, by_day], resources={"io_manager": manager}))
    lake.create_playback([*events(range(3)), *events(range(3, 5), day=1)])
    run = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=terminal.instance,
        asset_selection=[dg.AssetKey("by_day")],
        tags={"dagster/asset_partition_range_start": "2026-01-01", "dagster/asset_partition_range_end": "2026-01-02"},
    )
    (told,) = explained(terminal, run.run_id)["assets"]
    assert told["captured"][0]["partitions"] == "2"
    (commit,) = told["committed"]
    assert commit["partitions"] == "2"
    assert "for 2 partitions" in terminal.says("explain", run.run_id)
