"""What an asset function receives for an upstream that it reads incrementally."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING

from dagster_ips.core.aggregates import WEIGHT
from dagster_ips.core.ancestry import MAIN
from dagster_ips.core.capture import Mode
from dagster_ips.core.change_set import ChangeSet
from dagster_ips.core.misread_columns import MisreadColumns
from dagster_ips.core.policy import OnRemoved
from dagster_ips.core.ranges import Bound, ChangeRange, Predicate, Told, equals, quoted
from dagster_ips.errors import DeclarationError, UnorderedColumnError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.icdc_parameters import parameters
from dagster_ips.exactly_once.publish.input_change import Frame, TakenFrame
from dagster_ips.iceberg.affected_partitions import AffectedPartitions, affected_partitions, files_within
from dagster_ips.iceberg.column_ranges import (
    change_range,
    change_ranges,
    partition_values,
    require_column,
    require_plain_column,
)
from dagster_ips.iceberg.icdc.icdc_tables import Tag
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.null_partitions import misread_at, misread_in
from dagster_ips.iceberg.partition_presence import partitions_held
from dagster_ips.iceberg.storage import Storage
from dagster_ips.spark.branches import sql_name
from dagster_ips.spark.changelog import (
    NetRows,
    added,
    all_added,
    all_apart,
    can_show_deleted_rows,
    changelog,
    net_rows,
    only_added,
    removed,
    weighted,
    with_deleted_rows,
    with_live_rows,
)
from dagster_ips.spark.frames import (
    MOST_LITERALS,
    as_spark_reads,
    distinct_keys,
    listed,
    renamed,
    rows_with_keys,
    table_frame,
)
from dagster_ips.spark.plans import marked
from dagster_ips.spark.settings import may_broadcast_more

if TYPE_CHECKING:
    from dagster_ips.spark.late import types
    from dagster_ips.spark.session import DataFrame, SparkSession

MOST_RANGES = 4
"""Into how many ranges a condition on changed values is divided.

Iceberg skips files between the ranges, but Spark has to compile each range into the code of a scan.
"""
_FEW = 16
_MOST_BROADCAST, OF_ANY_WIDTH = 2_000_000, 200_000
"""How many keys are broadcast: of types with a width of at most 16 bytes, and of others.

