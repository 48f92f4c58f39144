"""Adds a change's aggregates to the rows that a table has for their groups."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_ips.core.aggregates import KeptPart
from dagster_ips.core.held_rows import HeldRows
from dagster_ips.core.ranges import quoted
from dagster_ips.core.row_text import row_text
from dagster_ips.core.sql_condition import mentions_only
from dagster_ips.errors import CombineError
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.frames import (
    MOST_LITERALS,
    all_of,
    any_of,
    column_of,
    computed_once,
    listed,
    same_keys,
    table_frame,
)
from dagster_ips.spark.late import F, errors
from dagster_ips.spark.targets import with_nested_keys_as_in
from dagster_ips.spark.writes.group_parts import REMOVED, ROWS, Aggregates, Change, explained
from dagster_ips.spark.writes.merge import GONE, update_matched
from dagster_ips.spark.writes.merge_joins import joined_by_partition, small_sources_broadcast
from dagster_ips.spark.writes.overwrite_where import is_outside, refuse_rows_outside_partitions
from dagster_ips.spark.writes.partition_filter import Partitions, PartitionsHeld, among, collected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.merge import MergeIntoWriter

    from dagster_ips.core.columns import Struct

_STATUS = "__ips_status"
_DELTA, _TARGET, _LOST, _LIVE = "ips_delta", "ips_target", "ips_lost", "ips_live"
_SAME, _CHANGED, _IS_LOST, _STRANGE, _EMPTY = "same", "changed", "lost", "strange", "empty"
_MOST_BROADCAST = 200_000
_MOST_IN_ONE_MERGE, _OF_A_PARTITION = 10_000_000, 1_000_000
_OUTSIDE = "__ips: a group of another partition"


def combine_rows(  # noqa: PLR0913  # all are independent
    change: Change,
    aggregates: Aggregates,
    branch: Branch,
    *,
    head: int | None,
    evolved: Struct | None = None,
    partition_columns: Sequence[str],
    within: str | None,
    sole_partition_columns: Collection[str] = (),
    held: PartitionsHeld,
    came_to: Partitions | None,
) -> None:
    """Add ``change`` to the groups that ``branch`` has, append new ones, and delete those that are empty now.

    ``head`` is the branch's snapshot; None if it has to be looked up. ``evolved`` are the branch's columns, if its
    snapshot may show earlier ones.

    Of the target, only the partitions that the change touches are read, by literal predicates. Groups that stay the
    same aren't written; if there are no others, nothing is written. If rows were removed, a query first finds out what
    becomes of each group. ``within`` is the condition that all groups must meet. Groups of partitions that aren't
    ``held`` are new. ``came_to`` is given if it is known that no row was removed. It has the partitions that the change
    may have rows of, by those of ``partition_columns`` that are in the key. Then a single query may be enough.
    ``sole_partition_columns`` are the columns that alone partition the target's files; they are empty if something else
    may partition them, too.

    Raises:
        CombineError: rows were removed that the target never had, or a value is too large for its type.
        OutsidePartitionsError: a group isn't ``within``.
    """
    prune = [column for column in partition_columns if column in aggregates.keys]
    is_alone = set(prune) == set(sole_partition_columns)
    delta = aggregates.parts_that_matter(change)
    with explained(branch.table):
        if came_to is not None and not aggregates.computed:
            # A null equals nothing, so keys that may be null are compared by <=>. Nulls of partitions are known.
            place = _Place(prune, came_to, [key for key in aggregates.keys if key not in prune], is_alone=is_alone)
            if _add_by_one_query(aggregates, change.rows, delta, branch, place=place, within=within, held=held):
                return
        with computed_once(delta) as parts:
            touched = replace(_TouchedGroups.by(parts, aggregates.keys, prune, within), is_alone=is_alone)
            _add_by_a_look(
                aggregates, change, parts, branch, touched, head=head, evolved=evolved, within=within, held=held
            )


def _add_by_a_look(  # noqa: PLR0913  # as combine_rows
    aggregates: Aggregates,
    change: Change,
    parts: DataFrame,
    branch: Branch,
    touched: _TouchedGroups,
    *,
    head: int | None,
    evolved: Struct | None,
    within: str | None,
    held: PartitionsHeld,
) -> None:
    """As ``combine_rows``, after a look at the ``parts`` of the ``touched`` groups, which several queries read."""
    keys = aggregates.keys
    if within is not None and touched.has_outside:
        refuse_rows_outside_partitions(parts, within, table=branch.table)
    if not touched.groups:
        return
    there_may_be = held(touched.partitions)
    known = touched.only(there_may_be.partitions)
    if not known.groups:
        _append(aggregates, parts, change, branch, touched)
        return
    has_only_gained = not touched.has_removed and not aggregates.computed
    if has_only_gained and known.place.fits_one_merge(there_may_be):
        _add_all(aggregates, parts, branch, known.place)
        return
    head = branch.head(parts.sparkSession) if head is None else head
    # By snapshot: if the branch were cached by its name, Spark would read it again as soon as it is written to.
    there = table_frame(parts.sparkSession, branch.catalog, branch.table, snapshot_id=head)
    there = there if evolved is None else with_nested_keys_as_in(evolved, there, keys)
    there = there.where(among(touched.columns, known.partitions))
    if has_only_gained:
        _add_to_many(aggregates, parts, there, branch, touched, known=known, change=change)
        return
    with computed_once(_matched(aggregates, change, parts, there)) as matched:
        found: dict[str, int] = dict(collected(matched.groupBy(_STATUS).agg(F.count("*"))))
        if _STRANGE in found:
            _refuse_any(matched.where(F.col(_STATUS) == _STRANGE), keys, branch)
        if found.keys() - {_SAME}:
            _update(aggregates, change, matched, branch, known, has_lost=_IS_LOST in found)
        if touched.groups > sum(found.values()):
            new = parts.alias(_DELTA).join(matched.alias(_TARGET), same_keys(keys, _DELTA, _TARGET), "left_anti")
            _append(aggregates, new, change, branch, touched)


def _add_by_one_query(  # noqa: PLR0913  # as combine_rows
    aggregates: Aggregates,
    rows: DataFrame,
    delta: DataFrame,
    branch: Branch,
    *,
    place: _Place,
    within: str | None,
    held: PartitionsHeld,
) -> bool:
    """Add the parts ``delta`` of ``rows``, all of them added and in the ``place``; return whether that was possible."""
    inside = place if within is None else place.matching(within, rows)
    if inside is None or any(value is None for each in inside.partitions for value in each):
        return False
    there_may_be = held(inside.partitions)
    known = replace(inside, partitions=there_may_be.partitions)
    if known.partitions and not known.fits_one_merge(there_may_be):
        return False
    parts = delta
    if within is not None:
        refused = F.when(is_outside(within), F.raise_error(F.lit(_OUTSIDE)).cast("boolean"))
        parts = delta.where(refused.isNull())
    try:
        if known.partitions:
            _add_all(aggregates, parts, branch, known)
        else:
            aggregates.stored(parts).writeTo(branch.sql_name).append()
    except errors.PySparkException as error:
        if _OUTSIDE not in str(error):
            raise
        return False  # A look says which group, or that Spark checked it before a filter of the asset excluded it.
    return True


def _add_all(aggregates: Aggregates, parts: DataFrame, branch: Branch, place: _Place) -> None:
    """Add groups that only gained rows to what the branch has, and insert the others, in one MERGE.

    Each partition of the ``place`` is joined in one task or, if that isn't possible, its rows are shuffled. If there
    are few rows, either takes less time than another query.
    """
    added = _adding(aggregates, parts, branch, place)
    keys = {key: column_of(_DELTA, key) for key in aggregates.keys}
    names = [column for column in aggregates.columns if column not in keys]
    values = dict(zip(names, aggregates.values(aggregates.part_columns(_DELTA)), strict=True))
    by_partition = joined_by_partition(parts.sparkSession, is_written_in_place=place.is_alone)
    with by_partition if place.may_stay else contextlib.nullcontext():
        added.whenNotMatched().insert({quoted(name): value for name, value in (keys | values).items()}).merge()


def _adding(aggregates: Aggregates, parts: DataFrame, branch: Branch, place: _Place) -> MergeIntoWriter:
    """A MERGE that adds ``parts`` to the groups that the branch has in the partitions of the ``place``."""
    target = branch.qualifier
    old = {kept: column_of(target, column) for kept, column in aggregates.layout.columns.items()}
    now = aggregates.values_by_column(aggregates.added(old, _DELTA))
    same = same_keys(aggregates.keys, target, _DELTA, may_be_null=place.may_be_null)
    same &= among(place.columns, place.partitions, alias=target)
    merging = parts.alias(_DELTA).mergeInto(branch.sql_name, same)
    return merging.whenMatched().update({quoted(column): value for column, value in now.items()})


def _add_to_many(  # noqa: PLR0913  # all are independent
    aggregates: Aggregates,
    parts: DataFrame,
    there: DataFrame,
    branch: Branch,
    touched: _TouchedGroups,
    *,
    known: _TouchedGroups,
    change: Change,
) -> None:
    """As ``_add_all``, if a shuffle of the target's rows costs more than a separate query for new groups.

    Every group changes, none becomes empty, and none has lost an extreme, so nothing has to be looked at before it is
    written. ``there`` are the rows of the ``known`` partitions from before. Groups of other partitions, which are most
    of a day's change, aren't searched for.
    """
    keys = aggregates.keys
    late = parts.where(_is_in(known))
    with small_sources_broadcast(parts.sparkSession):
        _adding(aggregates, late, branch, known.place).merge()
    wanted = _small(late.select(*map(quoted, keys)), known).alias(_DELTA)
    found = there.select(*map(quoted, keys)).alias(_LIVE).join(wanted, same_keys(keys, _LIVE, _DELTA), "left_semi")
    new = late.alias(_DELTA).join(found.alias(_TARGET), same_keys(keys, _DELTA, _TARGET), "left_anti")
    if known.groups < touched.groups:
        new = new.unionByName(parts.where(~_is_in(known)))
    _append(aggregates, new, change, branch, touched)


def _is_in(groups: _TouchedGroups) -> Column:
    """Whether a row is in one of the groups' partitions; simply true if these are too many to be listed."""
    return F.coalesce(among(groups.columns, groups.partitions), F.lit(False))  # noqa: FBT003


