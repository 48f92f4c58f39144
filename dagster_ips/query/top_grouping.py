"""A top GROUP BY whose aggregates a change can be added to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dagster_ips.core.aggregates import EVERY_ROW, HIDDEN, Aggregate, ComputedColumn, Function
from dagster_ips.core.write_mode import Combine
from dagster_ips.query.delta_terms import WEIGHT
from dagster_ips.query.query_tree import Node, SelectBlock, plain, within
from dagster_ips.query.spark_dialect import DIALECT, in_spark

_FUNCTIONS: dict[type[exp.Expr], Function] = {
    exp.Sum: Function.SUM,
    exp.Avg: Function.AVG,
    exp.Min: Function.MIN,
    exp.Max: Function.MAX,
    exp.CountIf: Function.COUNT_IF,
    exp.LogicalAnd: Function.BOOL_AND,
    exp.LogicalOr: Function.BOOL_OR,
}
_NOT_SCALAR = (
    *(exp.Query, exp.Window, exp.Lambda, exp.UDTF, exp.Explode),
    *(exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup),
)
_OWN, _KEPT = "ips_", "ips_is_kept"


@dataclass(frozen=True)
class Grouping:
    """A query as groups of the rows of another, ``rows``, which has a column for each key and each aggregated value.

    Its result is called ``names``. ``keys`` are the places of the keys in it, in the order of the columns of ``rows``;
    without any, all rows are one group. ``aggregates`` are over the columns of ``rows``, by the column of the result,
    or by a hidden one if the result has but something that is ``computed`` of it.
    """

    rows: exp.Select
    names: tuple[str, ...]
    keys: tuple[int, ...]
    aggregates: dict[str, tuple[Function, str]]
    computed: dict[str, exp.Expr]

    @property
    def has_extremes(self) -> bool:
        """Whether a removed row may leave a group of which only its live rows tell the value."""
        return any(function in (Function.MIN, Function.MAX) for function, _ in self.aggregates.values())

    @property
    def combine(self) -> Combine:
        """How the change of its rows is added to what a table keeps of it."""
        aggregates = tuple(Aggregate(name, *found) for name, found in self.aggregates.items())
        computed = [ComputedColumn(name, in_spark(each)) for name, each in self.computed.items()]
        return Combine(tuple(self.names[place] for place in self.keys), aggregates, computed=tuple(computed))


def grouping(node: Node, names: tuple[str, ...]) -> Grouping | str:
    """The query of ``node``, whose result is called ``names``, as a grouping; or why it is none."""
    if not isinstance(node, SelectBlock) or not (node.group or node.is_one_group):
        return "there is no GROUP BY at the top"
    if why := _why_not_alone(node, names):
        return why
    selected = [plain(each.unalias()) for each in node.tree.selects]
    keys = {place: each for place, each in enumerate(selected) if each in node.group and each not in selected[:place]}
    if lacking := [each for each in node.group if each not in selected]:
        return f"the result lacks the grouping key {lacking[0].sql(DIALECT)}"
    others = {names[place]: each for place, each in enumerate(selected) if place not in keys}
    parts = _Parts({each: names[place] for place, each in keys.items()})
    parts.keep({name: found for name, each in others.items() if (found := _aggregate(each)) is not None})
    left = [(name, each) for name, each in others.items() if name not in parts.kept]
    computed = {name: made for name, each in left if (made := parts.computed(each)) is not None}
    if unknown := [name for name, _ in left if name not in computed]:
        return f"{unknown[0]} isn't computed only from keys and from sum, count, avg, min, max or bool aggregates"
    if not parts.kept:
        return "it has no aggregate"
    columns = [(expression, node.names[place]) for place, expression in keys.items()]
    return Grouping(_rows_of(node.tree, [*columns, *parts.values.items()]), names, tuple(keys), parts.kept, computed)


def _rows_of(tree: exp.Select, columns: Sequence[tuple[exp.Expr, str]]) -> exp.Select:
    """The rows that ``tree`` makes groups of, with these columns."""
    rows = tree.copy()
    # Some column there has to be, also of rows that are but counted.
    listed = columns or [(exp.Literal.number(1), f"{_OWN}value_0")]
    rows.set("expressions", [exp.alias_(each.copy(), name, quoted=True) for each, name in listed])
    for key in ("group", "order", "sort", "cluster", "distribute"):
        rows.set(key, None)
    return rows


class _Parts:
    """What a result is made of: the columns ``keys`` by what they are, and aggregates by the column that has them."""

    def __init__(self, keys: dict[exp.Expr, str]) -> None:
        self._keys = keys
        self.values: dict[exp.Expr, str] = {}
        self.kept: dict[str, tuple[Function, str]] = {}

    def keep(self, aggregates: Mapping[str, tuple[Function, exp.Expr | None]]) -> None:
        """Have each of ``aggregates`` in the column that it is given by."""
        self.kept |= {name: self._over_values(each) for name, each in aggregates.items()}

    def computed(self, expression: exp.Expr) -> exp.Expr | None:
        """``expression`` over columns that are kept; None if it isn't made of such."""
        if within(expression, *_NOT_SCALAR):
            return None
        root = exp.Paren(this=expression.copy())
        self._replace_within(root)
        made = root.this
        is_made = not made.find(exp.AggFunc) and all(each.meta.get(_KEPT) for each in made.find_all(exp.Column))
        return made if is_made else None

    def _replace_within(self, above: exp.Expr) -> None:
        for each in list(above.iter_expressions()):
            name = self._keys.get(each) or self._column_of(each)
            if name is None:
                self._replace_within(each)
            else:
                column = exp.column(exp.to_identifier(name, quoted=True))
                column.meta[_KEPT] = True
                each.replace(column)

    def _column_of(self, expression: exp.Expr) -> str | None:
        """The column that has this aggregate, a new one if need be; None if it is none that can be kept."""
        found = _aggregate(expression)
        if found is None:
            return None
        wanted = self._over_values(found)
        known = next((name for name, each in self.kept.items() if each == wanted), None)
        return known or self._hide(wanted)

    def _hide(self, aggregate: tuple[Function, str]) -> str:
        name = f"{HIDDEN}aggregate_{len(self.kept)}"
        self.kept[name] = aggregate
        return name

    def _over_values(self, aggregate: tuple[Function, exp.Expr | None]) -> tuple[Function, str]:
        function, value = aggregate
        if value is None:
            return function, EVERY_ROW
        return function, self.values.setdefault(value, f"{_OWN}value_{len(self.values)}")


def _why_not_alone(block: SelectBlock, names: tuple[str, ...]) -> str | None:
    """Why a group's row isn't made of its own rows alone; or of which column the name is taken."""
    for key in ("having", "distinct", "qualify"):
        if block.tree.args.get(key):
            return f"{key.upper()} looks at whole groups"
    if block.windows:
        return "a window function looks at other groups"
    if block.unkeyed and (block.group or block.tree.args.get("limit") or block.tree.args.get("offset")):
        return block.unkeyed
    taken = [name for name in names if name.lower() == WEIGHT or name.lower().startswith((_OWN, HIDDEN))]
    return f"the column name {taken[0]} is reserved by the library" if taken else None


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
