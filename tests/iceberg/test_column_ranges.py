"""Ranges told from partition values and column bounds, in the cases where those mislead."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import pytest

from dagster_ips.core.changes import ChangeSet, DataFile
from dagster_ips.core.ranges import ChangeRange, RangeKind
from dagster_ips.errors import UnknownColumnError
from dagster_ips.iceberg.column_ranges import change_range, partition_values
from tests.iceberg.sources import TABLE, Source, numbered

JANUARY_3, JANUARY_5 = dt.date(2026, 1, 3), dt.date(2026, 1, 5)


def test_a_partition_columns_range_is_exact(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(2, 4))
    found = source.capture("day").ranges["day"]
    assert found == ChangeRange("day", RangeKind.EXACT, JANUARY_3, JANUARY_5)


def test_any_other_columns_range_is_bounded(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(2, 4))
    found = source.capture("day").ranges["day"]
    assert found == ChangeRange("day", RangeKind.BOUNDED, JANUARY_3, JANUARY_5)


def test_only_changed_files_count(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append(numbered(2, 4))
    source.capture_and_consume()
    source.append(numbered(3))
    found = source.capture("day", "number").ranges
    assert (found["day"].lower, found["day"].upper) == (dt.date(2026, 1, 4),) * 2
    assert (found["number"].lower, found["number"].upper) == (3, 3)


@pytest.mark.parametrize("amounts", [(math.nan, 1.0), (1.0, math.nan)])
def test_a_partition_of_nan_opens_the_range_in_whatever_order_files_stand(
    tmp_path: Path, amounts: tuple[float, float]
) -> None:
    metadata = Source(tmp_path, "amount").lake.load(TABLE, asset="daily")
    # Described by hand, as PyIceberg writes no such partition; Spark does.
    changes = ChangeSet(tuple(DataFile("a.parquet", 0, 1, 1, {"amount": amount}) for amount in amounts))
    found = change_range(changes, metadata, "amount")
    assert found.since("amount") == found.between("amount") == "TRUE"
    assert partition_values(changes, metadata, "amount") is None


def test_a_partition_field_that_a_file_does_not_name_is_unknown_and_not_null(tmp_path: Path) -> None:
    metadata = Source(tmp_path, "day").lake.load(TABLE, asset="daily")
    changes = ChangeSet((DataFile("a.parquet", 0, 1, 1, {"another spelling": 20455}),))
    assert change_range(changes, metadata, "day").between("day") == "TRUE"
    assert partition_values(changes, metadata, "day") is None


def test_a_partition_name_that_avro_cannot_spell_is_still_read(tmp_path: Path) -> None:
    source = Source(tmp_path, "title")
    source.append([{3: "b"}, {3: "a"}])
    assert source.capture("the title").ranges["the title"] == ChangeRange("the title", RangeKind.EXACT, "a", "b")


def test_a_truncated_upper_bound_still_holds_the_value(tmp_path: Path) -> None:
    source = Source(tmp_path)
    long = "x" * 40
    source.append([{3: long}])
    found = source.capture("the title").ranges["the title"]
    assert found.kind is RangeKind.BOUNDED
    assert str(found.lower) < long < str(found.upper)


def test_a_column_without_statistics_is_unbounded(tmp_path: Path) -> None:
    source = Source(tmp_path)
    with source.table.transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    source.append(numbered(1))
    found = source.capture("number").ranges["number"]
    assert found.kind is RangeKind.UNBOUNDED
    assert found.between("number") == "TRUE"


def test_partition_values_tell_nulls_from_values(tmp_path: Path) -> None:
    source = Source(tmp_path, "day")
    source.append([{1: 1}, {1: 2, 2: JANUARY_3}])
    captured = source.capture("day")
    assert partition_values(captured.files.changes, captured.source, "day") == {None, JANUARY_3}
    assert partition_values(captured.files.changes, captured.source, "number") is None


def test_an_empty_change_has_an_empty_range(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    source.capture_and_consume()
    assert source.capture("number").ranges["number"].is_empty


def test_a_range_over_an_unknown_column_is_refused_before_anything_is_captured(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.append(numbered(1))
    with pytest.raises(UnknownColumnError, match=rf"{TABLE} has no column 'nowhere'; it has number, day"):
        source.capture("nowhere")
    assert source.state.in_flight is None
