"""What a run has of an upstream: the view that the asset's function receives, and what only the run itself uses."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import ChangeSet
from dagster_ips.core.misread_columns import MisreadColumns
from dagster_ips.core.ranges import Bound, ChangeRange, Predicate, quoted
from dagster_ips.core.run_values import RunValues
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.publish.input_change import FRAGMENTS, Frame, InputChange, KnownChange, TakenFrame
from dagster_ips.exactly_once.snapshot_rows import snapshot_rows
from dagster_ips.iceberg.column_ranges import ranges_over
from dagster_ips.iceberg.icdc.icdc_tables import Tag
from dagster_ips.iceberg.null_partitions import misread_at
from dagster_ips.iceberg.storage import Storage
from dagster_ips.spark.branches import sql_name
from dagster_ips.spark.changelog import (
    DELETED,
    PLACES,
    can_show_deleted_rows,
    deleted_at_one_end,
    deletions,
    gone_rows,
    kept_rows,
    more_in_sql,
    removed,
    without_places,
)
from dagster_ips.spark.frames import MOST_LITERALS, select_as_spark_reads, table_frame
from dagster_ips.spark.settings import may_broadcast_more
from dagster_ips.view import MOST_RANGES, OF_ANY_WIDTH, SEVERAL, IcdcView, within_any

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession

_COLLECTED = re.compile(r"int|long|date|decimal\(")
"""The types of columns whose values are the same in Python, and that have a width."""


class RunView(IcdcView):
    """The ``IcdcView`` of a run, with what IO managers and the maintenance of SQL assets use of it."""

    def __init__(
        self,
        captured: CapturedInput,
        session: SparkSession,
        catalog: str,
        *,
        storage: Storage | None = None,
        weighs_live_rows: bool = False,
    ) -> None:
        super().__init__(captured, session, catalog, storage=storage, weighs_live_rows=weighs_live_rows)
        self._names: list[str] = []
        self._gone_ranges: dict[str, list[ChangeRange]] = {}
        self._gone_count: int | None = None
        self._known = KnownChange()

    def release(self) -> None:
        """Drop everything that Spark has cached or named for this view."""
        while self._kept:
            self._kept.pop().unpersist()
        while self._names:  # Frames that are kept may read them.
            self._session.catalog.dropTempView(self._names.pop())

    def keep(self, frame: DataFrame) -> DataFrame:
        """``frame``, which Spark caches once it is computed, until this view is released."""
        self._kept.append(frame.persist())
        return frame

    def named(self, frame: DataFrame) -> str:
        """The name of a temporary view that holds ``frame``, until this view is released.

        Passing frames to ``session.sql()`` analyzes them anew each time, and ends their caches (Spark 4.1).
        """
        name = f"ips_{uuid.uuid4().hex}"
        frame.createTempView(name)
        self._names.append(name)
        return name

    @property
    def captured(self) -> CapturedInput:
        """The capture behind this view."""
        return self._captured

    @property
    def change(self) -> InputChange:
        """What was taken from this view, and what is known about the upstream's change."""
        return InputChange(
            upstream=self._upstream,
            columns=self._captured.source.column_names,
            taken=tuple(self._taken.frames),
            is_empty=self.is_empty,
            may_remove_rows=self._may_remove_rows,
            ignores_removed=self._ignores_removed,
            net=lambda: self._net,
            removed=lambda: removed(self._net_with_removed if self._ignores_removed else self._net),
            source=lambda: self._source,
            partitions=self._affected_partitions,
            pruning=self._pruning,
            may_be_null=self._may_be_null,
            table=f"{self._catalog}.{self._captured.source.table}",
            icdc_table=self._name_in_plans,
            is_asked=self._taken.is_asked,
            weighs_live_rows=self._weighs_live_rows,
            began_late=self._captured.began_late,
            is_later_part=self._captured.capture.bite is not None and self._captured.capture.bite.first > 0,
            known=self._known,
            types=self._types,
            given=RunValues(
                names={self._captured.capture.icdc_table.rpartition(".")[2]: f"changes of {self._upstream}"},
                predicates=self._taken.predicates,
                bounds=tuple(self._taken.bounds),
                ranges=frozenset(self._taken.ranges),
            ),
        )

    def of_another_table(self, captured: CapturedInput) -> RunView:
        """The same change as captured for another table.

        It isn't known for which of the tables a frame is taken, so a frame taken from one view counts for both.
        """
        view = RunView(
            captured, self._session, self._catalog, storage=self._storage, weighs_live_rows=self._weighs_live_rows
        )
        view._taken = self._taken
        return view

    @property
    def reported_partitions(self) -> tuple[Mapping[str, Bound | None], ...] | None:
        """``partitions``, without recording that the asset has asked for them."""
        found = self._affected_partitions
        return found.as_mappings() if found else None

    @property
    def reported_ranges(self) -> Mapping[str, ChangeRange]:
        """``ranges``, without recording that the asset has asked for them."""
        return {column: self._range(column) for column in self._captured.ranges}

    def took_only_the_change(self) -> None:
        """Forget that the source was taken, because only its columns were looked at."""
        self._taken.frames[:] = [each for each in self._taken.frames if each.frame is not Frame.SOURCE]

    @property
    def bytes_read(self) -> int | None:
        """How much the frames that were taken read; None if that isn't known, as they also hold rows beside the change.

        Of unchanged rows, an asset reads what its own filters leave.
        """
        taken = {each.frame for each in self._taken.frames}
        if not taken <= {*FRAGMENTS} or not (taken or self.is_empty):
            return None
        changes = self._captured.files.changes
        is_compared = self._may_remove_rows and taken != {Frame.CHANGES}
        return sum(file.file_size_bytes for file in changes.touched) if is_compared else changes.size_bytes

    def as_sql(self, frame: Frame) -> str:
        """As ``sql_of``, for a statement whose plan isn't inspected: it counts as reading the frame."""
        self._taken.frames.append(TakenFrame(frame, ""))
        return self.sql_of(frame)

    def sql_of(self, frame: Frame) -> str:
        """``changes``, ``added``, ``removed`` or ``source`` as SQL in place of a table name, for any Spark."""
        if frame is Frame.SOURCE:
            return self._source_sql
        if frame is Frame.CHANGES or (frame is Frame.ADDED and not self._may_remove_rows):
            return f"({self._select(self._table)})" if self._misread_in_change.are_any else self._table
        if frame is Frame.REMOVED and (not self._may_remove_rows or self._ignores_removed):
            return f"(SELECT * FROM {self._table} WHERE FALSE)"  # noqa: S608  # quoted by sql_name
        before, rewritten, fresh = (self._tagged_sql(tag) for tag in (Tag.BEFORE, Tag.REWRITTEN, Tag.FRESH))
        if not self._is_compared:  # None of the added files can hold a row that was there before.
            return f"({fresh})" if frame is Frame.ADDED else f"({before})"
        columns = {column.name: column.kind for column in self._captured.source.struct.fields}
        if frame is Frame.REMOVED:
            return more_in_sql(before, rewritten, columns)
        return f"({more_in_sql(rewritten, before, columns)} UNION ALL {fresh})"

    @property
    def came(self) -> DataFrame:
        """What ``added`` holds and, maybe, rows that ``went`` holds as well.

        If rows were only added and deleted by delete files, no rows are compared for it: it costs what it reads.
        """
        return self._given(self._changes, Frame.ADDED) if self._is_known_apart else self.added

    @property
    def went(self) -> DataFrame:
        """What ``removed`` holds and, maybe, rows that ``came`` holds as well."""
        if not self._is_known_apart:
            return self.removed
        return self._given(without_places(self._gone), Frame.REMOVED)

    @cached_property
    def kept(self) -> DataFrame | None:
        """The rows of ``before`` without those that ``went``; with those that ``came``, they are ``source``.

        None if ``before`` is, or if rows would have to be compared for it.
        """
        before = self._snapshot_before
        if before is None or not self._may_remove_rows:
            return self.before
        source, files = self._captured.source, self._captured.files
        if not (self._is_known_apart and source.shows_current_schema(before)):
            return None
        rows = table_frame(self._session, self._catalog, source.table, snapshot_id=before.snapshot_id)
        misread = misread_at(self._storage, source, before)
        are_few = self._gone_count is not None and self._gone_count <= OF_ANY_WIDTH
        are_few = are_few and may_broadcast_more(self._session)
        kept = kept_rows(rows, self._gone, [entry.path for entry in files.hidden], are_few=are_few)
        return self._of_run(kept, misread)

    @cached_property
    def before(self) -> DataFrame | None:
        """The upstream as of when it was last consumed, with the columns of ``source``.

        None if that is unknown or can no longer be read, because its snapshot has expired. What a result takes from
        it isn't checked.
        """
        before = self._snapshot_before
        if before is None:
            return None
        captured = self._captured
        return self._of_run(snapshot_rows(self._session, self._catalog, captured.source, before, storage=self._storage))

    def came_within(self, column: str, of: str) -> Predicate:
        """A condition on a column ``of`` that is true for every value of ``column`` in rows that ``came``."""
        changes = self._captured.files.changes
        if self._is_known_apart or not self._may_remove_rows:
            changes = ChangeSet(added=changes.added)
        return self._pruning(column, of, changes)

    def went_within(self, column: str, of: str) -> Predicate:
        """A condition on a column ``of`` that is true for every value of ``column`` in rows that ``went``."""
        changes = self._captured.files.changes
        changes = ChangeSet(removed=changes.removed, hidden=changes.hidden)
        found = self._gone_ranges.get(column)
        if found is None or not _are_narrow(found, self._change_ranges(column, changes)):
            return self._pruning(column, of, changes)
        return within_any(found, of)

    def loses_rows(self, columns: Sequence[str], compared: Collection[str] = ()) -> bool:
        """Whether a row ``went``, of which only ``columns`` are needed from now on.

        If rows have to be compared, they are compared by these alone; ``came`` and ``went`` have no others then.

        It runs a job only if files changed whose rows may all be the same. Spark caches the rows that it finds.
        Otherwise, it would estimate their number by the size of their files, and plan joins for far more rows. For the
        columns ``compared``, it also finds the values that ``went_within`` names.
        """
        if self._may_be_apart:
            kept = self.keep(self._deleted_at_one_end.select(*map(quoted, columns), *PLACES, DELETED))
            types = self.change.types
            found = deletions(kept, [name for name in compared if _COLLECTED.match(types.get(name, ""))])
            self._deleted_at_one_end, self._is_known_apart = kept, not found.back
            if self._is_known_apart:
                self._known.has_change = found.gone > 0
                self._gone_count = found.gone
                self._gone_ranges = {
                    name: ranges_over(name, bounds, has_null=name in found.nulls, most=MOST_RANGES)
                    for name, bounds in found.bounds.items()
                }
                if not found.gone:
                    self._known.removes_rows = False
                return found.gone > 0
        self._needed = tuple(columns)
        self._used_net(SEVERAL)
        return self.change.removes_rows()

    @property
    def columns_before(self) -> tuple[str, ...] | None:
        """The names of the upstream's columns when it was last consumed; None if they are unknown."""
        return self._captured.source.column_names_in(self._schema_before)

    @property
    def columns_with_defaults(self) -> frozenset[str]:
        """Columns with a default other than null in rows that are older than the column."""
        return self._captured.source.columns_with_defaults

    @property
    def columns_with_new_defaults(self) -> frozenset[str]:
        """Those of ``columns_with_defaults`` that are new, or have a new field, since the upstream was last consumed.

        Rows from before that may have another value in them now.
        """
        return _with_any_of(self._captured.source.columns_since(self._schema_before), self.columns_with_defaults)

    @property
    def columns_widened(self) -> frozenset[str]:
        """Columns that have a wider type, or a field with one, since the upstream was last consumed."""
        return _with_any_of(self._captured.source.columns_widened_since(self._schema_before), self.columns)

    @property
    def structs_changed(self) -> frozenset[tuple[str, ...]]:
        """Structs in columns that have other fields than when the upstream was last consumed."""
        return self._captured.source.structs_changed_since(self._schema_before)

    @property
    def _snapshot_before(self) -> Snapshot | None:
        since = self._captured.capture.from_exclusive
        if self._is_whole or since is None:
            return None
        return self._captured.source.snapshots.get(since.snapshot_id)

    @property
    def _schema_before(self) -> str | None:
        since = self._captured.capture.from_exclusive
        return since.schema_id if since else None

    @cached_property
    def _is_known_apart(self) -> bool:
        """Whether it is known which rows came and which went: no file is gone, and no deleted row is back.

        It runs a job only if delete files are gone: those that came instead may delete less.
        """
        files = self._captured.files
        if not self._may_be_apart:
            return False
        kept = {entry.identity for entry in files.deletes}
        if kept.issuperset(entry.identity for entry in files.before.deletes):
            return True
        return not deletions(self._deleted_at_one_end).back

    @cached_property
    def _may_be_apart(self) -> bool:
        """Whether ``_is_known_apart`` as far as metadata says."""
        files = self._captured.files
        if not files.hidden or files.changes.removed or files.restored or self._ignores_removed:
            return False
        if not can_show_deleted_rows(self.columns):
            return False
        if len(files.rewritten) > MOST_LITERALS:
            return False
        # If a file is listed twice, a place in it isn't one row.
        return len({entry.path for entry in files.before.data}) == len(files.before.data)

    @cached_property
    def _deleted_at_one_end(self) -> DataFrame:
        """The rows that went and those that are back, if nothing else can be gone."""
        files = self._captured.files
        before = self._tagged(Tag.BEFORE, with_deleted=True) if files.before.deletes else None
        now = self._tagged(Tag.REWRITTEN, with_deleted=True)
        return deleted_at_one_end(before, now, added=[entry.path for entry in files.rewritten])

    @property
    def _gone(self) -> DataFrame:
        """The rows that went, if they are known apart, and where they are."""
        return gone_rows(self._deleted_at_one_end)

    @property
    def _source_sql(self) -> str:
        if Tag.SOURCE in self._captured.tags:
            return f"({self._tagged_sql(Tag.SOURCE)})"
        to, table = self._captured.capture.to_inclusive, sql_name(self._catalog, self._captured.source.table)
        if to is None:
            return f"(SELECT * FROM {table} WHERE FALSE)"  # noqa: S608  # quoted by sql_name
        return f"({self._select(f'{table} VERSION AS OF {to.snapshot_id}', self._misread_in_source)})"

    def _tagged_sql(self, tag: Tag) -> str:
        misread = self._misread_in_source if tag is Tag.SOURCE else None
        return self._select(f"{self._table} VERSION AS OF {self._captured.tags[tag]}", misread)

    def _select(self, table: str, misread: MisreadColumns | None = None) -> str:
        """The upstream's columns of ``table`` as SQL, read as in the frames; by default, it is the ICDC table."""
        return select_as_spark_reads(table, self.columns, self._misread_in_change if misread is None else misread)


def _with_any_of(fields: Collection[str], columns: Collection[str]) -> frozenset[str]:
    """Those of ``columns`` that are among ``fields``, or have a field that is."""
    return frozenset(name for name in columns if any(each == name or each.startswith(f"{name}.") for each in fields))


def _are_narrow(ranges: Sequence[ChangeRange], others: Sequence[ChangeRange]) -> bool:
    """Whether ``ranges`` of numbers or of dates have less than half the width of the ``others``."""
    if not ranges or not others:
        return not ranges
    width, most = _width(ranges), _width(others)
    return width is not None and (most is None or 2 * width < most)


def _width(ranges: Sequence[ChangeRange]) -> Any:  # noqa: ANN401  # a number or a timedelta
    """The sum of their widths; None if any is open. There must be a range."""
    bounds: list[tuple[Any, Any]] = [(each.lowest, each.highest) for each in ranges]
    if any(None in pair for pair in bounds):
        return None
    first, *others = (upper - lower for lower, upper in bounds)
    return sum(others, first)
