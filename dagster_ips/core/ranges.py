"""Lower and upper value of a column over the changed files, and the predicates they give."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeAlias

from dagster_ips.errors import RangeTypesError, UnboundedRangeError

Bound: TypeAlias = bool | int | float | str | Decimal | dt.date | dt.datetime
"""A column value that has an order and a SQL literal."""


RANGE = "[[range]]"
"""What a condition on a range means, or one made of such conditions alone."""


class RangeKind(StrEnum):
    """How far a change range can be trusted.

    ``EXACT``: both bounds are values of changed rows. ``BOUNDED``: every changed value lies within, but the bounds
    themselves may not occur. ``UNBOUNDED``: a changed file has no statistics for one side. ``EMPTY``: nothing changed.
    """

    EXACT = "exact"
    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"
    EMPTY = "empty"


class Predicate(str):  # noqa: SLOT000  # what it means is noted on it
    """A SQL condition; every frame's ``where`` accepts it, and it can be used as is in SQL text.

    Combined by ``|`` or ``&`` with another, or with a condition as text, it gives a Predicate.

    Example:
        >>> Predicate("day >= 3") | Predicate("plan = 'basic'"), Predicate("day >= 3") & "vip"
        ("((day >= 3) OR (plan = 'basic'))", '((day >= 3) AND (vip))')
        >>> Predicate("FALSE") | Predicate("vip"), Predicate("TRUE") & "vip"
        ('vip', 'vip')
    """

    _told: Told | None = None
    _meaning: str = ""

    @classmethod
    def of(cls, text: str, told: Told | None, meaning: str) -> Predicate:
        """The condition ``text``; if it is made of ranges that a run ``told``, what it means is noted there."""
        made = cls(text)
        if told is not None:
            made._told, made._meaning = told, meaning
            told.predicates[text] = meaning
        return made

    def __or__(self, other: str) -> Predicate:
        """The rows that match either."""
        return _joined(self, "OR", other, neutral="FALSE") if isinstance(other, str) else NotImplemented

    def __ror__(self, other: str) -> Predicate:
        """Same as ``|``."""
        return Predicate(other) | self if isinstance(other, str) else NotImplemented

    def __and__(self, other: str) -> Predicate:
        """The rows that match both."""
        return _joined(self, "AND", other, neutral="TRUE") if isinstance(other, str) else NotImplemented

    def __rand__(self, other: str) -> Predicate:
        """Same as ``&``."""
        return Predicate(other) & self if isinstance(other, str) else NotImplemented


def _joined(left: str, operator: str, right: str, *, neutral: str) -> Predicate:
    """Both conditions joined, without one that has no effect, so that an empty or open range keeps the pruning."""
    decisive = "FALSE" if neutral == "TRUE" else "TRUE"
    sides = [side if isinstance(side, Predicate) else Predicate(side) for side in (left, right)]
    told = next((side._told for side in sides if side._told), None)  # noqa: SLF001  # of this class
    meanings = [side._meaning or str(side) for side in sides]  # noqa: SLF001  # as above
    meaning = RANGE if set(meanings) == {RANGE} else f" {operator} ".join(f"({each})" for each in meanings)
    text = f"(({left}) {operator} ({right}))"
    if decisive in (left, right):
        text = decisive
    elif neutral in (left, right):
        text = right if left == neutral else left
    return Predicate.of(text, told, meaning)


@dataclass(frozen=True, slots=True)
class Told:
    """Where it is noted what the conditions mean that are made of a range, which a run told the asset's function.

    ``of`` says whose range it is. ``predicates`` are the texts of conditions, each with its meaning, in which ``RANGE``
    stands for a condition on a range; ``ranges`` are these conditions. If all rows count, they have the same text.
    """

    of: str
    predicates: dict[str, str] = field(default_factory=dict)
    ranges: set[str] = field(default_factory=set)


def all_met(conditions: Iterable[Predicate]) -> Predicate:
    """The rows that match all of ``conditions``, however many: Spark reads a row of ANDs, but not deep brackets.

    Example:
        >>> all_met([Predicate("a > 1"), Predicate("TRUE"), Predicate("b > 1")]), all_met([])
        ('((a > 1) AND (b > 1))', 'TRUE')
    """
    found = [each for each in conditions if each != "TRUE"]
    if "FALSE" in found:
        return Predicate("FALSE")
    if len(found) <= 1:
        return found[0] if found else Predicate("TRUE")
    return Predicate(f"({' AND '.join(f'({each})' for each in found)})")


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """The values of ``column`` over the changed files. A missing bound means that the side is open.

    Example:
        >>> days = ChangeRange.of("event_date", [(dt.date(2026, 1, 3), dt.date(2026, 1, 5))], kind=RangeKind.EXACT)
        >>> days.since("event_date")
        "(`event_date` >= DATE '2026-01-03')"
        >>> (days | ChangeRange.nothing("day")).between("event_date")
        "(`event_date` >= DATE '2026-01-03' AND `event_date` < DATE '2026-01-06')"
        >>> ChangeRange.nothing("day").since("day")
        'FALSE'
    """

    column: str
    kind: RangeKind
    lowest: Bound | None = None
    highest: Bound | None = None
    has_null: bool = False
    told: Told | None = field(default=None, compare=False, repr=False)

    @classmethod
    def nothing(cls, column: str) -> ChangeRange:
        """The range of an empty change: its predicates match no row."""
        return cls(column, RangeKind.EMPTY)

    @classmethod
    def everything(cls, column: str) -> ChangeRange:
        """The range of a change about which nothing is known: its predicates match every row, nulls included."""
        return cls(column, RangeKind.UNBOUNDED, has_null=True)

    @classmethod
    def of(
        cls, column: str, bounds: list[tuple[Bound | None, Bound | None]], *, kind: RangeKind, has_null: bool = False
    ) -> ChangeRange:
        """Unite one ``(lower, upper)`` per changed file; a None leaves that side open. No files give ``nothing``."""
        if not bounds:
            return cls.everything(column) if has_null else cls.nothing(column)
        lowest = extreme(min, [lower for lower, _ in bounds])
        highest = extreme(max, [upper for _, upper in bounds])
        if lowest is None or highest is None:
            kind = RangeKind.UNBOUNDED
        return cls(column, kind, lowest, highest, has_null)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return self.kind is RangeKind.EMPTY

    @property
    def lower(self) -> Bound:
        """The lower bound.

        Raises:
            UnboundedRangeError: the range is empty or open below.
        """
        if self.lowest is None:
            raise UnboundedRangeError(column=self.column, bound="lower")
        return self.lowest

    @property
    def upper(self) -> Bound:
        """The upper bound.

        Raises:
            UnboundedRangeError: the range is empty or open above.
        """
        if self.highest is None:
            raise UnboundedRangeError(column=self.column, bound="upper")
        return self.highest

    def __or__(self, other: ChangeRange) -> ChangeRange:
        """The smallest range that holds both; columns may differ, the left one names the result.

        Dates and timestamps unite to whole days, wide enough for a column of either type: a date is its midnight. The
        time zone of that midnight is unknown here, so timestamps with a time zone get one more day on either side.

        Raises:
            RangeTypesError: the columns' values have no common order.
        """
        if not isinstance(other, ChangeRange):
            return NotImplemented
        told = self.told or other.told
        if self.told and other.told:
            told = replace(self.told, of=f"{self.told.of} | {other.told.of}")
        return replace(self._united_with(other), told=told)

    def _united_with(self, other: ChangeRange) -> ChangeRange:
        if other.is_empty:
            return self
        if self.is_empty:
            return ChangeRange(self.column, other.kind, other.lowest, other.highest, other.has_null)
        left, right = _of_one_type(self, other)
        both_exact = left.kind is RangeKind.EXACT and right.kind is RangeKind.EXACT
        return ChangeRange.of(
            self.column,
            [(left.lowest, left.highest), (right.lowest, right.highest)],
            kind=RangeKind.EXACT if both_exact else RangeKind.BOUNDED,
            has_null=self.has_null or other.has_null,
        )

    def since(self, column: str) -> Predicate:
        """Rows whose ``column`` is at or after the lower bound: nothing if empty, everything if open below.

        If ``column`` isn't the range's own, it may be a date, so a timestamp stands for its whole day.
        """
        found = self._in_type_of(column)
        return self._told(_condition(replace(found, highest=None), column), f"since {column}")

    def between(self, column: str) -> Predicate:
        """Rows whose ``column`` lies within: nothing if empty; a side without a bound does not restrict.

        A date stands for its whole day, and so does a timestamp if ``column`` isn't the range's own.

        Example:
            >>> hours = [(dt.datetime(2026, 1, 3, 8), dt.datetime(2026, 1, 3, 9))]
            >>> ChangeRange.of("played_at", hours, kind=RangeKind.BOUNDED).between("event_date")
            "(`event_date` >= DATE '2026-01-03' AND `event_date` < DATE '2026-01-04')"
        """
        return self._told(_condition(self._in_type_of(column), column), f"between {column}")

    def _told(self, condition: str, how: str) -> Predicate:
        if self.told:
            self.told.ranges.add(f"{how} of {self.told.of}")
        return Predicate.of(condition, self.told, RANGE)

    def _in_type_of(self, column: str) -> ChangeRange:
        """The range in values that ``column`` can be compared with: if it isn't the range's own, its type is unknown.

        In Spark, a date is its midnight, which is before the timestamps of its day.
        """
        is_moment = _order(self) in (_Order.TIMESTAMP, _Order.TIMESTAMP_WITH_ZONE)
        return _in_days(self, last=0) if is_moment and column.lower() != self.column.lower() else self


def _condition(found: ChangeRange, column: str) -> str:
    """The rows whose ``column`` lies within the range, whatever the range's own column is."""
    if found.is_empty:
        return "FALSE"
    name = quoted(column)
    sides = [f"{name} >= {literal(_lowest_equal(found.lowest))}"] if found.lowest is not None else []
    sides += [_at_most(name, found.highest)] if found.highest is not None else []
    if not sides:
        return "TRUE"
    condition = " AND ".join(sides)
    if isinstance(found.lowest, float) and found.highest is None:
        # In Spark, NaN is above every number; Iceberg would skip a file that holds only NaN.
        condition += f" OR isnan({name})"
    return f"({condition} OR {name} IS NULL)" if found.has_null else f"({condition})"


