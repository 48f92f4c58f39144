"""Manifests in which other writers, such as DuckDB and old releases of Iceberg, leave something out."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import manifest_evaluator
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DecimalType

from dagster_ips.core.capture import Mode
from dagster_ips.core.limits import Limits
from dagster_ips.errors import MetadataUnreadableError, SourceExpiredError
from dagster_ips.iceberg.avro import SCHEMA_KEY, read_avro, write_avro
from dagster_ips.iceberg.bites import appended_bite
from dagster_ips.iceberg.column_ranges import change_range
from dagster_ips.iceberg.manifests import Status
from tests.iceberg.sources import TABLE, Row, Source, numbered

MERGED = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
Entry = dict[str, Any]


def rewrite_manifests(source: Source, change: Callable[[Entry], Entry], schema: Callable[[str], str] = str) -> None:
    """Change every entry of the manifests that the table's head lists."""
    snapshot = source.table.current_snapshot()
    assert snapshot
    for manifest in snapshot.manifests(source.table.io):
        path = Path(urlsplit(manifest.manifest_path).path)
        file = read_avro(path.read_bytes())
        header = {**file.header, SCHEMA_KEY: schema(file.schema)}
        path.write_bytes(write_avro(header, [change(entry) for entry in file.records]))


def as_duckdb(entry: Entry) -> Entry:
    """DuckDB names no snapshot in the entries that it writes, nor when it lists them again in a merged manifest."""
    return {**entry, "snapshot_id": None}


def without_file_sequence_number(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name != "file_sequence_number"}


def without_field(name: str) -> Callable[[str], str]:
    def of(schema: str) -> str:
        entry = json.loads(schema)
        entry["fields"] = [field for field in entry["fields"] if field["name"] != name]
        return json.dumps(entry)

    return of


def compact_as_duckdb(source: Source, *, named: bool) -> None:
    """Make the last append a rewrite of all rows before it: the removed files keep the snapshots that added them.

    If not ``named``, DuckDB itself had added them, so they have none.
    """
    snapshot = source.table.current_snapshot()
    assert snapshot
    path = Path(urlsplit(snapshot.manifest_list).path)
    file = read_avro(path.read_bytes())
    rows = []
    for row in file.records:
        if row["added_snapshot_id"] != snapshot.snapshot_id:
            old = Path(urlsplit(row["manifest_path"]).path)
            new = old.with_name(f"removed-by-{snapshot.snapshot_id}-{old.name}")
            manifest = read_avro(old.read_bytes())
            entries = [{**(e if named else as_duckdb(e)), "status": Status.DELETED.value} for e in manifest.records]
            new.write_bytes(write_avro(manifest.header, entries))
            removed = row["added_files_count"] + row["existing_files_count"] + row["deleted_files_count"]
            counts = {"added_files_count": 0, "existing_files_count": 0, "deleted_files_count": removed}
            written = {"added_snapshot_id": snapshot.snapshot_id, "sequence_number": snapshot.sequence_number}
            row = {**row, **counts, **written, "manifest_path": f"file://{new}"}  # noqa: PLW2901  # it replaces it
        rows.append(row)
    path.write_bytes(write_avro(file.header, rows))
    set_operation(source, "replace")


def expire(source: Source, *, before: Snapshot) -> None:
    """Expire the snapshots ``before`` this one, as Java does: the ids of parents stay."""
    path = Path(urlsplit(source.table.metadata_location).path)
    raw = json.loads(path.read_text())
    raw["snapshots"] = [each for each in raw["snapshots"] if each["sequence-number"] >= before.sequence_number]
    path.write_text(json.dumps(raw))


def set_operation(source: Source, operation: str) -> None:
    """Write ``operation`` into the summary of the table's head."""
    path = Path(urlsplit(source.table.metadata_location).path)
    raw = json.loads(path.read_text())
    head = next(each for each in raw["snapshots"] if each["snapshot-id"] == raw["current-snapshot-id"])
    head["summary"]["operation"] = operation
    path.write_text(json.dumps(raw))


