"""A top GROUP BY whose aggregates a change can be added to."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dagster_ips.core.aggregates import EVERY_ROW, HIDDEN, Aggregate, Function
from dagster_ips.query.delta_terms import WEIGHT
from dagster_ips.query.query_text import DIALECT
from dagster_ips.query.query_tree import Node, SelectBlock, plain, within

_FUNCTIONS: dict[type[exp.Expr], Function] = {
    exp.Sum: Function.SUM,
    exp.Avg: Function.AVG,
    exp.Min: Function.MIN,
    exp.Max: Function.MAX,
    exp.CountIf: Function.COUNT_IF,
    exp.LogicalAnd: Function.BOOL_AND,
    exp.LogicalOr: Function.BOOL_OR,
}
_OWN = "ips_"


@dataclass(frozen=True)
class Grouping:
    """A query as groups of the rows of another, ``rows``, which has a column for each key and each aggregated value.

    ``keys`` are the places of the keys in the result, in the order of the columns of ``rows``; ``aggregates`` the
    others, over the columns of ``rows``, by place.
    """

    rows: exp.Select
    keys: tuple[int, ...]
    aggregates: dict[int, tuple[Function, str]]

    @property
    def has_extremes(self) -> bool:
        """Whether a removed row may leave a group of which only its live rows tell the value."""
        return any(function in (Function.MIN, Function.MAX) for function, _ in self.aggregates.values())

    def named(self, names: tuple[str, ...]) -> tuple[Aggregate, ...]:
        """The aggregates as columns of a result that is called ``names``."""
        return tuple(Aggregate(names[place], *found) for place, found in self.aggregates.items())


def grouping(node: Node, names: tuple[str, ...]) -> Grouping | str:
    """The query of ``node``, whose result is called ``names``, as a grouping; or why it is none."""
    if not isinstance(node, SelectBlock) or node.unkeyed or not node.group:
        return "there is no GROUP BY at the top"
    if why := _why_not_alone(node, names):
        return why
    keys: dict[int, exp.Expr] = {}
    aggregates: dict[int, tuple[Function, str]] = {}
    left = list(node.group)
    values: dict[exp.Expr, str] = {}
    for place, selected in enumerate(node.tree.selects):
        expression = plain(selected.unalias())
        if expression in left:
            keys[place] = expression
            left = [each for each in left if each != expression]
            continue
        found = _aggregate(expression)
        if found is None:
            return f"{names[place]} isn't one sum, count, avg, min, max or bool aggregate of a value"
        function, value = found
        if value is not None:
            values.setdefault(value, f"{_OWN}value_{len(values)}")
        aggregates[place] = (function, EVERY_ROW if value is None else values[value])
    if left or not aggregates:
        return f"the result lacks {left[0].sql(DIALECT)}, which it is grouped by" if left else "it has no aggregate"
    columns = [(expression, node.names[place]) for place, expression in keys.items()]
    rows = node.tree.copy()
    rows.set("expressions", [exp.alias_(each.copy(), name, quoted=True) for each, name in [*columns, *values.items()]])
    for key in ("group", "order", "sort", "cluster", "distribute"):
        rows.set(key, None)
    return Grouping(rows, tuple(keys), aggregates)


def _why_not_alone(block: SelectBlock, names: tuple[str, ...]) -> str | None:
    """Why a group's row isn't made of its own rows alone; or of which column the name is taken."""
    for key in ("having", "distinct", "qualify"):
        if block.tree.args.get(key):
            return f"{key.upper()} looks at whole groups"
    if block.windows:
        return "a window function looks at other groups"
    taken = [name for name in names if name.lower() == WEIGHT or name.lower().startswith((_OWN, HIDDEN))]
    return f"the column name {taken[0]} is one that the library keeps" if taken else None


def _aggregate(expression: exp.Expr) -> tuple[Function, exp.Expr | None] | None:
    """The function and its value, None for every row; None if it is no aggregate that a change can be added to."""
    if within(expression, exp.Query, exp.Distinct, exp.Window) or len(within(expression, exp.AggFunc)) != 1:
        return None
    if isinstance(expression, exp.Count):
        if expression.expressions:
            return None
        is_every = isinstance(expression.this, exp.Star)
        return Function.COUNT, None if is_every else expression.this
    function = _FUNCTIONS.get(type(expression))
    return None if function is None or expression.expressions else (function, expression.this)
