"""A capture is durable before work starts; a history that can't be followed is an error and changes no state."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pyiceberg.types import DoubleType

from dagster_ips.core.capture import Mode
from dagster_ips.core.policy import InputPolicies, OnExpired, OnRemoved, OnRollback
from dagster_ips.errors import (
    IpsError,
    MetadataUnreadableError,
    SourceColumnsChangedError,
    SourceExpiredError,
    SourceFileOverwrittenError,
    SourceRecreatedError,
    SourceRolledBackError,
    TagFollowedError,
    UnknownRefError,
    UnknownTableError,
)
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.inspect.edge_status import Inspector
from tests.iceberg.sources import EDGE, TABLE, TARGET, Source, clean_schema, numbered
from tests.support.memory_store import MemoryCursors


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Three commits, two of which are consumed."""
    source = Source(tmp_path, "day")
    source.append(numbered(1))
    source.append(numbered(2))
    source.capture_and_consume()
    source.append(numbered(3))
    return source


def refused(source: Source, kind: type[IpsError]) -> str:
    """The message of a capture that fails with ``kind``. Nothing is recorded or registered, and the error pickles."""
    before, tables = source.state, icdc_tables(source)
    with pytest.raises(kind) as raised:
        source.capture()
    assert source.state == before
    assert icdc_tables(source) == tables
    message = str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == message
    return message


def icdc_tables(source: Source) -> set[str]:
    return {".".join(name) for name in source.lake.client.list_tables("ips")}


def snapshot_ids(source: Source) -> list[int]:
    return [entry.snapshot_id for entry in source.table.history()]


def test_a_capture_is_frozen_and_consumes_nothing_before_it_is_published(source: Source) -> None:
    captured = source.capture()
    assert source.state.number == 1
    assert captured.capture.number == 2
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(3))


def test_an_abandoned_capture_gives_its_number_to_the_next_with_a_fresh_interval(source: Source) -> None:
    abandoned = source.capture()
    source.append(numbered(4))
    captured = source.capture()
    assert captured.capture.number == abandoned.capture.number
    assert captured.capture.icdc_table != abandoned.capture.icdc_table
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(3, 4))
    assert source.scan(abandoned.capture.icdc_table) == source.expected(numbered(3))


def test_a_capture_without_new_rows_is_empty_and_no_error(source: Source) -> None:
    source.capture_and_consume()
    captured = source.capture_and_consume()
    assert captured.files.changes.is_empty
    assert captured.capture.mode is Mode.INCREMENTAL
    assert not source.scan(captured.capture.icdc_table)
    assert source.state.number == 3


def test_a_capture_of_a_source_without_snapshots_is_empty(tmp_path: Path) -> None:
    source = Source(tmp_path)
    captured = source.capture_and_consume()
    assert captured.capture.to_inclusive is None
    assert not source.scan(captured.capture.icdc_table)
    source.append(numbered(1))
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(1))


def test_a_delete_that_a_full_run_consumed_does_not_hold_up_later_runs(source: Source) -> None:
    source.table.delete("number = 1")
    full = source.capture(asked_for=Mode.FULL)
    assert source.scan(full.capture.icdc_table) == source.expected(numbered(2, 3))
    source.consume(full)
    source.append(numbered(4))
    captured = source.capture()
    assert captured.capture.mode is Mode.INCREMENTAL
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(4))


def test_a_table_dropped_and_created_again_is_refused(source: Source) -> None:
    source.lake.client.drop_table(TABLE)
    source.create()
    source.append(numbered(1))
    assert "dropped and created again" in refused(source, SourceRecreatedError)


def test_a_table_created_again_is_refused_even_while_it_is_empty(source: Source) -> None:
    source.lake.client.drop_table(TABLE)
    source.create()
    refused(source, SourceRecreatedError)


def test_a_rollback_behind_the_watermark_is_refused(source: Source) -> None:
    source.table.manage_snapshots().rollback_to_snapshot(snapshot_ids(source)[0]).commit()
    assert "rolled back" in refused(source, SourceRolledBackError)


def test_a_rollback_that_was_appended_to_is_refused(source: Source) -> None:
    source.table.manage_snapshots().rollback_to_snapshot(snapshot_ids(source)[0]).commit()
    source.append(numbered(9))
    assert "rolled back" in refused(source, SourceRolledBackError)


def test_a_rollback_to_the_watermark_leaves_nothing_new(source: Source) -> None:
    source.table.manage_snapshots().rollback_to_snapshot(snapshot_ids(source)[1]).commit()
    assert source.capture().files.changes.is_empty


def test_an_expired_watermark_whose_child_is_retained_is_followed(source: Source) -> None:
    source.table.maintenance.expire_snapshots().by_ids(snapshot_ids(source)[:2]).commit()
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))


