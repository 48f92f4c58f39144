"""What a writer needs to know about an input: what changed in it, and which of its frames the asset took."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from dagster_ips.core.aggregates import WEIGHT
from dagster_ips.core.lineage import Leaf, Unit
from dagster_ips.core.ranges import Predicate
from dagster_ips.core.run_values import RunValues
from dagster_ips.iceberg.affected_partitions import AffectedPartitions
from dagster_ips.spark.changelog import NetRows, added, removed
from dagster_ips.spark.frames import renamed

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


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


FRAGMENTS = (Frame.CHANGES, Frame.ADDED, Frame.REMOVED, Frame.WEIGHTED, Frame.CHANGELOG)


@dataclass(frozen=True)
class TakenFrame:
    """A frame that an asset took from a view, and the columns by which it holds whole groups of rows.

    ``mark`` identifies the frame in Spark's plans. ``on`` is set if the groups also include what changes of other
    inputs touch: for each of those upstreams, it says which of its columns equal which columns of the frame.
    ``changed`` are the keys of the groups then; otherwise they are those of the input's changed rows.
    ``by_transform`` says that the groups are usually partitions by a transform such as ``days(at)``, which no column
    identifies. ``named`` are the columns of the result that keep the ``keys``, in their order: None for
    those that it doesn't keep. It is empty if that isn't known.
    """

    frame: Frame
    mark: str
    keys: tuple[str, ...] = ()
    on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    by_transform: bool = False
    changed: DataFrame | None = field(default=None, compare=False)
    named: tuple[str | None, ...] = field(default=(), compare=False)

    @property
    def keys_in_result(self) -> tuple[str, ...]:
        """The ``keys`` by the names that they have in the result; by their own if it isn't known to keep them."""
        return tuple(name or key for key, name in zip(self.keys, self.named or self.keys, strict=True))

    @property
    def keys_lost(self) -> tuple[str, ...]:
        """Those of the ``keys`` that the result isn't known to keep."""
        kept = {key for key, name in zip(self.keys, self.named, strict=False) if name}
        return tuple(key for key in self.keys if key not in kept)

    def leaf(self, upstream: str, types: Mapping[str, str]) -> Leaf:
        """The frame as a leaf of a plan."""
        whole = Unit.WHOLE if self.frame is Frame.SOURCE else Unit.GROUP
        unit = Unit.ROW if self.frame in FRAGMENTS else whole
        weight = WEIGHT if self.frame is Frame.WEIGHTED else None
        return Leaf(self.mark, upstream, unit, self.keys, self.on, weight, types)

    def in_code(self, upstream: str) -> str:
        """What the frame is in the asset's code, whatever it holds in a run."""
        keys = ", ".join(self.keys) if self.frame is Frame.AFFECTED else ""
        on = "".join(f" by {of} on {sorted(pairs.items())}" for of, pairs in sorted(self.on.items()))
        return f"{self.frame}{f'({keys})' if keys else ''}{on} of {upstream}"

    def holds_same(self, other: TakenFrame) -> bool:
        """Whether ``other`` of the same view holds the same rows."""
        return (self.frame, set(self.keys), self.on) == (other.frame, set(other.keys), other.on)

    def __str__(self) -> str:
        return f"{self.frame}({', '.join(self.keys)})" if self.keys else self.frame


@dataclass(slots=True)
class KnownChange:
    """What was found out about an input's changed rows, so that no job looks for it again; None if nothing did.

    ``has_change`` is also true if rows came and went of which it wasn't asked whether they are equal.
    """

    removes_rows: bool | None = None
    has_change: bool = False