def _small(rows: DataFrame, touched: _TouchedGroups) -> DataFrame:
    """``rows`` of the touched groups, broadcast to where the target's rows are read unless they are many."""
    return F.broadcast(rows) if touched.groups <= _MOST_BROADCAST else rows


def _update(  # noqa: PLR0913  # all are independent
    aggregates: Aggregates,
    change: Change,
    matched: DataFrame,
    branch: Branch,
    touched: _TouchedGroups,
    *,
    has_lost: bool,
) -> None:
    """Give changed groups their new values, and delete those that are empty."""
    keys, prune = aggregates.keys, touched.columns
    changed = matched.where(F.col(_STATUS).isin(_CHANGED, _EMPTY)).withColumn(GONE, F.col(_STATUS) == _EMPTY)
    changed = changed.drop(_STATUS)
    with contextlib.ExitStack() as kept:
        if has_lost:
            lost = matched.where(F.col(_STATUS) == _IS_LOST).select(*map(quoted, keys))
            again = computed_again(aggregates, change, lost, among(prune, touched.partitions))
            changed = changed.unionByName(kept.enter_context(computed_once(again)))
        update_matched(changed, branch, keys, among(prune, touched.partitions, alias=branch.qualifier))


def _append(aggregates: Aggregates, new: DataFrame, change: Change, branch: Branch, touched: _TouchedGroups) -> None:
    """Append the groups of the ``new`` parts, of which the table has none.

    Such a group can only have lost rows that were added by the same change.
    """
    new, parts = new.alias(_DELTA), aggregates.part_columns(_DELTA)
    keys = [column_of(_DELTA, key) for key in aggregates.keys]
    if touched.has_removed and not change.may_cancel:
        _refuse_any(new.where(F.col(REMOVED) > 0), aggregates.keys, branch)
    if not touched.has_removed or not change.may_cancel:
        aggregates.with_computed(new.select(*keys, *aggregates.values(parts))).writeTo(branch.sql_name).append()
        return
    judged = new.withColumn(_STATUS, _status(aggregates, change, parts, dict.fromkeys(parts, F.lit(None))))
    found: dict[str, int] = dict(collected(judged.groupBy(_STATUS).agg(F.count("*"))))
    if _STRANGE in found:
        _refuse_any(judged.where(F.col(_STATUS) == _STRANGE), aggregates.keys, branch)
    changed = judged.where(F.col(_STATUS) == _CHANGED).select(*keys, *aggregates.values(parts))
    groups = aggregates.with_computed(changed)
    if _IS_LOST in found:
        lost = judged.where(F.col(_STATUS) == _IS_LOST).select(*keys)
        again = computed_again(aggregates, change, lost, among(touched.columns, touched.partitions))
        groups = groups.unionByName(again.where(~F.col(GONE)).drop(GONE))
    if found.keys() - {_EMPTY}:
        groups.writeTo(branch.sql_name).append()