def test_an_expired_watermark_is_refused_when_its_child_is_expired_too(source: Source) -> None:
    source.append(numbered(4))
    source.table.maintenance.expire_snapshots().by_ids(snapshot_ids(source)[:3]).commit()
    assert "expired" in refused(source, SourceExpiredError)


def test_snapshots_older_than_the_watermark_may_expire(source: Source) -> None:
    source.table.maintenance.expire_snapshots().by_id(snapshot_ids(source)[0]).commit()
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))


def test_an_unknown_table_is_named_with_its_consumer_and_watermark(source: Source) -> None:
    source.lake.client.drop_table(TABLE)
    consumed = source.state.committed
    assert consumed
    message = refused(source, UnknownTableError)
    assert message.startswith(f"daily: catalog lake has no table {TABLE} any more")
    assert f"consumed up to snapshot {consumed.snapshot_id}" in message


def test_if_one_of_several_inputs_fails_no_capture_is_recorded(source: Source) -> None:
    before = source.state
    inputs = [TrackedInput("playback", TABLE), TrackedInput("plans", "media.plans")]
    with pytest.raises(UnknownTableError, match=r"media\.plans"):
        Capturer(source.lake, source.store).capture(CaptureRequest("daily", inputs, target="media.daily"), run_id="run")
    assert source.state == before


def newest_files(source: Source) -> dict[str, Path]:
    """The metadata files that a capture has to read."""
    snapshot = source.table.current_snapshot()
    assert snapshot
    manifest = snapshot.manifests(source.table.io)[0].manifest_path
    found = {"metadata": source.table.metadata_location, "list": snapshot.manifest_list, "manifest": manifest}
    return {name: Path(urlsplit(location).path) for name, location in found.items()}


@pytest.mark.parametrize("which", ["metadata", "list", "manifest"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut short", "garbage"])
def test_a_missing_or_damaged_metadata_file_is_named(source: Source, which: str, damage: str) -> None:
    path = newest_files(source)[which]
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"empty": b"", "cut short": content[:-9], "garbage": b"Obj\x01\xff not Avro"}[damage])
    assert path.name in refused(source, MetadataUnreadableError)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))


def test_metadata_with_a_snapshot_that_lacks_a_required_field_is_named(source: Source) -> None:
    path = newest_files(source)["metadata"]
    raw = json.loads(path.read_bytes())
    del raw["snapshots"][-1]["timestamp-ms"]
    path.write_text(json.dumps(raw))
    message = refused(source, MetadataUnreadableError)
    assert path.name in message
    assert "timestamp-ms" in message


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_manifest_damaged_anywhere_raises_the_error_of_the_library_or_none(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    source = _shared(tmp_path_factory)
    path = newest_files(source)[data.draw(st.sampled_from(["list", "manifest"]))]
    content = path.read_bytes()
    cut = data.draw(st.booleans())
    after_header = content.index(content[-16:])  # the sync marker ends the header and every block
    position = data.draw(st.integers(0 if cut else after_header, len(content) - 1))
    changed = bytes([content[position] ^ data.draw(st.integers(1, 255))])
    path.write_bytes(content[:position] if cut else content[:position] + changed + content[position + 1 :])
    try:
        captured = source.capture()
        assert not cut
        assert captured.capture.edge == EDGE
    except MetadataUnreadableError as error:
        assert "media.playback" in str(error)  # noqa: PT017  # either outcome is right
    finally:
        path.write_bytes(content)


_SHARED: list[Source] = []


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Source:
    if not _SHARED:
        source = Source(tmp_path_factory.mktemp("damaged"), "day")
        source.append([{1: n, 2: dt.date(2026, 1, 1 + n), 3: "abc"} for n in range(5)])
        _SHARED.append(source)
    return _SHARED[0]


@pytest.mark.parametrize("is_kept", [True, False], ids=["with the cursor", "without"])
def test_the_next_capture_starts_at_the_last_watermark_in_any_process(source: Source, *, is_kept: bool) -> None:
    source.publish(source.capture())
    source.append(numbered(4))
    cursor, source.store = source.store.get(EDGE.consumer), MemoryCursors()
    if is_kept:
        assert cursor.copy
        source.store.set_copy(EDGE.consumer, cursor.copy)
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(4))


def with_policies(**policies: str) -> InputPolicies:
    kinds = {"on_rollback": OnRollback, "on_expired": OnExpired, "on_removed": OnRemoved}
    return InputPolicies(**{name: kinds[name](value) for name, value in policies.items()})


