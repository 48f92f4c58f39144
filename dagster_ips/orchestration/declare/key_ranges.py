"""The affected keys of a run, and the ranges that they are in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import Predicate, all_met
from dagster_ips.run_view import RunView

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame


@dataclass(frozen=True)
class ChangedColumn:
    """The column ``name`` of the rows that came to a source, or of those that went."""

    view: RunView
    name: str
    has_come: bool

    @property
    def kind(self) -> str | None:
        """Its type in Iceberg; None if it isn't a primitive one."""
        return self.view.change.types.get(self.name)

    @property
    def may_be_null(self) -> bool:
        """Whether any of its values may be null."""
        return self.view.change.may_be_null(self.name)

    def within(self, column: str) -> Predicate:
        """A condition that ``column`` meets if it has one of its values."""
        return (self.view.came_within if self.has_come else self.view.went_within)(self.name, column)


@dataclass(frozen=True)
class AffectedKeys:
    """The distinct affected keys, and for each the columns of changed rows that hold all its values, if known.

    These columns have one type. Spark has cached the ``frame``: it plans joins better if it knows their ``number``.
    """

    frame: DataFrame
    number: int
    columns: Mapping[str, Sequence[ChangedColumn]]

    @property
    def within_ranges(self) -> DataFrame:
        """The keys, with a condition that all of them meet: Spark also applies it to what they are joined with."""
        return self.frame.where(all_met(self._ranges(key, key) for key in self.columns))

    def range_of(self, key: str, column: str, kind: str | None) -> Predicate:
        """A condition that rows meet whose ``column`` of type ``kind`` is among the values of ``key``."""
        kinds = {each.kind for each in self.columns[key]}
        return self._ranges(key, column) if kinds == {kind} else Predicate("TRUE")

    def _ranges(self, key: str, column: str) -> Predicate:
        found = [each.within(column) for each in self.columns[key]]
        return reduce(or_, found) if found else Predicate("TRUE")

    @property
    def never_null(self) -> frozenset[str]:
        """The keys that are never null."""
        known = {key: found for key, found in self.columns.items() if found}
        return frozenset(key for key, found in known.items() if not any(each.may_be_null for each in found))
