"""A GROUP BY at the top of a query, to whose aggregates a change can be added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dagster_ips.core.aggregates import EVERY_ROW, HIDDEN, MOST_DIGITS_OF_AVERAGE, Aggregate, ComputedColumn, Function
from dagster_ips.core.write_mode import Combine
from dagster_ips.query.delta_terms import WEIGHT
from dagster_ips.query.query_tree import Node, SelectBlock, is_of_a_source, plain, within
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
    *(exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup),
)
_NESTED = (exp.DType.ARRAY, exp.DType.MAP, exp.DType.STRUCT)
_OWN, _KEPT = "ips_", "ips_is_kept"


@dataclass(frozen=True)
class Grouping:
    """A query as groups of the rows of another, ``rows``, which has a column for each key and each aggregated value.

    ``names`` are the columns of its result. ``keys`` are the places of the keys among them, in the order of the columns
    of ``rows``; without keys, all rows are one group. ``aggregates`` over the columns of ``rows`` are keyed by the
    result's column, or by a hidden column if the result only has a ``computed`` column that uses the aggregate.
    """

    rows: exp.Select
    names: tuple[str, ...]
    keys: tuple[int, ...]
    aggregates: dict[str, tuple[Function, str]]
    computed: dict[str, exp.Expr]

    @property
    def has_extremes(self) -> bool:
        """Whether a removed row may leave a group whose value is only known from its live rows."""
        return any(function in (Function.MIN, Function.MAX) for function, _ in self.aggregates.values())

    @property
    def combine(self) -> Combine:
        """The write mode that adds a change of its rows to a table that stores the result."""
        aggregates = tuple(Aggregate(name, *found) for name, found in self.aggregates.items())
        computed = [ComputedColumn(name, in_spark(each)) for name, each in self.computed.items()]
        return Combine(tuple(self.names[place] for place in self.keys), aggregates, computed=tuple(computed))


def grouping(node: Node, names: tuple[str, ...]) -> Grouping | str:
    """The query of ``node``, whose result has the columns ``names``, as a grouping; or the reason why it isn't one."""
    if not isinstance(node, SelectBlock) or not (node.group or node.is_one_group):
        return "there is no GROUP BY at the top"
    if why := _why_not_alone(node, names):
        return why
    values = [plain(each.unalias()) for each in node.tree.selects]
    selected: dict[exp.Expr, int] = {}
    for place, each in enumerate(values):
        selected.setdefault(each, place)
    keys = {place: each for each, place in selected.items() if each in node.group}
    if lacking := [each for each in node.group if each not in selected]:
        return f"the result lacks the grouping key {lacking[0].sql(DIALECT)}"
    others = {names[place]: each for place, each in enumerate(values) if place not in keys}
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


def why_not_kept(block: SelectBlock, found: Grouping) -> str | None:
    """Why a change can't be added to an aggregate of a struct, or of a source's column, by its type; None if it can.

    The types of other values are only known to the engine.
    """
    values = {each.alias: each.unalias() for each in found.rows.selects}
    for function, name in found.aggregates.values():
        value = values.get(name)
        is_known = isinstance(value, exp.Struct) or (isinstance(value, exp.Column) and is_of_a_source(block, value))
        if value is not None and is_known and value.type and _misfits(function, value.type):
            kind, shown = value.type.sql(DIALECT).lower(), value.name or value.sql(DIALECT)
            return f"{function}({shown}) can't be maintained incrementally: its values are {kind}"
    return None


def _misfits(function: Function, kind: exp.DataType) -> bool:
    """Whether a run would find that a change can't be added to this aggregate of values of this type."""
    match function:
        case Function.MIN | Function.MAX:
            return kind.this in _NESTED
        case Function.AVG if kind.is_type("decimal"):
            return bool(kind.expressions) and int(kind.expressions[0].name) > MOST_DIGITS_OF_AVERAGE
        case Function.SUM | Function.AVG:
            return kind.this not in exp.DataType.INTEGER_TYPES and not kind.is_type("decimal")
        case _:
            return False


