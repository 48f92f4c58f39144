"""Lives that random ones led to, as small as they got: each once showed a wrong row or an error."""

from __future__ import annotations

from tests.histories.composed.life import Life
from tests.histories.composed.runs import Assets


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
