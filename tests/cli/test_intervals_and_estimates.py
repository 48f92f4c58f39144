"""The change of any interval equals what time travel shows, and an estimate equals what the table's files show.

PyIceberg does all reads and writes; Spark isn't needed.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from dagster_ips.cli.main import main
from dagster_ips.core.expiry_limit import Need
from dagster_ips.exactly_once.capture.unread_history import needs_of_others
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.progress.cursor import Cursor
from tests.support.lake import BY_DATE, SCHEMA, Event, Lake, events
from tests.support.memory_store import MemoryCursors

DEFINITIONS = """
import dagster as dg
import dagster_ips as ips

catalog = ips.IcebergCatalog(name={name!r}, folder={folder!r})
io_manager = ips.IcdcIOManager(catalog=catalog, spark=ips.LocalSparkConnect())
playback = ips.iceberg_asset("playback", table="media.playback")
defs = ips.with_incremental(dg.Definitions(assets=[playback], resources={{"io_manager": io_manager}}))
"""
Rows = Counter[tuple[Any, ...]]


class Tables(Lake):
    """A lake without Spark, and the command line on it."""

    def __init__(self, folder: Path, name: str = "lake") -> None:
        self.folder = folder / "lake"
        self.catalog = LakeCatalog.embedded(name, self.folder)
        self.file = folder / "its_definitions.py"
        self.file.write_text(DEFINITIONS.format(folder=str(self.folder), name=name))

    def says(self, *words: str) -> str:
        result = CliRunner().invoke(main, [words[0], "-f", str(self.file), *words[1:]])
        assert result.exit_code == 0, result.output
        return result.stdout

    def refuses(self, *words: str) -> str:
        result = CliRunner().invoke(main, [words[0], "-f", str(self.file), *words[1:]])
        assert result.exit_code in (1, 2), result.output
        return result.stderr

    def read(self, table: str, *, snapshot_id: int | None = None, ref: str | None = None) -> Rows:
        """The rows by time travel, or at a tag."""
        scan = self.catalog.client.load_table(table).scan(snapshot_id=snapshot_id)
        scan = scan.use_ref(ref) if ref else scan
        return Counter(tuple(row.values()) for row in scan.to_arrow().to_pylist())

    def history(self, table: str = "media.playback") -> list[int]:
        """The retained snapshots, oldest first."""
        ancestry = self.catalog.load(table, asset="test").ancestry()
        return [snapshot.snapshot_id for snapshot in reversed(ancestry.snapshots)]

    def icdc_names(self) -> list[str]:
        return list(self.catalog.metadata_locations_by_prefix("ips", ""))


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Tables(tmp_path)


def plain(name: str) -> str:
    return name.replace("`", "").removeprefix("lake.")


def test_the_change_of_every_interval_equals_what_time_travel_shows(tables: Tables) -> None:
    tables.create_playback(events(range(6)))
    tables.append(events(range(6, 9), day=1))
    tables.catalog.client.load_table("media.playback").delete("event_id == 2")
    tables.append(events([20, 21], day=2))
    tables.catalog.client.load_table("media.playback").delete("event_date == '2026-01-02'")
    snapshots = tables.history()
    assert len(snapshots) == 5
    before = tables.catalog.load("media.playback", asset="test").metadata_location
    removing = 0
    for first, start in enumerate(snapshots):
        for end in snapshots[first:]:
            told = json.loads(tables.says("icdc", "playback", "--from", str(start), "--to", str(end), "--json"))
            then, now = (tables.read("media.playback", snapshot_id=each) for each in (start, end))
            name = plain(told["table"])
            if told["may_remove_rows"]:
                removing += 1
                were, are = tables.read(name, ref="before"), tables.read(name, ref="after")
                assert (are - were, were - are) == (now - then, then - now)
                assert "VERSION AS OF 'before'" in told["sql"]["removed"]
            else:
                assert (tables.read(name), Rows()) == (now - then, then - now)
                assert told["sql"] == {"added": f"SELECT * FROM {told['table']}"}
    assert removing >= 8, "most of the intervals hold a delete"
    assert tables.catalog.load("media.playback", asset="test").metadata_location == before


def test_the_icdc_command_creates_and_drops_tables_of_whole_snapshots_and_of_intervals(tables: Tables) -> None:
    tables.create_playback(events(range(6)))
    (first,) = tables.history()
    tables.append(events(range(6, 9), day=1))
    told = json.loads(tables.says("icdc", "media.playback", "--to", str(first), "--json"))
    assert told["from_exclusive"] is None
    assert tables.read(plain(told["table"])) == Counter(events(range(6)))
    text = tables.says("icdc", "playback", "--from", str(first))
    assert "1 added file with 3 rows" in text
    made = tables.says("icdc", "playback", "--list").split()
    assert f"dagster-ips icdc --drop {made[1]}" in text
    assert "not for --list or --drop" in tables.refuses("icdc", "playback", "--list", "--from", str(first))
    for name, printed in zip(made, (made[0], f"`lake`.{made[1]}"), strict=True):
        assert f"Dropped {name}." in tables.says("icdc", "--drop", printed)
        assert tables.catalog.find(name) is None
    assert tables.says("icdc", "playback", "--list").strip() == "No tables for media.playback."
    assert not list((tables.folder / "warehouse").rglob("_ips/*"))
    assert tables.read("media.playback") == Counter([*events(range(6)), *events(range(6, 9), day=1)])


def test_snapshots_of_a_table_by_the_icdc_command_are_kept_until_it_is_dropped(tables: Tables) -> None:
    tables.create_playback(events(range(6)))
    (first,) = tables.history()
    tables.append(events([7]))
    second = tables.history()[-1]
    tables.says("icdc", "playback", "--from", str(first))
    tables.says("icdc", "playback", "--from", str(second))
    source, store = tables.catalog.load("media.playback", asset="test"), MemoryCursors()

    def needs() -> list[Need]:
        found = needs_of_others(
            tables.catalog, store, source, icdc_namespace="ips", but=[], is_at_work=lambda *_: False
        )
        return list(found)

    assert {(need.ref, need.after) for need in needs()} == {("main", first), ("main", second)}
    for name in tables.icdc_names():
        tables.says("icdc", "--drop", name)
    assert needs() == []
    assert store.get("daily") == Cursor()


def test_a_catalog_may_have_another_name_even_that_of_the_namespace(tmp_path: Path) -> None:
    tables = Tables(tmp_path, name="ips")
    tables.create_playback(events(range(3)))
    for is_full in (False, True):
        (name,) = re.findall(r"--drop (\S+)", tables.says("icdc", "playback"))
        assert f"Dropped {name}." in tables.says("icdc", "--drop", f"`ips`.{name}" if is_full else name)
    assert "media.playback" in tables.says("estimate", "media.playback", "--folder", str(tables.folder))


def test_the_icdc_command_drops_only_tables_that_it_created(tables: Tables) -> None:
    tables.create_playback(events(range(6)))
    for name in ("media.playback", "media.nothing"):
        assert "wasn't created by this command" in tables.refuses("icdc", "--drop", name)
    assert tables.read("media.playback") == Counter(events(range(6)))


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("icdc", "playback", "--from", "NEWEST", "--to", "OLDEST"), "before its start"),
        (("icdc", "playback", "--from", "12345"), "isn't in its history"),
        (("icdc", "playback", "--to", "2001-01-01"), "it has no snapshot before the end"),
        (("icdc", "playback", "--from", "2999-01-01"), "is in the future"),
        (("icdc", "playback", "--ref", "audit"), "it has no branch 'audit', only main. Name one of them with --ref."),
        (("icdc", "playback", "--to", "9999-12-31T23:59:59-14:00"), "isn't a snapshot id, date or time"),
        (("icdc", "media.nothing"), "catalog lake has no table media.nothing. "),
        (("estimate", "media.nothing"), "catalog lake has no table media.nothing. "),
        (("icdc", "media..playback"), "'media..playback' has an empty part"),
        (("estimate", "media.`playback"), "'media.`playback' has an empty part or an unmatched backquote"),
    ],
)
def test_places_that_form_no_interval_are_refused(tables: Tables, words: tuple[str, ...], answer: str) -> None:
    tables.create_playback(events(range(3)))
    tables.append(events([4]))
    places = dict(zip(("OLDEST", "NEWEST"), map(str, tables.history()), strict=True))
    assert answer in tables.refuses(*[places.get(word, word) for word in words])
    assert not tables.icdc_names(), "nothing was made"


def frame(rows: Sequence[Event]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    types = (pa.int64(), pa.date32(), pa.string(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=[field.name for field in SCHEMA.fields])


def test_an_estimate_equals_what_the_files_of_each_commit_show(tables: Tables) -> None:
    """Four days, rewritten three times: with a late row for one day, then for another, and with nothing new."""
    rows = [event for day in range(4) for event in events(range(day * 100, day * 100 + 50), day=day)]
    tables.create_playback(rows)
    lookback = tables.catalog.client.create_table("media.lookback", SCHEMA, partition_spec=BY_DATE)
    lookback.append(frame(rows))
    for late in (events([1000], day=2), events([1001], day=0), []):
        rows += late
        lookback.dynamic_partition_overwrite(frame(rows))

    # PyIceberg's own reading of its manifests: the bytes of each commit's new files, by day.
    found: dict[int, dict[dt.date, int]] = {}
    for snapshot_id in tables.history("media.lookback"):
        for entry in lookback.inspect.entries(snapshot_id).to_pylist():
            if entry["status"] == 1 and entry["snapshot_id"] == snapshot_id:
                file = entry["data_file"]
                found.setdefault(snapshot_id, {})[file["partition"]["event_date"]] = file["file_size_in_bytes"]
    first, second, third, fourth = (found[each] for each in tables.history("media.lookback") if each in found)
    written = [sum(each.values()) for each in (first, second, third, fourth)]
    new_at_least = written[0] + round(written[1] / 201) + round(written[2] / 202)
    new_at_most = written[0] + second[dt.date(2026, 1, 3)] + third[dt.date(2026, 1, 1)]

    told = json.loads(tables.says("estimate", "media.lookback", "--json"))["tables"][0]
    assert (told["commits"], told["overwrites"], told["unknown_commits"]) == (4, 3, 0)
    assert told["bytes_written"] == sum(written)
    assert told["bytes_new_at_least"] == new_at_least
    assert told["bytes_new_at_most"] == new_at_most
    assert told["saved_at_least"] == round(1 - new_at_most / sum(written), 4)
    assert told["saved_at_most"] == round(1 - new_at_least / sum(written), 4)

    of_folder = json.loads(tables.says("estimate", "media.lookback", "--folder", str(tables.folder), "--json"))
    assert of_folder["tables"][0] == told
    text = tables.says("estimate", "media.lookback", "media.playback")
    assert "media.playback: nothing was rewritten in this period, so there is nothing to save." in text
    assert "all " in text


def test_an_estimate_creates_no_catalog_in_a_wrong_folder(tables: Tables, tmp_path: Path) -> None:
    (wrong := tmp_path / "wrong").mkdir()
    assert "There is no catalog in" in tables.refuses("estimate", "media.playback", "--folder", str(wrong))
    assert not list(wrong.iterdir())


def test_an_estimate_can_use_a_catalog_from_the_configuration_of_pyiceberg(tables: Tables) -> None:
    tables.create_playback(events(range(3)))
    configured = {f"PYICEBERG_CATALOG__LAKE__{key.upper()}": value for key, value in tables.catalog.properties.items()}
    command = [sys.executable, "-m", "dagster_ips.cli", "estimate", "media.playback", "--json", "--catalog"]
    told = subprocess.run([*command, "lake"], check=True, capture_output=True, text=True, env=os.environ | configured)
    assert json.loads(told.stdout)["tables"][0]["commits"] == 1
    unknown = subprocess.run([*command, "nosuch"], check=False, capture_output=True, text=True)
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("Error: Catalog nosuch: PyIceberg has no configuration for it. Correct the name")
