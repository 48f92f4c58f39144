"""From a write mode and a frame to rows on a branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce

from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import Predicate, quoted
from dagster_ips.core.write_mode import (
    Append,
    Merge,
    OverwritePartitions,
    OverwriteWhere,
    Replace,
    WriteMode,
)
from dagster_ips.errors import FragmentOverwriteError, RemovedRowsError, UnfitFrameError, UnknownColumnError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.partitions import AffectedPartitions
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.changelog import added, removed
from dagster_ips.spark.frames import computed_once, distinct_keys, rows_with_keys
from dagster_ips.spark.session import DataFrame
from dagster_ips.spark.writes.append import append_rows, first_per_key
from dagster_ips.spark.writes.merge import latest_rows, merge_rows, refuse_repeated_keys
from dagster_ips.spark.writes.overwrite import ChangedKeys, replace_partitions, replace_rows
from dagster_ips.spark.writes.overwrite_where import (
    delete_where,
    refuse_rows_outside_partitions,
    replace_where,
    require_condition,
)
from dagster_ips.spark.writes.partition_filter import collected, exactly
from dagster_ips.spark.writes.remove import remove_rows


class Frame(StrEnum):
    """A frame of a view, as an asset took it."""

    CHANGES = "changes"
    ADDED = "added"
    REMOVED = "removed"
    WEIGHTED = "weighted"
    CHANGELOG = "changelog"
    AFFECTED = "affected"
    SCOPE = "scope"
    SOURCE = "source"


_SAMPLED_ROWS = 100
_FRAGMENTS = (Frame.CHANGES, Frame.ADDED, Frame.REMOVED, Frame.WEIGHTED, Frame.CHANGELOG)


@dataclass(frozen=True)
class TakenFrame:
    """A frame that an asset took from a view, and the columns by which whole groups of rows are in it."""

    frame: Frame
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.frame}({', '.join(self.keys)})" if self.keys else self.frame


@dataclass(frozen=True)
class InputChange:
    """What a writer must know of one input: what changed, and which of it the result was made of.

    ``net`` are the added and removed rows with their weight, ``source`` the rows there are now; lazy, as every frame.
    ``pruning`` gives a condition that every row meets whose value of a column occurs in the change. ``is_bite`` says
    that the change is only some files of one, of which ``source`` has all.
    """

    upstream: str
    columns: tuple[str, ...]
    taken: tuple[TakenFrame, ...]
    is_empty: bool
    may_remove_rows: bool
    ignores_removed: bool
    net: DataFrame
    source: DataFrame
    partitions: AffectedPartitions | None
    pruning: Callable[[str], Predicate]
    is_bite: bool = False

    def has_no_change(self) -> bool:
        """Whether no row changed; runs a job only if files changed whose rows may all be as they were."""
        return self.is_empty or (self.may_remove_rows and self.net.isEmpty())

    @property
    def is_whole(self) -> bool:
        """Whether the result was made of every row, because which partitions changed can't be told."""
        return self.partitions is None and any(taken.frame is Frame.SCOPE for taken in self.taken)

    @property
    def groups(self) -> list[TakenFrame]:
        """The frames taken that hold whole groups of rows."""
        return [taken for taken in self.taken if taken.frame is Frame.AFFECTED]

    def made_of(self, keys: Sequence[str]) -> DataFrame:
        """The values of ``keys`` that rows of the result have if it keeps those columns as they are."""
        if self.fragments:
            return distinct_keys(added(self.net), keys)
        return distinct_keys(self.net if self.groups else self.source, keys)

    @property
    def fragments(self) -> list[TakenFrame]:
        """The frames taken that hold only changed rows, whatever they belong to."""
        return [taken for taken in self.taken if taken.frame in _FRAGMENTS]


