"""Lives that random ones led to, as small as they got: each once showed a wrong row or an error."""

from __future__ import annotations

import pytest

from tests.histories.composed.life import PENDING, Life, Step
from tests.histories.composed.runs import Assets
from tests.histories.table import Shape


def test_rows_that_were_only_written_again_are_no_removed_ones_to_a_merge_of_the_latest(assets: Assets) -> None:
    life = Life(assets, ("latest",))
    life.change(table="fact", operation="append_by_spark", rows=(0, 5))
    life.run(asset="latest")
    life.change(table="fact", operation="update_to_the_same", where=("number", 0), mode="copy-on-write")
    life.run(asset="latest")
    assert life.coverage.ends == {("latest", "full"): 1, ("latest", "incremental"): 1}


def test_partitions_that_hold_rows_are_pending_once_their_upstream_was_created_again_without_any(
    assets: Assets,
) -> None:
    life = Life(assets, ("by_title",))
    life.change(table="fact", operation="append_by_spark", rows=(0, 5))
    life.run(asset="by_title", keys=("a", "b/ c='é'"), by="Dagster")
    life.change(table="fact", operation="drop_and_create_again")
    life.catch_up()


@pytest.mark.parametrize("expires", [False, True])
def test_rows_that_came_and_went_after_a_backup_that_is_restored_leave_their_partition(
    assets: Assets, *, expires: bool
) -> None:
    """The sensor looked before the backup, and sees nothing of them: only the table itself says what it holds."""
    life = Life(assets, ("by_title",))
    life.change(table="fact", operation="append_by_spark", rows=(21,))
    life.take(Step.of("run", asset="by_title", keys=PENDING))
    life.backup()
    life.change(table="fact", operation="append_by_spark", rows=(18,))
    life.run(asset="by_title", full=True)
    life.change(table="fact", operation="delete_copy_on_write", where=("amount", 18))
    if expires:
        life.target(asset="by_title", what="compact")
        life.target(asset="by_title", what="expire")
    life.restore()
    life.catch_up()
    assert life.followers["by_title"].parts == {"a": {}, "b/ c='é'": {}}


@pytest.mark.parametrize(("by_person", "expires"), [(False, False), (True, False), (False, True), (True, True)])
def test_rows_that_came_and_went_between_two_looks_leave_what_was_computed_between_them(
    assets: Assets, *, by_person: bool, expires: bool
) -> None:
    life = Life(assets, ("by_title",))
    life.change(table="fact", operation="append_by_spark", rows=(21,))
    life.take(Step.of("run", asset="by_title", keys=PENDING))
    life.change(table="fact", operation="append_by_spark", rows=(18,))
    life.run(asset="by_title", full=True)
    life.change(table="fact", operation="delete_copy_on_write", where=("amount", 18))
    if expires:
        life.target(asset="by_title", what="compact")
        life.target(asset="by_title", what="expire")
    if by_person:
        life.run(asset="by_title", keys=("b/ c='é'",))
    life.catch_up()
    assert life.followers["by_title"].parts == {"a": {}, "b/ c='é'": {}}


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("expires", [False, True])
def test_rows_that_a_partition_read_before_the_sensor_looked_are_given_up_with_their_snapshot(
    assets: Assets, *, version: int, goes_on: bool, expires: bool
) -> None:
    """A rollback takes away what only the partition's own run has seen."""
    shape = Shape(version=version, partitioned_by=("days(day)",), merging=False, variant=False)
    life = Life(assets, ("by_written",), {"fact": shape})
    life.change(table="fact", operation="append_by_spark", rows=(7, 9))
    life.take(Step.of("run", asset="by_written", keys=PENDING))
    life.change(table="fact", operation="append_by_spark", rows=(9, 0, 15))
    life.run(asset="by_written", keys=("2026-01-01",))
    life.change(table="fact", operation="roll_back", back=2)
    if expires:
        life.target(asset="by_written", what="compact")
        life.target(asset="by_written", what="expire")
    if goes_on:
        life.change(table="fact", operation="append_by_spark", rows=(9,))
    life.catch_up()


def test_a_group_that_lost_its_greatest_value_in_one_input_keeps_the_rows_of_another_that_did_not_change(
    assets: Assets,
) -> None:
    life = Life(assets, ("summed",))
    life.change(table="fact", operation="append_by_spark", rows=(13,))
    life.change(table="other", operation="append_by_spark", rows=(13,))
    life.run(asset="summed")
    life.change(table="fact", operation="delete_everything")
    life.run(asset="summed")
    assert life.coverage.ends == {("summed", "full"): 1, ("summed", "incremental"): 1}


def test_names_are_swapped_while_runs_sleep_and_whoever_made_rows_by_them_before_is_refused_until_all_is_made_anew(
    assets: Assets,
) -> None:
    life = Life(assets, ("united", "looked_up", "per_genre"))
    for table in ("fact", "other", "dimension"):
        life.change(table=table, operation="append_by_spark", rows=(0, 1, 4))
    life.catch_up()
    life.change(table="fact", operation="append_by_spark", rows=(5, 6))
    for slot, asset in zip("abc", life.names, strict=True):
        life.begin(asset=asset, slot=slot)
    life.change(table="dimension", operation="swap_names", one="title", other="_change_type")
    life.target(asset="united", what="swap names")
    life.change(table="fact", operation="rename_column", role="ratio")
    for slot in "abc":
        life.end(slot=slot)
    life.change(table="fact", operation="append_by_spark", rows=(7,))
    for asset in life.names:
        life.run(asset=asset, mended=True)
    ends = life.coverage.ends
    assert (ends["united", "TargetColumnsChangedError"], ends["united", "full"]) == (2, 2)
    assert (ends["per_genre", "SourceColumnsChangedError"], ends["per_genre", "full"]) == (1, 2)
    assert (ends["looked_up", "incremental"], ends["looked_up", "full"]) == (2, 1)
    life.change(table="fact", operation="append_by_spark", rows=(8,))
    life.catch_up()


def test_what_was_accepted_without_anything_to_publish_is_asked_for_again_after_a_restored_backup(
    assets: Assets,
) -> None:
    life = Life(assets, ("united",))
    for table in ("fact", "other"):
        life.change(table=table, operation="append_by_spark", rows=(0, 1))
    life.run(asset="united")
    life.backup()
    life.target(asset="united", what="foreign delete")
    life.change(table="fact", operation="append_no_row")
    life.accept(asset="united")
    life.restore()
    life.catch_up()
    assert life.coverage.ends["united", "ForeignWriteError"] == 1
