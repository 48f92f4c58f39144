"""What an asset's result is made of: read from its plan, not guessed from the frames that were taken."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_ips.core.lineage import Fault, Lineage, Unit, lineage
from dagster_ips.core.spark_plan import PlanUnreadableError
from dagster_ips.exactly_once.publish.input_change import Frame, InputChange, TakenFrame
from dagster_ips.spark.plans import has_only_given_rows, result_plan

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


@dataclass(frozen=True)
class Provenance:
    """What a result is made of.

    ``inputs`` have only those of the taken frames that are in its plan, and know by which names it keeps their columns;
    they have all that were taken if the plan can't be read.
    ``faults`` are operations that need rows which a frame leaves out. ``unknown`` is what the plan doesn't show, as
    parts of sentences; ``choices`` is how values of a change may have decided which rows of a source are in the result.
    ``lineage`` is None if the plan can't be read. ``undeclared`` are the upstreams that the plan has, although the
    result is declared to be made without them.
    """

    inputs: Sequence[InputChange]
    faults: Sequence[tuple[InputChange, TakenFrame, Fault]] = ()
    unknown: Sequence[str] = ()
    choices: Sequence[str] = ()
    lineage: Lineage | None = None
    undeclared: Sequence[str] = ()

    def with_all_taken(self, inputs: Sequence[InputChange]) -> Provenance:
        """Assume that inputs which the plan lacks are in the result, with all frames that were taken of them."""
        both = zip(inputs, self.inputs, strict=True)
        all_taken = [seen if seen.taken else replace(seen, taken=change.taken) for change, seen in both]
        return Provenance(all_taken, choices=self.choices)

    def keeps(self, column: str, taken: TakenFrame) -> bool:
        """Whether the result's ``column`` is the frame's column of that name, unchanged, wherever the frame is used."""
        return self.lineage is not None and self.lineage.keeps(column, leaf=taken.mark, as_=column)

    @property
    def varying(self) -> frozenset[str]:
        """The result's columns that depend on the clock or on chance."""
        return self.lineage.varying if self.lineage else frozenset()

    @property
    def varies_beside(self) -> bool:
        """Whether the clock or chance decides which other rows the changed ones are joined with."""
        return self.lineage is not None and self.lineage.varies_beside

    @property
    def looked_up(self) -> tuple[str, ...]:
        """The tables that the result reads beside its inputs, as plans show them; none if that is unknown."""
        return tuple(sorted(self.lineage.tables)) if self.lineage else ()

    @property
    def places(self) -> Sequence[str]:
        """What in the plan says where rows lie, and not what they are."""
        return sorted(self.lineage.places) if self.lineage else ()

    def uses_weight(self, taken: TakenFrame) -> bool:
        """Whether the frame's weight is used, and not just passed on."""
        return self.lineage is None or taken.mark in self.lineage.weighed