def merging(folder: Path, *numbers: int) -> Source:
    """A table to which each number is appended by itself; all manifests are merged each time."""
    source = Source(folder, format_version="2", **MERGED)
    for number in numbers:
        source.append(numbered(number))
        rewrite_manifests(source, as_duckdb)
    return source


def test_files_that_a_merged_manifest_lists_again_without_their_snapshot_are_not_new_again(tmp_path: Path) -> None:
    source = merging(tmp_path, 1, 2)
    source.capture_and_consume()
    for number in (3, 4):
        source.append(numbered(number))
        rewrite_manifests(source, as_duckdb)
    captured = source.capture()
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(3, 4))


def test_bites_of_an_append_leave_out_files_that_its_manifest_lists_again(tmp_path: Path) -> None:
    source = merging(tmp_path, 1, 2)
    source.capture_and_consume()
    source.append(numbered(3))
    rewrite_manifests(source, as_duckdb)
    head = source.lake.load(TABLE, asset="daily").ancestry().head
    assert head
    metadata = source.lake.load(TABLE, asset="daily")
    files, bite = appended_bite(source.lake.storage, metadata, head, first=0, limits=Limits(max_files=1))
    assert (files.changes.row_count, bite.total) == (1, 1)


def test_files_listed_again_by_a_rewrite_of_their_manifests_are_not_new_if_the_start_has_expired(
    tmp_path: Path,
) -> None:
    source = merging(tmp_path, 1, 2)
    source.capture_and_consume()
    source.append(numbered(3))
    rewrite_manifests(source, as_duckdb)
    retained = source.table.current_snapshot()
    assert retained
    source.append([])
    set_operation(source, "replace")
    expire(source, before=retained)
    captured = source.capture()
    assert source.scan(captured.capture.icdc_table) == source.expected(numbered(3))


@pytest.mark.parametrize(("operation", "numbers"), [("delete", ()), ("overwrite", (3,))])
def test_commits_that_found_nothing_to_remove_are_read_if_the_start_has_expired(
    tmp_path: Path, operation: str, numbers: Sequence[int]
) -> None:
    source = Source(tmp_path, format_version="2")
    source.append(numbered(1))
    source.capture_and_consume()
    source.append(numbered(2))
    retained = source.table.current_snapshot()
    assert retained
    source.append(numbered(*numbers))
    set_operation(source, operation)
    expire(source, before=retained)
    assert source.scan(source.capture().capture.icdc_table) == source.expected(numbered(2, *numbers))


@pytest.mark.parametrize("asked_for", [None, Mode.FULL])
def test_manifests_of_version_2_from_before_files_had_a_sequence_number_of_their_own_are_read(
    tmp_path: Path, asked_for: Mode | None
) -> None:
    """Written by Iceberg before 1.0."""
    source = Source(tmp_path, format_version="2", **MERGED)
    source.append(numbered(1))
    source.append(numbered(2))
    source.capture_and_consume()
    source.append(numbered(3))
    rewrite_manifests(source, without_file_sequence_number, without_field("file_sequence_number"))
    captured = source.capture(asked_for=asked_for)
    new = source.rows if asked_for else numbered(3)
    assert source.scan(captured.capture.icdc_table) == source.expected(new)


@pytest.mark.parametrize("named", [True, False])
def test_rows_that_duckdb_compacted_are_not_taken_for_new_if_what_was_there_before_has_expired(
    tmp_path: Path, *, named: bool
) -> None:
    source = Source(tmp_path, format_version="2")
    source.append(numbered(1))
    source.append(numbered(2))
    source.capture_and_consume()
    source.append(numbered(1, 2))
    compact_as_duckdb(source, named=named)
    table = source.capture().capture.icdc_table
    assert source.scan(table, tag="before") == source.scan(table, tag="after") == source.expected(numbered(1, 2))
    head = source.table.current_snapshot()
    assert head
    expire(source, before=head)
    with pytest.raises(SourceExpiredError):
        source.capture()