def _rows_of(tree: exp.Select, columns: Sequence[tuple[exp.Expr, str]]) -> exp.Select:
    """The rows that ``tree`` groups, with these columns."""
    rows = tree.copy()
    # There must be a column, even if the rows are only counted.
    listed = columns or [(exp.Literal.number(1), f"{_OWN}value_0")]
    rows.set("expressions", [exp.alias_(each.copy(), name, quoted=True) for each, name in listed])
    for key in ("group", "order", "sort", "cluster", "distribute"):
        rows.set(key, None)
    return rows


class _Parts:
    """The parts of a result: the columns of ``keys`` by their expressions, and aggregates by their columns."""

    def __init__(self, keys: dict[exp.Expr, str]) -> None:
        self._keys = keys
        self.values: dict[exp.Expr, str] = {}
        self.kept: dict[str, tuple[Function, str]] = {}
        self._columns: dict[tuple[Function, str], str] = {}

    def keep(self, aggregates: Mapping[str, tuple[Function, exp.Expr | None]]) -> None:
        """Keep each of ``aggregates`` in the column given for it."""
        for name, each in aggregates.items():
            self._keep(name, self._over_values(each))

    def computed(self, expression: exp.Expr) -> exp.Expr | None:
        """``expression`` over the kept columns; None if it needs more than these."""
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
        """The column that keeps this aggregate, a new one if necessary; None if it isn't one that can be kept."""
        found = _aggregate(expression)
        if found is None:
            return None
        wanted = self._over_values(found)
        if wanted not in self._columns:
            self._keep(f"{HIDDEN}aggregate_{len(self.kept)}", wanted)
        return self._columns[wanted]

    def _keep(self, name: str, aggregate: tuple[Function, str]) -> None:
        self.kept[name] = aggregate
        self._columns.setdefault(aggregate, name)

    def _over_values(self, aggregate: tuple[Function, exp.Expr | None]) -> tuple[Function, str]:
        function, value = aggregate
        if value is None:
            return function, EVERY_ROW
        return function, self.values.setdefault(value, f"{_OWN}value_{len(self.values)}")


def _why_not_alone(block: SelectBlock, names: tuple[str, ...]) -> str | None:
    """Why a group's result row needs more than the group's own rows, or which column's name is reserved; else None."""
    for key in ("having", "distinct"):
        if block.tree.args.get(key):
            return f"{key.upper()} looks at whole groups"
    if block.windows:
        return "a window function looks at other groups"
    if block.unkeyed and (block.group or block.tree.args.get("limit") or block.tree.args.get("offset")):
        return block.unkeyed
    taken = [name for name in names if name.lower() == WEIGHT or name.lower().startswith((_OWN, HIDDEN))]
    return f"the column name {taken[0]} is reserved by the library" if taken else None


def _aggregate(expression: exp.Expr) -> tuple[Function, exp.Expr | None] | None:
    """The function and its argument (None: every row); None if it isn't an aggregate that a change can be added to."""
    if within(expression, exp.Query, exp.Distinct, exp.Window) or len(within(expression, exp.AggFunc)) != 1:
        return None
    if isinstance(expression, exp.Filter):
        found = _aggregate(expression.this)
        return None if found is None else (found[0], _where(expression.expression.this, found[1]))
    if isinstance(expression, exp.Count):
        if expression.expressions:
            return None
        is_every = isinstance(expression.this, exp.Star)
        return Function.COUNT, None if is_every else expression.this
    function = _FUNCTIONS.get(type(expression))
    return None if function is None or expression.expressions else (function, expression.this)


def _where(condition: exp.Expr, value: exp.Expr | None) -> exp.Expr:
    """``value`` (None: a constant) where ``condition`` is true, and otherwise NULL, which no aggregate counts."""
    counted = exp.Literal.number(1) if value is None else value.copy()
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=counted)])