def _at_most(name: str, upper: Bound) -> str:
    """The condition that a column isn't above the bound; a date stands for its whole day, also of a timestamp."""
    if isinstance(upper, dt.date) and not isinstance(upper, dt.datetime) and upper < dt.date.max:
        return f"{name} < {literal(upper + dt.timedelta(days=1))}"
    return f"{name} <= {literal(_highest_equal(upper))}"


def extreme(pick: Callable[[list[Any]], Bound], values: list[Bound | None]) -> Bound | None:
    """The lowest or highest of one column's values; None, an open side, if any of them is None."""
    return None if any(value is None for value in values) else pick(values)


class _Order(StrEnum):
    """Kinds of values; only values of the same kind can be compared with each other."""

    BOOLEAN = "boolean"
    NUMBER = "number"
    TEXT = "text"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_WITH_ZONE = "timestamp with time zone"


def _order(found: ChangeRange) -> _Order | None:
    """The order of the range's bounds; None if it has no bound."""
    match found.lowest if found.lowest is not None else found.highest:
        case None:
            return None
        case bool():
            return _Order.BOOLEAN
        case str():
            return _Order.TEXT
        case dt.datetime() as moment:
            return _Order.TIMESTAMP if moment.tzinfo is None else _Order.TIMESTAMP_WITH_ZONE
        case dt.date():
            return _Order.DATE
        case _:
            return _Order.NUMBER


