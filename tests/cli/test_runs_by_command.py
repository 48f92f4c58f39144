"""``dagster-ips run`` runs an asset as a person asks, prints what the run did, and fails if the run does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from tests.cli.conftest import Terminal
from tests.support.lake import events
from tests.support.partitioned import expected_day, key
from tests.support.pipeline import expected_daily, materialize

PARTITIONED = """
from pathlib import Path

from tests.support.partitioned import partitioned

defs = partitioned(Path({lake!r}), Path({spark!r}))
"""

FAILING = """
from pathlib import Path

import dagster as dg

import dagster_ips as ips
from tests.support.lake_definitions import definitions_on


@dg.asset(ins={{"playback": ips.incremental()}}, metadata=ips.append() | ips.table("media.daily"))
def daily(playback: ips.IcdcView):
    return playback.added.limit(1 // 0)


playback = ips.iceberg_asset("playback", table="media.playback")
defs = definitions_on(Path({lake!r}), Path({spark!r}), playback, daily)
"""


def test_a_run_prints_its_summary_and_reads_only_what_is_pending(terminal: Terminal) -> None:
    terminal.lake.create_playback(events(range(6)))
    first = terminal.says("run", "daily")
    terminal.lake.append(events(range(6, 9), day=1))
    second = terminal.says("run", "media.daily")
    assert "mode full: nothing has been consumed from playback yet" in first
    assert "mode incremental: continues" in second
    assert "**" not in second
    assert "\\" not in second
    run_id, told = re.findall(r"run ([0-9a-f-]{36})", second)[0], re.findall(r"dagster-ips explain (\w+) -f", second)[0]
    assert run_id.startswith(told)
    assert terminal.instance.get_run_by_id(run_id).status is dg.DagsterRunStatus.SUCCESS  # type: ignore[union-attr]
    assert terminal.lake.rows("media.daily") == expected_daily(events(range(6)) + events(range(6, 9), day=1))


def test_the_remedies_of_rows_that_others_wrote_work_as_printed(terminal: Terminal) -> None:
    lake, rows = terminal.lake, events(range(3))
    lake.create_playback(rows)
    materialize(terminal.definitions, terminal.instance, "daily")
    lake.sql("DELETE FROM lake.media.daily WHERE event_id = 1")
    lake.append(more := events([7]))
    refused = terminal.refuses("run", "daily")
    assert "The run failed" in refused
    assert "Someone other than daily" in refused
    full, accept = re.findall(r"dagster-ips (run [^;]*?) -f", refused)
    accepted = terminal.says(*accept.split())
    assert "accepts rows that others wrote" in accepted
    assert lake.rows("media.daily") == expected_daily([row for row in rows if row[0] != 1] + more)
    assert "mode full" in terminal.says(*full.split())
    assert lake.rows("media.daily") == expected_daily(rows + more)


def test_an_error_that_is_not_the_librarys_shows_where_it_happened(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(3)))
    terminal.file.write_text(FAILING.format(lake=str(lake.folder), spark=str(lake.spark_folder)))
    refused = terminal.refuses("run", "daily")
    assert f'{terminal.file.name}", line' in refused
    assert "ZeroDivisionError" in refused


def test_assets_that_read_nothing_incrementally_run_too_and_others_are_named(terminal: Terminal) -> None:
    terminal.lake.create_playback(events(range(3)))
    materialize(terminal.definitions, terminal.instance, "daily", "agg")
    assert "report" in terminal.says("run", "report")
    assert terminal.lake.rows("media.report")
    assert "agg, daily, report" in terminal.refuses("run", "playback")
    assert "no partitions" in terminal.refuses("run", "daily", "--partitions", "2026-01-01")
    assert terminal.run("run", "daily", "--full", "--incremental").exit_code == 2


def test_a_partitioned_asset_runs_what_is_pending_or_named_or_all(terminal: Terminal) -> None:
    lake, instance = terminal.lake, terminal.instance
    terminal.file.write_text(PARTITIONED.format(lake=str(lake.folder), spark=str(lake.spark_folder)))
    rows = [*events(range(2)), *events(range(2, 4), day=1), *events(range(4, 6), day=2)]
    lake.create_playback(rows)
    assert "3 partitions" in terminal.says("run", "day", "--partitions", f"{key(0)}...{key(2)}")
    lake.append(late := events([9], day=1))
    pending = terminal.says("run", "day")
    assert f"day, partition {key(1)}: run" in pending
    assert "mode incremental" in pending
    assert "no partition is pending" in terminal.says("run", "day")
    named = terminal.says("run", "day", "--partitions", key(0), "--partitions", key(2))
    assert named.count("mode full") == 2
    assert lake.rows("media.day") == expected_day(rows + late)
    assert f"Swap them: {key(0)}...{key(2)}" in terminal.refuses("run", "day", "--partitions", f"{key(2)}...{key(0)}")
    assert "no partition" in terminal.refuses("run", "day", "--partitions", "monday")
    assert instance.get_runs_count() == 4


@pytest.mark.slow
def test_a_run_whose_command_is_terminated_is_not_left_at_work(terminal: Terminal) -> None:
    terminal.lake.create_playback(events(range(3)))
    begun = subprocess.Popen(
        [sys.executable, "-m", "dagster_ips.cli", "run", "-f", str(terminal.file), "daily"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert begun.stdout is not None
    run_id = re.findall(r"run ([0-9a-f-]{36})", begun.stdout.readline())[0]
    while not terminal.instance.get_run_by_id(run_id):
        time.sleep(0.05)
    begun.send_signal(signal.SIGTERM)
    assert begun.wait(60) == 1
    assert terminal.instance.get_run_by_id(run_id).is_finished  # type: ignore[union-attr]