@dataclass(frozen=True)
class Result:
    """What an asset returned, and how it is to be written.

    ``partitions`` is a condition on the rows of the partitions that the run computes, which are all that it may write;
    None if the asset has no partitions. ``new_partitions`` is one on those of them that it computes for the first time:
    what the target has there is no result of earlier runs.
    """

    frame: DataFrame
    write_mode: WriteMode
    mode: Mode
    inputs: Sequence[InputChange] = ()
    partitions: str | None = None
    new_partitions: str | None = None

    def check(self, table: str, partition_columns: Sequence[str]) -> None:
        """Refuse what can be known to be wrong before anything is written.

        Raises:
            UnknownColumnError: the frame lacks a column that the write mode names or the table is partitioned by.
            ConditionError: what an Overwrite replaces isn't said by a condition.
            FragmentOverwriteError: what was made of a part of the rows would replace more than that.
            UnfitFrameError: the frames that were taken don't give what the write mode writes.
            RemovedRowsError: rows may have been removed upstream, and the write mode can't follow that.
        """
        self._require_columns(table, partition_columns)
        if self.mode is Mode.FULL and not any(change.is_bite for change in self.inputs):
            return
        match self.write_mode:
            case Append() as append:
                _require_fragments(table, self.inputs)
                _require_own_bites(table, self.inputs)
                for change in self.inputs:
                    _require_appendable(table, append, change)
            case Merge(on, latest_by):
                _require_groups_of_one_input(table, self.inputs)
                _require_kept_lookups(table, self.inputs)
                for change in self.inputs:
                    _require_groups_of_key(table, on, change)
                    _require_mergeable(table, on, latest_by, change)
            case OverwritePartitions():
                _require_groups_of_one_input(table, self.inputs)
                _require_known_partitions(table, self.inputs)
                for change in self.inputs:
                    _require_followed_removals(table, change)
                    _require_whole_partitions(table, partition_columns, change)
            case OverwriteWhere(where):
                require_condition(self.frame, where, of=f"The frame returned for {table}")
                _require_sources(
                    table,
                    self._taken,
                    replaced="the rows that the Overwrite's condition matches",
                    remedy="Build the frame on source, filtered by the same condition; ranges and partitions, of which "
                    "the condition is made, read no rows.",
                )
            case Replace():
                remedy = "Build the frame on source, or write by append, merge or overwrite_partitions."
                _require_sources(table, self._taken, replaced="all rows", remedy=remedy)

    @property
    def _taken(self) -> list[TakenFrame]:
        return [taken for change in self.inputs for taken in change.taken]

    def changes_nothing(self) -> bool:
        """Whether no input has a changed row, so that there is nothing to write. Never in mode ``full``."""
        return self.mode is Mode.INCREMENTAL and bool(self.inputs) and all(i.has_no_change() for i in self.inputs)

    def write(self, branch: Branch, target: TableMetadata) -> None:
        """Write to ``branch``; ``target`` is the table as the branch was cut. Mode ``full`` replaces every row.

        Raises:
            RemovedRowsError: rows were removed upstream, and the target can't follow that.
            DuplicateKeysError: several rows for one merge key.
            UnknownColumnError: the target has no column that an Overwrite's condition names.
            OutsideConditionError: rows don't match the Overwrite's condition.
        """
        if self.partitions is None:
            self.write_rows(branch, target)
            return
        with computed_once(self.frame) as rows:
            refuse_rows_outside_partitions(rows, self.partitions, table=branch.table)
            if self.new_partitions is not None:
                delete_where(self.new_partitions, branch, rows.sparkSession)
            replace(self, frame=rows).write_rows(branch, target)

    def write_rows(self, branch: Branch, target: TableMetadata) -> None:
        """As ``write``, of a frame that is known to hold nothing but rows of the run's partitions."""
        columns = target.identity_partition_columns()
        if self.mode is Mode.FULL:
            self._write_all(branch, target)
            return
        match self.write_mode:
            case Append(dedup_on, remove_on):
                self._remove(branch, remove_on, columns)
                append_rows(self.frame, branch, dedup_on=dedup_on, partition_columns=columns)
            case Merge(on, latest_by):
                groups = [group for change in self.inputs for group in change.groups]
                merge_rows(
                    self.frame,
                    branch,
                    on=on,
                    latest_by=latest_by,
                    keeps_newer=not groups,
                    gone=list(self._gone(branch, on)),
                    partition_columns=columns,
                )
            case OverwritePartitions() if any(change.is_whole for change in self.inputs):
                self._replace_all(self.frame, branch, target)
            case OverwritePartitions():
                changed = list(self._changed_partitions())
                of = ", ".join(change.upstream for change in self.inputs if change.taken)
                replace_partitions(self.frame, branch, columns=columns, changed=changed, upstream=of)
            case OverwriteWhere(where):
                within = where if self.partitions is None else f"({where}) AND {self.partitions}"
                replace_where(self.frame, branch, where=within, whole_file_columns=target.whole_file_columns())
            case Replace():
                self._replace_all(self.frame, branch, target)

    def _replace_all(self, rows: DataFrame, branch: Branch, target: TableMetadata) -> None:
        """Replace all that the run computes: every row, or those of its partitions."""
        if self.partitions is None:
            replace_rows(rows, branch, table_is_empty=_holds_no_rows(target))
        else:
            replace_where(rows, branch, where=self.partitions, whole_file_columns=target.whole_file_columns())

    def _require_columns(self, table: str, partition_columns: Sequence[str]) -> None:
        named: tuple[str, ...] = ()
        match self.write_mode:
            case Append(dedup_on, remove_on):
                named = (*dedup_on, *remove_on)
            case Merge(on, latest_by):
                named = (*on, latest_by) if latest_by else on
            case OverwritePartitions():
                named = tuple(partition_columns)
            case OverwriteWhere() | Replace():
                pass
        for column in named:
            if column not in self.frame.columns:
                raise UnknownColumnError(
                    where=f"The frame returned for {table}",
                    column=column,
                    known=tuple(self.frame.columns),
                    remedy="Its write mode needs that column. Nothing was written and nothing was consumed.",
                )

    def _remove(self, branch: Branch, remove_on: Sequence[str], partition_columns: Sequence[str]) -> None:
        for change in self.inputs:
            if not change.may_remove_rows:
                continue
            rows = removed(change.net)
            if remove_on:
                if change.taken:
                    self._require_same_keys(branch, remove_on, change)
                _require_no_live_rows(branch, remove_on, change)
                remove_rows(rows, branch, on=remove_on, upstream=change.upstream, partition_columns=partition_columns)
            elif not rows.isEmpty():
                raise RemovedRowsError(
                    table=branch.table,
                    upstream=change.upstream,
                    problem="append() only adds rows",
                    remedy="Name the columns that identify a row in both tables, append(remove_on=[...]), or write by "
                    "merge(on=...) or overwrite_partitions().",
                )

    def _gone(self, branch: Branch, on: Sequence[str]) -> Iterator[ChangedKeys]:
        """Keys that the target must not have any more unless the result has them."""
        for change in self.inputs:
            if change.may_remove_rows and change.taken:
                self._require_same_keys(branch, change.groups[0].keys if change.groups else on, change)
            if change.groups:
                yield from (ChangedKeys(group.keys, distinct_keys(change.net, group.keys)) for group in change.groups)
            elif change.may_remove_rows:
                if change.fragments:
                    _require_no_live_rows(branch, on, change)
                yield ChangedKeys(on, distinct_keys(removed(change.net), on))

    def _require_same_keys(self, branch: Branch, keys: Sequence[str], change: InputChange) -> None:
        """What was made of removed rows is found in the target by its keys, so the asset must not have changed those.

        The returned rows show whether it did. Where there are none, some of the target's do: not one that has a key of
        its upstream is no accident. An asset that changes but some of its keys isn't found out then.
        """
        inputs = [each for each in self.inputs if each.taken and set(keys) <= set(each.columns)]
        found = distinct_keys(self.frame, keys)
        strange = found.exceptAll(_union([each.made_of(keys) for each in inputs]).distinct()).limit(1).collect()
        if strange:
            raise _changed_key(branch, keys, change, tuple(strange[0]))
        if found.isEmpty():
            there = self.frame.sparkSession.table(branch.sql_name)
            some = collected(distinct_keys(there.limit(_SAMPLED_ROWS), keys))
            rows = _union([part.select(*map(quoted, keys)) for i in inputs for part in (i.source, removed(i.net))])
            if some and rows.where(exactly(keys, some)).isEmpty():
                raise _changed_key(branch, keys, change, some[0])

    def _changed_partitions(self) -> Iterator[ChangedKeys]:
        for change in self.inputs:
            for taken in change.taken:
                if taken.frame is Frame.AFFECTED:
                    yield ChangedKeys(taken.keys, distinct_keys(change.net, taken.keys))
                elif taken.frame is Frame.SCOPE and change.partitions:
                    yield ChangedKeys(taken.keys, sorted(change.partitions.values, key=repr))

    def _write_all(self, branch: Branch, target: TableMetadata) -> None:
        """Replace all that the run computes, by the same rules for rows that share a key."""
        match self.write_mode:
            case Append(dedup_on) if dedup_on:
                self._replace_all(first_per_key(self.frame, dedup_on), branch, target)
            case Merge(on, latest_by):
                self._replace_all(latest_rows(self.frame, on, latest_by), branch, target)
                # On what was written, which is read back by its keys alone, instead of computing the frame twice.
                written = self.frame.sparkSession.table(branch.sql_name)
                written = written if self.partitions is None else written.where(self.partitions)
                refuse_repeated_keys(written, on, table=branch.table)
            case _:
                self._replace_all(self.frame, branch, target)


