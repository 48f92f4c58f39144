"""How a result becomes part of its target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dagster_ips.core.aggregates import EXTREMES, Aggregate, Layout, layout_of, signature


@dataclass(frozen=True, slots=True)
class Append:
    """Add rows; with ``dedup_on`` leave out those whose key is already there.

    With ``remove_on``, rows that were removed upstream are taken away by that key.
    """

    dedup_on: tuple[str, ...] = ()
    remove_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """Update rows that differ and insert new ones, by the key ``on``."""

    on: tuple[str, ...]
    latest_by: str | None = None


@dataclass(frozen=True, slots=True)
class Combine:
    """Add the change's aggregates to those that are there, by the key ``on``.

    ``approximate`` allows sums of floating point, which depend on the order in which values come and go.
    """

    on: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    approximate: bool = False

    @property
    def layout(self) -> Layout:
        """What the table keeps."""
        return layout_of(self.aggregates)

    @property
    def may_compute_groups_again(self) -> bool:
        """Whether a removed row may leave a group of which only its live rows tell the value."""
        return self.approximate or any(kept.part in EXTREMES for kept in self.layout.columns)

    @property
    def signature(self) -> str:
        """Another if a table that was made by the one can't be added to by the other."""
        return signature(self.on, self.aggregates)


@dataclass(frozen=True, slots=True)
class OverwritePartitions:
    """Replace exactly the affected partitions."""


@dataclass(frozen=True, slots=True)
class OverwriteWhere:
    """Replace exactly the rows that match a SQL condition."""

    where: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace all rows."""


WriteMode: TypeAlias = Append | Merge | Combine | OverwritePartitions | OverwriteWhere | Replace


def may_repeat(write_mode: WriteMode | None) -> bool:
    """Whether a change may be written once more without doubling rows; None is a mode that an Overwrite chooses.

    Example:
        >>> may_repeat(Merge(on=("account",))), may_repeat(Append())
        (True, False)
    """
    return write_mode is None or isinstance(write_mode, Merge | OverwritePartitions | OverwriteWhere | Replace)
