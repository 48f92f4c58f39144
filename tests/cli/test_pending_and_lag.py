"""Pending changes are listed one by one, with their age and the cost of the next run. Looking needs no Spark."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_ips.cli.main import main
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from dagster_ips.orchestration.run.known_consumers import known_consumers
from dagster_ips.progress.cursor import Copy, Cursor, Job
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.table_progress import mark_of
from tests.cli.idle_lake import DEFINITIONS, IdleLake
from tests.support.lake import SCHEMA, events


def test_pending_changes_are_listed_commit_by_commit(idle_lake: IdleLake) -> None:
    assert idle_lake.says("pending", "daily").strip() == "daily ← playback: nothing pending."
    idle_lake.append(events([10, 11]))
    idle_lake.catalog.client.load_table("media.playback").delete("event_id == 10")
    idle_lake.append(events([12], day=1))

    (told,) = json.loads(idle_lake.says("pending", "daily", "--json"))
    newest_first = idle_lake.catalog.load("media.playback", asset="test").ancestry().snapshots
    assert [each["snapshot_id"] for each in told["snapshots"]] == [str(s.snapshot_id) for s in newest_first[2::-1]]
    assert [(each["rows_added"], each["rows_removed"]) for each in told["snapshots"]] == [(2, None), (1, 2), (1, None)]
    assert [each["run"] for each in told["snapshots"]] == [None, None, None]
    assert told["mode"] == "incremental"
    text = idle_lake.says("pending", "daily", "--upstream", "playback")
    assert "The next run reads only the changes." in text
    assert "+1 -2" in text
    assert "an outside job" in text


def test_all_of_an_asset_whose_table_was_dropped_is_pending(idle_lake: IdleLake) -> None:
    assert idle_lake.says("pending", "daily").strip() == "daily ← playback: nothing pending."
    idle_lake.catalog.client.drop_table("media.daily")
    assert "1 file, 3 rows" in (said := idle_lake.says("pending", "daily"))
    assert "The next run computes everything." in said


def test_pending_names_the_missing_table_for_which_an_asset_waits(idle_lake: IdleLake) -> None:
    idle_lake.catalog.client.drop_table("media.playback")
    idle_lake.catalog.client.drop_table("media.daily")
    assert "waiting for media.playback, which doesn't exist yet" in idle_lake.says("pending", "daily")


def test_the_lag_is_the_age_of_the_oldest_pending_change(idle_lake: IdleLake) -> None:
    def pending() -> dict[str, object]:
        found: dict[str, object] = json.loads(idle_lake.says("status", "daily", "--json"))[0]["pending"]
        return found

    assert pending()["since"] is None
    idle_lake.append(events([4]))
    oldest = idle_lake.catalog.load("media.playback", asset="test").ancestry().snapshots[0].timestamp_ms
    idle_lake.append(events([5]))
    assert pending()["since"] == dt.datetime.fromtimestamp(oldest // 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert re.search(r"daily .*2 snapshots, 2 files.* \d+ (s|min)\b", idle_lake.says("status", "daily"))


def test_the_capture_of_a_job_is_in_flight_until_its_table_says_that_it_is_published(idle_lake: IdleLake) -> None:
    capture, progress = idle_lake.capture(2, "daily:job"), Progress(2, {"playback": InputProgress(idle_lake.head())})
    CursorStore(idle_lake.instance).set_job("daily", Job((capture,), progress))
    (told,) = json.loads(idle_lake.says("status", "daily", "--json"))
    assert (told["in_flight"]["icdc_table"], told["in_flight"]["run_id"]) == (capture.icdc_table, "daily:job")
    assert "daily:job since" in idle_lake.says("status", "daily")
    idle_lake.publish(progress)
    assert json.loads(idle_lake.says("status", "daily", "--json"))[0]["in_flight"] is None


def test_a_table_that_someone_rolled_back_is_said_to_be_and_goes_on_from_what_it_contains(idle_lake: IdleLake) -> None:
    before = idle_lake.head()
    first = idle_lake.catalog.load("media.daily", asset="test").head_snapshot_id()
    assert first is not None
    idle_lake.append(events([4]))
    second = Progress(2, {"playback": InputProgress(idle_lake.head())})
    idle_lake.publish(second)
    mark = mark_of(idle_lake.catalog.load("media.daily", asset="test"))
    CursorStore(idle_lake.instance).set_copy("daily", Copy(second, mark))
    (told,) = json.loads(idle_lake.says("status", "daily", "--json"))
    assert (told["number"], told["rolled_back_to"], told["pending"]["rows"]) == (2, None, 0)
    idle_lake.catalog.client.load_table("media.daily").manage_snapshots().rollback_to_snapshot(first).commit()
    (told,) = json.loads(idle_lake.says("status", "daily", "--json"))
    assert (told["number"], told["rolled_back_to"], told["pending"]["rows"]) == (1, 1, 1)
    assert told["progress"]["at"]["snapshot_id"] == str(before.snapshot_id)
    assert "someone rolled media.daily back to publication 1 (there were 2)" in idle_lake.says("status", "daily")


def test_the_cost_of_a_reset_is_shown_before_it_is_done(idle_lake: IdleLake) -> None:
    def requests() -> object:
        return json.loads(idle_lake.says("status", "daily", "--json"))[0]["requests"]

    idle_lake.append(events([7, 8], day=1))
    files = idle_lake.catalog.client.load_table("media.playback").inspect.files().to_pylist()
    size = sum(file["file_size_in_bytes"] for file in files)
    cost = f"It will read 2 files, 5 rows, {size / 1000:.1f} kB of playback."
    assert cost in idle_lake.says("reset", "daily", "--dry-run")
    refused = idle_lake.run("reset", "daily", "--yes")
    assert (refused.exit_code, "--why" in refused.stderr) == (1, True)
    declined = idle_lake.run("reset", "daily", "--why", "test", answer="n\n")
    assert (declined.exit_code, cost in declined.stdout) == (1, True)
    assert requests() == []
    idle_lake.says("reset", "daily", "--why", "test", "--yes")
    assert len(str(requests())) > 2


def test_what_the_definitions_print_while_they_load_is_not_part_of_the_json(idle_lake: IdleLake) -> None:
    idle_lake.define(DEFINITIONS + 'print("loading")\n')
    result = idle_lake.run("status", "--json")
    assert [each["asset"] for each in json.loads(result.stdout)] == ["daily"]
    assert "loading" in result.stderr


@pytest.mark.parametrize("words", ["nosuch", "pending", "icdc", "estimate", "status --nosuch", "explain", "rewind x"])
def test_an_invalid_command_line_exits_with_2(words: str) -> None:
    assert CliRunner().invoke(main, words.split()).exit_code == 2


PARTITIONED = """
import dagster as dg
from pyspark.sql import DataFrame
import dagster_ips as ips