def test_a_snapshot_that_took_the_number_of_the_consumed_one_is_not_mistaken_for_it(tmp_path: Path) -> None:
    """An older version of the table was registered. PyIceberg removes the id of an expired parent."""
    source = Source(tmp_path, format_version="2", **MERGED)
    source.append(numbered(1))
    older = source.table.metadata_location
    source.append(numbered(2))
    source.capture_and_consume()
    source.lake.client.drop_table(TABLE)
    source.lake.client.register_table(TABLE, older)
    source.append(numbered(3))
    source.append(numbered(4))
    expired = [each.snapshot_id for each in source.table.snapshots()][:-1]
    source.table.maintenance.expire_snapshots().by_ids(expired).commit()
    with pytest.raises(SourceExpiredError):
        source.capture()


def without_snapshots_of_manifests(source: Source) -> None:
    """Let the head's manifest list not say which snapshot wrote a manifest, as version 1 allows."""
    snapshot = source.table.current_snapshot()
    assert snapshot
    path = Path(urlsplit(snapshot.manifest_list).path)
    file = read_avro(path.read_bytes())
    schema = json.loads(file.schema)
    for field in schema["fields"]:
        if field["name"] == "added_snapshot_id":
            field["type"] = ["null", "long"]
    rows = [{**row, "added_snapshot_id": None} for row in file.records]
    path.write_bytes(write_avro({**file.header, SCHEMA_KEY: json.dumps(schema)}, rows))


@pytest.mark.parametrize("operation", ["append", "overwrite"])
@pytest.mark.parametrize("limits", [Limits(), Limits(max_files=1, cuts_files=True)], ids=["all at once", "in bites"])
def test_a_manifest_list_of_v1_that_does_not_say_which_snapshot_wrote_a_manifest_hides_no_file(
    tmp_path: Path, operation: str, limits: Limits
) -> None:
    source = Source(tmp_path, "day", format_version="1")
    source.append(numbered(1))
    source.capture_and_consume()
    source.append(numbered(2, 3))
    set_operation(source, operation)
    without_snapshots_of_manifests(source)
    captured = source.capture(limits=limits)
    found = source.scan(captured.capture.icdc_table)
    while captured.capture.bite and not captured.capture.bite.is_last:
        source.consume(captured)
        captured = source.capture(limits=limits)
        found += source.scan(captured.capture.icdc_table)
    assert found == source.expected(numbered(2, 3))


def naming_types_once(schema: str) -> str:
    """A named type is defined where it occurs first, as Java writes it; PyIceberg defines it wherever it occurs."""
    seen: set[str] = set()

    def named(node: Any) -> Any:  # noqa: ANN401  # JSON
        if isinstance(node, list):
            return [named(each) for each in node]
        if not isinstance(node, dict):
            return node
        if node.get("type") == "fixed" and node["name"] in seen:
            return node["name"]
        seen.add(str(node.get("name")))
        return {key: named(value) for key, value in node.items()}

    return json.dumps(named(json.loads(schema)))


@pytest.mark.parametrize("schema", [str, naming_types_once], ids=["pyiceberg", "java"])
def test_partitions_by_two_decimals_of_one_type_are_read_and_found_by_a_filter(
    tmp_path: Path, schema: Callable[[str], str]
) -> None:
    source = Source(tmp_path, format_version="2", **MERGED)
    with source.table.update_schema() as columns:
        columns.add_column("discount", DecimalType(9, 2))
    with source.table.update_spec() as spec:
        spec.add_identity("price").add_identity("discount")
    source.append([{1: 1, 5: Decimal(2), 9: Decimal(2)}])
    source.capture_and_consume()
    source.append([{1: 2, 5: Decimal(-5), 9: Decimal(-5)}, {1: 3, 5: Decimal(1), 9: Decimal(1)}])
    rewrite_manifests(source, dict, schema)
    table = source.lake.client.load_table(source.capture().capture.icdc_table)
    snapshot = table.current_snapshot()
    assert snapshot
    for condition, numbers in (
        ("discount < 0", [2]),
        ("price < 0", [2]),
        ("discount > 0", [3]),
        ("price > -9", [2, 3]),
    ):
        may_match = manifest_evaluator(table.spec(), table.schema(), parse(condition))
        assert any(may_match(manifest) for manifest in snapshot.manifests(table.io)), condition
        if schema is str:  # PyIceberg itself reads only the manifests of PyIceberg.
            found = table.scan(row_filter=condition).to_arrow()["number"].to_pylist()
            assert sorted(found) == numbers, condition


