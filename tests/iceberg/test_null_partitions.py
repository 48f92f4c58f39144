"""Which columns' conditions are kept from Iceberg follows from metadata alone, and what is unknown is kept from it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_ips.core.misread_columns import MisreadColumns
from dagster_ips.iceberg import null_partitions
from dagster_ips.iceberg.null_partitions import misread_at, misread_in
from tests.iceberg.sources import TABLE, Source

FLOAT = ("amount",)
DAY = dt.date(2026, 1, 1)


def misread(source: Source, *, by_files: bool = False, storage: bool = True) -> MisreadColumns:
    table = source.lake.load(TABLE, asset="test")
    if by_files:
        return misread_in(table, source.capture().files.changes.touched)
    return misread_at(source.lake.storage if storage else None, table, table.ancestry().head)


@pytest.mark.parametrize("by_files", [False, True])
@pytest.mark.parametrize("case", [("day", 2, DAY, "date"), ("title", 3, "a", "string")])
def test_a_column_is_read_apart_once_a_partition_has_null(
    tmp_path: Path, case: tuple[str, int, object, str], *, by_files: bool
) -> None:
    spec, field, value, kind = case
    source = Source(tmp_path, spec)
    source.append([{1: 1, field: value}])
    assert not misread(source, by_files=by_files).null_in_partitions
    source.append([{1: 2, field: None}])
    (name,) = [each.name for each in source.fields if each.field_id == field]
    assert misread(source, by_files=by_files).null_in_partitions == {(name,): kind}


def test_floats_are_hidden_and_not_read_apart(tmp_path: Path) -> None:
    source = Source(tmp_path, "amount")
    source.append([{1: 1, 4: 1.0}, {1: 2, 4: None}])
    found = misread(source)
    assert (set(found.hidden), found.null_in_partitions) == ({FLOAT}, {})


def test_a_partition_about_which_nothing_is_known_may_have_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(tmp_path, "day")
    source.append([{1: 1, 2: DAY}])
    assert misread(source, storage=False).null_in_partitions == {("day",): "date"}
    read = null_partitions.read_live_manifests

    def without_summaries(*args: Any, **named: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # passed on
        return [{**row, "partitions": None} for row in read(*args, **named)]

    monkeypatch.setattr(null_partitions, "read_live_manifests", without_summaries)
    assert misread(source).null_in_partitions == {("day",): "date"}
    Path(source.table.current_snapshot().manifest_list.removeprefix("file://")).unlink()  # type: ignore[union-attr]  # it has one
    assert misread(source).null_in_partitions == {("day",): "date"}


def test_of_a_table_without_partitions_no_manifest_list_is_read(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append([{1: 1, 2: None}])
    table = source.lake.load(TABLE, asset="test")
    Path(source.table.current_snapshot().manifest_list.removeprefix("file://")).unlink()  # type: ignore[union-attr]  # it has one
    assert not misread_at(source.lake.storage, table, table.ancestry().head).null_in_partitions


def test_a_text_of_which_a_bound_is_cut_inside_a_character_is_hidden(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append([{1: 1, 3: "\u00e9\u00e9"}])
    table = source.lake.load(TABLE, asset="test")
    (file,) = source.capture().files.changes.touched
    (title,) = [number for number, path in table.texts.items() if path == ("the title",)]
    whole = file.upper_bounds[title]
    assert not misread_in(table, [file]).hidden.keys() & {("the title",)}
    cut = replace(file, upper_bounds={**file.upper_bounds, title: whole[:-1]})
    assert ("the title",) in misread_in(table, [file, cut]).hidden
    also = misread_at(source.lake.storage, table, table.ancestry().head).hiding_also({("the title",): "x"})
    assert ("the title",) in also.hidden
