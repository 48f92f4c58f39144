"""How the rows of a table, or of a partition of it, differ between two states: counts, sums and nulls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import reduce

_EVERY_DIGIT = Context(prec=100)


@dataclass(frozen=True, slots=True)
class SideOfRows:
    """One state: how many rows, and by column their sum (of numbers; None if all are null) and how many are null."""

    rows: int = 0
    sums: Mapping[str, Decimal | float | None] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)

    def plus(self, other: SideOfRows) -> SideOfRows:
        """Both together.

        Example:
            >>> one = SideOfRows(1, {"x": Decimal(12345678901234567890123456789012345)})
            >>> one.plus(SideOfRows(1, {"x": Decimal(1)})).sums["x"]
            Decimal('12345678901234567890123456789012346')
        """
        names = dict.fromkeys([*self.sums, *other.sums])
        return SideOfRows(
            self.rows + other.rows,
            {name: _sum(self.sums.get(name), other.sums.get(name)) for name in names},
            {n: self.nulls.get(n, 0) + other.nulls.get(n, 0) for n in dict.fromkeys([*self.nulls, *other.nulls])},
        )


@dataclass(frozen=True, slots=True)
class RowChanges:
    """How many rows were added, removed and changed; a row is changed if its key existed with other values.

    ``columns`` says in how many changed rows each column differs. Without a key, a row is changed if it differs only in
    floating-point columns.
    """

    added: int = 0
    removed: int = 0
    changed: int = 0
    columns: Mapping[str, int] = field(default_factory=dict)
    before: SideOfRows = field(default_factory=SideOfRows)
    after: SideOfRows = field(default_factory=SideOfRows)

    @property
    def is_none(self) -> bool:
        """Whether both states hold the same rows."""
        return not (self.added or self.removed or self.changed)

    def plus(self, other: RowChanges) -> RowChanges:
        """Both together."""
        names = dict.fromkeys([*self.columns, *other.columns])
        return RowChanges(
            self.added + other.added,
            self.removed + other.removed,
            self.changed + other.changed,
            {name: self.columns.get(name, 0) + other.columns.get(name, 0) for name in names},
            self.before.plus(other.before),
            self.after.plus(other.after),
        )


def all_together(changes: Iterable[RowChanges]) -> RowChanges:
    """The sum of several; of none, no change.

    Example:
        >>> all_together([RowChanges(added=1), RowChanges(added=2, removed=1)]).added
        3
    """
    return reduce(RowChanges.plus, changes, RowChanges())


def _sum(one: Decimal | float | None, other: Decimal | float | None) -> Decimal | float | None:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return _EVERY_DIGIT.add(one, other)
    return float(one) + float(other)