@pytest.mark.parametrize("zeros", [(-0.0, 0.0), (0.0, -0.0)])
def test_a_filter_by_zero_finds_both_zeros_of_a_partition_column(tmp_path: Path, zeros: Sequence[float]) -> None:
    source = Source(tmp_path, "amount", format_version="2", **MERGED)
    source.append([{1: 1}])
    source.capture_and_consume()
    for number, zero in enumerate(zeros, start=2):
        source.append([{1: number, 4: zero}])
    snapshot = source.lake.client.load_table(source.capture().capture.icdc_table).current_snapshot()
    assert snapshot
    (manifest,) = snapshot.manifests(source.table.io)
    assert manifest.partitions
    (found,) = manifest.partitions
    assert (found.lower_bound, found.upper_bound) == (struct.pack("<d", -0.0), struct.pack("<d", 0.0))


def partitioned_by_uuid(schema: str) -> str:
    """A manifest's schema with a uuid as the partition's only field."""
    entry = json.loads(schema)
    file = next(field for field in entry["fields"] if field["name"] == "data_file")["type"]
    partition = next(field for field in file["fields"] if field["name"] == "partition")["type"]
    kind = {"type": "fixed", "size": 16, "name": "uuid_fixed", "logicalType": "uuid"}
    partition["fields"][0]["type"] = ["null", kind]
    return json.dumps(entry)


def test_a_filter_finds_every_uuid_whether_an_engine_orders_them_by_bytes_or_as_java_does(tmp_path: Path) -> None:
    source = Source(tmp_path, "amount", format_version="2", **MERGED)
    source.append([{1: 1}])
    source.capture_and_consume()
    values = [uuid.UUID(int=first << 120 | 0x80 << 56) for first in (0x10, 0x7F, 0x80, 0xF0)]
    for number, _ in enumerate(values):
        source.append([{1: number, 4: float(number)}])

    def as_uuid(entry: Entry) -> Entry:
        amount = entry["data_file"]["partition"]["amount"]
        value = None if amount is None else values[int(amount)].bytes
        return {**entry, "data_file": {**entry["data_file"], "partition": {"amount": value}}}

    rewrite_manifests(source, as_uuid, partitioned_by_uuid)
    snapshot = source.lake.client.load_table(source.capture().capture.icdc_table).current_snapshot()
    assert snapshot
    ends = []
    for manifest in snapshot.manifests(source.table.io):
        assert manifest.partitions
        (found,) = manifest.partitions
        assert found.lower_bound
        assert found.upper_bound
        ends.append((uuid.UUID(bytes=found.lower_bound), uuid.UUID(bytes=found.upper_bound)))
    assert sorted(ends) == [tuple(values[:2]), tuple(values[2:])]


def of_one_day(*numbers: int) -> list[Row]:
    return [{1: number, 2: dt.date(2026, 1, 1)} for number in numbers]


def delete_by_equality(source: Source, *numbers: int) -> None:
    """Delete the day's rows with these numbers as Flink does: from now on they are hidden by a file of deletes."""
    append_deletes(source, numbers, {"content": 2, "equality_ids": [1]})


def delete_by_position(source: Source, path: str) -> None:
    """Delete rows of one data file, by a file of deletes that is for it alone."""
    bounds = [{"key": 2147483546, "value": path.encode()}]
    append_deletes(source, [0], {"content": 1, "lower_bounds": bounds, "upper_bounds": bounds})


