"""Aggregates that are maintained from the change alone: what a user declares, and what a table keeps for it.

A table keeps *parts*: sums and counts, to which a change is added, and extremes, which are replaced by more extreme
values. A declared aggregate is itself a part or is computed from parts. Parts that nobody declared are kept in hidden
columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dagster_ips.core import varying

HIDDEN = "_ips_"
"""The prefix of every hidden column's name."""
WEIGHT = "_weight"
EVERY_ROW = "*"
MOST_DIGITS_OF_AVERAGE = 18
"""An average of decimals with more digits than these can't be kept exactly."""
_CALL = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*\(")
_QUANTIFIER = re.compile(r"(DISTINCT|ALL)\b", re.IGNORECASE)
_SUBQUERY = re.compile(r"\bselect\b|\(\s*(?:table|from)\b", re.IGNORECASE)  # in Spark, TABLE t is a query, too
_QUOTES = "'\"`"


class Function(StrEnum):
    """The aggregate functions that a change can be added to."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"
    COUNT_IF = "count_if"


_SYNONYMS = {"mean": "avg", "every": "bool_and", "some": "bool_or", "any": "bool_or"}


class AggregatePart(StrEnum):
    """What is kept of an expression over the rows of a group; if in a hidden column, the column's name contains it."""

    ROWS = "rows"
    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    TRUE = "true"
    FALSE = "false"


EXTREMES = (AggregatePart.MIN, AggregatePart.MAX)

_PARTS: Mapping[Function, tuple[AggregatePart, ...]] = {
    Function.COUNT: (AggregatePart.COUNT,),
    Function.SUM: (AggregatePart.SUM, AggregatePart.COUNT),
    Function.AVG: (AggregatePart.SUM, AggregatePart.COUNT),
    Function.MIN: (AggregatePart.MIN,),
    Function.MAX: (AggregatePart.MAX,),
    Function.BOOL_AND: (AggregatePart.TRUE, AggregatePart.FALSE),
    Function.BOOL_OR: (AggregatePart.TRUE, AggregatePart.FALSE),
    Function.COUNT_IF: (AggregatePart.TRUE,),
}
_IS_ITS_FIRST_PART = {Function.COUNT, Function.SUM, Function.MIN, Function.MAX, Function.COUNT_IF}


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A part of an expression, ``*`` for the rows themselves."""

    part: AggregatePart
    expression: str


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A declared column: ``function`` of a scalar SQL ``expression``, which is ``*`` for ``count(*)``."""

    name: str
    function: Function
    expression: str

    @property
    def parts(self) -> tuple[KeptPart, ...]:
        """The parts that it is computed from; an aggregate that is a part has that part first."""
        if self.expression == EVERY_ROW:
            return (KeptPart(AggregatePart.ROWS, EVERY_ROW),)
        return tuple(KeptPart(part, self.expression) for part in _PARTS[self.function])

    @property
    def is_part(self) -> bool:
        """Whether its value is that of its first part."""
        return self.function in _IS_ITS_FIRST_PART

    def __str__(self) -> str:
        return f"{self.function}({self.expression})"


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column of a table of aggregates: a scalar SQL ``expression`` over its keys and its aggregates."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table of aggregates, besides its keys: the declared aggregates, and the hidden parts.

    ``columns`` maps each part to its column, which is a declared one where possible. ``is_partial`` says that the table
    keeps only parts, in several rows per group, which are folded when they are read.
    """

    declared: tuple[Aggregate, ...]
    columns: Mapping[KeptPart, str]
    is_partial: bool

    @property
    def hidden(self) -> dict[KeptPart, str]:
        """The parts that nobody declared, and their columns."""
        names = {each.name for each in self.declared}
        return {kept: column for kept, column in self.columns.items() if column not in names}

    def has_undeclared_sum(self, expression: str) -> bool:
        """Whether nobody declared the sum of ``expression``, so that it may exceed Spark's sum: its avg never fails."""
        return all(each.function is not Function.SUM or each.expression != expression for each in self.declared)

    @property
    def expressions(self) -> tuple[str, ...]:
        """Every expression that is evaluated on rows, once."""
        return tuple(dict.fromkeys(kept.expression for kept in self.columns if kept.expression != EVERY_ROW))


def layout_of(aggregates: Sequence[Aggregate], *, is_partial: bool = False) -> Layout:
    """What a table keeps so that rows may come and go: each group's row count, and the parts of each aggregate.

    A hidden column is named after its part and the first declared column that needs it. In a table of partials, every
    column is hidden, so that nobody mistakes a part for the whole. If something else writes a row, its hidden columns
    are null. Sums and extremes may be null anyway, but counts can't be, so one of the hidden columns is a count.

    Example:
        >>> found = layout_of([parse_aggregate("seconds", "sum(s)"), parse_aggregate("known", "count(s)")])
        >>> list(found.hidden.values())
        ['_ips_rows']
    """
    columns: dict[KeptPart, str] = {}
    for each in aggregates:
        if each.is_part and not is_partial:
            columns.setdefault(each.parts[0], each.name)
    rows = KeptPart(AggregatePart.ROWS, EVERY_ROW)
    columns.setdefault(rows, f"{HIDDEN}rows")
    for each in aggregates:
        for kept in each.parts:
            columns.setdefault(kept, f"{HIDDEN}{kept.part}_{each.name}")
    hidden_parts = {kept.part for kept, column in columns.items() if column.startswith(HIDDEN)}
    if hidden_parts and hidden_parts <= {AggregatePart.SUM, *EXTREMES}:
        columns[rows] = f"{HIDDEN}rows"
    return Layout(tuple(aggregates), columns, is_partial)


def parse_aggregate(name: str, text: str) -> Aggregate:
    """The aggregate in ``text``, such as ``sum(play_seconds)``, for the column ``name``.

    Raises:
        ValueError: it isn't one of the functions, over one scalar expression. The message says why.

    Example:
        >>> str(parse_aggregate("longest", "MAX( if(a > 0, b, ')') )"))
        "max(if(a > 0, b, ')'))"
        >>> parse_aggregate("accounts", "count(DISTINCT account)")
        Traceback (most recent call last):
        ValueError: DISTINCT can't be maintained incrementally
    """
    call = _CALL.match(text)
    inside = _inside(text, call.end()) if call else None
    if call is None or inside is None:
        message = "it isn't a single function of one expression, such as sum(play_seconds)"
        raise ValueError(message)
    function = call["name"].lower()
    function = _SYNONYMS.get(function, function)
    if function not in set(Function):
        message = f"{call['name']} can't be maintained incrementally; only {', '.join(Function)} can"
        raise ValueError(message)
    expression = inside.strip()
    _require_scalar(Function(function), expression)
    return Aggregate(name, Function(function), expression)


def _require_scalar(function: Function, expression: str) -> None:
    message = ""
    if quantifier := _QUANTIFIER.match(expression):
        message = f"{quantifier[1].upper()} can't be maintained incrementally"
    elif not expression or (expression.endswith("*") and (expression, function) != (EVERY_ROW, Function.COUNT)):
        message = "it needs exactly one expression, and only count accepts *"
    elif _SUBQUERY.search("".join(_outside_quotes(expression))):
        message = "a subquery in it may give removed rows a different value than when they were added"
    elif found := (
        varying.IN_SQL.search("".join(_outside_quotes(expression)))
        or varying.MOMENTS_IN_SQL.search(expression)
        or varying.SETTINGS_IN_SQL.search(expression)
    ):
        message = f"{found[0].strip()} may give removed rows a different value than when they were added"
    if message:
        raise ValueError(message)


def _inside(text: str, start: int) -> str | None:
    """The text between the bracket before ``start`` and its closing bracket, if only blanks follow; else None.

    Also None for a list of several expressions, and for comments, which would hide a bracket that the library adds.
    """
    depth = 1
    for at, letter in _plain(text, start):
        depth += (letter in "([") - (letter in ")]")
        if (letter == "," and depth == 1) or text.startswith(("--", "/*"), at):
            return None
        if depth == 0:
            return text[start:at] if not text[at + 1 :].strip() and letter == ")" else None
    return None


def _outside_quotes(text: str) -> Iterator[str]:
    return (letter for _, letter in _plain(text, 0))


def _plain(text: str, start: int) -> Iterator[tuple[int, str]]:
    """The characters from ``start`` on that aren't in quotes, with their places."""
    at = start
    while at < len(text):
        letter = text[at]
        if letter in _QUOTES:
            at += 1
            while at < len(text) and text[at] != letter:
                at += 2 if text[at] == "\\" and letter != "`" else 1
        else:
            yield at, letter
        at += 1


def shown(columns: Iterable[str]) -> list[str]:
    """The names that aren't of hidden columns.

    Example:
        >>> shown(["day", "plays", "_ips_rows"])
        ['day', 'plays']
    """
    return [name for name in columns if not name.lower().startswith(HIDDEN)]


def hidden(columns: Iterable[str]) -> list[str]:
    """The names of hidden columns.

    Example:
        >>> hidden(["day", "plays", "_ips_rows"])
        ['_ips_rows']
    """
    return [name for name in columns if name.lower().startswith(HIDDEN)]


def signature(on: Sequence[str], aggregates: Sequence[Aggregate]) -> str:
    """The declaration as text; two differ if one can't add to a table that the other has written.

    Example:
        >>> signature(["day"], [parse_aggregate("plays", "count(*)")])
        'day: plays=count(*)'
    """
    return f"{', '.join(on)}: {', '.join(f'{each.name}={each}' for each in aggregates)}"
