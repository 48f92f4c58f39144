"""An old ICDC table is deleted with exactly its own files, and nothing that anyone can write into it changes that."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.table import Table

from dagster_ips.core.edge import Edge
from dagster_ips.core.retention import Retention
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.old_icdc_tables import drop_expired_tables
from dagster_ips.iceberg.avro import read_avro, write_avro
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.icdc.icdc_tables import author_icdc_table
from dagster_ips.iceberg.storage import Storage
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, numbered
from tests.support.at_effect import at
from tests.support.memory_store import MemoryCursors

MERGED = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
NEWEST_ONLY = Retention(keep_last=1)
NO_TIME = Retention(max_age=timedelta(microseconds=1))


@pytest.fixture(params=["1", "2"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    source = Source(tmp_path, "day", format_version=request.param)
    with source.table.transaction() as transaction:
        transaction.set_properties(MERGED)  # so that ICDC tables have copied and new manifests
    return source


def capture_rounds(source: Source, rounds: int) -> list[CapturedInput]:
    """Make ``rounds`` commits, each captured and consumed; nothing is cleaned up."""
    found = []
    for number in range(1, rounds + 1):
        source.append(numbered(number, number + 1))
        found.append(source.capture_and_consume())
    return found


def nobody(_: str) -> bool:
    """No run is at work."""
    return False


def clean(
    source: Source,
    captured: CapturedInput,
    retention: Retention = NEWEST_ONLY,
    *,
    is_at_work: Callable[[str], bool] = nobody,
) -> None:
    """Clean up without a warning: a failure is only logged, and must not look like a table that was left alone."""
    assert warnings_of_cleaning(source, captured, retention, is_at_work=is_at_work) == []


def warnings_of_cleaning(
    source: Source,
    captured: CapturedInput,
    retention: Retention = NEWEST_ONLY,
    *,
    is_at_work: Callable[[str], bool] = nobody,
) -> list[str]:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dagster_ips")
    logger.addHandler(handler)
    try:
        drop_expired_tables(source.lake, captured.capture, retention, is_at_work=is_at_work)
    finally:
        logger.removeHandler(handler)
    return heard


def icdc_names(source: Source) -> set[str]:
    return {".".join(name) for name in source.lake.client.list_tables("ips")}


def names(*captured: CapturedInput) -> set[str]:
    return {each.capture.icdc_table for each in captured}


def icdc(source: Source, captured: CapturedInput) -> Table:
    return source.lake.client.load_table(captured.capture.icdc_table)


def short(name: str) -> str:
    return name.removeprefix("ips.")


def local(location: str) -> Path:
    return Path(urlsplit(location).path)


def store_files(source: Source) -> dict[Path, bytes]:
    """Every file of the whole store with its bytes, except the catalog's database."""
    warehouse = source.folder / "warehouse"
    return {path: path.read_bytes() for path in warehouse.rglob("*") if path.is_file()}


def metadata_files(table: Table) -> set[Path]:
    """The files of the table's metadata, as PyIceberg reads it."""
    snapshot = table.current_snapshot()
    assert snapshot
    manifests = [manifest.manifest_path for manifest in snapshot.manifests(table.io)]
    return {local(location) for location in [table.metadata_location, snapshot.manifest_list, *manifests]}


def register_like(source: Source, captured: CapturedInput, name: str) -> Table:
    """Register another table of the same capture, like those for the rows before and after."""
    old = icdc(source, captured)
    source.lake.register(
        name,
        author_icdc_table(
            source.lake.storage,
            captured.source,
            captured.files,
            head=captured.head,
            location=old.location().replace(short(captured.capture.icdc_table), short(name)),
            properties=dict(old.properties),
        ).metadata_location,
    )
    return source.lake.client.load_table(name)


def test_after_many_captures_the_newest_tables_are_left_and_readable(source: Source) -> None:
    done: list[CapturedInput] = []
    for number in range(1, 8):
        source.append(numbered(number))
        done.append(source.capture_and_consume())
        clean(source, done[-1], Retention(keep_last=3))
        assert icdc_names(source) == names(*done[-3:])
    for number, captured in enumerate(done[-3:], start=5):
        assert source.scan(captured.capture.icdc_table) == source.expected(numbered(number))


