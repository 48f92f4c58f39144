"""An ICDC table contains exactly the change, and nobody can harm the source through it."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from dagster_ips.core.capture import Mode
from dagster_ips.errors import UnsupportedTableError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.iceberg.affected_partitions import affected_partitions
from dagster_ips.iceberg.avro import SCHEMA_KEY, read_avro, write_avro
from tests.iceberg.sources import TABLE, Source, numbered
from tests.support.lake import FIRST_DAY, Lake, events
from tests.support.memory_store import MemoryCursors, consume

MERGED = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


@pytest.fixture(params=["1", "2"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    """Four commits, two of which are consumed; the manifests of all four were merged into one."""
    source = Source(tmp_path, "day", format_version=request.param)
    with source.table.transaction() as transaction:
        transaction.set_properties(MERGED)
    source.append(numbered(1, 2))
    source.append(numbered(2))
    source.capture_and_consume()
    source.append(numbered(2, 2))
    source.append(numbered(3))
    return source


def icdc(source: Source) -> Table:
    captured = source.capture()
    return source.lake.client.load_table(captured.capture.icdc_table)


def own_manifests(table: Table) -> list[str]:
    snapshot = table.current_snapshot()
    assert snapshot
    return [snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(table.io))]


def test_a_file_that_a_merged_manifest_lists_again_is_not_new_again(source: Source) -> None:
    table = icdc(source).name()
    name = ".".join(table)
    assert source.scan(name) == source.scan_with_duckdb(name) == source.expected(numbered(2, 2, 3))


def test_no_byte_of_data_is_copied(source: Source) -> None:
    table = icdc(source)
    data = {task.file.file_path for task in table.scan().plan_files()}
    assert data <= {task.file.file_path for task in source.table.scan().plan_files()}
    folder = Path(urlsplit(table.location()).path)
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".avro", ".json"}


def test_an_icdc_table_shares_no_metadata_file_and_no_folder_with_the_source(source: Source) -> None:
    table = icdc(source)
    assert all(path.startswith(f"{table.location()}/metadata/") for path in own_manifests(table))
    assert not table.location().startswith(source.table.location())
    assert table.metadata.table_uuid != source.table.metadata.table_uuid
    assert table.properties["gc.enabled"] == "false"


def test_dropping_an_icdc_table_leaves_every_file_of_the_source_in_place(source: Source) -> None:
    before = source.files()
    source.lake.client.drop_table(icdc(source).name())
    assert source.files() == before
    assert source.scan() == source.expected(source.rows)


def test_writing_to_an_icdc_table_by_mistake_does_not_change_the_source(source: Source) -> None:
    before = source.files()
    table = icdc(source)
    table.append(source.table.scan().to_arrow())
    table.delete("number = 2")
    assert source.files() == before
    assert source.scan() == source.expected(source.rows)


def test_an_icdc_table_stays_readable_when_the_snapshots_of_the_source_expire(source: Source) -> None:
    table = icdc(source)
    head = source.table.current_snapshot()
    assert head
    older = [snapshot.snapshot_id for snapshot in source.table.snapshots() if snapshot.snapshot_id != head.snapshot_id]
    source.table.maintenance.expire_snapshots().by_ids(older).commit()
    assert source.scan(".".join(table.name())) == source.expected(numbered(2, 2, 3))


def test_the_properties_of_an_icdc_table_name_its_consumer_and_interval(source: Source) -> None:
    captured = source.capture()
    properties = source.lake.client.load_table(captured.capture.icdc_table).properties
    start, end = captured.capture.from_exclusive, captured.capture.to_inclusive
    assert start
    assert end
    assert properties["dagster-ips.consumer"] == "daily"
    assert properties["dagster-ips.capture"] == "2"
    assert properties["dagster-ips.from-snapshot-id-exclusive"] == str(start.snapshot_id)
    assert properties["dagster-ips.to-snapshot-id-inclusive"] == str(end.snapshot_id)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(day=st.integers(0, 5))
def test_an_engine_prunes_the_files_of_an_icdc_table_by_partition_without_losing_rows(source: Source, day: int) -> None:
    table = icdc(source)
    found = table.scan(row_filter=f"day = '2026-01-0{day + 1}'").to_arrow()["number"].to_pylist()
    assert found == [number for number in [2, 2, 3] if number == day]
    summaries = table.inspect.manifests()["partition_summaries"].to_pylist()
    assert [(s["lower_bound"], s["upper_bound"]) for [s] in summaries] == [("2026-01-03", "2026-01-04")]


@pytest.mark.parametrize("asked_for", [None, Mode.FULL])
def test_a_manifest_list_with_the_count_names_of_older_writers_is_understood(
    source: Source, asked_for: Mode | None
) -> None:
    """Written by Iceberg for Java up to 1.x, iceberg-rust and others: ``added_data_files_count``."""
    snapshot = source.table.current_snapshot()
    assert snapshot
    path = Path(urlsplit(snapshot.manifest_list).path)
    file = read_avro(path.read_bytes())
    schema, records = file.schema, file.records
    for kind in ("added", "existing", "deleted"):
        schema = schema.replace(f'"{kind}_files_count"', f'"{kind}_data_files_count"')
        records = [
            {key.replace(f"{kind}_files_count", f"{kind}_data_files_count"): v for key, v in row.items()}
            for row in records
        ]
    path.write_bytes(write_avro({**file.header, SCHEMA_KEY: schema}, records))
    captured = source.capture(asked_for=asked_for)
    new = source.rows if asked_for else numbered(2, 2, 3)
    assert source.scan(captured.capture.icdc_table) == source.expected(new)


def test_a_manifest_list_of_v1_without_counts_is_understood(tmp_path: Path) -> None:
    source = Source(tmp_path, format_version="1")
    source.append(numbered(1, 2))
    snapshot = source.table.current_snapshot()
    assert snapshot
    path = Path(urlsplit(snapshot.manifest_list).path)
    file = read_avro(path.read_bytes())
    unknown = dict.fromkeys([key for key in file.records[0] if key.endswith("_count")])
    path.write_bytes(write_avro(file.header, [{**row, **unknown} for row in file.records]))
    assert source.capture().files.changes.row_count == 2


@pytest.mark.parametrize("asked_for", [None, Mode.FULL])
def test_files_carried_over_from_version_1_have_sequence_numbers_in_a_newer_table(
    tmp_path: Path, asked_for: Mode | None
) -> None:
    """DuckDB considers a manifest damaged if it has no sequence number for a file that isn't new."""
    merging = {"commit.manifest.min-count-to-merge": "2", "commit.manifest-merge.enabled": "true"}
    source = Source(tmp_path, **{"format-version": "1"}, **merging)
    source.append(numbered(1))
    source.capture_and_consume()
    for number in (2, 3, 4):
        source.append(numbered(number))
    with source.table.transaction() as changing:
        changing.upgrade_table_version(2)
    new = source.rows if asked_for else numbered(2, 3, 4)
    table = source.capture(asked_for=asked_for).capture.icdc_table
    assert source.scan(table) == source.scan_with_duckdb(table) == source.expected(new)


