"""The change of any interval is the one that time travel tells, and an estimate what the table's files say."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.cli.conftest import Terminal
from tests.support.lake import Lake, events
from tests.support.pipeline import materialize


def rows(lake: Lake, sql: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in lake.sql(sql).collect())


def at(lake: Lake, snapshot: int) -> Counter[tuple[Any, ...]]:
    return rows(lake, f"SELECT * FROM lake.media.playback VERSION AS OF {snapshot}")


def history(lake: Lake) -> list[int]:
    """Oldest first."""
    ancestry = lake.catalog.load("media.playback", asset="test").ancestry()
    return [snapshot.snapshot_id for snapshot in reversed(ancestry.snapshots)]


def test_the_change_of_every_interval_is_what_time_travel_says(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(6)))
    lake.append(events(range(6, 9), day=1))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (2, 7)")
    lake.append(events([20], day=2))
    lake.sql("UPDATE lake.media.playback SET seconds = 99 WHERE event_id = 3")
    snapshots = history(lake)
    assert len(snapshots) == 5
    before = lake.catalog.load("media.playback", asset="test").metadata_location
    for first in range(len(snapshots)):
        for last in range(first, len(snapshots)):
            start, end = snapshots[first], snapshots[last]
            told = json.loads(terminal.says("icdc", "playback", "--from", str(start), "--to", str(end), "--json"))
            then, now = at(lake, start), at(lake, end)
            assert rows(lake, told["sql"]["added"]) == now - then
            if "removed" in told["sql"]:
                assert rows(lake, told["sql"]["removed"]) == then - now
            else:
                assert not then - now
    assert lake.catalog.load("media.playback", asset="test").metadata_location == before


def test_the_whole_table_as_of_a_time_and_dropping_what_was_made(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(6)))
    first = history(lake)[0]
    lake.append(events(range(6, 9), day=1))
    told = json.loads(terminal.says("icdc", "media.playback", "--to", str(first), "--json"))
    assert told["from_exclusive"] is None
    assert rows(lake, told["sql"]["added"]) == Counter(events(range(6)))
    text = terminal.says("icdc", "playback", "--from", str(first))
    assert "1 added files with 3 rows" in text
    assert "dagster-ips icdc --drop ips." in text
    made = terminal.says("icdc", "playback", "--list").split()
    assert len(made) == 2
    for name, printed in zip(made, (made[0], f"`lake`.{made[1]}"), strict=True):
        assert f"{name} is dropped" in terminal.says("icdc", "--drop", printed)
        assert lake.catalog.find(name) is None
    assert terminal.says("icdc", "playback", "--list").strip() == "None of media.playback."
    assert not list((lake.folder / "warehouse").rglob("_ips/*"))
    assert lake.rows("media.playback") == Counter([*events(range(6)), *events(range(6, 9), day=1)])


def test_nothing_is_consumed_by_it_and_what_a_consumer_reads_is_not_dropped(terminal: Terminal) -> None:
    lake = terminal.lake
    lake.create_playback(events(range(6)))
    materialize(terminal.definitions, terminal.instance, "daily")
    lake.append(events([7]))
    before = terminal.status("daily")
    terminal.says("icdc", "playback", "--from", str(history(lake)[0]))
    (now,) = terminal.status("daily")
    assert now["consumed_up_to"] == before[0]["consumed_up_to"]
    assert now["pending"]["rows"] == before[0]["pending"]["rows"] == 1
    names = list(lake.catalog.metadata_locations_by_prefix("ips", "daily__"))
    assert "is an ICDC table of daily" in terminal.refuses("icdc", "--drop", names[0])
    assert "isn't a table that dagster-ips icdc made" in terminal.refuses("icdc", "--drop", "media.playback")
    assert lake.catalog.find(names[0]) is not None


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("icdc", "playback", "--from", "NEWEST", "--to", "OLDEST"), "before it begins"),
        (("icdc", "playback", "--from", "12345"), "isn't in its history"),
        (("icdc", "playback", "--to", "2001-01-01"), "there is no snapshot up to its end"),
        (("icdc", "playback", "--from", "2999-01-01"), "is yet to come"),
        (("icdc", "media.nothing"), "media.nothing"),
        (("estimate", "media.nothing"), "media.nothing"),
    ],
)
def test_what_is_no_interval_is_refused(terminal: Terminal, words: tuple[str, ...], answer: str) -> None:
    terminal.lake.create_playback(events(range(3)))
    terminal.lake.append(events([4]))
    places = dict(zip(("OLDEST", "NEWEST"), map(str, history(terminal.lake)), strict=True))
    assert answer in terminal.refuses(*[places.get(word, word) for word in words])
    assert not list(terminal.lake.catalog.metadata_locations_by_prefix("ips", "")), "nothing was made"


def test_an_estimate_is_what_the_files_of_each_commit_say(terminal: Terminal) -> None:
    """Four days, rewritten three times; a late row for one of them each time, and once none."""
    lake = terminal.lake
    days = [event for day in range(4) for event in events(range(day * 100, day * 100 + 50), day=day)]
    lake.create_playback(days)
    lake.sql(
        "CREATE TABLE lake.media.lookback USING iceberg PARTITIONED BY (event_date) "
        "AS SELECT * FROM lake.media.playback ORDER BY event_id"
    )
    for late in (events([1000], day=2), events([1001], day=0), []):
        if late:
            lake.append(late)
        window = lake.sql("SELECT * FROM lake.media.playback").orderBy("event_id")
        window.writeTo("lake.media.lookback").overwritePartitions()

    written = lake.sql(
        "SELECT e.snapshot_id, e.data_file.file_size_in_bytes size, e.data_file.partition.event_date day "
        "FROM lake.media.lookback.all_entries e WHERE e.status = 1"
    ).collect()
    snapshots = [row[0] for row in lake.sql("SELECT snapshot_id FROM lake.media.lookback.history").collect()]
    by_commit = [
        {str(row["day"]): row["size"] for row in written if row["snapshot_id"] == snapshot} for snapshot in snapshots
    ]
    assert [len(each) for each in by_commit] == [4, 4, 4, 4]
    bytes_written = sum(sum(each.values()) for each in by_commit)
    changed = [by_commit[1]["2026-01-03"], by_commit[2]["2026-01-01"]]
    rows_in = [200, 201, 202, 202]
    net = [1.0, 1 / 201, 1 / 202, 0.0]
    new = sum(round(sum(each.values()) * share) for each, share in zip(by_commit, net, strict=True))
    assert sum(rows_in) == 805

    told = json.loads(terminal.says("estimate", "media.lookback", "--json"))["tables"][0]
    assert (told["commits"], told["overwrites"], told["unknown_commits"]) == (4, 3, 0)
    assert told["bytes_written"] == bytes_written
    assert told["bytes_new_at_least"] == new
    assert told["bytes_new_at_most"] == sum(by_commit[0].values()) + sum(changed)
    assert told["saved_at_least"] == round(1 - told["bytes_new_at_most"] / bytes_written, 4)

    of_folder = json.loads(terminal.says("estimate", "media.lookback", "--folder", str(lake.folder), "--json"))
    assert of_folder["tables"][0] == told
    text = terminal.says("estimate", "media.lookback", "media.playback")
    assert "media.playback: nothing was rewritten in this time, so there is nothing to save here." in text
    assert "all " in text