def _require_fragments(table: str, inputs: Sequence[InputChange]) -> None:
    """Only changed rows are appended; every other frame has rows again that the table was made of before.

    ``source`` of an input may be looked up for the changed rows of another.
    """
    has_fragments = any(change.fragments for change in inputs)
    for change in inputs:
        for taken in change.taken:
            if not change.fragments and not (has_fragments and taken.frame is Frame.SOURCE):
                raise UnfitFrameError(
                    table=table,
                    upstream=change.upstream,
                    frame=str(taken),
                    problem="append() would add what was made of its old rows once more",
                    remedy="Build the frame on added, or write by merge(on=...) or overwrite_partitions().",
                )


def _require_own_bites(table: str, inputs: Sequence[InputChange]) -> None:
    """Rows of ``source`` that a later bite brings are appended with that; joined before, they'd be there twice."""
    for change in inputs:
        others = [other.upstream for other in inputs if other is not change and other.fragments]
        if change.is_bite and others and change.fragments and any(t.frame is Frame.SOURCE for t in change.taken):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=Frame.SOURCE,
                problem=f"it is taken in bites, and changed rows of {', '.join(others)} would meet rows of it that "
                "are still to come",
                remedy=f"Leave max_bytes and max_files of {change.upstream} out.",
            )


def _require_groups_of_one_input(table: str, inputs: Sequence[InputChange]) -> None:
    """Groups that changed in one input say nothing of those that changed in another, though the result has both."""
    taken_from = [change for change in inputs if change.taken]
    for change in taken_from:
        others = ", ".join(other.upstream for other in taken_from if other is not change)
        for taken in change.taken:
            if others and taken.frame in (Frame.AFFECTED, Frame.SCOPE):
                raise UnfitFrameError(
                    table=table,
                    upstream=change.upstream,
                    frame=str(taken),
                    problem=f"it lacks the groups that changed only in {others}, of which the result is made as well",
                    remedy=f"Return an Overwrite of a frame built on source of every input; or, if changes of {others} "
                    f"needn't be followed, read it as a plain DataFrame, without incremental(). The run tag "
                    f"dagster_ips/mode=full recomputes the table as it is declared.",
                )


