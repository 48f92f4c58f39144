"""Writes the frame that an asset returned to a branch, by its write mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING

from dagster_ips.core.aggregates import WEIGHT
from dagster_ips.core.capture import Mode
from dagster_ips.core.ownership import may_hold_rows
from dagster_ips.core.row_text import row_text
from dagster_ips.core.write_mode import (
    Append,
    Combine,
    Merge,
    OverwritePartitions,
    OverwriteWhere,
    Replace,
    ReplaceKeys,
    WriteMode,
)
from dagster_ips.errors import RemovedRowsError
from dagster_ips.exactly_once.publish.frame_fitness import (
    require_columns,
    require_declared,
    require_fit,
    require_followable,
    require_followed,
    require_known,
    require_no_places,
)
from dagster_ips.exactly_once.publish.input_change import Frame, InputChange
from dagster_ips.exactly_once.publish.provenance import provenance
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.partition_presence import partitions_held
from dagster_ips.iceberg.storage import Storage
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.changelog import added, removed
from dagster_ips.spark.frames import computed_once, distinct_keys, rows_with_keys
from dagster_ips.spark.observed import watched
from dagster_ips.spark.targets import with_nested_keys_as_in
from dagster_ips.spark.writes.append import append_rows, first_per_key
from dagster_ips.spark.writes.combine import combine_rows
from dagster_ips.spark.writes.group_parts import Aggregates, Change, explained
from dagster_ips.spark.writes.merge import latest_rows, merge_rows, refuse_repeated_keys
from dagster_ips.spark.writes.overwrite import KeysToReplace, replace_partitions, replace_rows, write_errors_explained
from dagster_ips.spark.writes.overwrite_where import (
    delete_where,
    is_outside,
    overwrite_matching,
    refuse_rows_outside_partitions,
    replace_where,
)
from dagster_ips.spark.writes.partials import append_partials
from dagster_ips.spark.writes.partition_filter import Partitions, PartitionsHeld, all_held
from dagster_ips.spark.writes.remove import remove_rows
from dagster_ips.spark.writes.replace_keys import replace_keys

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


@dataclass(frozen=True)
class Result:
    """What an asset returned, and how it is to be written."""

    frame: DataFrame
    write_mode: WriteMode
    mode: Mode
    inputs: Sequence[InputChange] = ()
    """The asset's inputs, each with the frames that were taken from it."""
    unrelated: Sequence[InputChange] = ()
    """Inputs of its step that only other tables are declared to be made from."""
    partitions: str | None = None
    """A condition on the rows of the run's partitions, the only rows that it may write; None without partitions."""
    new_partitions: str | None = None
    """The same for those that it computes for the first time: what is there now is no result of earlier runs."""
    is_trusted: bool = False
    """Whether the asset's author guarantees what the plan doesn't show."""
    storage: Storage | None = None
    """The storage of the target, whose metadata says which partitions have no row; None not to look."""
    looked_up: tuple[str, ...] = ()
    """The tables that the frame reads beside its inputs."""
    unchanged: frozenset[str] = frozenset()
    """Those of them that were the same as now when each row of the target was looked up in them."""
    is_derived: bool = False
    """Whether a query's plan gave the frame and the write mode for this very change."""
    affected: DataFrame | None = None
    """The keys to replace, if the write mode replaces keys."""
    may_cancel: bool = False
    """As in ``Change``."""
    is_due: bool = False
    """Whether it is to be written even if no input has a changed row."""
    own_columns: frozenset[str] = frozenset()
    """Columns of the frame that are, in every row, an unchanged column of the same name of a changed input."""
    varying: frozenset[str] = frozenset()
    """Columns of the frame that depend on the clock or on chance."""
    aggregates: Aggregates | None = None
    """The aggregates that the write mode declares for the frame, once they are known."""

    def with_aggregates(self, table: str) -> Result:
        """A copy that knows the aggregates of its frame, for which Spark is asked; itself if it declares none.

        Raises:
            UnknownColumnError, AggregateError: as ``Aggregates.over``.
        """
        if not isinstance(self.write_mode, Combine):
            return self
        return replace(self, aggregates=Aggregates.over(self.frame, self.write_mode, table=table))

    @property
    def as_stored(self) -> DataFrame:
        """A frame with the columns that the table stores: what was returned, or if ``aggregates`` are known, theirs."""
        return self.frame if self.aggregates is None else self.aggregates.groups(self.aggregates.like)

    def checked(
        self,
        table: str,
        partition_columns: Sequence[str],
        *,
        catalog: str,
        shares_views: bool,
        key_columns: Sequence[str] = (),
    ) -> Result:
        """The result as it is to be written; its ``inputs`` have only the frames that it is made of.

        What can be known to be wrong is refused before anything is written. A full run refuses what any later run
        would, so that the first run reports it. ``shares_views`` is as in ``provenance``. ``key_columns`` hold the keys
        of the asset's partitions in Dagster, if it has any.

        Raises:
            IpsError: as the functions of ``frame_fitness`` do.
        """
        mode = self.write_mode
        require_columns(self.frame, mode, table=table, partition_columns=partition_columns)
        if not self.inputs:
            return self
        if self.is_derived:
            return replace(self, inputs=[replace(change, taken=()) for change in self.inputs])
        keys = {*mode.columns_needed(partition_columns), *partition_columns, *key_columns}
        name = f"{catalog}.{table}"
        made = provenance(
            self.frame, self.inputs, table=name, shares_views=shares_views, keys=keys, unrelated=self.unrelated
        )
        require_declared(made, table=table)
        if not self.is_trusted:
            require_no_places(made, table=table)
        if self.is_trusted or (isinstance(mode, OverwriteWhere | Replace) and not shares_views):
            made = made.with_all_taken(self.inputs)  # rows of a change that were collected may be all there is
        require_fit(
            self.frame, mode, made.inputs, table=table, partition_columns=partition_columns, key_columns=key_columns
        )
        if not self.is_trusted:
            require_known(made, mode, self.mode, table=table)
        if self.mode is Mode.INCREMENTAL:
            require_followed(self.inputs, made, mode, table=table)
        else:
            require_followable(made, mode, table=table)
        changed = [taken for change in made.inputs if not change.is_empty for taken in change.fragments]
        own = frozenset(name for name in self.frame.columns if changed and all(made.keeps(name, of) for of in changed))
        return replace(self, inputs=made.inputs, looked_up=made.looked_up, own_columns=own, varying=made.varying)

    def changes_nothing(self) -> bool:
        """Whether no input has a changed row, so that there is nothing to write. Never in mode ``full``."""
        is_of_change = self.mode is Mode.INCREMENTAL and bool(self.inputs) and not self.is_due
        return is_of_change and all(each.has_no_change() for each in self.inputs)

    @property
    def replaces_all(self) -> bool:
        """Whether every row of what the run computes is replaced."""
        return self.mode is Mode.FULL or isinstance(self.write_mode, Replace) or self._is_of_every_row

    @property
    def _is_of_every_row(self) -> bool:
        """Whether the frame was made of all rows, because it is unknown which partitions changed."""
        has_groups = isinstance(self.write_mode, OverwritePartitions | Merge)
        return has_groups and any(change.is_whole for change in self.inputs)

    def write(self, branch: Branch, target: TableMetadata) -> None:
        """Write to ``branch``; ``target`` is the table when the branch was created. Mode ``full`` replaces every row.

        Raises:
            RemovedRowsError: rows were removed upstream, and the target can't follow that.
            DuplicateKeysError: several rows for one merge key.
            UnknownColumnError: the target has no column that an Overwrite's condition names.
            OutsideConditionError: rows don't match the Overwrite's condition.
            CombineError: the change can't be added to the existing rows.
            MixedFilesError, NullValueError, LongPartitionError: as ``write_errors_explained``.
        """
        with write_errors_explained(self.frame, branch, target.identity_partition_columns()):
            self._write(branch, target)

    def _write(self, branch: Branch, target: TableMetadata) -> None:
        if self.new_partitions is not None and may_hold_rows(target.ancestry()):
            delete_where(self.new_partitions, branch, self.frame.sparkSession, hidden=target.hidden_names)
        if isinstance(self.write_mode, Combine):
            self._combine_all(self.write_mode, branch, target)
        elif self.partitions is None or self._is_checked_by_merge():
            self.write_rows(branch, target)
        elif self._is_read_once():
            watch = watched(self.frame, is_outside(self.partitions))
            replace(self, frame=watch.rows).write_rows(branch, target)
            if watch.found():
                refuse_rows_outside_partitions(self.frame, self.partitions, table=branch.table)
        else:
            with computed_once(self.frame) as rows:
                if not rows.where(is_outside(self.partitions)).isEmpty():
                    refuse_rows_outside_partitions(rows, self.partitions, table=branch.table)
                replace(self, frame=rows).write_rows(branch, target)

    def _is_checked_by_merge(self) -> bool:
        """Whether the merge checks every row before it writes any."""
        is_merged = isinstance(self.write_mode, Merge) and self.write_mode.latest_by is None
        return is_merged and not self.replaces_all

    def _is_read_once(self) -> bool:
        """Whether only one query reads the frame: the one that writes it."""
        if self.replaces_all:
            return True
        match self.write_mode:
            case Append(dedup_on, remove_on):
                return not dedup_on and not (remove_on and self.is_trusted)
            case OverwritePartitions():
                return any(change.taken for change in self.inputs)
            case OverwriteWhere():
                return True
            case _:
                return False

    def write_rows(self, branch: Branch, target: TableMetadata) -> None:
        """As ``write``, for a frame that is known to hold only rows of the run's partitions."""
        columns = target.identity_partition_columns()
        if self.mode is Mode.FULL or self._is_of_every_row:
            self._write_all(branch, target)
            return
        match self.write_mode:
            case Append(dedup_on, remove_on):
                self._remove(branch, target, remove_on, columns)
                append_rows(
                    self.frame,
                    branch,
                    dedup_on=dedup_on,
                    partition_columns=columns,
                    held=self._held(target, dedup_on),
                )
            case Merge(on, latest_by):
                groups = [group for change in self.inputs for group in change.groups]
                renewed = None if groups or latest_by else self._renewed(target, on)
                head = target.ancestry().head if self.new_partitions is None else None
                merge_rows(
                    self.frame,
                    branch,
                    head=head.snapshot_id if head and target.shows_current_schema(head) else None,
                    on=on,
                    latest_by=latest_by,
                    keeps_newer=not groups,
                    varying=self.varying,
                    gone=list(self._gone(branch, target, on)),
                    renewed=renewed,
                    partition_columns=columns,
                    within=self.partitions if self._is_checked_by_merge() else None,
                    partitions=self.partitions,
                    held=self._held(target, on),
                )
            case OverwritePartitions():
                changed = list(self._changed_partitions())
                of = ", ".join(change.upstream for change in self.inputs if change.taken)
                replace_partitions(self.frame, branch, columns=columns, changed=changed, upstream=of)
            case OverwriteWhere(where):
                within = where if self.partitions is None else f"({where}) AND {self.partitions}"
                files = target.whole_file_columns()
                replace_where(self.frame, branch, where=within, whole_file_columns=files, hidden=target.hidden_names)
            case ReplaceKeys(on):
                assert self.affected is not None  # noqa: S101  # a result with this mode has them
                keys = with_nested_keys_as_in(target.struct, self.affected, on)
                replace_keys(self.frame, branch, keys, on=on, partition_columns=columns)
            case Replace():
                self._replace_all(self.frame, branch, target)

    def _held(self, target: TableMetadata, key: Sequence[str]) -> PartitionsHeld:
        """Says what the target may hold of partitions, given by those partition columns that are in the ``key``."""
        if self.storage is None:
            return all_held
        columns = [column for column in target.identity_partition_columns() if column in key]
        return partial(partitions_held, self.storage, target, columns)

    def _combine_all(self, write_mode: Combine, branch: Branch, target: TableMetadata) -> None:
        aggregates = self.aggregates or Aggregates.over(self.frame, write_mode, table=branch.table)
        if self.mode is Mode.FULL:
            with explained(branch.table):
                groups = aggregates.groups(self.frame)
                replace(
                    self, frame=groups, write_mode=Replace(), aggregates=None, inputs=(), new_partitions=None
                ).write(branch, target)
            return
        is_weighted = self.is_derived or any(
            taken.frame is Frame.WEIGHTED for change in self.inputs for taken in change.taken
        )
        self._refuse_removed_rows(branch, is_weighted=is_weighted)
        columns = target.identity_partition_columns()
        rows = with_nested_keys_as_in(target.struct, self.frame, write_mode.on)
        change = Change(rows, WEIGHT if is_weighted else None, may_cancel=self.may_cancel)
        if write_mode.keeps_partials:
            append_partials(
                change,
                aggregates,
                branch,
                may_remove_rows=any(change.may_remove_rows for change in self.inputs),
                partition_columns=columns,
                within=self.partitions,
            )
            return
        head = target.ancestry().head
        combine_rows(
            change,
            aggregates,
            branch,
            head=head.snapshot_id if head and self.new_partitions is None else None,
            evolved=target.struct if head and not target.shows_current_schema(head) else None,
            partition_columns=columns,
            within=self.partitions,
            sole_partition_columns=target.sole_partition_columns(),
            held=self._held(target, write_mode.on),
            came_to=self._came_to([column for column in columns if column in write_mode.on], target),
        )

    def _came_to(self, columns: Sequence[str], target: TableMetadata) -> Partitions | None:
        """The values of ``columns`` that added rows may have, by the inputs' metadata; None if that is unknown.

        It is also None if rows may have been removed: from an input, or by a weight that isn't an input's own, which
        derived queries and trusted assets may have even if rows were only added. Also if a MERGE would read what is
        written twice, as copy-on-write does.
        """
        is_copied = target.properties.get("write.merge.mode") != "merge-on-read"
        changed = [change for change in self.inputs if not change.is_empty]
        may_lose = self.is_derived or self.is_trusted or any(change.may_remove_rows for change in changed)
        if is_copied or may_lose or not self.own_columns.issuperset(columns):
            return None
        found: set[tuple[object, ...]] = set()
        for change in changed:
            known = change.partitions
            if not columns:
                found.add(())
            elif known is None or not set(columns) <= set(known.columns):
                return None
            else:
                at = [known.columns.index(column) for column in columns]
                found.update(tuple(values[i] for i in at) for values in known.values)
        return sorted(found, key=repr) if changed else None

    def _refuse_removed_rows(self, branch: Branch, *, is_weighted: bool) -> None:
        """Fail unless the result shows what a removed row counted as when it was added: that is subtracted now."""
        for change in self.inputs:
            if change.began_late and change.removes_rows():
                raise RemovedRowsError(
                    table=branch.table,
                    upstream=change.upstream,
                    problem="rows from before start= aren't counted in the table, so it is unknown whether the removed "
                    "ones are",
                    remedy="Leave start= out and recompute the table, which then counts all rows; or declare the input "
                    'with on_removed="ignore".',
                )
        if is_weighted and self.unchanged.issuperset(self.looked_up):
            return
        for change in self.inputs:
            if change.fragments and change.removes_rows():
                tables = ", ".join(each for each in self.looked_up if each not in self.unchanged)
                raise RemovedRowsError(
                    table=branch.table,
                    upstream=change.upstream,
                    problem=f"what they added when they arrived was looked up in {tables}, which may have changed since"
                    if is_weighted
                    else "the asset built its frame only on added rows",
                    remedy="Declare the looked-up table with incremental() and join its source: then its changes "
                    "require a full run, and rows can be removed."
                    if is_weighted
                    else f"Build it on weighted, and keep its column {WEIGHT} in the result.",
                )

    def _replace_all(self, rows: DataFrame, branch: Branch, target: TableMetadata) -> None:
        """Replace all that the run computes: every row, or the rows of its partitions."""
        if self.partitions is None:
            replace_rows(rows, branch, table_is_empty=not may_hold_rows(target.ancestry()))
        else:
            files = target.whole_file_columns()
            overwrite_matching(
                rows, branch, where=self.partitions, whole_file_columns=files, hidden=target.hidden_names
            )

    def _remove(
        self, branch: Branch, target: TableMetadata, remove_on: Sequence[str], partition_columns: Sequence[str]
    ) -> None:
        for change in self.inputs:
            if not (change.may_remove_rows and change.fragments):
                continue
            rows = removed(change.net())
            if remove_on:
                self._require_same_keys(branch, target, remove_on, change)
                self._require_no_live_rows(branch, target, remove_on, change)
                rows = with_nested_keys_as_in(target.struct, change.keyed(rows, remove_on), remove_on)
                remove_rows(rows, branch, on=remove_on, upstream=change.upstream, partition_columns=partition_columns)
            elif not rows.isEmpty():
                raise RemovedRowsError(
                    table=branch.table,
                    upstream=change.upstream,
                    problem="append() only adds rows",
                    remedy="Name the columns that identify a row, append(remove_on=[...]), or use "
                    "merge(on=...) or overwrite_partitions().",
                )

    def _gone(self, branch: Branch, target: TableMetadata, on: Sequence[str]) -> Iterator[KeysToReplace]:
        """The keys that the target must no longer have, unless the result has them."""
        for change in self.inputs:
            if change.may_remove_rows and (change.groups or change.fragments):
                keys = change.groups[0].keys_in_result if change.groups else on
                self._require_same_keys(branch, target, keys, change)
            if change.groups:
                for group in change.groups:
                    keys = group.keys_in_result
                    yield KeysToReplace(keys, with_nested_keys_as_in(target.struct, change.changed_keys(group), keys))
            elif change.may_remove_rows and change.fragments:
                self._require_no_live_rows(branch, target, on, change)
                found = change.keyed(removed(change.net()), on).distinct()
                yield KeysToReplace(on, with_nested_keys_as_in(target.struct, found, on))

    def _renewed(self, target: TableMetadata, on: Sequence[str]) -> Sequence[DataFrame]:
        """The keys whose row was removed upstream, so that another row may take its place."""
        return [
            with_nested_keys_as_in(target.struct, change.keyed(change.removed(), on).distinct(), on)
            for change in self.inputs
            if change.fragments and change.may_remove_rows
        ]

    def _require_same_keys(
        self, branch: Branch, target: TableMetadata, keys: Sequence[str], change: InputChange
    ) -> None:
        """Fail if the asset changed the keys, by which the results of removed rows are found in the target.

        Usually the plan shows that it didn't. If the asset is trusted instead, the returned rows are checked.
        """
        if not self.is_trusted:
            return
        inputs = [each for each in self.inputs if each.taken and each.has(keys)]
        found = distinct_keys(self.frame, keys)
        made_of = [with_nested_keys_as_in(target.struct, each.made_of(keys), keys) for each in inputs]
        known = reduce(lambda some, more: some.unionAll(more), made_of)
        strange = found.exceptAll(known.distinct()).limit(1).collect()
        if strange:
            raise _changed_key(branch, keys, change, tuple(strange[0]))

    def _require_no_live_rows(
        self, branch: Branch, target: TableMetadata, keys: Sequence[str], change: InputChange
    ) -> None:
        """Fail if a removed row and a live row share a key: then the key doesn't say which result to remove.

        The live row may be another input's, if rows of several inputs are put together.
        """
        gone = with_nested_keys_as_in(target.struct, change.keyed(removed(change.net()), keys), keys)
        for other in self.inputs:
            if not other.fragments or not other.has(keys):
                continue
            source = with_nested_keys_as_in(target.struct, other.keyed(other.source(), keys), keys)
            came = with_nested_keys_as_in(target.struct, other.keyed(added(other.net()), keys), keys)
            live = rows_with_keys(source, gone, keys, [change.pruning_of(key) for key in keys])
            both = live.exceptAll(came).limit(1).collect()
            if both:
                raise RemovedRowsError(
                    table=branch.table,
                    upstream=change.upstream,
                    problem=f"{_still(change, other)} with the key {tuple(both[0])} ({', '.join(keys)}) of a removed "
                    "row, so it is unclear which of them to remove",
                    remedy="Name columns that identify one row, or use merge(on=...) with a frame built on "
                    "affected(...).",
                )

    def _changed_partitions(self) -> Iterator[KeysToReplace]:
        for change in self.inputs:
            for taken in change.taken:
                if taken.frame is Frame.AFFECTED:
                    yield KeysToReplace(taken.keys_in_result, change.changed_keys(taken))
                elif taken.frame is Frame.SCOPE and change.partitions:
                    yield KeysToReplace(taken.keys_in_result, sorted(change.partitions.values, key=repr))

    def _write_all(self, branch: Branch, target: TableMetadata) -> None:
        """Replace all that the run computes, by the same rules for rows that share a key."""
        match self.write_mode:
            case Append(dedup_on) if dedup_on:
                self._replace_all(first_per_key(self.frame, dedup_on), branch, target)
            case Merge(on, latest_by):
                self._replace_all(latest_rows(self.frame, on, latest_by), branch, target)
                # Checks what was written, which is read back by its keys alone, instead of computing the frame twice.
                written = self.frame.sparkSession.table(branch.sql_name)
                written = written if self.partitions is None else written.where(self.partitions)
                refuse_repeated_keys(written, on, latest_by, table=branch.table)
            case _:
                self._replace_all(self.frame, branch, target)


def _changed_key(
    branch: Branch, keys: Sequence[str], change: InputChange, example: tuple[object, ...]
) -> RemovedRowsError:
    return RemovedRowsError(
        table=branch.table,
        upstream=change.upstream,
        problem=f"the asset produced a key that no row of its upstream has, for example {row_text(keys, example)}, so "
        "the rows to remove can't be found by their keys",
        remedy=f"Build the frame on affected(...) of columns of {change.upstream} that are part of the key and that "
        "the asset doesn't change.",
    )


def _still(change: InputChange, other: InputChange) -> str:
    return "it still has other rows" if other is change else f"{other.upstream} has rows"