def provenance(  # noqa: PLR0913  # all are independent
    frame: DataFrame,
    inputs: Sequence[InputChange],
    *,
    table: str,
    shares_views: bool,
    keys: Collection[str] = (),
    unrelated: Sequence[InputChange] = (),
) -> Provenance:
    """What ``frame``, which is to be written to ``table``, is made of; runs no job.

    ``table`` is named as in plans. ``shares_views`` says that frames may have been taken for other tables of the same
    step; ``unrelated`` are inputs that only these are declared to be made from. If the result has a column of an input
    several times, it is known by a name that is among ``keys``.
    """
    every = [*unrelated, *inputs]
    leaves = [taken.leaf(change.upstream, change.types) for change in every for taken in change.taken if taken.mark]
    beside = [taken.leaf(change.upstream, change.types) for change in every for taken in _read_beside(change)]
    try:
        found = lineage(result_plan(frame), frame.columns, [*beside, *leaves])
    except PlanUnreadableError as error:
        return Provenance(inputs, unknown=[f"its plan can't be read ({error})"])
    seen = [_with_names(replace(change, taken=_in_plan(change, found)), found, keys) for change in inputs]
    unseen = [] if shares_views else list(_unseen(inputs, found))
    collected = [_collected(change, taken) for change, taken in unseen if not change.is_empty]
    own = [f"it reads {table}, the table that it is written to"] if table in found.tables else []
    has_groups = any(taken.leaf("", {}).unit is Unit.GROUP for change in seen for taken in change.taken)
    asked = [
        f"the asset asked which values of {change.upstream} changed (through range, ranges, partitions or parameters), "
        "and results based on those values may leave out rows"
        for change in inputs
        if change.is_asked
    ]
    chosen = [_collected(change, taken) for change, taken in unseen if taken.frame is not Frame.SOURCE]
    is_cut = found.has_rdd and not has_only_given_rows(frame)
    cut = ["it contains a checkpoint or an RDD, which doesn't show what its rows were computed from"] if is_cut else []
    opaque = [f"it contains {fault.what}" for fault in found.faults if fault.is_unknown]
    by_mark = {taken.mark: (change, taken) for change in inputs for taken in _all_frames(change)}
    faults = [(*by_mark[f.leaf], f) for f in found.faults if not f.is_unknown and f.leaf in by_mark]
    unknown = [*collected, *own, *(asked if has_groups else ()), *cut, *dict.fromkeys(opaque)]
    undeclared = [change.upstream for change in unrelated if _in_plan(change, found)]
    return Provenance(seen, faults, unknown, () if shares_views else [*asked, *chosen], found, undeclared)


def _in_plan(change: InputChange, found: Lineage) -> tuple[TakenFrame, ...]:
    """The taken frames that are in the plan, and the tables that it reads beside the view."""
    return tuple(each for each in _all_frames(change) if each.mark in found.leaves)


def _with_names(change: InputChange, found: Lineage, keys: Collection[str]) -> InputChange:
    """``change``, whose frames in the plan know by which names the result keeps their columns."""
    kept = {taken.mark: found.kept(taken.mark) for taken in change.taken}
    taken = [replace(t, named=tuple(_named(kept[t.mark], key, keys) for key in t.keys)) for t in change.taken]
    of_each = [kept[taken.mark] for taken in change.fragments or change.groups]
    names = {}
    for column in of_each[0] if of_each else ():
        if own := frozenset.intersection(*[each.get(column, frozenset()) for each in of_each]):
            names[column] = column if column in own else min(own)
    return replace(change, taken=tuple(taken), names=names)


def _named(kept: Mapping[str, frozenset[str]], own: str, preferred: Collection[str]) -> str | None:
    """The column of the result that keeps the column ``own`` of a frame; None if none does."""
    found = [column for column in kept if own in kept[column]]
    return min(found, key=lambda column: (column not in preferred, column != own, column), default=None)


def _all_frames(change: InputChange) -> list[TakenFrame]:
    return [*change.taken, *(each for each in _read_beside(change) if each not in change.taken)]


def _read_beside(change: InputChange) -> tuple[TakenFrame, TakenFrame]:
    """What an asset can read without its view, by the names that ``parameters`` gives: the tables themselves."""
    return TakenFrame(Frame.SOURCE, change.table), TakenFrame(Frame.CHANGES, change.icdc_table)


def _unseen(inputs: Sequence[InputChange], found: Lineage) -> Iterator[tuple[InputChange, TakenFrame]]:
    """The frames that were taken and have no part in the plan, unless the same was taken again and has."""
    for change in inputs:
        used = [taken for taken in change.taken if taken.mark in found.leaves]
        yield from ((change, taken) for taken in change.taken if not any(taken.holds_same(other) for other in used))


def _collected(change: InputChange, taken: TakenFrame) -> str:
    return (
        f"the asset took {taken} of {change.upstream}, which isn't in the plan, so values collected from that frame "
        "may have gone into the result"
    )
