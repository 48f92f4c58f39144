"""Checks, before anything is written, whether the frame an asset returned fits the way it is to be written.

Only what is known to be right is accepted. What is unknown is refused as well, unless the run computes everything or
the asset declares by ``trusted()`` that it is right.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dagster_ips.core.aggregates import WEIGHT
from dagster_ips.core.capture import Mode
from dagster_ips.core.sql_condition import mentions
from dagster_ips.core.write_mode import Append, Combine, Merge, OverwritePartitions, OverwriteWhere, Replace, WriteMode
from dagster_ips.errors import (
    AggregateError,
    DeclarationError,
    FragmentOverwriteError,
    RemovedRowsError,
    RowPlaceError,
    UnfitFrameError,
    UnfollowedChangeError,
    UnknownColumnError,
    UntracedResultError,
)
from dagster_ips.errors.remedies import full_run
from dagster_ips.exactly_once.publish.input_change import Frame, InputChange, TakenFrame
from dagster_ips.exactly_once.publish.provenance import Provenance
from dagster_ips.spark.writes.overwrite_where import require_condition

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame

_LOG = logging.getLogger(__name__)


def require_columns(frame: DataFrame, write_mode: WriteMode, *, table: str, partition_columns: Sequence[str]) -> None:
    """Fail unless ``frame`` has every column that is needed to write its rows to ``table``.

    Raises:
        UnknownColumnError: it lacks a column that the write mode names or the table is partitioned by.
    """
    for column in write_mode.columns_needed(partition_columns):
        if column not in frame.columns:
            raise UnknownColumnError(
                where=f"The frame returned for {table}",
                column=column,
                known=tuple(frame.columns),
                remedy="Its write mode needs that column. Nothing was written and nothing was consumed.",
            )


def require_declared(made: Provenance, *, table: str) -> None:
    """Fail if the plan has inputs that the result is declared to be made without: nothing would follow their changes.

    Raises:
        DeclarationError: it has one.
    """
    for upstream in made.undeclared:
        raise DeclarationError(
            asset=table,
            problem=f"its result uses {upstream}, which isn't among its internal_asset_deps, so changes of {upstream} "
            "wouldn't be followed. Nothing was written and nothing was consumed.",
            remedy=f"Add {upstream} to the internal_asset_deps of this output, or build its frame without it.",
        )


def require_no_places(made: Provenance, *, table: str) -> None:
    """Fail if the plan shows that the result depends on where rows lie.

    Raises:
        RowPlaceError: it does.
    """
    if made.places:
        raise RowPlaceError(table=table, found=made.places[0])


def require_known(made: Provenance, write_mode: WriteMode, mode: Mode, *, table: str) -> None:
    """Fail unless the plan shows that the result equals the changed part of a result of all rows.

    A full run is computed from all rows, so it accepts what is only unknown. It refuses what is wrong, as every other
    run would, so that the first run already reports it.

    Raises:
        UnfitFrameError: something in the plan needs rows that the frames leave out, or keys aren't the upstream's.
        UntracedResultError: it is unknown what the result is computed from.
    """
    if isinstance(write_mode, OverwriteWhere):
        return  # computed from source alone; which rows it replaces is up to its author
    if isinstance(write_mode, Replace):
        # Computed from source alone as well, but it must be from all of it.
        _is_told([f"{each}. To replace only some rows, return an Overwrite" for each in made.choices], mode, table)
        return
    for change, taken, fault in made.faults:
        raise UnfitFrameError(
            table=table,
            upstream=change.upstream,
            frame=str(taken),
            problem=f"above it, the result's plan has {fault.what}, {_WHY_FAULT[fault.varies]}",
            remedy=_VARYING if fault.varies else _ALLOWED[taken in change.groups],
        )
    if not _is_told(made.unknown, mode, table):
        return
    _require_lasting_keys(made, write_mode, table)
    if isinstance(write_mode, Combine):
        _require_weights_as_they_are(made, table)
    _require_groups_of_one_choice(made.inputs, table)
    _require_own_keys(made, write_mode, table)


def _require_own_keys(made: Provenance, write_mode: WriteMode, table: str) -> None:
    """Fail if columns by which rows belong together, or are found, aren't the upstream's own."""
    # A row that one input lost is found by its key among the rows of all of them.
    may_remove_rows = any(change.may_remove_rows for change in made.inputs)
    for change, taken in _taken(made.inputs):
        for column in _not_kept(write_mode, change, taken, may_remove_rows=may_remove_rows):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem=f"column {column!r} of the result isn't {change.upstream}'s own column, so rows that "
                "belong together there may be apart here, and rows to remove can't be found by it",
                remedy=f"{_without(column, write_mode, taken)}Let {column} be a column of {change.upstream} as it is "
                "there, renamed or not, and give derived values another name; or return an Overwrite of a frame built "
                "on source.",
            )


def _is_told(unknown: Sequence[str], mode: Mode, table: str) -> bool:
    """Whether the plan leaves nothing ``unknown``; only a full run, which computes everything, may go on if it does.

    Raises:
        UntracedResultError: the run isn't full.
    """
    if unknown and mode is Mode.INCREMENTAL:
        raise UntracedResultError(table=table, problem=unknown[0])
    if unknown:
        _LOG.warning(
            "%s: this run computes everything, but an incremental run would be refused: %s. If the result is right, "
            "declare that: ips.trusted(because=...).",
            table,
            unknown[0],
        )
    return not unknown


def _without(column: str, write_mode: WriteMode, taken: TakenFrame) -> str:
    """The advice to find rows without ``column``, if other columns are left to find them by."""
    match write_mode:
        case Append(_, remove_on) if taken.frame not in _GROUPS and len(remove_on) > 1:
            return f"If a row is identified without it, leave {column} out of remove_on. Otherwise: "
        case Merge(on) if taken.frame not in _GROUPS and len(on) > 1:
            return f"If a row is identified without it, leave {column} out of the merge key. Otherwise: "
        case _:
            return ""


def _require_lasting_keys(made: Provenance, write_mode: WriteMode, table: str) -> None:
    """Fail if columns by which rows are found or subtracted may differ when the same row is computed again."""
    by: Sequence[str] = ()
    match write_mode:
        case Append(dedup_on, remove_on):
            by = (*dedup_on, *remove_on)
        case Merge(on, latest_by):
            by = (*on, latest_by) if latest_by else on
        case Combine():
            by = tuple(made.varying)
        case _:
            pass
    for column in sorted(made.varying.intersection(by)):
        for change, taken in _taken(made.inputs):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem=f"column {column!r} depends on the clock or on chance, so it differs when the same row is "
                "computed again, and the existing row can't be found by it",
                remedy="Find rows by the upstream's own columns. append() and merge() accept such values in "
                "columns that identify nothing, such as a load time; combine() accepts none.",
            )


def _require_weights_as_they_are(made: Provenance, table: str) -> None:
    """A removed row must count as the same row that was added, with the opposite sign."""
    for change, taken in _taken(made.inputs):
        if taken.frame is not Frame.WEIGHTED:
            continue
        if made.varies_beside:
            problem = "the clock or chance decides which rows it is joined with"
            remedy = f"Choose those rows by columns of {change.upstream}, such as a date."
        elif made.uses_weight(taken) or not made.keeps(WEIGHT, taken):
            problem = f"its column {WEIGHT} isn't in the result unchanged, or the result's rows or values depend on it"
            remedy = f"Keep {WEIGHT} in the result and don't use it: combine() counts by it."
        else:
            continue
        raise UnfitFrameError(
            table=table,
            upstream=change.upstream,
            frame=str(taken),
            problem=f"{problem}, so removed rows would subtract something else than they once added",
            remedy=remedy,
        )


def _require_groups_of_one_choice(inputs: Sequence[InputChange], table: str) -> None:
    """A result of two frames lacks rows that only one of them has, or must be recomputed for other groups as well.

    The ``source`` of an input with which the groups are joined, by ``on``, has all rows, so it may be used.
    """
    for change in inputs:
        first = next((taken for taken in change.taken if taken.frame in _GROUPS), None)
        for taken in change.taken if first else ():
            if first and not (first.holds_same(taken) or (taken.frame is Frame.SOURCE and change.upstream in first.on)):
                raise UnfitFrameError(
                    table=table,
                    upstream=change.upstream,
                    frame=f"{first} and {taken}",
                    problem="they hold different rows, so a result of both would use only some rows of some groups, or "
                    "would affect groups that neither change touches",
                    remedy=f"Build the frame on {first} alone, which has all live rows of its groups; or return an "
                    "Overwrite of a frame built on source.",
                )


def _taken(inputs: Sequence[InputChange]) -> Iterator[tuple[InputChange, TakenFrame]]:
    """Each frame that a result is made of, with the input that it was taken from."""
    return ((change, taken) for change in inputs for taken in change.taken)


_GROUPS = (Frame.AFFECTED, Frame.SCOPE)
_EVERY_COLUMN = re.compile(r"[(,]\s*(?:[\w`]+\s*\.\s*)*\*")
"""Matches an argument that is a star, as in ``hash(*)``; at worst also a text that looks like one."""
_VARYING = (
    "Choose rows and groups by the upstream's own columns; or return an Overwrite of a frame built on source. To keep "
    "each choice, even if later runs would choose differently, declare that in the metadata: trusted(because='...')."
)
_WHY_FAULT = {True: "so a full run would give different rows", False: "and that would see only some of the rows"}
_ALLOWED = {
    False: "On changed rows, use only operations that compute each result row from one of them: select, where, "
    "explode, joins with tables that didn't change. For groups of rows, build the frame on affected(...) or "
    "scope.",
    True: "Stay within the groups: group, partition windows and join by the columns that affected(...) names or scope "
    "is partitioned by. For anything else, return an Overwrite of a frame built on source, or use replace().",
}


def _not_kept(write_mode: WriteMode, change: InputChange, taken: TakenFrame, *, may_remove_rows: bool) -> Sequence[str]:
    """The columns that the frame's rows are grouped or found by, and of which the result has only derived values."""
    if taken.frame in _GROUPS:
        return taken.keys_lost
    by: Sequence[str] = ()
    match write_mode:
        case Append(_, remove_on) if taken in change.fragments:
            by = remove_on
        case Merge(on) if taken in change.fragments and may_remove_rows:
            by = on
        case _:
            pass
    return [column for column in by if column not in change.names]