def _status(
    aggregates: Aggregates, change: Change, now: Mapping[KeptPart, Column], old: Mapping[KeptPart, Column]
) -> Column:
    """What becomes of a group of ``_DELTA`` that was ``old`` and now has the parts ``now``.

    No values are computed for a group that is impossible, empty or lost: even its sums might be invalid. Without keys,
    the only group stays one row, even if it has no rows.
    """
    return (
        F.when(aggregates.is_impossible(now), _STRANGE)
        .when((now[ROWS] == 0) & F.lit(bool(aggregates.keys)), _EMPTY)
        .when(aggregates.is_lost(old, _DELTA, may_cancel=change.may_cancel), _IS_LOST)
        .otherwise(_CHANGED)
    )


@dataclass(frozen=True)
class _Place:
    """Where a MERGE looks for groups: in ``partitions``, which are values of the partition ``columns`` in the key.

    ``may_be_null`` are the columns of the key in which a group may have a null. ``is_alone`` says that nothing else
    partitions the target's files.
    """

    columns: Sequence[str]
    partitions: Partitions
    may_be_null: Collection[str]
    is_alone: bool = False

    @property
    def may_stay(self) -> bool:
        """Whether Spark can join groups where the target's rows are: not by ``<=>``, which nulls require."""
        return bool(self.columns) and not set(self.columns) & set(self.may_be_null)

    def matching(self, where: str, rows: DataFrame) -> _Place | None:
        """A copy with only those partitions that meet the condition, according to Spark, without a job.

        None if it names other columns of ``rows``, or there are no partitions or too many.
        """
        if not 0 < len(self.partitions) <= MOST_LITERALS or not mentions_only(where, self.columns, of=rows.columns):
            return None
        values = listed(rows, self.columns, self.partitions, place="__ips_at")
        found = values.where(~is_outside(where)).select("__ips_at").collect()
        return replace(self, partitions=[self.partitions[at] for (at,) in sorted(found)])

    def fits_one_merge(self, there: HeldRows) -> bool:
        """Whether there are so few rows in the target that one MERGE that may also insert is the cheapest way."""
        most = min(_MOST_IN_ONE_MERGE, _OF_A_PARTITION * (len(self.partitions) if self.may_stay else 1))
        return there.most is not None and there.most <= most


