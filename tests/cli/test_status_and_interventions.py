"""What the command line reports is true, and what it changes leads to right tables."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.errors import IpsError
from dagster_ips.orchestration.watch.pending_checks import PENDING_SENSOR
from tests.cli.conftest import Terminal
from tests.support.lake import events
from tests.support.pipeline import expected_agg, expected_daily, materialize, pipeline
from tests.support.ticks import tick


def test_status_shows_what_is_consumed_and_what_is_pending(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(6)))
    (fresh,) = terminal.status("daily")
    assert fresh["consumed_up_to"] is None
    assert fresh["pending"]["mode"] == "full"
    assert fresh["pending"]["rows"] == 6
    materialize(terminal.definitions, terminal.instance, "daily", "agg")
    lake.append(events(range(6, 10), day=1))
    lake.append(events(range(10, 13), day=2))

    agg, daily = terminal.status()
    head = lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    assert (agg["asset"], agg["upstream"], agg["number"]) == ("agg", "daily", 1)
    assert agg["consumed_up_to"]["snapshot_id"] == str(head)
    assert agg["pending"]["files"] == 0
    assert agg["progress"]["at"] == agg["consumed_up_to"]
    assert daily["in_flight"] is None
    pending = daily["pending"]
    assert (pending["mode"], pending["snapshots"], pending["rows"], pending["partitions"]) == ("incremental", 2, 7, 2)
    sizes = lake.sql("SELECT file_size_in_bytes FROM lake.media.playback.files WHERE record_count IN (3, 4)").collect()
    assert pending["size_bytes"] == sum(row[0] for row in sizes)
    assert "2 snapshots, 2 files, 7 rows" in terminal.says("status")


def test_status_mentions_rows_that_are_older_than_a_column_of_the_table(terminal: Terminal) -> None:
    terminal.lake.create_playback(events(range(3)))
    materialize(terminal.definitions, terminal.instance, "daily")
    assert [each["older_rows"] for each in terminal.status()] == [None, None]
    terminal.lake.sql("ALTER TABLE lake.media.daily ADD COLUMN plan string")
    (daily,) = terminal.status("daily")
    assert "before plan was added have NULL" in daily["older_rows"]
    assert f"daily: {daily['older_rows']}" in terminal.says("status")


def test_status_names_the_last_failed_run_until_a_run_succeeds(terminal: Terminal) -> None:
    lake, job = terminal.lake, terminal.definitions.resolve_implicit_global_asset_job_def()
    lake.create_playback(events(range(3)))
    lake.sql("ALTER TABLE lake.media.playback RENAME COLUMN seconds TO played")
    daily = [dg.AssetKey("daily")]
    failed = job.execute_in_process(instance=terminal.instance, asset_selection=daily, raise_on_error=False)
    assert [each["failed"] for each in terminal.status("daily")] == [{"": failed.run_id}]
    assert f"daily: Its last run failed (run {failed.run_id})" in terminal.says("status")
    lake.sql("ALTER TABLE lake.media.playback RENAME COLUMN played TO seconds")
    materialize(terminal.definitions, terminal.instance, "daily")
    assert [each["failed"] for each in terminal.status("daily")] == [{}]


def test_a_reset_makes_the_next_run_a_full_one_and_records_who_and_why(terminal: Terminal) -> None:
    lake, rows = terminal.lake, events(range(6))
    lake.create_playback(rows)
    materialize(terminal.definitions, terminal.instance, "daily")
    lake.sql("DELETE FROM lake.media.daily WHERE event_id = 3")

    terminal.says("reset", "daily", "--upstream", "playback", "--why", "a row was lost", "--yes")
    (status,) = terminal.status("daily")
    (asked,) = status["requests"]
    assert (asked["kind"], asked["why"], asked["after"]) == ("reset", "a row was lost", None)
    assert (bool(asked["who"]), asked["is_done"]) == (True, False)
    (observed,) = terminal.instance.fetch_observations(dg.AssetKey("daily"), limit=5).records
    observation = observed.asset_observation
    assert observation is not None
    assert observation.metadata["why"].value == "a row was lost"

    result = materialize(terminal.definitions, terminal.instance, "daily")
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["mode"].value == "full"
    assert lake.rows("media.daily") == expected_daily(rows)
    (status,) = terminal.status("daily")
    assert (status["number"], status["requests"][0]["is_done"]) == (2, True)


def test_a_reset_asks_for_confirmation_and_respects_a_no(terminal: Terminal) -> None:
    terminal.lake.create_playback(events(range(3)))
    materialize(terminal.definitions, terminal.instance, "daily")
    before = terminal.status("daily")
    assert "Continue?" in terminal.run("reset", "daily", "--why", "test", answer="n\n").output
    assert terminal.status("daily") == before


def test_after_a_rewind_changes_are_read_again_and_rows_that_are_gone_since_are_removed(terminal: Terminal) -> None:
    lake, instance, definitions = terminal.lake, terminal.instance, terminal.definitions
    rows = events(range(6))
    lake.create_playback(rows)
    materialize(definitions, instance, "daily", "agg")
    first = lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    passing, staying = events([100], day=5), events([101], day=6)
    for batch in (passing, staying):
        lake.append(batch)
        materialize(definitions, instance, "daily", "agg")
    lake.sql(
        "UPDATE lake.media.agg SET plays = 99 WHERE event_date >= DATE '2026-01-06'"
    )  # wrong values, to be repaired
    lake.sql("DELETE FROM lake.media.daily WHERE event_id = 100")

    preview = terminal.says("rewind", "agg", "--to", str(first), "--dry-run")
    assert "2 snapshots, 2 files, 2 rows" in preview
    assert "2 partitions" in preview
    assert terminal.status("agg")[0]["requests"] == []
    terminal.says("rewind", "agg", "--to", str(first), "--why", "a bad update", "--yes")
    (status,) = terminal.status("agg")
    assert status["consumed_up_to"]["snapshot_id"] == str(first)
    assert status["pending"]["rows"] == 2

    materialize(definitions, instance, "agg")
    assert terminal.status("agg")[0]["pending"]["files"] == 1
    materialize(definitions, instance, "agg")
    assert lake.rows("media.agg") == expected_agg(rows + staying)
    assert terminal.status("agg")[0]["pending"]["files"] == 0


def test_the_check_and_the_doctor_accept_what_a_rewind_accepts(terminal: Terminal) -> None:
    lake, instance, definitions = terminal.lake, terminal.instance, terminal.definitions

    def said() -> str:
        found = tick(definitions, instance, PENDING_SENSOR).asset_events
        (check,) = [each for each in found if each.asset_key == dg.AssetKey("agg")]
        assert isinstance(check, dg.AssetCheckEvaluation)
        return f"{check.description}\n{terminal.run('doctor').output}"

    lake.create_playback(events(range(6)))
    materialize(definitions, instance, "daily", "agg")
    first = lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    lake.append(events([100], day=5))
    materialize(definitions, instance, "daily", "agg")
    lake.sql("UPDATE lake.media.agg SET plays = 99")
    assert said().count("Someone other than agg") == 2
    terminal.says("rewind", "agg", "--to", str(first), "--why", "a bad update", "--yes")
    assert "Someone other" not in said()


@pytest.mark.slow
def test_a_rewind_to_a_time_goes_to_the_last_snapshot_before_it(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(6)))
    materialize(terminal.definitions, terminal.instance, "daily", "agg")
    head = lake.catalog.load("media.daily", asset="test").ancestry().head
    assert head
    lake.append(events([10]))
    materialize(terminal.definitions, terminal.instance, "daily", "agg")
    seconds, milliseconds = divmod(head.timestamp_ms, 1000)
    (row,) = lake.sql(f"SELECT date_format(timestamp_seconds({seconds}), 'yyyy-MM-dd\\'T\\'HH:mm:ss')").collect()
    zone = lake.session.conf.get("spark.sql.session.timeZone")
    assert zone in ("UTC", "Etc/UTC")
    said = terminal.says("rewind", "agg", "--to", f"{row[0]}.{milliseconds:03d}Z", "--dry-run")
    assert f" to {head.snapshot_id} (" in said


OWN_SQL = """
import dagster as dg
import dagster_ips as ips

