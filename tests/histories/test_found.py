"""Histories found by random ones and reduced as far as possible: each of them once showed a wrong row or an error."""

from __future__ import annotations

import pytest

from dagster_ips.core.capture import Mode
from tests.histories.history import History, quicken
from tests.histories.table import Shape
from tests.support.lake import Lake


@pytest.fixture(autouse=True)
def _quick(lake: Lake) -> None:
    quicken(lake)


def test_a_table_with_a_variant_column_which_pyiceberg_cannot_load_is_captured(lake: Lake) -> None:
    history = History(lake, Shape(version=3, variant=True))
    history.do("append_by_spark", rows=(13,))
    history.capture_by_all()
    history.do("update_merge_on_read", where=("number", 13), to=("title", 0))
    assert history.capture("strict") is Mode.INCREMENTAL


def test_keys_of_a_string_partition_are_found_although_another_partition_is_null(lake: Lake) -> None:
    """Iceberg fails on ``IN`` with a null partition."""
    history = History(lake, Shape(version=1, partitioned_by=("title",)))
    history.do("append_by_spark", rows=(13,))
    history.capture_by_all()
    history.do("append_by_spark", rows=(17,))
    history.do("append_by_pyiceberg", rows=(23,))
    assert history.capture("restarting") is Mode.INCREMENTAL


def test_a_column_added_since_the_last_snapshot_is_in_every_frame(lake: Lake) -> None:
    history = History(lake)
    history.do("append_by_spark", rows=(17,))
    history.do("add_column", kind="string")
    assert history.capture("restarting") is Mode.FULL


def test_a_delete_manifest_without_partition_summaries_can_be_filtered(lake: Lake) -> None:
    history = History(lake, Shape(partitioned_by=("day",)))
    history.do("append_by_spark", rows=(14,))
    history.capture_by_all()
    history.do("delete_by_equality", where=("day", 2), file=4)
    history.do("drop_nested_field")
    assert history.capture("continuing") is Mode.INCREMENTAL


@pytest.mark.slow
def test_a_row_deleted_between_two_compactions_is_a_removed_row(lake: Lake) -> None:
    history = History(lake)
    history.do("append_by_spark", rows=(0, 6))
    history.capture("strict")
    history.do("compact_sorted")
    history.do("delete_merge_on_read_by_partition", where=("day", 0))
    history.do("compact_what_has_deletes")
    assert history.capture("strict") is Mode.INCREMENTAL


def test_a_new_file_with_rows_that_were_deleted_again_has_no_exact_range(lake: Lake) -> None:
    history = History(lake, Shape(version=3, partitioned_by=("title",)))
    history.do("append_by_spark", rows=(1,))
    history.capture("restarting")
    history.do("merge_copy_on_write", rows=(7,), on="day")
    history.do("merge_merge_on_read", rows=(6, 17), on="day")
    assert history.capture("restarting") is Mode.INCREMENTAL


def test_a_compaction_can_be_followed_although_its_consumed_parent_is_expired(lake: Lake) -> None:
    """The table looks like this after nightly maintenance."""
    history = History(lake, Shape(partitioned_by=("day",)))
    history.do("append_by_spark", rows=(0, 1, 5, 9))
    history.do("delete_merge_on_read", where=("number", 1))
    history.capture_by_all()
    history.do("append_by_spark", rows=(2, 6))
    history.do("compact_everything")
    history.do("expire_what_is_consumed")
    history.do("expire_a_watermark", consumer=0)
    history.do("append_by_spark", rows=(3,))
    assert history.capture("strict") is Mode.INCREMENTAL


def test_a_row_whose_deletion_is_rolled_back_is_a_changed_row(lake: Lake) -> None:
    history = History(lake)
    history.do("append_by_spark", rows=(0, 1, 2))
    history.do("delete_merge_on_read", where=("number", 1))
    history.capture("continuing")
    history.do("roll_back", back=1)
    assert history.capture("continuing") is Mode.INCREMENTAL


def test_a_partition_by_month_is_found_in_files_that_were_partitioned_by_day(lake: Lake) -> None:
    """Iceberg compares the month with the day in these files."""
    history = History(lake, Shape(partitioned_by=("day", "months(day)")))
    history.do("append_by_spark", rows=(1, 5))
    history.do("drop_partition_field")
    history.capture("continuing")
    history.do("append_by_spark", rows=(2,))
    assert history.capture("continuing") is Mode.INCREMENTAL


def test_deletes_in_a_decimal_partition_that_was_widened_are_found(lake: Lake) -> None:
    history = History(lake, Shape(partitioned_by=("price",)))
    for _ in range(2):
        history.do("append_by_spark", rows=(0, 6, 1))
    history.capture_by_all()
    history.do("widen_column", role="price")
    history.do("delete_merge_on_read_by_partition", where=("number", 0))
    assert history.capture("strict") is Mode.INCREMENTAL


@pytest.mark.slow
def test_an_equality_delete_in_a_spec_with_only_void_fields_is_global(lake: Lake) -> None:
    history = History(lake, Shape(version=1, partitioned_by=("day",)))
    history.do("append_by_spark", rows=(0, 5))
    history.do("drop_partition_field")
    history.do("upgrade_to_v2")
    history.do("append_by_spark", rows=(9,))
    history.capture_by_all()
    history.do("delete_by_equality", where=("number", 0), file=0)
    history.capture("strict")
    history.do("delete_by_equality", where=("number", 1), file=2)
    assert history.capture("strict") is Mode.INCREMENTAL


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "merge_groups", "replace"])
def test_a_name_that_now_means_another_column_requires_a_full_run(lake: Lake, kind: str) -> None:
    """Unchanged rows have other values under the name, and no snapshot shows that."""
    history = History(lake)
    history.write("strict", kind)
    history.do("append_by_spark", rows=(0, 1))
    history.capture("strict")
    history.do("drop_and_add_again", role="title")
    assert history.capture("strict") is None
    assert history.capture("strict", full=True) is Mode.FULL
    history.do("append_by_spark", rows=(9,))
    assert history.capture("strict") is Mode.INCREMENTAL


@pytest.mark.slow
def test_a_merged_table_of_format_version_1_is_updated(lake: Lake) -> None:
    """Format version 1 has no place for deletes beside its files."""
    history = History(lake, Shape(version=1))
    history.write("strict", "merge_groups")
    history.do("append_by_spark", rows=(0,))
    history.capture("strict")
    history.do("append_by_spark", rows=(0,))
    assert history.capture("strict") is Mode.INCREMENTAL


@pytest.mark.slow
def test_a_file_with_only_nan_is_not_excluded_by_a_lower_bound(lake: Lake) -> None:
    """For Iceberg, no NaN is greater than or equal to a number; for Spark, every NaN is."""
    history = History(lake, Shape(version=3, partitioned_by=(), merging=False, variant=False))
    history.write("restarting", "merge_by_floats")
    history.do("append_by_spark", rows=(21,))
    history.capture_by_all()
    history.do("append_by_spark", rows=(6, 0))
    assert history.capture("restarting") is Mode.INCREMENTAL


def test_rows_that_were_deleted_before_are_not_removed_again_by_later_deletes_of_the_same_file(lake: Lake) -> None:
    history = History(lake, Shape(version=3, partitioned_by=()))
    history.do("append_by_spark", rows=(17, 20))
    history.do("merge_deleting", on="title", rows=(12,), mode="merge-on-read")
    history.capture("strict")
    history.do("delete_by_equality_everywhere", where=("title", 18))
    assert history.capture("strict") is Mode.INCREMENTAL