@dataclass(frozen=True)
class _TouchedGroups:
    """How many groups of each partition a change touches, and whether any is special.

    A special group has lost a row, isn't where it may be, or has a null in its key. Partitions are values of the
    partition ``columns`` in the key. ``is_alone`` is as in ``_Place``.
    """

    keys: Sequence[str]
    columns: Sequence[str]
    by_partition: Mapping[tuple[object, ...], int]
    has_removed: bool
    has_outside: bool
    has_null_keys: bool
    is_alone: bool = False

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return sum(self.by_partition.values())

    @property
    def partitions(self) -> Partitions:
        """The partitions that they are in."""
        return list(self.by_partition)

    @property
    def place(self) -> _Place:
        """Where a MERGE looks for the groups."""
        may_be_null = self.keys if self.has_null_keys else ()
        return _Place(self.columns, self.partitions, may_be_null, is_alone=self.is_alone)

    def only(self, partitions: Partitions) -> _TouchedGroups:
        """Only the groups of ``partitions``."""
        return replace(self, by_partition={each: self.by_partition[each] for each in partitions})

    @classmethod
    def by(
        cls, parts: DataFrame, keys: Sequence[str], partition_columns: Sequence[str], within: str | None
    ) -> _TouchedGroups:
        names = [F.col(quoted(column)) for column in partition_columns]
        outside = is_outside(within) if within is not None else F.lit(False)  # noqa: FBT003
        null = any_of([F.col(quoted(key)).isNull() for key in keys])
        measured = F.count("*"), F.max(F.col(REMOVED) > 0), F.max(outside), F.max(null)
        named = [each.alias(f"__ips_{i}") for i, each in enumerate(measured)]
        found = collected(parts.groupBy(*names).agg(*named))
        by_partition = {row[:-4]: row[-4] for row in sorted(found, key=repr)}
        return cls(keys, partition_columns, by_partition, *(any(row[at] for row in found) for at in (-3, -2, -1)))