Spark assumes that each changed row has a key of its own, and would shuffle the whole source for far fewer.
"""
_NARROW = re.compile(r"boolean|int|long|float|double|date|timestamp|decimal\(")
_PLAIN = re.compile(rf"{_NARROW.pattern}|string|uuid|binary|fixed")
"""Types whose values Spark can compare and group by as they are."""
SEVERAL = 2
_NUMBERS = itertools.count(1)


@dataclass
class Taken:
    """What an asset took from a view: its frames, and whether it asked which values changed.

    ``predicates`` and ``ranges`` are conditions on these values, as in ``Told``, and ``bounds`` such values, each with
    what it means in the asset's code.
    """

    frames: list[TakenFrame] = field(default_factory=list)
    is_asked: bool = False
    predicates: dict[str, str] = field(default_factory=dict)
    ranges: set[str] = field(default_factory=set)
    bounds: list[tuple[Bound, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ViewStats:
    """How much changed, and how much there is in total: None if the source's snapshot doesn't record it."""

    files: int
    rows: int
    size_bytes: int
    source_files: int | None
    source_rows: int | None
    source_size_bytes: int | None


class IcdcView:
    """What changed in an upstream since the consumer last consumed it, and ways to read that.

    Every frame is lazy: unused ones cost nothing. In mode ``full`` every frame holds the run's whole scope, so the same
    asset function recomputes the table. If limits let a run take only some files of a change, the change consists of
    those files, also in mode ``full``, and ``source`` is the upstream including all of them.
    """

    def __init__(
        self,
        captured: CapturedInput,
        session: SparkSession,
        catalog: str,
        *,
        storage: Storage | None = None,
        weighs_live_rows: bool = False,
    ) -> None:
        self._captured = captured
        self._session = session
        self._catalog = catalog
        self._storage = storage
        self._weighs_live_rows = weighs_live_rows
        self._taken = Taken()
        self._kept: list[DataFrame] = []
        self._net_uses = 0
        self._needed: tuple[str, ...] | None = None

    @property
    def session(self) -> SparkSession:
        """The Spark session of its frames."""
        return self._session

    @property
    def mode(self) -> Mode:
        """``full`` or ``incremental``."""
        return self._captured.capture.mode

    @property
    def is_empty(self) -> bool:
        """Whether no file changed. If files did, all of their rows may still be unchanged."""
        return self._captured.files.changes.is_empty

    @property
    def table(self) -> str:
        """The ICDC table's name for Spark SQL: it holds what ``changes`` holds.

        In a run of partitions it may also hold rows of other partitions, unless the upstream is partitioned by the same
        columns; the condition ``parameters["rows"]`` filters them out.
        """
        self._take_table()
        return self._table

    @property
    def icdc_table(self) -> str:
        """The ICDC table's name in the catalog, for PyIceberg and other engines."""
        self._take_table()
        return self._captured.capture.icdc_table

    @property
    def changes(self) -> DataFrame:
        """Every row of the ICDC table: the rows of the files that were added.

        After an update, delete or overwrite upstream, these may include old rows that were only rewritten; ``added``
        doesn't.
        """
        return self._given(self._changes, Frame.CHANGES)

    @property
    def added(self) -> DataFrame:
        """The rows that the upstream has now but didn't have before. Duplicates count individually."""
        if not self._may_remove_rows:
            return self._given(self._changes, Frame.ADDED)
        net = self._net
        return self._given(added(net), Frame.ADDED, columns=net.columns)

    @property
    def removed(self) -> DataFrame:
        """The rows that the upstream had before but doesn't have now. There are none in mode ``full``."""
        net = self._net
        return self._given(removed(net), Frame.REMOVED, columns=net.columns)

    @property
    def weighted(self) -> DataFrame:
        """``added`` and ``removed`` in one frame, with a column ``_weight`` that is 1 or -1.

        For ``combine()`` with ``min``, ``max`` or an approximate sum, it also has all current rows, with weight 0: they
        are needed to find such a value again after its row was removed, here or in another input. They are read only if
        needed.

        Raises:
            DeclarationError: the upstream has a column of that name.
        """
        name = self._free_name(WEIGHT, "Use added and removed instead.")
        net = self._net
        rows = weighted(net, name)
        if self._weighs_live_rows and not self._is_whole:
            return self._given(with_live_rows(rows, self._source, name), Frame.WEIGHTED)
        return self._given(rows, Frame.WEIGHTED, columns=(*net.columns, name))

    def changelog(self, keys: Sequence[str] | None = None, *, change_type: str = "_change_type") -> DataFrame:
        """``added`` and ``removed`` rows in one frame, with a column that says ``insert`` or ``delete``.

        With ``keys``, if a key has both, its rows are ``update_before`` and ``update_after``. This is the net change:
        rows that were added and removed again in between aren't in it. ``change_type`` is the added column's name.

        Raises:
            UnknownColumnError: the upstream has no such key.
            DeclarationError: the upstream has a column named ``change_type``.
        """
        self._require_columns(keys or ())
        name = self._free_name(change_type, 'Choose another name for the new one: changelog(change_type="...").')
        net = self._used_net(2 if keys else 1)
        return self._given(changelog(net, keys or (), name), Frame.CHANGELOG, columns=(*net.columns, name))

    @property
    def source(self) -> DataFrame:
        """The upstream as of the capture, regardless of later commits."""
        return self._given(self._source, Frame.SOURCE)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the upstream's columns."""
        return self._captured.source.column_names

    def affected(self, *keys: str) -> DataFrame:
        """All current rows of the upstream whose ``keys`` occur in the change, in added rows or in removed ones.

        Null is a key like any other.

        Raises:
            UnknownColumnError: the upstream has no such column.
        """
        self._require_columns(keys)
        if self._is_whole:
            return self._given(self._source, Frame.AFFECTED, keys)
        return self._given(self._rows_affected(keys), Frame.AFFECTED, keys)

    def _rows_affected(self, keys: Sequence[str]) -> DataFrame:
        """The current rows with changed ``keys``. Partitions that are new as a whole need no look at the keys."""
        new, others = self._partitions_by_age(keys)
        if new is None:
            own = [self._pruning(key) for key in keys]
            return rows_with_keys(self._source, self._changed, keys, own, are_few=self._are_broadcast(keys))
        rows = self._source.where(new.predicate(self._catalog))
        if not others.values:
            return rows
        within = others.predicate(self._catalog)
        changed = self._changed.where(within)
        are_few = self._are_broadcast(keys, others)
        return rows.unionAll(rows_with_keys(self._source, changed, keys, [within], are_few=are_few))

    def _partitions_by_age(self, keys: Sequence[str]) -> tuple[AffectedPartitions | None, AffectedPartitions]:
        """The changed partitions of which nothing was consumed before, and the others.

        The first is None if there are none, or that is unknown, or rows with the same ``keys`` may be in both.
        """
        every = self._affected_partitions or AffectedPartitions((), frozenset())
        start, source, storage = self._captured.capture.from_exclusive, self._captured.source, self._storage
        if storage is None or start is None or start.snapshot_id not in source.snapshots:
            return None, every
        if not every.columns or not set(every.columns) <= set(keys) or len(every.values) > MOST_LITERALS:
            return None, every
        values = sorted(every.values, key=repr)
        held = set(partitions_held(storage, source.as_of(start.snapshot_id, MAIN), every.columns, values).partitions)
        new = replace(every, values=every.values - held)
        return (new if new.values else None), replace(every, values=every.values & held)

    def affected_by(self, keys: Sequence[str], other: IcdcView, on: Mapping[str, str]) -> DataFrame:
        """The result of ``affected(..., by=other, on=...)``, with ``on`` keyed by this upstream's columns."""
        self._require_columns([*keys, *on])
        other._require_columns(list(on.values()))
        joined = {other._captured.capture.edge.upstream: dict(on)}
        if self._is_whole:
            return self._given(self._source, Frame.AFFECTED, keys, joined)
        if other.is_empty:
            own = [self._pruning(key) for key in keys]
            changed = distinct_keys(self._changed, keys)
        else:
            own = []
            moved = renamed(other._changed, on)
            touched = rows_with_keys(self._source, moved, list(on), [])
            changed = distinct_keys(self._changed, keys).unionAll(distinct_keys(touched, keys)).distinct().persist()
            self._kept.append(changed)
        found = rows_with_keys(self._source, changed, keys, own)
        return self._given(found, Frame.AFFECTED, keys, joined, changed)

    @property
    def partitions(self) -> tuple[Mapping[str, Bound | None], ...] | None:
        """The upstream's partitions that changed, as field name → value, in a stable order.

        Empty if none did. None if they are unknown, because the upstream isn't partitioned or a changed file has
        another partition spec, and in mode ``full``, where all of them count.
        """
        self._taken.is_asked = True
        found = self._affected_partitions
        for each in found.as_mappings() if found else ():
            self._taken.bounds += [
                (value, f"{self._upstream}.{name}") for name, value in each.items() if value is not None
            ]
        return found.as_mappings() if found else None

    @property
    def scope(self) -> DataFrame:
        """All current rows of the upstream's partitions that changed; of all partitions if those are unknown."""
        found = self._affected_partitions
        rows = self._source if found is None else self._of_partitions(found)
        # A full run reads all partitions, but its result must follow the same rules as an incremental run's.
        usual = affected_partitions(ChangeSet(), self._captured.source)
        keys = usual.columns if usual and (self._is_whole or found) else ()
        return self._given(rows, Frame.SCOPE, keys, by_transform=usual is not None and not usual.columns)

    def _of_partitions(self, found: AffectedPartitions) -> DataFrame:
        if len(found.values) <= MOST_LITERALS:
            return self._source.where(found.predicate(self._catalog))
        if not found.columns:  # by a transform: which rows are in a partition takes long to say
            return self._source
        wanted = listed(self._source, found.columns, list(found.values), place="__ips_at")
        return rows_with_keys(self._source, wanted, found.columns, [self._pruning(each) for each in found.columns])

    @property
    def ranges(self) -> Mapping[str, ChangeRange]:
        """The ranges requested by ``incremental(ranges=...)``, by column. In mode ``full`` each covers everything."""
        return {column: self.range(column) for column in self._captured.ranges}

    def range(self, column: str) -> ChangeRange:
        """The lower and upper value of ``column`` in the changed files. In mode ``full`` it covers everything.

        Raises:
            UnknownColumnError: the upstream has no such column.
            UnorderedColumnError: its values are maps, lists, structs or variants.
        """
        self._taken.is_asked = True
        found = self._range(column)
        told = Told(f"{self._upstream}.{column}", self._taken.predicates, self._taken.ranges)
        sides = {"lower": found.lowest, "upper": found.highest}
        self._taken.bounds += [(value, f"{side} of {told.of}") for side, value in sides.items() if value is not None]
        return replace(found, told=told)

    def _range(self, column: str) -> ChangeRange:
        if self._is_whole:
            self._require_columns([column])
            require_plain_column(self._captured.source, column)
            return ChangeRange.everything(column)
        known = self._captured.ranges.get(column)
        return known or change_range(self._captured.files.changes, self._captured.source, column)

    @property
    def parameters(self) -> Mapping[str, str]:
        """All of this as strings, for SQL templates, Dagster Pipes and spark-submit arguments.

        Keys: ``mode``, ``icdc_table`` (empty if it may also hold rows that were only rewritten), ``source_table``,
        ``rows`` (the condition, for both tables, on the rows of the run's partitions; ``TRUE`` without partitions),
        ``from_snapshot_id_exclusive``, ``to_snapshot_id_inclusive`` (empty where there is none), and per range
        ``<column>_kind``, ``<column>_lower``, ``<column>_upper``.
        """
        self._taken.is_asked = True
        given = parameters(self._captured, self._catalog)
        told = given.keys() - {"mode", "icdc_table", "source_table", "rows"}
        self._taken.bounds += [(given[name], f"{name} of {self._upstream}") for name in sorted(told) if given[name]]
        self._taken.predicates[given["rows"]] = "the rows of its partitions"
        return given

    @property
    def stats(self) -> ViewStats:
        """How much changed, and how much there is in total."""
        changes = self._captured.files.changes
        summary = self._captured.head.summary if self._captured.head else {}
        return ViewStats(
            files=len(changes.added),
            rows=changes.row_count,
            size_bytes=changes.size_bytes,
            source_files=_number(summary.get("total-data-files")),
            source_rows=_number(summary.get("total-records")),
            source_size_bytes=_number(summary.get("total-files-size")),
        )

    @property
    def _is_whole(self) -> bool:
        """Whether every frame holds the run's whole scope, not only a change."""
        return self.mode is Mode.FULL and self._captured.capture.bite is None

    @property
    def _may_remove_rows(self) -> bool:
        return self._captured.files.changes.may_remove_rows

    @property
    def _upstream(self) -> str:
        return self._captured.capture.edge.upstream

    @property
    def _table(self) -> str:
        return sql_name(self._catalog, self._captured.capture.icdc_table)

    @property
    def _name_in_plans(self) -> str:
        return f"{self._catalog}.{self._captured.capture.icdc_table}"

    def _take_table(self) -> None:
        self._taken.frames.append(TakenFrame(Frame.CHANGES, self._name_in_plans))

    @cached_property
    def _source(self) -> DataFrame:
        if Tag.SOURCE in self._captured.tags:
            return self._tagged(Tag.SOURCE)
        to, table = self._captured.capture.to_inclusive, self._captured.source.table
        if to is None:
            return table_frame(self._session, self._catalog, table).where("FALSE")
        rows = table_frame(self._session, self._catalog, table, snapshot_id=to.snapshot_id)
        return self._of_run(rows, self._misread_in_source)

    @cached_property
    def _changes(self) -> DataFrame:
        rows = table_frame(self._session, self._catalog, self._captured.capture.icdc_table)
        return self._of_run(rows, self._misread_in_change)

    @property
    def _changed(self) -> DataFrame:
        """Rows that were added or removed; there may be a weight column beside the upstream's columns."""
        return self._net.rows if self._may_remove_rows else self._changes

    def _are_broadcast(self, keys: Sequence[str], within: AffectedPartitions | None = None) -> bool:
        """Whether the changed values of ``keys`` are few according to metadata, and the user has set no other limit.

        ``within`` are the partitions that count.
        """
        touched, types = self._captured.files.changes.touched, self._types
        files = touched if within is None else files_within(touched, within, self._captured.source)
        rows = sum(file.record_count for file in files)
        narrow = all(_NARROW.match(types.get(key, "")) for key in keys)
        return rows <= (_MOST_BROADCAST if narrow else OF_ANY_WIDTH) and may_broadcast_more(self._session)

    @property
    def _net(self) -> NetRows:
        """The net rows, for one frame."""
        return self._used_net(1)

    def _used_net(self, times: int) -> NetRows:
        """The net rows, which are read ``times`` more.

        If rows have to be compared for them, Spark caches them as soon as they are needed more than once. It also uses
        the cache for frames that were made of them before. Computed once, they cost less without a cache.
        """
        net = self._compared_net
        self._net_uses += times
        if self._is_compared and self._net_uses >= SEVERAL > self._net_uses - times:
            self._kept.append(net.rows.persist())
        return net

    @property
    def _is_compared(self) -> bool:
        """Whether rows have to be compared to find the net rows."""
        files = self._captured.files
        return self._may_remove_rows and bool(files.rewritten or files.hidden)

    @cached_property
    def _compared_net(self) -> NetRows:
        if not self._may_remove_rows or (self._ignores_removed and not self._is_compared):
            return all_added(self._changes, self.columns)
        return only_added(self._net_with_removed) if self._ignores_removed else self._net_with_removed

    @cached_property
    def _net_with_removed(self) -> NetRows:
        files = self._captured.files
        fresh = self._tagged(Tag.FRESH) if files.fresh or files.whole else None
        if not self._is_compared:  # None of the added files can hold a row that was there before.
            return all_apart(self._tagged(Tag.BEFORE), fresh, self.columns)
        hidden = [entry.path for entry in files.hidden[:MOST_LITERALS]] if can_show_deleted_rows(self.columns) else []
        before, rewritten = (self._tagged(tag, with_deleted=bool(hidden)) for tag in (Tag.BEFORE, Tag.REWRITTEN))
        return net_rows(before, rewritten, fresh, hidden=hidden, columns=self._compared_columns(before))

    def _compared_columns(self, rows: DataFrame) -> dict[str, types.DataType | None]:
        """The columns by which rows are compared, with types of ``rows``; None where the metadata says it is plain."""
        names = [name for name in self.columns if self._needed is None or name in self._needed]
        if all(_PLAIN.match(self._types.get(name, "")) for name in names):
            return dict.fromkeys(names)
        kinds = {field.name: field.dataType for field in rows.schema.fields}
        return {name: kinds[name] for name in names}

    @property
    def _ignores_removed(self) -> bool:
        return self._captured.policies.on_removed is OnRemoved.IGNORE

    def _tagged(self, tag: Tag, *, with_deleted: bool = False) -> DataFrame:
        """The rows of a tag; ``with_deleted``, in the form in which ``net_rows`` needs those of hidden files."""
        snapshot_id = self._captured.tags[tag]
        table = self._captured.capture.icdc_table
        rows = table_frame(self._session, self._catalog, table, snapshot_id=snapshot_id)
        misread = self._misread_in_source if tag is Tag.SOURCE else self._misread_in_change
        return self._of_run(with_deleted_rows(rows) if with_deleted else rows, misread)

    def _of_run(self, rows: DataFrame, misread: MisreadColumns | None = None) -> DataFrame:
        """Only the rows that the run's partitions are computed from: a file may also hold other rows.

        ``misread`` are their columns that Iceberg misreads, if they are a table's own.
        """
        rows = rows if misread is None else as_spark_reads(rows, misread)
        return rows if self._captured.rows is None else rows.where(self._captured.rows)

    @cached_property
    def _misread_in_source(self) -> MisreadColumns:
        misread = misread_at(self._storage, self._source_as_shown, self._captured.head)
        return misread.hiding_also(self._misread_in_change.hidden)

    @cached_property
    def _misread_in_change(self) -> MisreadColumns:
        return misread_in(self._source_as_shown, self._captured.files.changes.touched)

    @property
    def _source_as_shown(self) -> TableMetadata:
        """The source with the columns that the frames have: what is recomputed is read as it was then."""
        source, head = self._captured.source, self._captured.head
        return source if head is None or Tag.SOURCE in self._captured.tags else source.showing(head)

    @cached_property
    def _affected_partitions(self) -> AffectedPartitions | None:
        if self._is_whole:
            return None
        if self.is_empty:
            return AffectedPartitions((), frozenset())
        return affected_partitions(self._captured.files.changes, self._captured.source)

    def _given(  # noqa: PLR0913  # most are the fields of a TakenFrame
        self,
        rows: DataFrame,
        frame: Frame,
        keys: Sequence[str] = (),
        on: Mapping[str, Mapping[str, str]] | None = None,
        changed: DataFrame | None = None,
        *,
        columns: Sequence[str] | None = None,
        by_transform: bool = False,
    ) -> DataFrame:
        """``rows`` as the asset gets them, with a mark by which the plan of its result shows their use.

        ``columns`` are theirs, if they are known.
        """
        taken = TakenFrame(frame, f"__ips_{next(_NUMBERS)}", tuple(keys), on or {}, by_transform, changed)
        self._taken.frames.append(taken)
        return marked(rows, taken.mark, name=self._upstream.rpartition("/")[2], columns=columns)

    def _free_name(self, name: str, remedy: str) -> str:
        # Spark ignores case in column names.
        if name.lower() in {column.lower() for column in self._captured.source.column_names}:
            raise DeclarationError(
                asset=self._captured.capture.edge.consumer,
                problem=f"{self._captured.source.table} already has a column {name!r}.",
                remedy=remedy,
            )
        return name

    def _pruning(self, column: str, of: str | None = None, changes: ChangeSet | None = None) -> Predicate:
        changes = self._captured.files.changes if changes is None else changes
        values = partition_values(changes, self._captured.source, column)
        # Of a table that isn't partitioned by the column, Spark compares each row with each of them.
        if values is None or len(values) > (MOST_LITERALS if of is None else _FEW):
            return within_any(self._change_ranges(column, changes), of or column)
        # Never IN: Iceberg fails on it if a partition of a string column is null.
        name, known = quoted(of or column), sorted(value for value in values if value is not None)
        conditions = [equals(name, value) for value in known]
        conditions += [f"{name} IS NULL"] if None in values else []
        return Predicate(f"({' OR '.join(conditions)})" if conditions else "FALSE")

    def _change_ranges(self, column: str, changes: ChangeSet) -> list[ChangeRange]:
        if self._is_whole:
            return [ChangeRange.everything(column)]
        try:
            return change_ranges(changes, self._captured.source, column, most=MOST_RANGES)
        except UnorderedColumnError:
            return [ChangeRange.everything(column)]

    def _may_be_null(self, column: str) -> bool:
        changes = self._captured.files.changes
        values = partition_values(changes, self._captured.source, column)
        if values is not None:
            return None in values
        return any(each.has_null for each in self._change_ranges(column, changes))

    @property
    def _types(self) -> Mapping[str, str]:
        """The types of the upstream's primitive columns in Iceberg."""
        return {each.name: each.kind for each in self._captured.source.struct.fields if isinstance(each.kind, str)}

    def _require_columns(self, columns: Sequence[str]) -> None:
        remedy = "Correct the name where the asset uses its IcdcView; nothing was written or consumed."
        for column in columns:
            require_column(self._captured.source, column, remedy=remedy)