def require_followable(made: Provenance, write_mode: WriteMode, *, table: str) -> None:
    """Fail if the result is known to read nothing but its inputs' sources: no run after a change could write it.

    Raises:
        UnfollowedChangeError: it reads nothing else.
    """
    taken = [each for change in made.inputs for each in change.taken]
    if isinstance(write_mode, OverwriteWhere | Replace) or made.unknown or not taken:
        return
    if all(each.frame is Frame.SOURCE for each in taken):
        is_only = len(made.inputs) == 1
        raise UnfollowedChangeError(table, made.inputs[0].upstream, is_only_input=is_only, in_full_run=True)


def require_followed(inputs: Sequence[InputChange], made: Provenance, write_mode: WriteMode, *, table: str) -> None:
    """Fail unless the result follows each input whose rows changed; ``inputs`` have all frames that were taken.

    What an Overwrite replaces is up to its author. But if its condition was built from the changes of some inputs and
    not of another, it has left that one out.

    Raises:
        UnfollowedChangeError: the result has nothing of an input's change, which would be consumed with it.
    """
    if isinstance(write_mode, Replace):
        return
    joined = {upstream for change in made.inputs for taken in change.taken for upstream in taken.on}
    asked = {i.upstream for i in inputs if i.is_asked or any(taken.frame is not Frame.SOURCE for taken in i.taken)}
    for change, seen in zip(inputs, made.inputs, strict=True):
        if isinstance(write_mode, OverwriteWhere):
            is_followed = change.upstream in asked or not asked
        else:
            # An input that is read in parts has the same source in all of them.
            is_followed = change.upstream in joined or (change.is_later_part and bool(seen.taken))
            is_followed |= any(t.frame is not Frame.SOURCE for t in seen.taken)
        if not is_followed and not (change.has_no_change() and _keeps_its_rows(seen, write_mode)):
            raise UnfollowedChangeError(
                table, change.upstream, is_only_input=len(inputs) == 1, is_unused=not seen.taken and not made.unknown
            )