def _matched(aggregates: Aggregates, change: Change, parts: DataFrame, there: DataFrame) -> DataFrame:
    """The groups of ``parts`` that the target has: their new values, and what becomes of them.

    It is an inner join, so that Spark may broadcast the parts and leave the target's rows where they are.
    """
    keys, columns = aggregates.keys, aggregates.layout.columns
    target = there.select(*[quoted(column) for column in aggregates.columns]).alias(_TARGET)
    old = {kept: column_of(_TARGET, column) for kept, column in columns.items()}
    now = aggregates.added(old, _DELTA)
    values = aggregates.values(now)
    names = [column for column in aggregates.columns if column not in keys]
    shown = [column_of(_TARGET, key) for key in keys]
    joined = parts.alias(_DELTA).join(target, same_keys(keys, _DELTA, _TARGET))
    judged = joined.withColumn(_STATUS, _status(aggregates, change, now, old))
    made = [F.when(F.col(_STATUS) == _CHANGED, value).alias(name) for name, value in zip(names, values, strict=True)]
    kept_old = [column_of(_TARGET, name).alias(f"__ips_old_{i}") for i, name in enumerate(names)]
    found = judged.select(*shown, *made, *kept_old, _STATUS)
    is_same = all_of([F.col(quoted(name)).eqNullSafe(F.col(f"__ips_old_{i}")) for i, name in enumerate(names)])
    final = F.when((F.col(_STATUS) == _CHANGED) & is_same, _SAME).otherwise(F.col(_STATUS))
    computed = {name: F.when(F.col(_STATUS) == _CHANGED, value) for name, value in aggregates.computed.items()}
    found = found.withColumn(_STATUS, final).drop(*[f"__ips_old_{i}" for i in range(len(names))])
    return found.withColumns(computed) if computed else found


def computed_again(aggregates: Aggregates, change: Change, lost: DataFrame, touched: Column) -> DataFrame:
    """The values of the groups ``lost``, from all of their live rows; groups that have none left are gone."""
    assert change.weight is not None  # noqa: S101  # else nothing was removed
    live = change.rows.where(F.col(quoted(change.weight)) == 0).where(touched)
    same = same_keys(aggregates.keys, _LIVE, _LOST)
    live = live.alias(_LIVE).join(F.broadcast(lost).alias(_LOST), same, "left_semi")
    again = aggregates.groups(live).alias(_LIVE)
    keys = [column_of(_LOST, key) for key in aggregates.keys]
    names = [name for name in again.columns if name not in aggregates.keys]
    values = [column_of(_LIVE, name) for name in names]
    rows = column_of(_LIVE, aggregates.layout.columns[ROWS])
    return lost.alias(_LOST).join(again, same, "left").select(*keys, *values, rows.isNull().alias(GONE))


def _refuse_any(groups: DataFrame, keys: Sequence[str], branch: Branch) -> None:
    if found := groups.select(*map(quoted, keys)).limit(1).collect():
        of = f" of the group with {row_text(keys, found[0])}" if keys else ""
        problem = f"more rows{of} were removed than were ever added"
        raise CombineError(table=branch.table, problem=problem)