def append_deletes(source: Source, numbers: Sequence[int], changed: Entry) -> None:
    """Append the day's rows with these numbers as a file of deletes, with what is ``changed`` in its description."""
    source.append(of_one_day(*numbers))
    snapshot = source.table.current_snapshot()
    assert snapshot
    path = Path(urlsplit(snapshot.manifest_list).path)
    file = read_avro(path.read_bytes())
    for row in file.records:
        if row["added_snapshot_id"] == snapshot.snapshot_id:
            row["content"] = 1
            manifest = Path(urlsplit(row["manifest_path"]).path)
            old = read_avro(manifest.read_bytes())
            deletes = [{**e, "data_file": {**e["data_file"], **changed}} for e in old.records]
            manifest.write_bytes(write_avro({**old.header, "content": "deletes"}, deletes))
    path.write_bytes(write_avro(file.header, file.records))
    set_operation(source, "delete")


def test_deletes_by_equality_in_a_table_without_partitions_leave_files_with_other_values_unread(tmp_path: Path) -> None:
    source = Source(tmp_path, format_version="2")
    for numbers in ((1, 2, 3), (4, 5, 6), (7, 8, 9)):
        source.append(of_one_day(*numbers))
    source.capture_and_consume()
    delete_by_equality(source, 5)
    files = source.capture().files
    assert [file.record_count for file in files.changes.touched] == [3]
    table = source.lake.load(TABLE, asset="daily")
    found = change_range(files.changes, table, "number")
    assert (found.lower, found.upper) == (4, 6)
    assert len(files.deletes) == 1


@pytest.mark.parametrize("is_by_position", [False, True], ids=["by equality", "by position"])
@pytest.mark.parametrize("is_removed", [False, True], ids=["listed again", "listed once less"])
def test_a_file_that_is_listed_twice_at_one_end_is_compared_as_a_whole_if_rows_are_deleted_from_it(
    tmp_path: Path, *, is_removed: bool, is_by_position: bool
) -> None:
    """As after ``add_files`` without a check for duplicates. Its path doesn't tell the two apart."""
    source = Source(tmp_path, "day", format_version="2")
    source.append(of_one_day(1, 2, 3))
    (first,) = source.capture_and_consume().files.changes.added
    source.append(of_one_day(1, 2, 3))
    same = {"file_path": first.path, "file_size_in_bytes": first.file_size_bytes}
    rewrite_manifests(source, lambda entry: {**entry, "data_file": {**entry["data_file"], **same}})
    if is_removed:
        source.capture_and_consume()
        remove_last_append(source)
    if is_by_position:
        delete_by_position(source, first.path)
    else:
        delete_by_equality(source, 2)
    files = source.capture().files
    assert not files.hidden
    assert (len(files.before.data), len(files.rewritten)) == ((2, 1) if is_removed else (1, 2))
    assert {entry.path for entry in (*files.before.data, *files.rewritten)} == {first.path}


def remove_last_append(source: Source) -> None:
    """Remove what the last append added, and only that."""
    added = source.table.current_snapshot()
    source.append([])
    snapshot = source.table.current_snapshot()
    assert added
    assert snapshot
    path = Path(urlsplit(snapshot.manifest_list).path)
    file = read_avro(path.read_bytes())
    path.write_bytes(write_avro(file.header, [r for r in file.records if r["added_snapshot_id"] != added.snapshot_id]))
    set_operation(source, "delete")


def compact_into_another_spec(source: Source) -> None:
    with source.table.update_spec() as spec:
        spec.add_identity("number")
    compact(source, source.rows[:3])