def _keeps_its_rows(seen: InputChange, write_mode: WriteMode) -> bool:
    """Whether combine() finds all rows of a source again that it joined with, also where ``on_removed`` ignores some.

    Their results stay, but a removed row of another input couldn't be subtracted from them any more.
    """
    is_joined = isinstance(write_mode, Combine) and bool(seen.taken)
    return not (is_joined and seen.ignores_removed and seen.may_remove_rows and not seen.removed().isEmpty())


def require_fit(  # noqa: PLR0913  # all are independent
    frame: DataFrame,
    write_mode: WriteMode,
    inputs: Sequence[InputChange],
    *,
    table: str,
    partition_columns: Sequence[str],
    key_columns: Sequence[str] = (),
) -> None:
    """Fail unless the frames of ``inputs`` that the result is made of give what a run writes to ``table``.

    Raises:
        AggregateError: an aggregate depends on the weight of the rows.
        ConditionError: an Overwrite's condition can't select the rows to replace.
        FragmentOverwriteError: a result of only a part of the rows would replace more than that part.
        UnfitFrameError: the frames that were taken don't give what the write mode writes.
        RemovedRowsError: rows may have been removed upstream, and the write mode can't follow that.
    """
    taken = [each for _, each in _taken(inputs)]
    match write_mode:
        case Append() as append:
            _require_fragments(table, inputs)
            _require_no_live_rows(table, inputs)
            _require_nothing_beside_fragments(table, inputs)
            for change in inputs:
                _require_appendable(table, append, change)
        case Merge(on, latest_by):
            _require_groups_of_one_input(table, inputs)
            _require_nothing_beside_fragments(table, inputs)
            _require_no_live_rows(table, inputs)
            for change in inputs:
                _require_groups_of_key(table, on, change)
                _require_mergeable(table, on, latest_by, change)
        case Combine() as combine:
            _require_fragments(table, inputs)
            _require_nothing_beside_fragments(table, inputs)
            _require_one_way_of_counting(table, inputs)
            _require_aggregates_without_weight(table, combine, inputs)
        case OverwritePartitions():
            _require_groups_of_one_input(table, inputs)
            _require_known_partitions(table, inputs)
            for change in inputs:
                _require_followed_removals(table, change)
                _require_whole_partitions(table, partition_columns, change, has_own=bool(key_columns))
                _require_own_partitions(table, key_columns, change)
        case OverwriteWhere(where):
            require_condition(frame, where, of=f"The frame returned for {table}")
            _require_sources(
                table,
                taken,
                replaced="the rows that the Overwrite's condition matches",
                remedy="Build the frame on source, filtered by the same condition; ranges and partitions, which the "
                "condition is built from, read no rows.",
            )
        case Replace():
            remedy = "Build the frame on source, or use append, merge or overwrite_partitions."
            _require_sources(table, taken, replaced="all rows", remedy=remedy)