def affected(fact: IcdcView, *keys: str, by: IcdcView, on: str | Sequence[str] | Mapping[str, str]) -> DataFrame:
    """The rows of ``fact`` whose ``keys`` occur in its own change, or among the rows that a change of ``by`` touches.

    Use it for a fact that is joined with a dimension when both may change: join ``by.source`` to it by the columns
    ``on`` and group by ``keys``. ``on`` are the join columns, ``{fact's: by's}`` if their names differ. A changed row
    of ``by``, removed or not, touches the rows of ``fact`` that it joins. Null is a key like any other.

    Returns:
        Current rows with all columns of ``fact``; in mode ``full`` all of them, and none if nothing changed.

    Raises:
        UnknownColumnError: an upstream has no such column.
        DeclarationError: ``fact`` or ``by`` isn't an IcdcView.

    Example::

        rows = affected(plays, "event_date", "account", by=title, on="title_id")
        return rows.join(title.source, "title_id").groupBy("event_date", "account").agg(...)
    """
    _require_views(fact, by)
    if isinstance(on, Mapping):
        pairs = dict(on)
    else:
        names = [on] if isinstance(on, str) else on
        pairs = dict(zip(names, names, strict=True))
    return fact.affected_by(keys, by, pairs)


def _require_views(*given: object) -> None:
    if others := [type(each).__name__ for each in given if not isinstance(each, IcdcView)]:
        raise DeclarationError(
            asset="affected()",
            problem=f"it was given a {others[0]}, which doesn't say what changed.",
            remedy="Declare both inputs with incremental(), and annotate their parameters as IcdcView.",
        )


def within_any(ranges: Sequence[ChangeRange], column: str) -> Predicate:
    """A condition that is true for every value of ``column`` that is in any of the ``ranges``."""
    return reduce(or_, [each.between(column) for each in ranges], Predicate("FALSE"))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None