@dg.asset(deps=[ips.incremental_dep("playback")], metadata=ips.table("media.copy"))
def copy(context):
    with ips.capture(context, columns="event_id BIGINT") as icdc:
        icdc.sql("INSERT INTO {target} SELECT event_id FROM {added}")
"""


def test_an_asset_with_its_own_sql_has_a_status_and_can_be_reset_but_not_rewound(terminal: Terminal) -> None:
    text = terminal.file.read_text()
    terminal.file.write_text(f"{OWN_SQL}\n{text.replace('))', '), copy)')}")
    scope: dict[str, Any] = {}
    exec(compile(terminal.file.read_text(), str(terminal.file), "exec"), scope)  # noqa: S102  # as Dagster loads it
    definitions = scope["defs"]
    terminal.lake.create_playback(events(range(3)))
    materialize(definitions, terminal.instance, "copy")
    first = terminal.lake.catalog.load("media.playback", asset="test").head_snapshot_id()
    terminal.lake.append(events(range(3, 5)))
    assert terminal.status("copy")[0]["pending"]["rows"] == 2
    materialize(definitions, terminal.instance, "copy")
    refused = terminal.refuses("rewind", "copy", "--to", str(first), "--why", "x", "--yes")
    assert "could be duplicated" in refused
    terminal.says("reset", "copy", "--why", "counted anew", "--yes")
    assert terminal.status("copy")[0]["pending"]["mode"] == "full"
    materialize(definitions, terminal.instance, "copy")
    assert terminal.lake.rows("media.copy") == Counter({(i,): 1 for i in range(5)})


REFUSED = [
    (("rewind", "daily", "--to", "1", "--why", "x", "--yes"), "could be duplicated"),
    (("rewind", "agg", "--to", "12345", "--why", "x", "--yes"), "isn't in its history"),
    (("rewind", "agg", "--to", "HEAD", "--why", "x", "--yes"), "isn't older than"),
    (("rewind", "agg", "--to", "2999-01-01", "--why", "x", "--yes"), "is in the future"),
    (("rewind", "agg", "--to", "2001-01-01", "--why", "x", "--yes"), "before the first snapshot"),
    (("rewind", "agg", "--to", "2999-12-31", "--dry-run"), "is in the future"),
    (("rewind", "agg", "--to", "yesterday", "--why", "x", "--yes"), "isn't a snapshot id, date or time"),
    (("reset", "nothing", "--why", "x", "--yes"), "reads nothing incrementally"),
    (("reset", "agg", "--upstream", "playback", "--why", "x", "--yes"), "doesn't read playback incrementally"),
    (("reset", "agg", "--yes"), "--why"),
    (("commit", "agg"), "isn't the id of a capture"),
    (("commit", "agg:123"), "nothing is in flight; the last committed capture is 1"),
]


def test_invalid_interventions_are_refused_and_change_nothing(terminal: Terminal) -> None:
    terminal.lake.create_playback(events(range(3)))
    materialize(terminal.definitions, terminal.instance, "daily", "agg")
    head = str(terminal.lake.catalog.load("media.daily", asset="test").head_snapshot_id())
    before = terminal.status()
    for words, answer in REFUSED:
        assert answer in terminal.refuses(*[head if word == "HEAD" else word for word in words])
        assert terminal.status() == before


@pytest.mark.slow
def test_an_intervention_is_refused_while_a_run_is_at_work_on_the_asset(terminal: Terminal) -> None:
    terminal.lake.create_playback(events(range(3)))
    materialize(terminal.definitions, terminal.instance, "daily", "agg")
    job = terminal.definitions.resolve_implicit_global_asset_job_def()
    run = terminal.instance.create_run_for_job(
        job, asset_selection=frozenset({dg.AssetKey("daily")}), status=dg.DagsterRunStatus.NOT_STARTED
    )
    terminal.instance.report_dagster_event(
        dg.DagsterEvent(event_type_value="PIPELINE_START", job_name=job.name), run_id=run.run_id
    )
    for words in (("reset", "daily", "--why", "x", "--yes"), ("capture", "daily")):
        assert f"Run {run.run_id} is processing daily" in terminal.refuses(*words)
    terminal.says("reset", "agg", "--why", "another asset", "--yes")


def test_the_command_is_installed_and_lists_its_commands() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "dagster_ips.cli", "--help"], check=True, capture_output=True, text=True
    ).stdout
    for name in ("status", "reset", "rewind", "capture", "commit"):
        assert f"  {name} " in told


def test_an_asset_that_starts_at_latest_leaves_out_earlier_rows_and_says_so(terminal: Terminal) -> None:
    lake, instance = terminal.lake, terminal.instance

    @dg.asset(ins={"playback": ips.incremental(start="latest")}, metadata=ips.append() | ips.table("media.since"))
    def since(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    definitions = pipeline(lake.folder, lake.spark_folder, since)
    lake.create_playback(events(range(6)))
    result = materialize(definitions, instance, "since")
    (event,) = result.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["mode"].value == "incremental"
    assert metadata["playback: began at"].value.startswith("latest: earlier rows are in the table only if")
    assert lake.rows("media.since") == Counter()
    lake.append(events([6, 7]))
    materialize(definitions, instance, "since")
    assert lake.rows("media.since") == Counter(events([6, 7]))
    materialize(definitions, instance, "since", tags={"dagster_ips/mode": "full"})
    assert lake.rows("media.since") == Counter(events(range(8)))


SINCE = """
import dagster as dg
import dagster_ips as ips

