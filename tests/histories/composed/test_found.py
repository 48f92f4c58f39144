"""Lives found by random ones and reduced as far as possible: each of them once showed a wrong row or an error."""

from __future__ import annotations

import pytest

from tests.histories.composed.life import PENDING, Life, Step
from tests.histories.composed.runs import Assets
from tests.histories.table import Shape
from tests.support.variants import mostly_slow


def test_rewritten_but_unchanged_rows_do_not_count_as_removed_for_merge_with_latest_by(assets: Assets) -> None:
    life = Life(assets, ("latest",))
    life.change(table="fact", operation="append_by_spark", rows=(0, 5))
    life.run(asset="latest")
    life.change(table="fact", operation="update_to_the_same", where=("number", 0), mode="copy-on-write")
    life.run(asset="latest")
    assert life.coverage.ends == {("latest", "full"): 1, ("latest", "incremental"): 1}


def test_partitions_with_rows_become_pending_when_their_upstream_is_recreated_empty(assets: Assets) -> None:
    life = Life(assets, ("by_title",))
    life.change(table="fact", operation="append_by_spark", rows=(0, 5))
    life.run(asset="by_title", keys=("a", "b/ c='é'"), by="Dagster")
    life.change(table="fact", operation="drop_and_create_again")
    life.catch_up()


@pytest.mark.parametrize("expires", mostly_slow([False, True]))
def test_rows_that_came_and_went_since_a_restored_backup_are_removed_from_their_partition(
    assets: Assets, *, expires: bool
) -> None:
    """The sensor looked before the backup and knows nothing of the rows: only the table itself shows what it holds."""
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


@pytest.mark.slow
@pytest.mark.parametrize(("by_person", "expires"), [(False, False), (True, False), (False, True), (True, True)])
def test_rows_that_came_and_went_between_two_sensor_looks_are_removed_from_partitions_computed_between(
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


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("expires", [False, True])
def test_rows_that_a_partition_read_before_the_sensor_looked_are_removed_after_a_rollback(
    assets: Assets, *, version: int, goes_on: bool, expires: bool
) -> None:
    """A rollback removes rows that only the partition's own run has seen."""
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


def test_a_group_that_lost_its_maximum_in_one_input_keeps_the_rows_of_an_unchanged_input(assets: Assets) -> None:
    life = Life(assets, ("summed",))
    life.change(table="fact", operation="append_by_spark", rows=(13,))
    life.change(table="other", operation="append_by_spark", rows=(13,))
    life.run(asset="summed")
    life.change(table="fact", operation="delete_everything")
    life.run(asset="summed")
    assert life.coverage.ends == {("summed", "full"): 1, ("summed", "incremental"): 1}


@pytest.mark.slow
def test_after_a_swap_of_column_names_assets_with_rows_by_the_old_names_are_refused_until_a_full_run(
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


def test_an_acceptance_by_a_run_that_had_nothing_to_write_outlasts_the_cursors(assets: Assets) -> None:
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
    assert life.coverage.ends["united", "ForeignWriteError"] == 0


@pytest.mark.parametrize("asset", mostly_slow(["grouped", "counted"], quick=1))
def test_a_table_that_was_rolled_back_to_the_middle_of_a_publication_is_refused_until_a_full_run(
    assets: Assets, asset: str
) -> None:
    """Each of these runs makes several commits."""
    life = Life(assets, (asset,))
    for rows in ((0,), (0, 5)):
        life.change(table="fact", operation="append_by_spark", rows=rows)
        life.change(table="other", operation="append_by_spark", rows=rows)
        life.run(asset=asset)
    life.target(asset=asset, what="roll back")
    assert life.followers[asset].parts is None
    life.run(asset=asset, mended=True)
    assert life.coverage.ends[asset, "TargetChangedError"] == 1
