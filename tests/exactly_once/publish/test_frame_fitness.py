"""Frames that don't fit their write mode are refused by what is known of them, before Spark runs anything."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_ips.core.aggregates import WEIGHT, parse_aggregate
from dagster_ips.core.capture import Mode
from dagster_ips.core.lineage import Lineage
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.spark_plan import parse_plan
from dagster_ips.core.write_mode import (
    Append,
    Combine,
    Merge,
    OverwritePartitions,
    OverwriteWhere,
    Replace,
    WriteMode,
)
from dagster_ips.errors import (
    FragmentOverwriteError,
    IpsError,
    UnfitFrameError,
    UnfollowedChangeError,
    UntracedResultError,
)
from dagster_ips.exactly_once.publish.frame_fitness import require_fit, require_followed, require_known
from dagster_ips.exactly_once.publish.input_change import Frame, InputChange, TakenFrame
from dagster_ips.exactly_once.publish.provenance import Provenance
from dagster_ips.exactly_once.publish.result_writer import Result
from dagster_ips.iceberg.affected_partitions import AffectedPartitions

FRAME: Any = None  # a merge's frame isn't looked at


def change(*taken: TakenFrame, upstream: str = "plays", may_remove_rows: bool = True) -> InputChange:
    return InputChange(
        upstream=upstream,
        columns=("id", "day"),
        taken=taken,
        is_empty=False,
        may_remove_rows=may_remove_rows,
        ignores_removed=False,
        net=_unasked,
        removed=_unasked,
        source=_unasked,
        partitions=None,
        pruning=lambda _: Predicate("TRUE"),
        table=f"lake.media.{upstream}",
        icdc_table=f"lake.ips.out__{upstream}",
    )


def _unasked() -> Any:  # noqa: ANN401  # a frame
    raise AssertionError


def require_merge(on: Sequence[str], made_of: InputChange) -> None:
    require_fit(FRAME, Merge(tuple(on)), [made_of], table="media.out", partition_columns=())


def test_a_merge_of_whole_partitions_deletes_the_keys_that_they_lost() -> None:
    scope = TakenFrame(Frame.SCOPE, "__ips_1", ("day",))
    require_merge(["day", "id"], change(scope))
    assert change(scope).groups == [scope]


def test_a_merge_of_every_row_is_fine_when_the_changed_partitions_are_unknown() -> None:
    """As after a change of the upstream's partition spec: such a run replaces everything."""
    require_merge(["id"], change(TakenFrame(Frame.SCOPE, "__ips_1")))


@pytest.mark.parametrize("columns", [(), ("day",)], ids=["partitions by a transform", "partitions of other columns"])
def test_a_merge_of_partitions_that_do_not_say_which_keys_were_lost_is_refused(columns: tuple[str, ...]) -> None:
    with pytest.raises(UnfitFrameError, match="part of the merge key"):
        require_merge(["id"], change(TakenFrame(Frame.SCOPE, "__ips_1", columns, by_transform=not columns)))


def test_a_row_removed_from_one_input_is_not_looked_for_by_a_key_that_is_computed_for_another() -> None:
    """By the same key, the target may have a row of the other input, which stays."""
    plays, extra = TakenFrame(Frame.ADDED, "__ips_1"), TakenFrame(Frame.ADDED, "__ips_2")
    inputs = [replace(change(plays), names={"id": "id"}), change(extra, upstream="extra", may_remove_rows=False)]
    marks = frozenset([plays.mark, extra.mark])
    united = Lineage(marks, marks, {"id": frozenset([(plays.mark, "id")])}, (), frozenset())
    made = Provenance(inputs, lineage=united)
    with pytest.raises(UnfitFrameError, match="column 'id' of the result isn't extra's own column"):
        require_known(made, Merge(("id",)), Mode.INCREMENTAL, table="media.out")
    nothing_lost = [replace(each, may_remove_rows=False) for each in inputs]
    require_known(replace(made, inputs=nothing_lost), Merge(("id",)), Mode.INCREMENTAL, table="media.out")


def test_what_to_do_about_a_table_that_lacks_the_partitions_to_replace_is_said() -> None:
    scope = change(TakenFrame(Frame.SCOPE, "__ips_1", ("day",)))
    scope = replace(scope, partitions=AffectedPartitions((), frozenset()))
    require_fit(FRAME, OverwritePartitions(), [scope], table="media.out", partition_columns=("day",))
    with pytest.raises(FragmentOverwriteError, match="ADD PARTITION FIELD"):
        require_fit(FRAME, OverwritePartitions(), [scope], table="media.out", partition_columns=())


@pytest.mark.parametrize("is_empty", [True, False])
def test_combine_refuses_to_lose_rows_that_it_joined_with_even_if_removals_are_ignored(*, is_empty: bool) -> None:
    """The removed row of another input would be subtracted as if it had been joined with none."""
    weighted, source = TakenFrame(Frame.WEIGHTED, "__ips_1"), TakenFrame(Frame.SOURCE, "__ips_2")
    nothing: Any = SimpleNamespace(isEmpty=lambda: True)
    net: Any = SimpleNamespace(rows=nothing)
    gone: Any = SimpleNamespace(isEmpty=lambda: is_empty)
    title = change(source, upstream="title")
    title = replace(title, ignores_removed=True, net=lambda: net, removed=lambda: gone)
    made = Provenance([change(weighted), title])

    def require(write_mode: WriteMode) -> None:
        require_followed(made.inputs, made, write_mode, table="media.out")

    require(Append())
    with nullcontext() if is_empty else pytest.raises(UnfollowedChangeError, match="rows of title changed"):
        require(Combine(("id",), (parse_aggregate("n", "count(*)"),)))