def _require_fragments(table: str, inputs: Sequence[InputChange]) -> None:
    """Only changed rows may be appended; every other frame repeats rows whose results are in the table already.

    The ``source`` of an input may be looked up for the changed rows of another.
    """
    has_fragments = any(change.fragments for change in inputs)
    for change, taken in _taken(inputs):
        if not change.fragments and not (has_fragments and taken.frame is Frame.SOURCE):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem="results from its old rows would be added a second time",
                remedy="Build the frame on added, or on weighted for combine(); or use merge(on=...) or "
                "overwrite_partitions().",
            )


def _require_no_live_rows(table: str, inputs: Sequence[InputChange]) -> None:
    """If another table of the step needs the current rows, with weight 0, then ``weighted`` has them for all tables."""
    for change, taken in _taken(inputs):
        if taken.frame is Frame.WEIGHTED and change.weighs_live_rows:
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem="it also has rows that didn't change, because another table of the same step is written "
                "with a combine() that needs them, and this write mode would add them again",
                remedy="Build the frame on added.",
            )


def _require_one_way_of_counting(table: str, inputs: Sequence[InputChange]) -> None:
    """Rows count by their weight, or once; rows of ``changes`` that were there before would count again."""
    fragments = [(change, taken) for change in inputs for taken in change.fragments]
    is_weighted = any(taken.frame is Frame.WEIGHTED for _, taken in fragments)
    for change, taken in fragments:
        counts_once = taken.frame is Frame.ADDED or (taken.frame is Frame.CHANGES and not change.may_remove_rows)
        if not (taken.frame is Frame.WEIGHTED if is_weighted else counts_once):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem="combine() adds new rows and subtracts removed ones, and this frame doesn't tell them apart",
                remedy=f"Build the frame on weighted of every input and keep its column {WEIGHT} in the result; or "
                "build it on added, if rows are never removed.",
            )