def test_a_full_capture_leaves_out_rows_that_spark_deleted(lake: Lake) -> None:
    lake.create_playback(events(range(6)))
    lake.sql("ALTER TABLE lake.media.playback SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')").collect()
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 3").collect()
    capturer = Capturer(lake.catalog, MemoryCursors())
    tracked = [TrackedInput("playback", TABLE)]
    (captured,) = capturer.capture(
        CaptureRequest("daily", tracked, target="media.daily", asked_for=Mode.FULL), run_id="run"
    )
    read = lake.catalog.client.load_table(captured.capture.icdc_table).scan().to_arrow()
    assert sorted(read["event_id"].to_pylist()) == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("compact", ["rewrite_data_files", "rewrite_position_delete_files"])
def test_a_partition_that_only_lost_delete_files_to_compaction_is_not_changed(lake: Lake, compact: str) -> None:
    lake.create_playback(events([1, 2, 3, 4]) + events([5, 6, 7, 8], day=1))
    lake.sql("ALTER TABLE lake.media.playback SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    for number in (1, 2):
        lake.sql(f"DELETE FROM lake.media.playback WHERE event_id = {number}")
    capturer = Capturer(lake.catalog, store := MemoryCursors())
    lake.create_playback(table="media.daily")

    def capture() -> CapturedInput:
        tracked = [TrackedInput("playback", TABLE)]
        (captured,) = capturer.capture(CaptureRequest("daily", tracked, target="media.daily"), run_id="run")
        return captured

    consume(store, lake.catalog, "media.daily", [capture()])
    options = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
    if compact == "rewrite_position_delete_files":
        options = "map('rewrite-all', 'true')"
    where = f"event_date = DATE '{FIRST_DAY}'"
    call = f"CALL lake.system.{compact}(table => 'media.playback', options => {options}, where => \"{where}\")"
    assert lake.sql(call).collect()[0][0]
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 8")
    changed = affected_partitions(capture().files.changes, lake.catalog.load(TABLE, asset="test"))
    assert changed
    assert changed.values == {(FIRST_DAY + dt.timedelta(days=1),)}


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        ({"format-version": 4}, "format version is 4", "Upgrade"),
        ({"encryption-keys": [{"key-id": "k"}]}, "encrypted", "Read it through"),
        ({"view-uuid": "v"}, "it is a view", "Use the tables"),
    ],
)
def test_a_table_that_could_be_misread_is_refused(
    source: Source, change: dict[str, object], problem: str, remedy: str
) -> None:

    path = Path(urlsplit(source.table.metadata_location).path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UnsupportedTableError, match=rf"{problem}.* ({remedy})\b"):
        source.capture()