def _require_kept_lookups(table: str, inputs: Sequence[InputChange]) -> None:
    """A row that left what changed rows are joined with leaves keys in the target that the frame has no rows for."""
    has_fragments = any(change.fragments for change in inputs)
    for change in inputs:
        if has_fragments and change.taken and not change.fragments and change.may_remove_rows:
            raise RemovedRowsError(
                table=table,
                upstream=change.upstream,
                problem="the asset only looks it up for changed rows of another input, so what else was made of them "
                "isn't computed again",
                remedy=f"If changes of {change.upstream} needn't be followed, read it as a plain DataFrame, without "
                f"incremental().",
            )


def _require_groups_of_key(table: str, on: Sequence[str], change: InputChange) -> None:
    """A key's rows must all be in the frame if some are, or a part of a sum replaces the sum."""
    for taken in change.taken:
        is_grouped = taken.frame is Frame.AFFECTED or (taken.frame is Frame.SCOPE and change.partitions is not None)
        if is_grouped and not (taken.keys and set(taken.keys) <= set(on)):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem=f"its columns aren't all part of the merge key ({', '.join(on)}), so it may hold only some "
                "of the rows of a key",
                remedy=f"Build the frame on affected(...) of columns of {change.upstream} that are part of the merge "
                "key.",
            )


def _changed_key(
    branch: Branch, keys: Sequence[str], change: InputChange, example: tuple[object, ...]
) -> RemovedRowsError:
    return RemovedRowsError(
        table=branch.table,
        upstream=change.upstream,
        problem=f"the asset made a key ({', '.join(keys)}) that no row of its upstream has, for example {example}, so "
        "the rows to remove can't be found by their keys",
        remedy=f"Build the frame on affected(...) of columns of {change.upstream} that are part of the key and that "
        f"the asset leaves as they are.",
    )