def _require_aggregates_without_weight(table: str, combine: Combine, inputs: Sequence[InputChange]) -> None:
    """A removed row must be subtracted with the value that it was added with; its weight has the opposite sign then."""
    if not any(taken.frame is Frame.WEIGHTED for change in inputs for taken in change.taken):
        return
    for each in combine.aggregates:
        if any(mentions(each.expression, [WEIGHT])) or _EVERY_COLUMN.search(each.expression):
            raise AggregateError(
                table=table,
                column=each.name,
                aggregate=str(each),
                problem=f"its expression uses {WEIGHT}, by which rows are counted anyway, so a removed row would not "
                "subtract what it once added. Leave it out, and count rows by count(*)",
            )


def _require_groups_of_one_input(table: str, inputs: Sequence[InputChange]) -> None:
    """The groups that changed in one input lack those that changed in another, though the result has both."""
    joined = {upstream for change in inputs for taken in change.taken for upstream in taken.on}
    taken_from = [
        change
        for change in inputs
        if any(change.upstream not in joined or taken.frame is not Frame.SOURCE for taken in change.taken)
    ]
    for change in taken_from:
        others = ", ".join(other.upstream for other in taken_from if other is not change)
        for taken in change.taken:
            if others and taken.frame in _GROUPS:
                raise UnfitFrameError(
                    table=table,
                    upstream=change.upstream,
                    frame=str(taken),
                    problem=f"it lacks the groups that changed only in {others}, which the result also depends on",
                    remedy=f"If changes of {others} don't matter, declare it with lookup() and read it as a plain "
                    "DataFrame. If they do, build the frame on ips.affected(..., by=..., on=...), which has the "
                    "groups that either change touches, or return an Overwrite of a frame built on source of "
                    "both.",
                )


def _require_nothing_beside_fragments(table: str, inputs: Sequence[InputChange]) -> None:
    """A result of a changed row and of all rows of its input must be recomputed when any of these rows change."""
    for change in inputs:
        others = [taken for taken in change.taken if taken not in change.fragments]
        if change.fragments and others:
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=f"{change.fragments[0]} and {others[0]}",
                problem="its changed rows also affect results of rows that didn't change, and those would have to be "
                "recomputed",
                remedy="Build the frame on affected(...) of the columns that the rows share, and use merge(on=...) or "
                "overwrite_partitions(); or return an Overwrite.",
            )


def _require_groups_of_key(table: str, on: Sequence[str], change: InputChange) -> None:
    """If some rows of a key are in the frame, all must be, or a part of a sum would replace the sum."""
    for taken in () if change.is_empty else change.taken:
        is_some = taken.frame in _GROUPS and not change.holds_every_row_in(taken)
        if is_some and not (taken.keys and set(taken.keys_in_result) <= set(on)):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem=f"not all of its columns are part of the merge key ({', '.join(on)}), so it may hold only some "
                "of the rows of a key",
                remedy=f"Build the frame on affected(...) of columns of {change.upstream} that are part of the merge "
                "key.",
            )


def _require_appendable(table: str, append: Append, change: InputChange) -> None:
    if not (change.may_remove_rows and change.fragments):
        return
    if any(taken.frame is not Frame.ADDED for taken in change.taken):
        raise RemovedRowsError(
            table=table,
            upstream=change.upstream,
            problem=f"the asset built its frame on {', '.join(map(str, change.taken))}, which may hold rows that are "
            "already in the table",
            remedy="Build it on added.",
        )
    if append.remove_on and (missing := [key for key in append.remove_on if not change.has([key])]):
        raise RemovedRowsError(
            table=table,
            upstream=change.upstream,
            problem=f"it has no column {missing[0]!r}, which append(remove_on=...) needs to find them",
            remedy="Name columns that are columns of the upstream, renamed or not.",
        )


def _require_mergeable(table: str, on: Sequence[str], latest_by: str | None, change: InputChange) -> None:
    if not (change.may_remove_rows and change.fragments):
        return
    if any(taken.frame is not Frame.ADDED for taken in change.fragments):
        problem = f"the asset built its frame on {change.fragments[0]}, which may hold rows that aren't new or are gone"
    elif missing := [key for key in on if not change.has([key])]:
        problem = f"it has no column {missing[0]!r}, so the rows to remove can't be found by their keys"
    elif latest_by is not None and change.removes_rows():
        problem = f"the change alone doesn't show which row of a key is now the latest by {latest_by}"
    else:
        return
    raise RemovedRowsError(
        table=table,
        upstream=change.upstream,
        problem=problem,
        remedy=f"Build the frame on affected(...) of columns of {change.upstream} that are part of the merge key.",
    )


