"""Jobs outside of Dagster: a capture for them is consumed when they report back, or when their commit says so."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import dagster as dg
import pytest

from tests.cli.conftest import Terminal
from tests.support.lake import events
from tests.support.pipeline import expected_daily, materialize

COLUMNS = "*, floor(seconds / 60) AS minutes"


def captured(terminal: Terminal, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(terminal.says("capture", "daily", *words))
    return found


def insert(terminal: Terminal, found: dict[str, Any], where: str = "TRUE") -> None:
    """One of the job's writes, in plain SQL with the printed names."""
    rows = f"SELECT {COLUMNS} FROM {found['inputs']['playback']['icdc_table']} WHERE {where}"
    terminal.lake.sql(f"INSERT INTO {found['table']} {rows}")


def test_a_capture_shared_by_several_jobs_is_consumed_when_the_last_one_reports(terminal: Terminal) -> None:
    lake, rows = terminal.lake, events(range(6))
    lake.create_playback(rows)
    first = captured(terminal)
    playback = first["inputs"]["playback"]
    assert (first["mode"], playback["from_snapshot_id_exclusive"]) == ("full", "")
    lake.sql(f"CREATE TABLE {first['table']} AS SELECT {COLUMNS} FROM {playback['icdc_table']}")
    assert terminal.status("daily")[0]["in_flight"]["run_id"] == first["capture"]
    terminal.says("commit", first["capture"])
    event = terminal.instance.get_latest_materialization_event(dg.AssetKey("daily"))
    assert event
    assert event.asset_materialization
    assert event.asset_materialization.metadata["mode"].value == "full"

    more = events(range(6, 12), day=1)
    lake.append(more)
    second = captured(terminal)
    lake.append(events([50]))
    playback = second["inputs"]["playback"]
    assert (second["mode"], playback["number"]) == ("incremental", 2)
    assert (playback["event_date_lower"], playback["event_date_upper"]) == ("2026-01-02", "2026-01-02")
    insert(terminal, second, "event_id % 2 = 0")
    insert(terminal, second, "event_id % 2 = 1")
    terminal.says("commit", second["capture"])
    assert lake.rows("media.daily") == expected_daily(rows + more)
    assert "nothing is in flight" in terminal.refuses("commit", second["capture"])
    materialize(terminal.definitions, terminal.instance, "daily")
    assert lake.rows("media.daily") == expected_daily(rows + more + events([50]))


def test_a_job_that_stamps_its_commit_and_never_reports_back_is_consumed_once(terminal: Terminal) -> None:
    lake, rows = terminal.lake, events(range(6))
    lake.create_playback(rows)
    materialize(terminal.definitions, terminal.instance, "daily")
    more = events(range(6, 9), day=1)
    lake.append(more)
    found = captured(terminal)
    for key, value in found["spark_conf"].items():
        lake.session.conf.set(key, value)
    insert(terminal, found)
    for key in found["spark_conf"]:
        lake.session.conf.unset(key)

    (status,) = terminal.status("daily")
    assert (status["number"], status["in_flight"]) == (2, None)
    late = events([40])
    lake.append(late)
    materialize(terminal.definitions, terminal.instance, "daily")
    assert lake.rows("media.daily") == expected_daily(rows + more + late)
    assert "nothing is in flight" in terminal.refuses("commit", found["capture"])


@pytest.mark.slow
def test_a_commit_after_a_stamped_write_changes_nothing_more(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(3)))
    materialize(terminal.definitions, terminal.instance, "daily")
    lake.append(events([3]))
    found = captured(terminal)
    for key, value in found["spark_conf"].items():
        lake.session.conf.set(key, value)
    insert(terminal, found)
    for key in found["spark_conf"]:
        lake.session.conf.unset(key)
    terminal.says("commit", found["capture"])
    (status,) = terminal.status("daily")
    assert (status["number"], status["in_flight"], status["pending"]["files"]) == (2, None, 0)
    assert lake.rows("media.daily") == expected_daily(events(range(4)))


@pytest.mark.slow
def test_a_capture_that_was_replaced_or_reset_cannot_be_committed(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(3)))
    given_up = captured(terminal)
    result = terminal.run("capture", "daily")
    assert f"{given_up['capture']} was in flight and has been replaced" in result.stderr
    current = json.loads(result.stdout)
    before = terminal.status("daily")
    said = terminal.refuses("commit", given_up["capture"])
    assert f"taken by {current['capture']} is in flight instead" in said
    assert terminal.status("daily") == before

    terminal.says("reset", "daily", "--why", "wrong job", "--yes")
    assert "did a reset since" in terminal.refuses("commit", current["capture"])
    assert terminal.status("daily")[0]["consumed_up_to"] is None
    materialize(terminal.definitions, terminal.instance, "daily")
    assert lake.rows("media.daily") == Counter(expected_daily(events(range(3))))