@dataclass(frozen=True)
class InputChange:
    """What a writer needs to know about one input: what changed, and what of it the result is made of.

    ``net``, ``removed`` and ``source`` build a frame only when they are called: Spark looks up a table's snapshot as
    soon as a frame of it is built, and the snapshot may have expired by then.
    """

    upstream: str
    columns: tuple[str, ...]
    taken: tuple[TakenFrame, ...]
    is_empty: bool
    may_remove_rows: bool
    ignores_removed: bool
    net: Callable[[], NetRows]
    """The added and removed rows, with their weight."""
    removed: Callable[[], DataFrame]
    """The removed rows, also those whose results stay because of ``on_removed="ignore"``."""
    source: Callable[[], DataFrame]
    """The current rows."""
    partitions: AffectedPartitions | None
    pruning: Callable[..., Predicate]
    """Returns a condition that every row meets whose value of a column occurs in the change.

    With a second name, it is one for the column of that name, of whichever table.
    """
    table: str
    """The upstream's table, as plans show it."""
    icdc_table: str
    """The change's table, as plans show it."""
    is_asked: bool = False
    """Whether the asset asked which values changed: for ranges, partitions or parameters."""
    weighs_live_rows: bool = False
    """Whether ``weighted`` also has the current rows, for another table of the step."""
    began_late: bool = False
    """Whether rows from before the consumer's ``start`` were left out."""
    is_later_part: bool = False
    """Whether earlier runs have consumed other files of the same change, with the same ``source``."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The Iceberg types of the columns that aren't nested."""
    may_be_null: Callable[[str], bool] = lambda _: True
    """Whether a changed row may be null in a column."""
    given: RunValues = field(default_factory=RunValues)
    """What the view gave to the asset that is different in each run, except for its frames."""
    known: KnownChange = field(default_factory=KnownChange, compare=False)
    """Shared by all that one view gives."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The columns of the result that are unchanged columns of the upstream, each with the upstream's name of it."""

    def has(self, columns: Collection[str]) -> bool:
        """Whether the upstream has what these columns of the result are, or columns of the same names."""
        return all(self._own(column) in self.columns for column in columns)

    def keyed(self, rows: DataFrame, keys: Sequence[str]) -> DataFrame:
        """Of ``rows`` of the upstream, the values of what are columns ``keys`` of the result, by these names."""
        return renamed(rows, {key: self._own(key) for key in keys})

    def pruning_of(self, key: str) -> Predicate:
        """As ``pruning``, for a column of the result."""
        own = self._own(key)
        return self.pruning(own) if own == key else self.pruning(own, key)

    def _own(self, column: str) -> str:
        return self.names.get(column, column)

    def has_no_change(self) -> bool:
        """Whether no row changed; runs a job only if files changed whose rows may all be the same as before."""
        if self.known.removes_rows or self.known.has_change:
            return False
        return self.is_empty or (self.may_remove_rows and self.net().rows.isEmpty())

    def removes_rows(self) -> bool:
        """Whether a row was removed; runs a job only if files changed whose rows may all be the same as before."""
        if self.known.removes_rows is None:
            self.known.removes_rows = self.may_remove_rows and not removed(self.net()).isEmpty()
        return self.known.removes_rows

    @property
    def is_whole(self) -> bool:
        """Whether the result is made of every row, because it is unknown which partitions changed."""
        return self.partitions is None and any(taken.frame is Frame.SCOPE for taken in self.taken)

    def holds_every_row_in(self, taken: TakenFrame) -> bool:
        """Whether a frame that usually holds only some groups has every row in each run like this one."""
        return self.is_whole and not (taken.keys or taken.by_transform)

    @property
    def groups(self) -> list[TakenFrame]:
        """The frames taken that hold whole groups of rows, by columns that say which."""
        return [
            taken
            for taken in self.taken
            if taken.frame is Frame.AFFECTED or (taken.frame is Frame.SCOPE and taken.keys)
        ]

    def changed_keys(self, group: TakenFrame) -> DataFrame:
        """The distinct keys of the groups in one of ``groups``, by their names in the result."""
        names = dict(zip(group.keys_in_result, group.keys, strict=True))
        return renamed(self.net().rows if group.changed is None else group.changed, names).distinct()

    def made_of(self, keys: Sequence[str]) -> DataFrame:
        """The distinct values of ``keys`` in the rows of the result, if it keeps those columns unchanged."""
        group = next(iter(self.groups), None)
        if self.fragments:
            rows = added(self.net())
        elif group and group.frame is Frame.AFFECTED and group.changed is None:
            rows = self.net().rows
        else:
            rows = self.source()
        return self.keyed(rows, keys).distinct()

    @property
    def fragments(self) -> list[TakenFrame]:
        """The frames taken that hold only changed rows, whatever they belong to."""
        return [taken for taken in self.taken if taken.frame in FRAGMENTS]