def _require_no_live_rows(branch: Branch, keys: Sequence[str], change: InputChange) -> None:
    """What was made of a removed row can't be told by its key from what was made of another that is still there."""
    gone, names = removed(change.net), [quoted(key) for key in keys]
    live = rows_with_keys(change.source, gone, keys, [change.pruning(key) for key in keys])
    both = live.select(*names).exceptAll(added(change.net).select(*names)).limit(1).collect()
    if both:
        raise RemovedRowsError(
            table=branch.table,
            upstream=change.upstream,
            problem=f"it still has other rows of the key {tuple(both[0])} ({', '.join(keys)}) of a removed one, so "
            "which of them go isn't known",
            remedy="Name columns that identify one row, or write by merge(on=...) a frame built on affected(...).",
        )


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda some, more: some.unionAll(more), frames)


def _require_appendable(table: str, append: Append, change: InputChange) -> None:
    if not change.may_remove_rows:
        return
    if any(taken.frame is not Frame.ADDED for taken in change.taken):
        raise RemovedRowsError(
            table=table,
            upstream=change.upstream,
            problem=f"the asset built its frame on {', '.join(map(str, change.taken))}, which may hold rows that are "
            "in the table already",
            remedy="Build it on added.",
        )
    if append.remove_on and (missing := [key for key in append.remove_on if key not in change.columns]):
        raise RemovedRowsError(
            table=table,
            upstream=change.upstream,
            problem=f"it has no column {missing[0]!r}, by which append(remove_on=...) would find them",
            remedy="Name columns that both tables have.",
        )


def _require_mergeable(table: str, on: Sequence[str], latest_by: str | None, change: InputChange) -> None:
    if not change.may_remove_rows or change.groups:
        return
    if latest_by is not None:
        problem = f"which row of a key is the latest by {latest_by} now can't be told from the change alone"
    elif missing := [key for key in on if key not in change.columns]:
        problem = f"it has no column {missing[0]!r}, so the rows to remove can't be found by their keys"
    else:
        return
    raise RemovedRowsError(
        table=table,
        upstream=change.upstream,
        problem=problem,
        remedy=f"Build the frame on affected(...) of columns of {change.upstream} that are part of the merge key.",
    )


def _require_whole_partitions(table: str, partition_columns: Sequence[str], change: InputChange) -> None:
    for taken in change.taken:
        is_whole = change.is_whole or (taken.keys and set(taken.keys) <= set(partition_columns))
        if taken.frame is not Frame.SOURCE and not is_whole:
            columns = ", ".join(partition_columns) or "no column"
            raise FragmentOverwriteError(
                table=table,
                frame=str(taken),
                replaced=f"whole partitions ({columns})",
                remedy=f"Build the frame on affected({columns}), or write by append or merge.",
            )


def _require_known_partitions(table: str, inputs: Sequence[InputChange]) -> None:
    """The source as a whole, or a part of it, doesn't tell which partitions became empty."""
    taken = [(change.upstream, each.frame) for change in inputs for each in change.taken]
    if taken and all(frame is Frame.SOURCE for _, frame in taken):
        raise UnfitFrameError(
            table=table,
            upstream=taken[0][0],
            frame=str(Frame.SOURCE),
            problem="which partitions changed, and which have become empty, can't be told from it",
            remedy="Build the frame on scope or affected(...). To replace the rows that match a condition return an "
            "Overwrite; to replace all of them declare replace().",
        )


def _require_followed_removals(table: str, change: InputChange) -> None:
    """What replaces partitions has none of the removed rows in it, so they can't be kept by ``on_removed="ignore"``."""
    for taken in change.taken:
        if change.ignores_removed and taken.frame in (Frame.SCOPE, Frame.SOURCE):
            raise UnfitFrameError(
                table=table,
                upstream=change.upstream,
                frame=str(taken),
                problem='on_removed="ignore" is to keep what was made of removed rows, and it holds them no more where '
                "overwrite_partitions() replaces what was made of them",
                remedy=f'Leave on_removed of {change.upstream} at "apply", or write by append(), built on added.',
            )


def _require_sources(table: str, frames: Sequence[TakenFrame], *, replaced: str, remedy: str) -> None:
    """What is replaced may be rows of any partition and key, and only ``source`` holds what all of them are made of."""
    for taken in frames:
        if taken.frame is not Frame.SOURCE:
            raise FragmentOverwriteError(
                table=table,
                frame=str(taken),
                replaced=replaced,
                remedy=remedy,
            )


def _holds_no_rows(target: TableMetadata) -> bool:
    head = target.ancestry().head
    return head is None or head.summary.get("total-records") == "0"