def _require_whole_partitions(
    table: str, partition_columns: Sequence[str], change: InputChange, *, has_own: bool
) -> None:
    for taken in () if change.is_empty else change.taken:
        is_every_row = change.is_whole and not taken.by_transform
        is_whole = is_every_row or (taken.keys and set(taken.keys_in_result) <= set(partition_columns))
        if taken.frame is not Frame.SOURCE and not is_whole:
            columns = ", ".join(partition_columns)
            raise FragmentOverwriteError(
                table=table,
                frame=str(taken),
                replaced=f"whole partitions ({columns or 'no column'})",
                remedy=_instead_of_missing(partition_columns, change, has_own=has_own)
                or f"Build the frame on affected({columns}), or use append or merge."
                if columns
                else "The table exists, but isn't partitioned by plain columns. Use append or merge, or partition it "
                f"by ALTER TABLE ... ADD PARTITION FIELD ..., and rewrite its files: {full_run(table)}.",
            )


def _instead_of_missing(columns: Sequence[str], change: InputChange, *, has_own: bool) -> str | None:
    """What to do if the upstream lacks columns by which partitions are replaced, such as a week; None if it has all."""
    known = {column.lower() for column in change.columns}  # Spark ignores case in column names.
    lacking = [column for column in columns if column.lower() not in known]
    if not lacking:
        return None
    instead = (
        "declare replace(), and build the frame on source, which holds all rows of the run's partitions"
        if has_own
        else "return an Overwrite, or use append or merge"
    )
    of = f"{change.upstream} has no column {', '.join(lacking)}"
    return f"{of}. Build the frame on affected(...) of columns that are renamed to them, or {instead}."


def _require_own_partitions(table: str, key_columns: Sequence[str], change: InputChange) -> None:
    """A run computes some of the asset's partitions, so what it replaces must be within them."""
    for taken in () if change.is_empty else change.taken:
        own = {key.lower() for key in taken.keys_in_result}  # Spark ignores case in column names.
        missing = [column for column in key_columns if column.lower() not in own]
        if missing and taken.frame is not Frame.SOURCE and not change.holds_every_row_in(taken):
            raise FragmentOverwriteError(
                table=table,
                frame=f"{taken} of the run's partitions",
                replaced=f"whole values of {', '.join(taken.keys_in_result)}, which other partitions of the asset may "
                "have as well",
                remedy=_instead_of_missing(missing, change, has_own=True)
                or f"Build the frame on affected(...) of columns that include {', '.join(missing)}, and partition "
                "the table by them; or use merge.",
            )


def _require_known_partitions(table: str, inputs: Sequence[InputChange]) -> None:
    """Neither the source as a whole nor a part of it shows which partitions became empty."""
    taken = [(change.upstream, each.frame) for change in inputs for each in change.taken]
    if taken and all(frame is Frame.SOURCE for _, frame in taken):
        raise UnfitFrameError(
            table=table,
            upstream=taken[0][0],
            frame=str(Frame.SOURCE),
            problem="it doesn't show which partitions changed and which have become empty",
            remedy="Build the frame on scope or affected(...). To replace the rows that match a condition, return an "
            "Overwrite; to replace all rows, declare replace().",
        )


def _require_followed_removals(table: str, change: InputChange) -> None:
    """A frame that replaces partitions has no removed rows, so ``on_removed="ignore"`` can't keep their results."""
    for taken in change.taken:
        if change.ignores_removed and taken.frame in (Frame.SCOPE, Frame.SOURCE):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem='on_removed="ignore" keeps the results of removed rows, but this frame no longer has those '
                "rows, and overwrite_partitions() would replace their results",
                remedy=f'Leave on_removed of {change.upstream} at "apply", or use append() with a frame from added.',
            )


def _require_sources(table: str, frames: Sequence[TakenFrame], *, replaced: str, remedy: str) -> None:
    """The replaced rows may be of any partition and key, and only ``source`` holds what all of them are made of."""
    for taken in frames:
        if taken.frame is not Frame.SOURCE:
            raise FragmentOverwriteError(table=table, frame=str(taken), replaced=replaced, remedy=remedy)