@dg.asset(ins={"playback": ips.incremental(start="START")}, metadata=ips.append() | ips.table("media.since"))
def since(playback):
    return playback.added
"""


def test_a_reset_that_would_add_rows_twice_is_refused(terminal: Terminal) -> None:
    lake, instance, text = terminal.lake, terminal.instance, terminal.file.read_text().replace("))", "), since)")

    def beginning(start: str) -> dg.Definitions:
        terminal.file = terminal.file.with_name(f"since_{start.replace('-', '_')}.py")
        terminal.file.write_text(f"{SINCE.replace('START', start)}\n{text}")
        scope: dict[str, Any] = {}
        exec(compile(terminal.file.read_text(), str(terminal.file), "exec"), scope)  # noqa: S102  # as Dagster loads it
        definitions: dg.Definitions = scope["defs"]
        return definitions

    lake.create_playback(events(range(3)))
    definitions = beginning("2001-01-01")
    terminal.says("reset", "since", "--why", "nothing is consumed yet", "--yes")
    materialize(definitions, instance, "since")
    before = terminal.status("since")
    assert "would be there twice" in terminal.refuses("reset", "since", "--why", "a test", "--yes")
    assert terminal.status("since") == before
    lake.append(events([3]))
    definitions = beginning("latest")
    terminal.says("reset", "since", "--why", "skip event 3", "--yes")
    materialize(definitions, instance, "since")
    lake.append(events([4]))
    materialize(definitions, instance, "since")
    assert lake.rows("media.since") == Counter(events([0, 1, 2, 4]))


@pytest.mark.parametrize("start", ["newest", "", "2026-13-01", 1.5])
def test_an_invalid_start_is_refused_when_the_definitions_load(start: str) -> None:
    with pytest.raises(IpsError, match="isn't a place in a table's history"):
        ips.incremental(start=start)