def test_the_error_of_a_rollback_names_table_snapshots_and_solutions(source: Source) -> None:
    consumed = snapshot_ids(source)[1]
    source.table.manage_snapshots().rollback_to_snapshot(snapshot_ids(source)[0]).commit()
    message = refused(source, SourceRolledBackError)
    assert f"{TABLE} was rolled back to snapshot {snapshot_ids(source)[0]}" in message
    assert str(consumed) in message
    assert "on_rollback='continue'" in message
    assert "dagster_ips/mode=full" in message


def test_a_rollback_is_followed_if_the_input_allows_it(source: Source) -> None:
    source.table.manage_snapshots().rollback_to_snapshot(snapshot_ids(source)[0]).commit()
    source.append(numbered(9))
    captured = source.capture(policies=with_policies(on_rollback="continue"))
    assert captured.capture.mode is Mode.INCREMENTAL
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(9))
    assert source.scan(captured.capture.icdc_table, tag="before") == source.expected(numbered(2))
    assert source.scan(captured.capture.icdc_table, tag="after") == source.expected(numbered(9))


def test_after_an_expiry_a_capture_starts_over_if_the_input_allows_it(source: Source) -> None:
    source.append(numbered(4))
    source.table.maintenance.expire_snapshots().by_ids(snapshot_ids(source)[:3]).commit()
    captured = source.capture(policies=with_policies(on_expired="full"))
    assert captured.capture.mode is Mode.FULL
    assert captured.capture.reason == "needed snapshots of playback have expired"
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(1, 2, 3, 4))


def test_the_error_of_an_expired_watermark_before_a_delete_names_the_delete(source: Source) -> None:
    source.table.delete("number = 1")
    source.table.maintenance.expire_snapshots().by_ids(snapshot_ids(source)[:2]).commit()
    message = refused(source, SourceExpiredError)
    assert f"snapshot {snapshot_ids(source)[-1]}, a `delete`, removed" in message
    assert "on_expired='full'" in message


def test_a_tag_is_refused_because_it_never_moves(source: Source) -> None:
    at = source.state.committed
    assert at
    source.table.manage_snapshots().create_tag(at.snapshot_id, "released").commit()
    tracked = TrackedInput(EDGE.upstream, TABLE, ref="released")
    with pytest.raises(TagFollowedError, match=rf"'released'.* is a tag\. It stays at snapshot {at.snapshot_id}"):
        Capturer(source.lake, source.store).capture(
            CaptureRequest(EDGE.consumer, [tracked], target=TARGET), run_id="run"
        )
    told = Inspector(source.lake, source.store, TARGET).status(EDGE.consumer, tracked)
    assert told.problem
    assert "is a tag" in told.problem


def test_a_branch_that_does_not_exist_is_not_replaced_by_main(source: Source) -> None:
    source.append(numbered(1))
    tracked = TrackedInput(EDGE.upstream, TABLE, ref="stagin")
    with pytest.raises(UnknownRefError, match=r"'stagin'.*Its branches: main"):
        Capturer(source.lake, source.store).capture(
            CaptureRequest(EDGE.consumer, [tracked], target=TARGET), run_id="run"
        )


def test_a_commit_after_a_rollback_is_not_mistaken_for_a_child_of_the_expired_watermark(source: Source) -> None:
    source.capture_and_consume()
    first = snapshot_ids(source)[0]
    source.table.manage_snapshots().rollback_to_snapshot(first).commit()
    source.append(numbered(9))
    *older, head = source.table.metadata.snapshots
    assert head.sequence_number == older[-1].sequence_number + 1
    source.table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in older]).commit()
    assert "expired" in refused(source, SourceExpiredError)
    assert source.capture(policies=with_policies(on_expired="full")).capture.mode is Mode.FULL


def test_a_consumed_snapshot_kept_by_a_tag_counts_as_expired_if_the_next_one_is_gone(source: Source) -> None:
    consumed, after = snapshot_ids(source)[1:]
    source.append(numbered(4))
    source.table.manage_snapshots().create_tag(consumed, "kept").commit()
    source.table.maintenance.expire_snapshots().by_ids([after]).commit()
    assert "expired" in refused(source, SourceExpiredError)
    for on_rollback in ("error", "continue", "full"):
        captured = source.capture(policies=with_policies(on_expired="full", on_rollback=on_rollback))
        assert captured.capture.mode is Mode.FULL
        assert captured.capture.reason == "needed snapshots of playback have expired"


def test_an_expired_rollback_that_cannot_be_continued_starts_over_if_the_input_allows_it(source: Source) -> None:
    first, consumed, later = snapshot_ids(source)
    source.table.manage_snapshots().rollback_to_snapshot(first).commit()
    source.table.maintenance.expire_snapshots().by_ids([consumed, later]).commit()
    with pytest.raises(SourceRolledBackError, match="has also expired"):
        source.capture(policies=with_policies(on_rollback="continue"))
    captured = source.capture(policies=with_policies(on_rollback="continue", on_expired="full"))
    assert captured.capture.mode is Mode.FULL