def test_only_the_own_files_of_dropped_tables_are_deleted_and_no_other_byte_of_the_store_changes(
    source: Source,
) -> None:
    *old, kept, newest = capture_rounds(source, 6)
    own = set[Path]().union(*(metadata_files(icdc(source, captured)) for captured in old))
    folders = {local(icdc(source, captured).location()) for captured in old}
    before = store_files(source)

    clean(source, newest, Retention(keep_last=2))

    assert icdc_names(source) == names(kept, newest)
    assert store_files(source) == {path: content for path, content in before.items() if path not in own}
    assert not any(folder.exists() for folder in folders)
    assert source.scan() == source.expected(source.rows)


def test_of_the_tables_that_are_kept_only_the_oldest_is_read(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, oldest_kept, *_, newest = capture_rounds(source, 6)
    read: list[str] = []
    original = Storage.read

    def reading(self: Storage, location: str, *, table: str) -> bytes:
        if location.endswith(".json"):
            read.append(table)
        return original(self, location, table=table)

    monkeypatch.setattr(Storage, "read", reading)
    clean(source, newest, Retention(keep_last=10))
    assert set(read) == names(first)
    clean(source, newest, Retention(keep_last=4))
    read.clear()
    clean(source, newest, Retention(keep_last=4))
    assert set(read) == names(oldest_kept)
    clean(source, newest, NO_TIME)
    assert icdc_names(source) == names(newest)


def test_captures_above_the_age_limit_are_dropped_but_never_the_newest_one(source: Source) -> None:
    *_, newest = capture_rounds(source, 3)
    clean(source, newest, NO_TIME)
    assert icdc_names(source) == names(newest)


def test_young_captures_within_the_count_are_all_kept(source: Source) -> None:
    done = capture_rounds(source, 3)
    before = store_files(source)
    clean(source, done[-1], Retention())
    assert icdc_names(source) == names(*done)
    assert store_files(source) == before


def test_the_files_of_the_rows_before_and_after_a_removal_are_deleted_with_their_table(source: Source) -> None:
    source.append(numbered(1, 2, 3))
    source.capture_and_consume()
    source.table.delete("number = 2")
    old = source.capture_and_consume()
    assert old.tags
    (newest,) = capture_rounds(source, 1)
    before = store_files(source)
    folder = local(icdc(source, old).location())

    clean(source, newest)

    gone = before.keys() - store_files(source).keys()
    assert not folder.exists()
    assert {path for path in before if path.is_relative_to(folder)} <= gone
    assert all("/_ips/" in str(path) for path in gone)


def test_the_captures_of_a_run_at_work_are_kept_with_all_its_attempts_however_old(source: Source) -> None:
    old, _, newest = capture_rounds(source, 3)
    abandoned = old.capture.icdc_table[:-6] + "abcdef"
    register_like(source, old, abandoned)
    for name in (old.capture.icdc_table, abandoned):
        working = source.lake.client.load_table(name)
        rewrite(working, lambda raw: raw["properties"].update({"dagster-ips.run": "at work"}))
    clean(source, newest, NO_TIME, is_at_work=lambda run_id: run_id == "at work")
    assert icdc_names(source) == names(old, newest) | {abandoned}


def test_a_capture_that_is_in_flight_while_another_run_cleans_up_is_kept(source: Source) -> None:
    *_, committed = capture_rounds(source, 3)
    source.append(numbered(9))
    in_flight = source.capture()
    clean(source, committed)
    assert icdc_names(source) == names(committed, in_flight)


def test_the_capture_of_the_run_itself_is_kept_even_if_other_runs_are_ahead(source: Source) -> None:
    own, _, newest = capture_rounds(source, 3)
    clean(source, own)
    assert icdc_names(source) == names(own, newest)


def test_tables_of_another_edge_are_neither_counted_nor_dropped_even_if_the_names_are_similar(source: Source) -> None:
    *_, newest = capture_rounds(source, 3)
    other = Edge("Daily", EDGE.upstream)
    assert other.slug == EDGE.slug
    capturer = Capturer(source.lake, MemoryCursors())
    (theirs,) = capturer.capture(
        CaptureRequest(other.consumer, [TrackedInput(other.upstream, TABLE)], target=TARGET), run_id="run"
    )
    clean(source, newest, NO_TIME)
    assert icdc_names(source) == names(newest, theirs)


def test_a_foreign_table_in_the_namespace_is_left_alone_whatever_its_name(source: Source) -> None:
    old, newest = capture_rounds(source, 2)
    foreign = {"ips.notes", old.capture.icdc_table[:-6] + "ffffff", old.capture.icdc_table + "__notes"}
    for name in foreign:
        source.lake.client.create_table(name, source.table.schema())
    before = {path: content for path, content in store_files(source).items() if "/ips/" in str(path)}
    assert before
    clean(source, newest)
    assert icdc_names(source) == names(newest) | foreign
    assert before.items() <= store_files(source).items()


@pytest.mark.parametrize(
    "without", ["dagster-ips.consumer", "dagster-ips.upstream", "dagster-ips.capture", "gc.enabled"]
)
def test_a_table_that_lacks_a_property_of_icdc_tables_is_left_alone(source: Source, without: str) -> None:
    old, newest = capture_rounds(source, 2)
    rewrite(icdc(source, old), lambda raw: raw["properties"].pop(without))
    before = store_files(source)
    clean(source, newest)
    assert icdc_names(source) == names(old, newest)
    assert store_files(source) == before


def rewrite(table: Table, change: Callable[[dict[str, Any]], object]) -> None:
    path = local(table.metadata_location)
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def rewrite_manifest_list(table: Table, manifest_path: str) -> None:
    """Write ``manifest_path`` into every row of the manifest list."""
    snapshot = table.current_snapshot()
    assert snapshot
    path = local(snapshot.manifest_list)
    file = read_avro(path.read_bytes())
    path.write_bytes(write_avro(file.header, [{**row, "manifest_path": manifest_path} for row in file.records]))


def set_manifest_list(table: Table, location: str) -> None:
    rewrite(table, lambda raw: raw["snapshots"][0].update({"manifest-list": location}))


def roundabout(table: Table, location: str) -> str:
    """The path of ``location`` by a way that begins in the table's own metadata folder."""
    start, _, folders = table.location().partition("://")
    ups = "/".join([".."] * (len(folders.split("/")) + 5))
    return f"{start}://{folders}/metadata/{ups}{local(location)}"


def listed(source: Source) -> str:
    snapshot = source.table.current_snapshot()
    assert snapshot
    return snapshot.manifest_list


def a_manifest(source: Source) -> str:
    snapshot = source.table.current_snapshot()
    assert snapshot
    return snapshot.manifests(source.table.io)[0].manifest_path


def a_data_file(source: Source) -> str:
    return next(iter(source.table.scan().plan_files())).file.file_path


FORGERIES: Mapping[str, Callable[[Source, Table], None]] = {
    "the source's manifest list": lambda s, t: set_manifest_list(t, listed(s)),
    "the source's metadata as its manifest list": lambda s, t: set_manifest_list(t, s.table.metadata_location),
    "the source's manifest list by a roundabout way": lambda s, t: set_manifest_list(t, roundabout(t, listed(s))),
    "the source's manifests": lambda s, t: rewrite_manifest_list(t, a_manifest(s)),
    "the source's manifests by a roundabout way": lambda s, t: rewrite_manifest_list(t, roundabout(t, a_manifest(s))),
    "a data file as manifest": lambda s, t: rewrite_manifest_list(t, a_data_file(s)),
    "no file": lambda _, t: rewrite_manifest_list(t, f"{t.location()}/metadata/"),
    "its own folder": lambda _, t: rewrite_manifest_list(t, f"{t.location()}/metadata/.."),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_icdc_table_that_lists_files_of_others_deletes_none_of_them(
    source: Source, forge: Callable[[Source, Table], None]
) -> None:
    old, newest = capture_rounds(source, 2)
    forged = icdc(source, old)
    own = metadata_files(forged)
    assert local(roundabout(forged, listed(source))).resolve() == local(listed(source))
    forge(source, forged)
    before = store_files(source)

    clean(source, newest)

    assert icdc_names(source) == names(newest)
    gone = before.keys() - store_files(source).keys()
    assert local(forged.metadata_location) in gone
    assert gone <= own
    assert store_files(source).items() <= before.items()
    assert source.scan() == source.expected(source.rows)


def test_a_table_that_claims_the_sources_folder_is_left_alone(source: Source) -> None:
    old, newest = capture_rounds(source, 2)
    rewrite(icdc(source, old), lambda raw: raw.update(location=source.table.location()))
    before = store_files(source)
    clean(source, newest)
    assert store_files(source) == before


def test_the_source_registered_with_the_name_and_properties_of_an_icdc_table_is_left_alone(source: Source) -> None:
    old, newest = capture_rounds(source, 2)
    marks = {key: value for key, value in icdc(source, old).properties.items() if key.startswith("dagster-ips.")}
    with source.table.transaction() as transaction:
        transaction.set_properties({**marks, "gc.enabled": "false"})
    forged = old.capture.icdc_table[:-6] + "abcdef"
    source.lake.register(forged, source.table.metadata_location)
    before = source.files()
    clean(source, newest, NO_TIME)
    assert icdc_names(source) == names(newest) | {forged}
    assert source.files() == before
    assert source.scan() == source.expected(source.rows)


def test_rows_that_someone_wrote_into_an_icdc_table_are_not_deleted_with_it(source: Source) -> None:
    old, newest = capture_rounds(source, 2)
    icdc(source, old).append(source.table.scan().to_arrow())
    before = store_files(source)
    clean(source, newest)
    gone = before.keys() - store_files(source).keys()
    assert icdc_names(source) == names(newest)
    assert {path.suffix for path in gone} == {".avro", ".json"}
    assert source.scan() == source.expected(source.rows)


@pytest.mark.parametrize("missing", ["manifest list", "manifests"])
def test_a_file_that_is_already_gone_is_no_error(source: Source, missing: str) -> None:
    old, newest = capture_rounds(source, 2)
    pattern = "snap-*.avro" if missing == "manifest list" else "*-m*.avro"
    for path in (local(icdc(source, old).location()) / "metadata").glob(pattern):
        path.unlink()
    clean(source, newest)
    assert icdc_names(source) == names(newest)


def test_a_cleanup_in_the_middle_of_another_cleanup_does_not_disturb_it(source: Source) -> None:
    *_, newest = capture_rounds(source, 5)

    def clean_up_too() -> None:
        clean(source, newest)
        assert icdc_names(source) == names(newest)

    with at("before:drop_icdc_table", clean_up_too):
        clean(source, newest)
    assert icdc_names(source) == names(newest)
    assert source.scan(newest.capture.icdc_table) == source.expected(numbered(5, 6))


def test_two_runs_can_clean_up_at_once(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    *_, newest = capture_rounds(source, 8)
    before, ready = source.files(), threading.Barrier(2)

    def run() -> None:
        lake = LakeCatalog.embedded("lake", source.folder)
        ready.wait()
        drop_expired_tables(lake, newest.capture, NEWEST_ONLY, is_at_work=nobody)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not caplog.records
    assert icdc_names(source) == names(newest)
    assert source.files() == before
    assert len(list(local(icdc(source, newest).location()).parent.iterdir())) == 1


def test_a_table_that_cannot_be_dropped_causes_a_warning_holds_up_no_other_and_is_retried(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, _, _, newest = capture_rounds(source, 4)
    drop = LakeCatalog.drop

    def refuse(lake: LakeCatalog, table: str) -> None:
        if table == stuck.capture.icdc_table:
            raise PermissionError(table)
        drop(lake, table)

    with monkeypatch.context() as patched:
        patched.setattr(LakeCatalog, "drop", refuse)
        (warning,) = warnings_of_cleaning(source, newest)
    assert stuck.capture.icdc_table in warning
    assert icdc_names(source) == names(stuck, newest)
    assert source.scan(stuck.capture.icdc_table) == source.expected(numbered(1, 2))
    clean(source, newest)
    assert icdc_names(source) == names(newest)


def test_runs_that_cannot_be_asked_for_cause_a_warning_and_nothing_is_dropped(source: Source) -> None:
    def broken(run_id: str) -> bool:
        raise ConnectionError(run_id)

    *older, newest = capture_rounds(source, 3)
    (warning,) = warnings_of_cleaning(source, newest, is_at_work=broken)
    assert str(EDGE) in warning
    assert icdc_names(source) == names(*older, newest)