def _of_one_type(left: ChangeRange, right: ChangeRange) -> tuple[ChangeRange, ChangeRange]:
    """Both unchanged if their bounds can be compared; in whole days if that makes them comparable.

    Raises:
        RangeTypesError: they can't be compared.
    """
    orders = _order(left), _order(right)
    if None in orders or orders[0] == orders[1]:
        return left, right
    if _Order.DATE in orders and set(orders) & {_Order.TIMESTAMP, _Order.TIMESTAMP_WITH_ZONE}:
        return _in_days(left, last=1), _in_days(right, last=1)
    raise RangeTypesError(column=left.column, type=str(orders[0]), other_column=right.column, other_type=str(orders[1]))


def _in_days(found: ChangeRange, *, last: int) -> ChangeRange:
    """The range in dates, up to the day of its last timestamp or ``last`` days later; a range in dates is unchanged."""
    order = _order(found)
    if order is _Order.DATE:
        return found
    # Zones are up to 14 hours from UTC.
    zone_days = 1 if order is _Order.TIMESTAMP_WITH_ZONE else 0
    lowest, highest = _day(found.lowest, -zone_days), _day(found.highest, last + zone_days)
    return ChangeRange(found.column, RangeKind.BOUNDED, lowest, highest, found.has_null)


def _day(bound: Bound | None, days_later: int) -> dt.date | None:
    if not isinstance(bound, dt.datetime):
        return None
    moment = bound.astimezone(dt.UTC) if bound.tzinfo else bound
    try:
        return moment.date() + dt.timedelta(days=days_later)
    except OverflowError:  # beyond Python's calendar: the side stays open
        return None