def compact(source: Source, rows: Sequence[Row]) -> None:
    """Rewrite all data files into one with ``rows``, as planned after the first append: they keep its number."""
    source.append(rows)
    snapshot = source.table.current_snapshot()
    assert snapshot
    path = Path(urlsplit(snapshot.manifest_list).path)
    file = read_avro(path.read_bytes())
    for row in file.records:
        if row["content"] == 1:
            continue
        old = Path(urlsplit(row["manifest_path"]).path)
        manifest = read_avro(old.read_bytes())
        is_own = row["added_snapshot_id"] == snapshot.snapshot_id
        status, number = (Status.ADDED, 1) if is_own else (Status.DELETED, row["sequence_number"])
        changed = {"status": status.value, "snapshot_id": snapshot.snapshot_id, "sequence_number": number}
        changed["file_sequence_number"] = row["sequence_number"]
        entries = [{**e, **changed} for e in manifest.records]
        new = old.with_name(f"of-{snapshot.snapshot_id}-{old.name}")
        new.write_bytes(write_avro(manifest.header, entries))
        counts = {"added_files_count": len(entries) * is_own, "deleted_files_count": len(entries) * (not is_own)}
        written = {"added_snapshot_id": snapshot.snapshot_id, "sequence_number": snapshot.sequence_number}
        written["existing_files_count"] = 0
        row.update(counts | written | {"manifest_path": f"file://{new}"})
    path.write_bytes(write_avro(file.header, file.records))
    set_operation(source, "replace")


def test_a_compaction_into_another_spec_during_a_delete_by_equality_is_compared_row_by_row(tmp_path: Path) -> None:
    """The delete applies to the old files only, so its rows exist again."""
    source = Source(tmp_path, "day", format_version="2")
    source.append(of_one_day(1, 2, 3))
    delete_by_equality(source, 2)
    source.capture_and_consume()
    compact_into_another_spec(source)
    files = source.capture().files
    assert not files.changes.is_empty
    assert len(files.before.deletes) == 1
    assert files.rewritten
    assert not files.deletes
    head = source.table.current_snapshot()
    assert head
    expire(source, before=head)
    with pytest.raises(SourceExpiredError):
        source.capture()


def test_a_compaction_into_another_spec_adds_no_row_if_nothing_was_deleted(tmp_path: Path) -> None:
    source = Source(tmp_path, "day", format_version="2")
    source.append(of_one_day(1, 2, 3))
    source.append([])
    source.capture_and_consume()
    compact_into_another_spec(source)
    assert source.capture().files.changes.is_empty


def test_a_compaction_that_finds_only_deleted_rows_in_several_specs_removes_none_if_the_start_has_expired(
    tmp_path: Path,
) -> None:
    source = Source(tmp_path, "day", format_version="2")
    source.append(of_one_day(1))
    delete_by_equality(source, 1)
    with source.table.update_spec() as spec:
        spec.add_identity("number")
    source.append(of_one_day(2))
    delete_by_equality(source, 2)
    source.capture_and_consume()
    compact(source, [])
    compaction = source.table.current_snapshot()
    assert compaction
    expire(source, before=compaction)
    assert source.capture().files.changes.is_empty


def newest_file(source: Source) -> DataFile:
    head = source.table.current_snapshot()
    assert head
    io = source.table.io
    entries = [entry for manifest in head.manifests(io) for entry in manifest.fetch_manifest_entry(io)]
    return next(entry.data_file for entry in entries if entry.snapshot_id == head.snapshot_id)


def add_again(source: Source, file: DataFile) -> None:
    """As ``add_files`` does once a compaction has removed the file, so that it isn't a duplicate any more."""
    with source.table.transaction() as transaction, transaction._append_snapshot_producer({}) as producer:
        producer.append_data_file(file)


def test_a_file_that_is_added_again_after_it_was_compacted_is_new_once_if_the_start_has_expired(
    tmp_path: Path,
) -> None:
    source = Source(tmp_path, "day", format_version="2")
    source.append(of_one_day(1, 2, 3))
    file = newest_file(source)
    source.append([])
    source.capture_and_consume()
    compact(source, source.rows)
    compaction = source.table.current_snapshot()
    assert compaction
    add_again(source, file)
    expire(source, before=compaction)
    captured = source.capture()
    assert source.scan(captured.capture.icdc_table) == source.expected(of_one_day(1, 2, 3))