def test_a_reused_name_is_not_mistaken_for_the_same_column_if_the_consumed_schema_is_cleaned_out(
    source: Source,
) -> None:
    with source.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("amount")
    with source.table.update_schema() as update:
        update.add_column("amount", DoubleType())
    refused(source, SourceColumnsChangedError)
    clean_schema(source.table, 0)
    assert "schema 0" in refused(source, SourceExpiredError)
    assert source.capture(policies=with_policies(on_expired="full")).capture.mode is Mode.FULL


def test_a_name_in_another_case_that_stands_for_another_column_is_refused(source: Source) -> None:
    with source.table.update_schema() as update:
        update.rename_column("amount", "Amount")
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))
    with source.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("Amount")
    with source.table.update_schema() as update:
        update.add_column("AMOUNT", DoubleType())
    assert "(AMOUNT)" in refused(source, SourceColumnsChangedError)


def land(source: Source, *numbers: int) -> None:
    """Write a file of rows to where the one before was, and add it to the table."""
    path = source.folder / "landed.parquet"
    days = [row[2] for row in numbered(*numbers)]
    rows = pa.table({"number": pa.array(numbers, pa.int32()), "day": pa.array(days, pa.date32())})
    parquet.write_table(rows, path)
    source.table.add_files([path.as_uri()])


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_file_that_was_overwritten_in_place_is_refused_and_one_that_was_added_again_is_not(
    tmp_path: Path, version: str
) -> None:
    """In version 1, only the snapshots that added them tell the two apart."""
    source = Source(tmp_path, format_version=version)
    land(source, 1, 2)
    source.capture_and_consume()
    source.table.delete()
    land(source, 1, 2)
    assert source.scan(source.capture_and_consume().capture.icdc_table) == source.expected(numbered(1, 2))
    source.table.delete()
    land(source, 3)
    assert "landed.parquet" in refused(source, SourceFileOverwrittenError)
    captured = source.capture(policies=with_policies(on_expired="full"))
    assert (captured.capture.mode, captured.capture.reason) == (
        Mode.FULL,
        "data files of playback were overwritten in place",
    )
    source.consume(captured)
    source.append(numbered(4))
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(4))


def test_a_schema_that_got_the_number_of_a_removed_one_is_not_mistaken_for_it(source: Source) -> None:
    with source.table.update_schema() as update:
        update.add_column("more", DoubleType())
    source.capture_and_consume()
    with source.table.update_schema() as update:
        update.delete_column("more")
    clean_schema(source.table, 1)
    with source.table.update_schema() as update:
        update.add_column("more", DoubleType())
    assert source.table.metadata.current_schema_id == 1
    source.append(numbered(4))
    refused(source, SourceExpiredError)


def test_for_a_watermark_without_a_schema_only_names_that_never_changed_count_as_the_same_columns(
    source: Source,
) -> None:
    copy = source.store.get(EDGE.consumer).copy
    assert copy
    known = copy.progress.inputs[EDGE.upstream]
    assert known.at
    inputs = {EDGE.upstream: replace(known, at=replace(known.at, schema_id=None))}
    source.store.set_copy(EDGE.consumer, replace(copy, progress=replace(copy.progress, inputs=inputs)))
    with source.table.update_schema() as update:
        update.add_column("more", DoubleType())
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(3))
    clean_schema(source.table, 0)
    refused(source, SourceExpiredError)


def list_again(source: Source, *, times: int) -> None:
    """One commit that lists the file of the newest commit ``times`` more times."""
    table = source.table
    head = table.current_snapshot()
    assert head
    entries = [entry for manifest in head.manifests(table.io) for entry in manifest.fetch_manifest_entry(table.io)]
    (newest,) = (entry.data_file for entry in entries if entry.snapshot_id == head.snapshot_id)
    with table.transaction() as transaction, transaction._append_snapshot_producer({}) as producer:
        for _ in range(times):
            producer.append_data_file(newest)


@pytest.mark.parametrize("deletes_first", [False, True])
def test_rows_of_a_file_that_is_listed_several_times_count_as_often_as_engines_read_them(
    tmp_path: Path, *, deletes_first: bool
) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    source.append(numbered(2))
    source.capture_and_consume()
    if deletes_first:
        source.table.delete("number = 1")
    source.append(numbered(3))
    list_again(source, times=2)
    captured = source.capture_and_consume()
    three_times = source.expected(numbered(3, 3, 3))
    assert source.scan(captured.capture.icdc_table, tag="after" if deletes_first else None) == three_times
    source.table.delete("number = 3")
    gone = source.capture()
    assert source.scan(gone.capture.icdc_table, tag="before") == three_times