def quoted(name: str) -> str:
    """``name`` as a SQL identifier.

    Example:
        >>> quoted("odd`name")
        '`odd``name`'
    """
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def equals(expression: str, value: Bound) -> str:
    """The condition that ``expression`` has the value; both zeros of a float are equal, as they are in a join.

    Example:
        >>> equals("x", 1), equals("x", 0.0)
        ('x = 1', "(x >= DOUBLE('-0.0') AND x <= DOUBLE('0.0'))")
        >>> equals("x", False)
        '(x = FALSE AND x IS NOT NULL)'
    """
    if value is False:  # Spark turns it into NOT x, which Iceberg takes to be true of a null
        return f"({expression} = FALSE AND {expression} IS NOT NULL)"
    low, high = _lowest_equal(value), _highest_equal(value)
    # Only repr tells the zeros apart.
    if repr(low) != repr(high):
        return f"({expression} >= {literal(low)} AND {expression} <= {literal(high)})"
    return f"{expression} = {literal(value)}"


def _lowest_equal(value: Bound) -> Bound:
    """The value itself, or the lower zero: Iceberg orders -0.0 below 0.0, which are equal in Spark."""
    return -0.0 if isinstance(value, float) and value == 0 else value


def _highest_equal(value: Bound) -> Bound:
    return 0.0 if isinstance(value, float) and value == 0 else value


def literal(value: object) -> str:  # noqa: PLR0911  # one return per type reads best
    """``value`` as a Spark SQL literal of its own type.

    A string that Spark's settings could change, such as one with ``${...}`` or a backslash, is written as bytes.

    Raises:
        TypeError: the type has no literal here.

    Example:
        >>> literal(dt.date(2026, 1, 3)), literal(dt.datetime(2026, 1, 3, 4, 5)), literal("its"), literal("$")
        ("DATE '2026-01-03'", "TIMESTAMP_NTZ '2026-01-03 04:05:00'", "'its'", "CAST(X'24' AS STRING)")
    """
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case dt.datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP_LTZ"
            return f"{kind} '{value.isoformat(sep=' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case Decimal():
            return f"{value:f}BD"
        case float():
            return f"DOUBLE('{value!r}')"
        case int():
            return f"{value}L" if abs(value) >= 2**31 else str(value)
        case str():
            return f"CAST(X'{value.encode().hex()}' AS STRING)" if set(value) & set("$\\'") else f"'{value}'"
        case bytes():
            return f"X'{value.hex()}'"
        case _:
            message = f"{type(value).__name__} has no SQL literal: {value!r}"
            raise TypeError(message)