def test_a_new_file_that_is_compacted_and_added_again_is_new_twice(tmp_path: Path) -> None:
    source = Source(tmp_path, "day", format_version="2")
    source.append(of_one_day(1, 2))
    source.capture_and_consume()
    source.append(of_one_day(3))
    file = newest_file(source)
    compact(source, source.rows)
    add_again(source, file)
    table = source.capture().capture.icdc_table
    before, after = (source.scan(table, tag=tag) for tag in ("before", "after"))
    assert before == source.expected(of_one_day(1, 2))
    assert after == source.expected(of_one_day(1, 2, 3, 3))


def test_rows_of_a_new_file_that_is_compacted_and_added_again_are_unknown_if_the_start_has_expired(
    tmp_path: Path,
) -> None:
    """Which rows of the other files were deleted before is unknown, so they can't be compared."""
    source = Source(tmp_path, "day", format_version="2")
    source.append(of_one_day(1, 2))
    source.capture_and_consume()
    source.append(of_one_day(3))
    child = source.table.current_snapshot()
    assert child
    file = newest_file(source)
    compact(source, source.rows)
    add_again(source, file)
    expire(source, before=child)
    with pytest.raises(SourceExpiredError):
        source.capture()


def in_another_shape(schema: str) -> str:
    """``schema`` with other names for what has an id, in the opposite order, and unions with null for what is required.

    As in Sail (0.7.2), also the partition is one.
    """

    def changed(node: Any) -> Any:  # noqa: ANN401  # JSON
        if isinstance(node, list):
            return [changed(each) for each in node]
        if not isinstance(node, dict):
            return node
        found = {key: changed(value) for key, value in node.items()}
        fields = found.get("fields", [])
        if {field.get("field-id") for field in fields} & {0, 100}:
            for field in fields:
                field["name"] = f"f{field['field-id']}"
                if not isinstance(field["type"], list):
                    field["type"] = ["null", field["type"]]
            fields.reverse()
        return found

    return json.dumps(changed(json.loads(schema)))


def as_others_shape_it(entry: Entry) -> Entry:
    ids = {"status": 0, "snapshot_id": 1, "data_file": 2, "sequence_number": 3, "file_sequence_number": 4}
    file = {f"f{number}": entry["data_file"].get(name) for number, name in FILE_NAMES.items()}
    return {f"f{number}": entry.get(name) for name, number in ids.items()} | {"f2": file}


FILE_NAMES = {field.field_id: field.name for field in DATA_FILE_TYPE[3].fields}


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("spec", ["none", "day", "price"])
def test_manifests_are_read_whatever_shape_avro_gives_their_fields(tmp_path: Path, spec: str, version: str) -> None:
    source = Source(tmp_path, spec, format_version=version, **MERGED)
    rows = [{**row, 5: Decimal(f"{row[1]}.25")} for row in numbered(1, 2, 3, 4)]
    source.append(rows[:2])
    source.capture_and_consume()
    source.append(rows[2:3])
    source.append(rows[3:])
    rewrite_manifests(source, as_others_shape_it, in_another_shape)
    found = source.capture()
    assert found.files.rewritten == ()
    icdc_table = found.capture.icdc_table
    assert source.scan(icdc_table) == source.scan_with_duckdb(icdc_table) == source.expected(rows[2:])


@pytest.mark.parametrize("name", ["file_path", "partition", "data_file"])
def test_a_manifest_that_lacks_what_is_required_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    source.capture_and_consume()
    source.append(numbered(2))
    rewrite_manifests(source, without_value(name), without_required(name))
    with pytest.raises(MetadataUnreadableError, match=rf"media\.playback: .*\.avro can't be read .*lacks {name}"):
        source.capture()


def without_value(name: str) -> Callable[[Entry], Entry]:
    def of(entry: Entry) -> Entry:
        file = {key: value for key, value in entry["data_file"].items() if key != name}
        return {key: value for key, value in {**entry, "data_file": file}.items() if key != name}

    return of


def without_required(name: str) -> Callable[[str], str]:
    def of(schema: str) -> str:
        entry = json.loads(schema)
        for record in (entry, next(each for each in entry["fields"] if each["name"] == "data_file")["type"]):
            record["fields"] = [field for field in record["fields"] if field["name"] != name]
        return json.dumps(entry)

    return of
