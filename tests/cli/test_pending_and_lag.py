"""What waits is told change by change, for how long, and what the next run would cost."""

from __future__ import annotations

import json
import re

import dagster as dg
from click.testing import CliRunner

from dagster_ips.cli.main import main
from tests.cli.conftest import Terminal
from tests.support.lake import events
from tests.support.pipeline import materialize


def test_what_waits_is_listed_commit_by_commit(terminal: Terminal) -> None:
    lake = terminal.lake
    assert "waits for media.playback, which isn't there yet" in terminal.says("pending", "daily")
    lake.create_playback(events(range(6)))
    materialize(terminal.definitions, terminal.instance, "daily", "agg")
    assert terminal.says("pending", "daily").strip() == "daily ← playback: nothing waits."
    lake.append(events([10, 11]))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 10")
    run = materialize(terminal.definitions, terminal.instance, "daily", tags={"dagster_ips/mode": "full"})
    lake.append(events([12]))

    (of_daily,) = json.loads(terminal.says("pending", "daily", "--json"))
    assert (of_daily["mode"], of_daily["rows"]) == ("incremental", 1)
    (of_agg,) = json.loads(terminal.says("pending", "agg", "--json"))
    assert {each["run"] for each in of_agg["snapshots"]} == {run.run_id}
    listed = lake.sql("SELECT snapshot_id FROM lake.media.playback.snapshots ORDER BY committed_at DESC LIMIT 1")
    assert [each["snapshot_id"] for each in of_daily["snapshots"]] == [str(row[0]) for row in listed.collect()]
    text = terminal.says("pending", "daily", "--upstream", "playback")
    assert "1 files, 1 rows" in text
    assert "The next run takes the change alone." in text
    assert "an outside job" in text


def test_the_lag_is_the_age_of_the_oldest_change_that_waits(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(3)))
    materialize(terminal.definitions, terminal.instance, "daily")
    assert terminal.status("daily")[0]["pending"]["since"] is None
    lake.append(events([4]))
    oldest = lake.catalog.load("media.playback", asset="test").ancestry().snapshots[0].timestamp_ms
    lake.append(events([5]))
    (since,) = lake.sql(
        f"SELECT date_format(timestamp_millis({oldest}), 'yyyy-MM-dd\\'T\\'HH:mm:ss\\'Z\\'')"
    ).collect()[0]
    assert terminal.status("daily")[0]["pending"]["since"] == since
    assert re.search(r"daily .*2 snapshots, 2 files.* \d+ (s|min)\b", terminal.says("status", "daily"))


def test_what_a_reset_would_cost_is_said_before_it_is_done(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(6)))
    materialize(terminal.definitions, terminal.instance, "daily")
    lake.append(events([7, 8], day=1))
    before = terminal.status("daily")
    size = sum(row[0] for row in lake.sql("SELECT file_size_in_bytes FROM lake.media.playback.files").collect())
    told = terminal.says("reset", "daily", "--dry-run")
    assert f"That run reads 2 files, 8 rows, {size / 1000:.1f} kB of playback." in told
    assert terminal.status("daily")[0]["interventions"] == before[0]["interventions"] == []
    assert "Say why" in terminal.refuses("reset", "daily", "--yes")
    assert "8 rows" in terminal.run("reset", "daily", "--why", "test", answer="n\n").stdout
    assert terminal.status("daily")[0]["interventions"] == []


def test_a_command_line_that_is_not_understood_exits_with_2() -> None:
    for words in (["nosuch"], ["pending"], ["icdc"], ["estimate"], ["status", "--nosuch"]):
        assert CliRunner().invoke(main, words).exit_code == 2, words


PARTITIONED = """
import dagster as dg

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


def test_what_waits_of_a_partitioned_asset_is_listed_by_partition(terminal: Terminal) -> None:
    lake, instance = terminal.lake, terminal.instance
    terminal.file.write_text(PARTITIONED.format(lake=str(lake.folder), spark=str(lake.spark_folder)))
    scope: dict[str, dg.Definitions] = {}
    exec(compile(terminal.file.read_text(), str(terminal.file), "exec"), scope)  # noqa: S102  # as Dagster loads it
    job = scope["defs"].resolve_implicit_global_asset_job_def()
    lake.create_playback([*events(range(3)), *events(range(3, 5), day=1)])
    (waiting,) = json.loads(terminal.says("pending", "by_day", "--json"))
    assert [each["partition"] for each in waiting["partitions"]] == ["2026-01-01", "2026-01-02"]
    assert all(each["consumed_up_to"] is None for each in waiting["partitions"])
    job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey("by_day")], partition_key="2026-01-01")
    text = terminal.says("pending", "by_day")
    assert "1 partition waits" in text
    assert "2026-01-02  never computed" in text
    lake.sql("ALTER TABLE lake.media.playback RENAME COLUMN account TO who")
    lake.sql("ALTER TABLE lake.media.by_day ADD COLUMN more INT")
    assert terminal.says("pending", "by_day") == text, "to look changes nothing"
