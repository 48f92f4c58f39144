"""Frames that don't fit their write mode are refused by what is known of them, before Spark runs anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dagster_ips.core.capture import Mode
from dagster_ips.core.lineage import Lineage
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.write_mode import Merge
from dagster_ips.errors import UnfitFrameError
from dagster_ips.exactly_once.publish.frame_fitness import require_fit, require_known
from dagster_ips.exactly_once.publish.input_change import Frame, InputChange, TakenFrame
from dagster_ips.exactly_once.publish.provenance import Provenance

FRAME: Any = None  # a merge's frame isn't looked at


def change(*taken: TakenFrame, upstream: str = "plays", may_remove_rows: bool = True) -> InputChange:
    return InputChange(
        upstream=upstream,
        columns=("id", "day"),
        taken=taken,
        is_empty=False,
        may_remove_rows=may_remove_rows,
        ignores_removed=False,
        make_net=_unasked,
        make_source=_unasked,
        partitions=None,
        pruning=lambda _: Predicate("TRUE"),
        table=f"lake.media.{upstream}",
    )


def _unasked() -> Any:  # noqa: ANN401  # a frame
    raise AssertionError


def require_merge(on: Sequence[str], made_of: InputChange) -> None:
    require_fit(FRAME, Merge(tuple(on)), [made_of], table="media.out", partition_columns=())


def test_a_merge_of_whole_partitions_deletes_the_keys_that_they_lost() -> None:
    scope = TakenFrame(Frame.SCOPE, "__ips_1", ("day",))
    require_merge(["day", "id"], change(scope))
    assert change(scope).groups == [scope]


@pytest.mark.parametrize("columns", [(), ("day",)], ids=["unknown partitions", "partitions of other columns"])
def test_a_merge_of_partitions_that_do_not_say_which_keys_were_lost_is_refused(columns: tuple[str, ...]) -> None:
    with pytest.raises(UnfitFrameError, match="part of the merge key"):
        require_merge(["id"], change(TakenFrame(Frame.SCOPE, "__ips_1", columns)))


def test_a_row_removed_from_one_input_is_not_looked_for_by_a_key_that_is_computed_for_another() -> None:
    """By the same key, the target may have a row of the other input, which stays."""
    plays, extra = TakenFrame(Frame.ADDED, "__ips_1"), TakenFrame(Frame.ADDED, "__ips_2")
    inputs = [change(plays), change(extra, upstream="extra", may_remove_rows=False)]
    marks = frozenset([plays.mark, extra.mark])
    united = Lineage(marks, marks, {"id": frozenset([(plays.mark, "id")])}, (), frozenset())
    made = Provenance(inputs, lineage=united)
    with pytest.raises(UnfitFrameError, match="column 'id' of the result isn't extra's own column"):
        require_known(made, Merge(("id",)), Mode.INCREMENTAL, table="media.out")
    nothing_lost = [replace(each, may_remove_rows=False) for each in inputs]
    require_known(replace(made, inputs=nothing_lost), Merge(("id",)), Mode.INCREMENTAL, table="media.out")