def test_rows_that_the_clock_joins_with_weighted_ones_are_refused() -> None:
    """A row that is removed tomorrow would be subtracted with what it is joined with then."""
    weighted = TakenFrame(Frame.WEIGHTED, "__ips_1")
    marks = frozenset([weighted.mark])
    counted = Combine(("id",), (parse_aggregate("n", "count(*)"),))
    columns = {WEIGHT: frozenset([(weighted.mark, WEIGHT)])}
    made = Provenance([change(weighted)], lineage=Lineage(marks, marks, columns, (), frozenset()))
    require_known(made, counted, Mode.FULL, table="media.out")
    by_clock = replace(made, lineage=replace(made.lineage, varies_beside=True))  # type: ignore[type-var]  # it has one
    with pytest.raises(UnfitFrameError, match="the clock or chance decides which rows it is joined with"):
        require_known(by_clock, counted, Mode.FULL, table="media.out")


@pytest.mark.parametrize("write_mode", [Append(), Merge(("id",))])
def test_rows_that_did_not_change_are_not_added_again_because_another_table_of_the_step_needs_them(
    write_mode: WriteMode,
) -> None:
    def require(weighted: InputChange) -> None:
        require_fit(FRAME, write_mode, [weighted], table="media.out", partition_columns=())

    weighted = change(TakenFrame(Frame.WEIGHTED, "__ips_1"), may_remove_rows=False)
    require(weighted)
    with pytest.raises(UnfitFrameError, match=r"rows that didn't change.*on added"):
        require(replace(weighted, weighs_live_rows=True))


def check(
    monkeypatch: pytest.MonkeyPatch,
    write_mode: WriteMode,
    relation: str,
    *taken: TakenFrame,
    shares_views: bool = False,
    is_asked: bool = False,
) -> None:
    """Check a result that is only the rows of ``relation``, for which a view gave ``taken``."""
    plan = parse_plan(f"Project [id#1 AS __ips_result_0#2]\n+- {relation}")
    publish = "dagster_ips.exactly_once.publish"
    monkeypatch.setattr(f"{publish}.provenance.result_plan", lambda _: plan)
    monkeypatch.setattr(f"{publish}.frame_fitness.require_condition", lambda *_, **__: None)
    frame: Any = SimpleNamespace(columns=["id"])
    inputs = [replace(change(*taken, may_remove_rows=False), is_asked=is_asked)]
    Result(frame, write_mode, Mode.INCREMENTAL, inputs).checked(
        "media.out", (), catalog="lake", shares_views=shares_views
    )


GIVEN, UPSTREAM = "LocalRelation [id#1]", "RelationV2[id#1] lake.media.plays"
CHANGE = "RelationV2[id#1] lake.ips.out__plays"
ADDED, SOURCE = TakenFrame(Frame.ADDED, "__ips_1"), TakenFrame(Frame.SOURCE, "__ips_2")
OVERWRITES = [Replace(), OverwriteWhere("id > 0")]


def test_a_frame_may_be_counted_before_it_is_taken_again_for_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    again = replace(ADDED, mark="__ips_3")
    relation = f"SubqueryAlias __ips_3\n   +- Project [id#0 AS id#1]\n      +- {CHANGE.replace('#1', '#0')}"
    check(monkeypatch, Append(), relation, ADDED, again)
    with pytest.raises(UntracedResultError, match="removed"):
        check(monkeypatch, Append(), relation, TakenFrame(Frame.REMOVED, "__ips_4"), again)


@pytest.mark.parametrize("write_mode", OVERWRITES)
def test_collected_rows_of_a_change_do_not_replace_all(monkeypatch: pytest.MonkeyPatch, write_mode: WriteMode) -> None:
    with pytest.raises(FragmentOverwriteError, match="added"):
        check(monkeypatch, write_mode, GIVEN, ADDED)
    check(monkeypatch, write_mode, GIVEN, SOURCE)
    check(monkeypatch, write_mode, GIVEN, ADDED, shares_views=True)  # taken for another table


def test_what_changed_may_say_which_rows_are_replaced_but_not_which_of_them_all_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, a table that is replaced as a whole would lose the rows that didn't change."""
    check(monkeypatch, OverwriteWhere("id > 0"), UPSTREAM, ADDED, is_asked=True)
    with pytest.raises(UntracedResultError, match="took added of plays"):
        check(monkeypatch, Replace(), UPSTREAM, ADDED)
    with pytest.raises(UntracedResultError, match="asked which values of plays changed"):
        check(monkeypatch, Replace(), UPSTREAM, is_asked=True)
    check(monkeypatch, Replace(), UPSTREAM, is_asked=True, shares_views=True)  # maybe asked for another table


@pytest.mark.parametrize("write_mode", [*OVERWRITES, Append()])
def test_the_table_of_a_change_is_the_change_even_if_only_its_name_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, write_mode: WriteMode
) -> None:
    """As by ``parameters``."""
    error: type[IpsError] | None = FragmentOverwriteError if write_mode in OVERWRITES else None
    with pytest.raises(error, match="changes") if error else nullcontext():
        check(monkeypatch, write_mode, CHANGE)