@dg.asset(
    ins={{"playback": ips.incremental(partition_column="event_date")}},
    partitions_def=dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04"),
    metadata=ips.overwrite_partitions()
    | ips.table("media.by_day", partition_by=["event_date"])
    | {{"partition_expr": "event_date"}},
)
def by_day(playback: ips.IcdcView) -> DataFrame:
    return playback.scope

manager = ips.IcdcIOManager(
    catalog=ips.IcebergCatalog(folder={lake!r}), spark=ips.LocalSparkConnect(server_folder={spark!r})
)
playback = ips.iceberg_asset("playback", table="media.playback")
defs = ips.with_incremental(dg.Definitions([playback, by_day], resources={{"io_manager": manager}}))
"""


def test_pending_changes_of_a_partitioned_asset_are_listed_by_partition(idle_lake: IdleLake) -> None:
    idle_lake.define(PARTITIONED)
    idle_lake.append(events([20, 21], day=1))
    (told,) = json.loads(idle_lake.says("pending", "by_day", "--json"))
    assert [each["partition"] for each in told["partitions"]] == ["2026-01-01", "2026-01-02"]
    assert all(each["consumed_up_to"] is None for each in told["partitions"])
    publish_first_day(idle_lake)
    text = idle_lake.says("pending", "by_day")
    assert "1 partition pending" in text
    assert "2026-01-02  never computed" in text
    assert CursorStore(idle_lake.instance).get("by_day") == Cursor(), "to look changes nothing"


def publish_first_day(idle_lake: IdleLake) -> None:
    """Leave the publication of a run that computed a single partition of ``by_day``."""
    scope: dict[str, Any] = {"__name__": "its_definitions"}
    exec(compile(idle_lake.file.read_text(), str(idle_lake.file), "exec"), scope)  # noqa: S102  # as Dagster loads it
    known = known_consumers(scope["defs"])["by_day"]
    tracked = known.consumer.tracked(known.graph, idle_lake.instance)["playback"]
    made = InputProgress(None, {"2026-01-01": idle_lake.head()}, division=tracked.known_slicing.division)
    idle_lake.catalog.client.create_table("media.by_day", SCHEMA)
    idle_lake.publish(Progress(1, {"playback": made}), asset="by_day")


def test_the_status_of_a_partitioned_asset_shows_up_to_when_each_partition_is_consumed(idle_lake: IdleLake) -> None:
    idle_lake.define(PARTITIONED)
    idle_lake.append(events([20], day=1))
    publish_first_day(idle_lake)
    (told,) = json.loads(idle_lake.says("status", "by_day", "--json"))
    assert told["consumed_up_to"] is None
    assert told["progress"]["behind"]["2026-01-01"]["snapshot_id"] == str(idle_lake.head().snapshot_id)
    assert re.search(r"by_day +playback +nothing +1 +- +1: 2026-01-01 \(", idle_lake.says("status", "by_day"))


def test_a_table_that_was_dropped_after_it_was_consumed_is_not_said_to_be_still_to_come(idle_lake: IdleLake) -> None:
    idle_lake.define(PARTITIONED)
    (of_partitions,) = json.loads(idle_lake.says("pending", "by_day", "--json"))
    head = idle_lake.head()
    idle_lake.catalog.client.rename_table("media.playback", "media.renamed")
    assert "which doesn't exist yet" in idle_lake.says("pending", "by_day")
    idle_lake.catalog.client.rename_table("media.renamed", "media.playback")
    publish_first_day(idle_lake)
    idle_lake.catalog.client.drop_table("media.playback")
    told = f"has no table media.playback any more. It was consumed up to snapshot {head.snapshot_id}"
    assert told in idle_lake.says("pending", "by_day")
    (shown,) = json.loads(idle_lake.says("pending", "by_day", "--json"))
    assert told in shown["problem"]
    assert shown.keys() == of_partitions.keys()


def test_pending_names_files_whose_partitions_are_unknown(idle_lake: IdleLake) -> None:
    days = 'dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")'
    accounts = 'dg.StaticPartitionsDefinition(["a0", "a1", "a2"])'
    idle_lake.define(PARTITIONED.replace(days, accounts).replace("event_date", "account"))
    client = idle_lake.catalog.client
    client.drop_table("media.playback")
    client.create_table("media.playback", SCHEMA)
    idle_lake.append(events(range(3)))
    (file,) = idle_lake.folder.glob("**/playback/data/*.parquet")
    file.write_bytes(b"")
    (told,) = json.loads(idle_lake.says("pending", "by_day", "--json"))
    assert told["partitions"] == []
    assert [Path(each).name for each in told["files_of_unknown_partitions"]] == [file.name]
    said = idle_lake.says("pending", "by_day")
    assert "nothing pending" not in said
    assert "the partitions of the rows in a file of playback are unknown" in said


def test_pending_names_values_without_a_partition(idle_lake: IdleLake) -> None:
    idle_lake.define(PARTITIONED.replace("2026-01-01", "2026-01-02"))
    none = "playback has rows for which there is no partition, so every run fails: 2026-01-01"
    assert none in (said := idle_lake.says("pending", "by_day"))
    assert "nothing pending" not in said


def damage(idle_lake: IdleLake, table: str) -> str:
    """Make the table's current metadata file unreadable; returns the file's name."""
    location = idle_lake.catalog.metadata_locations([table])[table]
    path = Path(location.removeprefix("file://"))
    path.write_text(path.read_text()[:-9])
    return path.name


def test_a_table_that_cannot_be_read_does_not_hide_the_others(idle_lake: IdleLake) -> None:
    (second,) = re.findall(r"@dg\.asset.*?\.\.\.\n", DEFINITIONS, re.DOTALL)
    second = second.replace("daily", "other")
    text = DEFINITIONS.replace("\ncatalog = ", second + "\ncatalog = ").replace(
        "[playback, daily]", "[playback, daily, other]"
    )
    idle_lake.define(text)
    idle_lake.append(events([7, 8], day=1))
    file = damage(idle_lake, "media.daily")

    daily, other = json.loads(idle_lake.says("status", "--json"))
    assert file in daily["problem"]
    assert daily["progress"]["at"] is not None, "what the cursor says is still known"
    assert (daily["pending"], daily["older_rows"]) == (None, None)
    assert (other["problem"], other["pending"]["rows"]) == (None, 5)
    assert re.search(rf"daily ← playback: the next run will fail: media.daily: .*{file}", idle_lake.says("status"))

    result = idle_lake.run("cascade")
    assert result.exit_code == 0
    assert re.search(f"What was published to this table isn't shown. media.daily: .*{file}", result.stderr)


def test_a_partitioned_asset_whose_table_cannot_be_read_is_reported(idle_lake: IdleLake) -> None:
    idle_lake.define(PARTITIONED)
    assert json.loads(idle_lake.says("status", "--json"))[0]["problem"] is None
    idle_lake.catalog.client.create_table("media.by_day", SCHEMA)
    file = damage(idle_lake, "media.by_day")
    assert file in json.loads(idle_lake.says("status", "--json"))[0]["problem"]
    assert re.search(rf"by_day: the next run will fail: media.by_day: .*{file}", idle_lake.says("status"))
