"""A query as relations, the equalities that join them, and the columns of the result.

Anything that the rules can't follow raises ``NotDerivedError`` with the reason why the query runs in full.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias, TypeVar

from sqlglot import exp

from dagster_ips.query.spark_dialect import DIALECT


class NotDerivedError(ValueError):
    """It isn't known how to maintain the query from a change; the text says why."""


class Role(StrEnum):
    """How a relation takes part in the rows of its block."""

    INNER = "inner"
    """Every row contains a row of it: FROM, an inner or a cross join, the left side of a left join."""
    LEFT = "left"
    """A row contains a row of it, or nulls in all of its columns: the right side of a left join."""
    HIDDEN = "hidden"
    """Rows depend on it but don't have its columns: a semi or anti join, or a subquery in an expression."""


@dataclass(frozen=True, eq=False)
class Scan:
    """One place where the query reads a source. ``number`` identifies the place."""

    source: int
    number: int
    names: tuple[str, ...]

    @property
    def scans(self) -> frozenset[Scan]:
        """Itself."""
        return frozenset((self,))


@dataclass(frozen=True, eq=False)
class Sides:
    """A set operation of two queries."""

    tree: exp.SetOperation
    left: Node
    right: Node

    @property
    def names(self) -> tuple[str, ...]:
        """The column names, which are those of its left side."""
        return self.left.names

    @cached_property
    def scans(self) -> frozenset[Scan]:
        """All scans of both sides."""
        return self.left.scans | self.right.scans

    def side_of(self, scan: Scan) -> Node:
        """The side that reads ``scan``."""
        return self.left if scan in self.left.scans else self.right


@dataclass(frozen=True, eq=False)
class Relation:
    """A relation of a block.

    If it is a hidden one for a subquery in an expression, its columns ``k0``, ``k1``, … are the expressions ``inside``
    the subquery that are compared with the block's columns.
    """

    alias: str
    node: Node
    role: Role
    place: int
    inside: tuple[exp.Expr, ...] | None = None


@dataclass(frozen=True, eq=False)
class Equality:
    """``left = right``: two columns of the same ``kind_of`` type, in which equal values are identical.

    It holds in every row of the block, or, with an ``owner``, in every row that has that relation.
    """

    left: exp.Column
    right: exp.Column
    owner: Relation | None


@dataclass(eq=False)
class SelectBlock:
    """One SELECT. ``filters`` are the conditions without a subquery that hold in every row of its body."""

    tree: exp.Select
    relations: list[Relation] = field(default_factory=list)
    equalities: list[Equality] = field(default_factory=list)
    filters: list[exp.Expr] = field(default_factory=list)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns of its result."""
        return tuple(self.tree.named_selects)

    @cached_property
    def scans(self) -> frozenset[Scan]:
        """All scans of its relations."""
        return frozenset().union(*(each.node.scans for each in self.relations))

    @cached_property
    def equal(self) -> Mapping[exp.Column, Sequence[tuple[exp.Column, Equality]]]:
        """For each column, those that are equal to it, and by which equality."""
        found: dict[exp.Column, list[tuple[exp.Column, Equality]]] = {}
        for equality in self.equalities:
            for mine, its in ((equality.left, equality.right), (equality.right, equality.left)):
                found.setdefault(mine, []).append((its, equality))
        return found

    def relation(self, alias: str) -> Relation | None:
        """The relation with that alias; None if the block has none."""
        return next((each for each in self.relations if each.alias == alias), None)

    def relation_of(self, scan: Scan) -> Relation:
        """The relation that reads ``scan``."""
        return next(each for each in self.relations if scan in each.node.scans)

    @cached_property
    def windows(self) -> list[exp.Window]:
        """The windows that its rows or values depend on."""
        order = self.tree.args.get("order")
        parts = [*self.tree.selects, *([order] if order else [])]
        return [window for part in parts for window in within(part, exp.Window)]

    @property
    def laterals(self) -> list[exp.Lateral]:
        """Its LATERAL VIEWs."""
        return self.tree.args.get("laterals") or []

    @cached_property
    def group(self) -> Mapping[exp.Expr, None]:
        """The expressions of its GROUP BY, each once and in their order, to be looked up."""
        group = self.tree.args.get("group")
        return dict.fromkeys(plain(each) for each in group.expressions) if group else {}

    @cached_property
    def agreed(self) -> list[frozenset[exp.Expr]]:
        """What body rows agree on that form one result row, or share a window; a set for each."""
        windows = [frozenset(map(plain, window.args.get("partition_by") or [])) for window in self.windows]
        return list(dict.fromkeys([*windows, *([frozenset(self.group)] if self.group else [])]))

    @cached_property
    def is_one_group(self) -> bool:
        """Whether it aggregates all of its rows into one."""
        having = self.tree.args.get("having")
        return not self.tree.args.get("group") and (having is not None or any(map(is_aggregated, self.tree.selects)))

    @cached_property
    def has_subtotals(self) -> bool:
        """Whether it groups its rows several times. What it groups by, even a constant, is null in some groups."""
        group = self.tree.args.get("group")
        if not group:
            return False
        several = any(group.args.get(key) for key in ("grouping_sets", "cube", "rollup", "totals"))
        return several or group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None

    @cached_property
    def unkeyed(self) -> str | None:
        """Why no column of its result can identify the rows that a change affects; None if some column may."""
        group = self.tree.args.get("group")
        if group and group.args.get("all"):
            return "GROUP BY ALL doesn't name the columns"
        if self.has_subtotals:
            return "ROLLUP, CUBE or GROUPING SETS: each row counts in several groups"
        if self.tree.args.get("limit") or self.tree.args.get("offset"):
            return "LIMIT: the rows it takes depend on all rows"
        if self.is_one_group:
            return "an aggregate without GROUP BY is a single row, which any change may affect"
        return None


Node: TypeAlias = Scan | Sides | SelectBlock

_OF_SELECT = {
    *("expressions", "from_", "joins", "where", "group", "having", "distinct", "limit", "offset"),
    *("order", "sort", "cluster", "distribute", "laterals"),
}
_OF_JOIN = {"this", "on", "side", "kind"}
_EXACT = {"boolean", "date", "timestampntz", "binary"}
# Other names of one type, under which sqlglot knows what functions return.
_SYNONYMS = {"text": "text", "varchar": "text"} | dict.fromkeys(
    ("timestamp", "timestamptz", "timestampltz"), "timestamp"
)
_INTEGERS = exp.DataType.INTEGER_TYPES
_FAILING = (
    *(exp.Div, exp.IntDiv, exp.Mod, exp.Bracket, exp.StrToDate, exp.StrToTime, exp.StrToUnix, exp.TsOrDsToDate),
    *(exp.TsOrDsToTimestamp, exp.ToNumber, exp.DateFromParts, exp.TimestampFromParts, exp.Elt, exp.NextDay),
    *(exp.ParseUrl, exp.ToBinary, exp.ArrayInsert, exp.ArraySlice, exp.Decode, exp.Format, exp.FromBase64),
    *(exp.GenerateSeries, exp.Getbit, exp.MapFromEntries, exp.SplitPart, exp.StrToMap),
)
_FAILING_BY_NAME = {
    *("conv", "date", "make_date", "make_timestamp", "make_timestamp_ltz", "make_timestamp_ntz", "next_day", "pmod"),
    *("to_date", "to_number", "to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "to_unix_timestamp"),
    *("unix_timestamp", "url_decode", "bit_get", "format_string", "getbit", "map_concat", "map_from_arrays", "mod"),
    *("printf", "sequence", "split_part", "str_to_map", "transform_keys"),
}
_OF_PATTERNS = (
    *(exp.RegexpCount, exp.RegexpExtract, exp.RegexpExtractAll, exp.RegexpILike, exp.RegexpInstr, exp.RegexpLike),
    *(exp.RegexpReplace, exp.RegexpSplit, exp.RegexpSubstr),
)
# Functions that cast a text to a time, by their names here or in Spark.
_OF_TIMES = re.compile(r"date|time|day|month|quarter|hour|minute|second|trunc|^tsor|^extract$", re.IGNORECASE)
_OF_NUMBERS = (
    *(exp.Neg, exp.Abs, exp.Round, exp.Ceil, exp.Floor, exp.Chr, exp.Exp, exp.Factorial, exp.Ln, exp.Log, exp.Pow),
    *(exp.Sign, exp.Sqrt, exp.Cbrt, exp.Rint, exp.Degrees, exp.Radians, exp.Sin, exp.Cos, exp.Tan, exp.Cot, exp.Sec),
    *(exp.Csc, exp.Asin, exp.Acos, exp.Atan, exp.Atan2, exp.Sinh, exp.Cosh, exp.Tanh, exp.Asinh, exp.Acosh, exp.Atanh),
    *(exp.IsNan, exp.Nanvl, exp.WidthBucket, exp.UnixToStr),
)
_OF_NUMBERS_BY_NAME = {"bin", "bround", "expm1", "hypot", "log", "log10", "log1p", "log2", "negative", "positive"}
_OF_ONE_TYPE = (
    *(exp.Array, exp.Between, exp.Binary, exp.Case, exp.Coalesce, exp.Greatest, exp.If, exp.In, exp.Least, exp.Nullif),
    exp.Nvl2,
)


def build(tree: exp.Query, columns: Mapping[str, Sequence[str]]) -> Node:
    """The nodes of a tree whose columns are all qualified and typed, and whose tables have their source in their meta.

    Each table also gets the number of its scan there, so that it can be found in copies of the tree. ``columns`` maps a
    table's name to its columns.
    """
    return _Builder(columns).node(tree)


class _Builder:
    def __init__(self, columns: Mapping[str, Sequence[str]]) -> None:
        self._columns = columns
        self._scans = 0
        self._subqueries = 0

    def node(self, tree: exp.Expr) -> Node:
        match tree := plain(tree):
            case exp.SetOperation():
                if tree.args.get("by_name"):
                    message = "UNION BY NAME"
                    raise NotDerivedError(message)
                _require_no_limit(tree)
                return Sides(tree, self.node(tree.this), self.node(tree.expression))
            case exp.Table():
                _from(tree)
                tree.meta["scan"] = self._scans
                self._scans += 1
                return Scan(tree.meta["source"], tree.meta["scan"], tuple(self._columns[tree.name]))
            case exp.Select():
                return self._block(tree)
            case _:
                message = f"{type(tree).__name__.upper()} in FROM"
                raise NotDerivedError(message)

    def _block(self, tree: exp.Select) -> SelectBlock:
        _require_only(tree, _OF_SELECT, "")
        if tree.args.get("distinct") and tree.args["distinct"].args.get("on"):
            message = "DISTINCT ON"
            raise NotDerivedError(message)
        _require_plain_columns(tree)
        block = SelectBlock(tree)
        _begin_with_the_preserved_side(tree)
        first = tree.args.get("from_")
        if first:
            _add(block, Relation(first.this.alias_or_name, self.node(_from(first.this)), Role.INNER, 0))
        for join in tree.args.get("joins") or []:
            self._join(block, join)
        _require_row_wise(block)
        where = tree.args.get("where")
        for condition in conjuncts(where.this if where else None):
            _add_condition(block, condition)
        for part in [*tree.selects, *(tree.args[key] for key in ("where", "having") if tree.args.get(key))]:
            for query in _subqueries(part):
                self._subquery(block, query)
        for key in ("group", "order", "limit"):
            if tree.args.get(key) and tree.args[key].find(exp.Query):
                message = f"a subquery in {key.upper()}"
                raise NotDerivedError(message)
        return block

    def _join(self, block: SelectBlock, join: exp.Join) -> None:
        _require_only(join, _OF_JOIN, "JOIN ")
        side, kind, this = (join.side or "").upper(), (join.kind or "").upper(), _from(join.this)
        if side in ("RIGHT", "FULL"):
            message = f"{side} JOIN" + (" after another join" if side == "RIGHT" else "")
            raise NotDerivedError(message)
        if kind not in ("", "INNER", "CROSS", "OUTER", "SEMI", "ANTI"):
            message = f"{kind} JOIN"
            raise NotDerivedError(message)
        role = Role.HIDDEN if kind in ("SEMI", "ANTI") else Role.LEFT if side == "LEFT" else Role.INNER
        relation = Relation(join.this.alias_or_name, self.node(this), role, len(block.relations))
        _add(block, relation)
        for condition in conjuncts(join.args.get("on")):
            if role is Role.INNER:
                _add_condition(block, condition)
            elif equality := _equality(block, condition, relation):
                block.equalities.append(equality)

    def _subquery(self, block: SelectBlock, query: exp.Query) -> None:
        """Add a subquery in an expression: block rows that its rows affect satisfy the equalities in its WHERE."""
        node = self.node(query)
        tree, pairs = plain(query), list[tuple[exp.Column, exp.Expr]]()
        where = tree.args.get("where")
        if isinstance(node, SelectBlock):
            for condition in conjuncts(where.this if where else None):
                pairs += _correlation(block, node, condition)
            pairs += _compared_with(block, query, node)
        alias = f"ips_subquery_{self._subqueries}"
        self._subqueries += 1
        inside = tuple(inner for _, inner in pairs)
        relation = Relation(alias, node, Role.HIDDEN, len(block.relations), inside)
        block.relations.append(relation)
        for place, (outer, _) in enumerate(pairs):
            block.equalities.append(Equality(outer, exp.column(f"k{place}", alias), relation))


def _add(block: SelectBlock, relation: Relation) -> None:
    """Add a relation, and mark the block's columns that combine columns of several types.

    One side alone gives such a column another type than the query does. sqlglot may not know which one that is.
    """
    block.relations.append(relation)
    kinds = {name: _kinds_at(relation.node, place) for place, name in enumerate(relation.node.names)}
    for column in block.tree.find_all(exp.Column):
        found = kinds.get(column.name, set()) if column.table == relation.alias else set()
        if len(found) > 1 or any(each.is_type("unknown") for each in found):
            column.meta["is_mixed"] = True
            if len({kind_of(each) for each in found}) > 1:
                column.meta["kind"] = None


def _kinds_at(node: Node, place: int) -> set[exp.DataType]:
    """The types of the columns that a set operation combines into this column; empty if there is none."""
    match node:
        case Sides():
            found = set[exp.DataType]()
            for side in (node.left, node.right):
                kind = None
                if isinstance(side, Sides | SelectBlock) and _has_known_type(side, place):
                    kind = side.tree.selects[place].type
                found |= _kinds_at(side, place) or {_of_one_name(kind)}
            return found - {exp.DataType.build("null")}
        case SelectBlock():
            column = node.tree.selects[place].unalias()
            relation = node.relation(column.table) if isinstance(column, exp.Column) else None
            is_plain = relation is not None and relation.inside is None and column.name in relation.node.names
            return _kinds_at(relation.node, relation.node.names.index(column.name)) if relation and is_plain else set()
        case _:
            return set()


def _has_known_type(node: Node, place: int) -> bool:
    """Whether the column has the type that sqlglot says: Spark computes decimals with other digits, also a literal 1.5.

    It computes one where sqlglot says that it is a double, as for ``round(1.25, 1)``.
    """
    if isinstance(node, Scan):
        return True
    kind, value = node.tree.selects[place].type, node.tree.selects[place].unalias()
    if kind is None or kind.this not in exp.DataType.NUMERIC_TYPES - _INTEGERS or isinstance(value, exp.Cast):
        return True
    if isinstance(node, Sides):
        return _has_known_type(node.left, place) and _has_known_type(node.right, place)
    relation = node.relation(value.table) if isinstance(value, exp.Column) else None
    if relation is None or relation.inside is not None:
        return False
    return _has_known_type(relation.node, relation.node.names.index(value.name))


def is_of_one_type(node: Node, place: int) -> bool:
    """Whether no set operation combines columns of several types into this column; false if that is unknown.

    Else values of a side may be equal in the column but not in the side, as the texts 1 and 01 beside a number.
    """
    kinds = {kind_of(each) for each in _kinds_at(node, place)}
    return not kinds or (len(kinds) == 1 and None not in kinds)


def _of_one_name(kind: exp.DataType | None) -> exp.DataType:
    """The type, whose name is the same for all strings."""
    if kind is None or kind.this in exp.DataType.TEXT_TYPES:
        return exp.DataType.build("unknown" if kind is None else "text")
    return kind


def _begin_with_the_preserved_side(tree: exp.Select) -> None:
    """Turn ``a RIGHT JOIN b`` into ``b LEFT JOIN a`` if it is the first join."""
    joins = tree.args.get("joins") or []
    if joins and (joins[0].side or "").upper() == "RIGHT":
        first, join = tree.args["from_"], joins[0]
        nullable, preserved = first.this, join.this
        first.set("this", preserved.copy())
        join.set("this", nullable.copy())
        join.set("side", "LEFT")


def _from(item: exp.Expr) -> exp.Expr:
    if item.args.get("joins") or item.args.get("laterals") or item.args.get("pivots"):
        message = "joins in brackets"
        raise NotDerivedError(message)
    return item


def _require_plain_columns(tree: exp.Select) -> None:
    if any(isinstance(each.unalias(), exp.Aliases | exp.Posexplode) for each in tree.selects):
        message = "an expression with several columns"
        raise NotDerivedError(message)
    names = [name.lower() for name in tree.named_selects]
    if len(set(names)) < len(names):
        message = "two columns with the same name"
        raise NotDerivedError(message)


def _require_only(tree: exp.Expr, known: set[str], what: str) -> None:
    for key, value in tree.args.items():
        if value and key not in known:
            message = f"{what}{key.rstrip('_').upper()}"
            raise NotDerivedError(message)


def _require_row_wise(block: SelectBlock) -> None:
    """Refuse a LATERAL VIEW unless it only adds columns to each row, and repeats the row as often as there are values.

    Its columns belong to no relation, so no key is derived from them.
    """
    names = {relation.alias for relation in block.relations}
    for lateral in block.laterals:
        is_given = isinstance(lateral.this, exp.Explode) and lateral.args.get("view") and lateral.alias_column_names
        is_of_rows = all(column.table in names for column in within(lateral.this, exp.Column))
        if not (is_given and is_of_rows) or within(lateral.this, exp.Query) or lateral.alias in names:
            message = f"LATERAL VIEW {lateral.this.sql(DIALECT)}"
            raise NotDerivedError(message)
        names.add(lateral.alias)


def _require_no_limit(tree: exp.Expr) -> None:
    if tree.args.get("limit") or tree.args.get("offset"):
        message = "LIMIT over a set operation"
        raise NotDerivedError(message)


def _add_condition(block: SelectBlock, condition: exp.Expr) -> None:
    if equality := _equality(block, condition, None):
        block.equalities.append(equality)
    if not condition.find(exp.Query):
        block.filters.append(condition)


def _equality(block: SelectBlock, condition: exp.Expr, owner: Relation | None) -> Equality | None:
    if not isinstance(condition := plain(condition), exp.EQ):
        return None
    left, right = plain(condition.this), plain(condition.expression)
    if not isinstance(left, exp.Column) or not isinstance(right, exp.Column) or left.table == right.table:
        return None
    if block.relation(left.table) is None or block.relation(right.table) is None or not _are_alike(left, right):
        return None
    return Equality(left, right, owner)


def _correlation(block: SelectBlock, inner: SelectBlock, condition: exp.Expr) -> list[tuple[exp.Column, exp.Expr]]:
    """The block's column and the subquery's column that ``condition`` equates; empty if it is another condition."""
    if isinstance(condition := plain(condition), exp.EQ):
        left, right = plain(condition.this), plain(condition.expression)
        for mine, its in ((left, right), (right, left)):
            if isinstance(mine, exp.Column) and isinstance(its, exp.Column) and _are_alike(mine, its):
                is_of_block = block.relation(mine.table) is not None and inner.relation(mine.table) is None
                relation = inner.relation(its.table)
                if is_of_block and relation is not None and relation.role is Role.INNER:
                    return [(mine, its)]
    return []


def _compared_with(block: SelectBlock, query: exp.Query, inner: SelectBlock) -> Iterator[tuple[exp.Column, exp.Expr]]:
    """Each column of ``x IN (query)`` or ``(x, y) IN (query)`` and what it is compared with, if null acts as false.

    Whether a value is in a column of the result of ``inner`` depends only on the rows of ``inner`` that have it.
    """
    parent = above(query, exp.Subquery)
    if not isinstance(parent, exp.In) or parent.args.get("query") is None:
        return
    clause = above(parent, exp.And, exp.Or, exp.Paren)
    if not isinstance(clause, exp.Where | exp.Having):
        return
    compared = plain(parent.this)
    columns = compared.expressions if isinstance(compared, exp.Tuple) else [compared]
    for place, column in enumerate(map(plain, columns[: len(inner.names)])):
        value = key_expression(inner, place)
        if not isinstance(column, exp.Column) or block.relation(column.table) is None:
            continue
        if isinstance(value, exp.Column) and _are_alike(column, value):
            yield column, value


def key_expression(block: SelectBlock, place: int) -> exp.Expr | None:
    """The expression of a result column on which all body rows agree that form one result row or share a window.

    None if they may differ, or if the column may be null because a relation has no matching row.
    """
    expression = block.tree.selects[place].unalias()
    if within(expression, exp.AggFunc, exp.Window, exp.Explode, exp.Lambda) or expression.find(exp.Query):
        return None
    columns = within(expression, exp.Column)
    if not columns:
        return None if block.has_subtotals else expression
    relations = [block.relation(column.table) for column in columns]
    if block.unkeyed or any(relation is None or relation.role is not Role.INNER for relation in relations):
        return None
    if not isinstance(expression, exp.Column) and any(has_equals(block, column) for column in columns):
        return None
    agree = all(expression in each or _is_made_of(expression, each) for each in block.agreed)
    return expression if agree else None


def has_equals(block: SelectBlock, column: exp.Column) -> bool:
    """Whether a row may stand for others in which ``column`` is equal but not identical, such as 0.0 for -0.0.

    Also whether the sides of a UNION give it several types. Functions of it, such as its text, then differ between
    these rows.
    """
    if column.meta.get("is_mixed"):
        return True
    relation = block.relation(column.table)
    if column.meta.get("kind") is not None or relation is None or relation.inside is not None:
        return False
    return _merges_equals(relation.node, relation.node.names.index(column.name))


def is_of_a_source(block: SelectBlock, column: exp.Column) -> bool:
    """Whether it is a column of sources, whose type is known from these, and not inferred from an expression."""
    relation = block.relation(column.table)
    if relation is None or relation.inside is not None:
        return False
    return _is_of_scans(relation.node, relation.node.names.index(column.name))


def _is_of_scans(node: Node, place: int) -> bool:
    match node:
        case Scan():
            return True
        case Sides():
            return _is_of_scans(node.left, place) and _is_of_scans(node.right, place)
        case SelectBlock():
            column = node.tree.selects[place].unalias()
            return isinstance(column, exp.Column) and is_of_a_source(node, column)


def _merges_equals(node: Node, place: int) -> bool:
    match node:
        case Scan():
            return False
        case Sides():
            is_plain = isinstance(node.tree, exp.Union) and not node.tree.args.get("distinct")
            return not is_plain or _merges_equals(node.left, place) or _merges_equals(node.right, place)
        case SelectBlock():
            columns = within(node.tree.selects[place], exp.Column)
            is_plain = not (node.group or node.is_one_group or node.windows or node.tree.args.get("distinct"))
            return not is_plain or any(has_equals(node, column) for column in columns)


def _is_made_of(part: exp.Expr, parts: Collection[exp.Expr]) -> bool:
    """Whether rows that agree on ``parts`` also agree on ``part``, which is computed from those."""
    part = plain(part)
    if part in parts and kind_of(part.type) is not None:
        return True
    return not isinstance(part, exp.Column) and all(_is_made_of(each, parts) for each in part.iter_expressions())


def _subqueries(part: exp.Expr) -> Iterator[exp.Query]:
    """The outermost subqueries in an expression."""
    for node in part.walk(prune=lambda node: isinstance(node, exp.Query)):
        if isinstance(node, exp.Query):
            yield node


def may_fail(expression: exp.Expr) -> bool:
    """Whether it may be an error for a value that its type allows, such as a text that is no number.

    Sums, differences and products aren't counted, although they may be too large for their type.
    """
    return any(map(fails_itself, expression.walk()))


def fails_itself(node: exp.Expr) -> bool:
    """As ``may_fail``, but not because of what it is computed from."""
    if isinstance(node, exp.Cast):
        return _is_failing_cast(node)
    return (_is_failing(node) and not _divides_by_a_number(node)) or _takes_from_rows(node) or _casts_text(node)


def _is_failing(node: exp.Expr) -> bool:
    by_name = isinstance(node, exp.Anonymous) and node.name.lower() in _FAILING_BY_NAME
    return by_name or isinstance(node, _FAILING)


def _takes_from_rows(node: exp.Expr) -> bool:
    """Whether it takes from the rows what must be valid: a pattern, a group's number, a character set, a map's keys."""
    match node:
        case exp.Encode(args={"charset": charset}):
            return str(charset.name).upper() != "UTF-8"
        case exp.VarMap(args={"keys": keys}):
            taken = keys.expressions
        case _:
            others = [each for key, each in node.args.items() if key != "this" and isinstance(each, exp.Expr)]
            taken = others if isinstance(node, _OF_PATTERNS) else []
    return not all(isinstance(each, exp.Literal | exp.RawString) for each in taken)


def _divides_by_a_number(node: exp.Expr) -> bool:
    """Whether its divisor is a number in the query, and not zero."""
    is_mod = isinstance(node, exp.Anonymous) and node.name.lower() in ("mod", "pmod") and len(node.expressions) > 1
    divisor = node.expressions[1] if is_mod else node.expression
    is_quotient = (is_mod or isinstance(node, exp.Div | exp.IntDiv | exp.Mod)) and divisor.is_number
    return is_quotient and float(divisor.name) != 0


def _casts_text(node: exp.Expr) -> bool:
    """Whether Spark casts a text in it to another type, as for ``text > 5``; a constant can be cast for every row."""
    return any(_casts_text_among(node, operands) for operands in operands_of(node))


def operands_of(node: exp.Expr) -> Iterator[list[exp.Expr]]:
    """What it is computed from, as lists within each of which Spark may convert to one type."""
    match node:
        case exp.Case():
            ifs = node.args["ifs"]
            if node.this:
                yield [node.this, *(each.this for each in ifs)]
            yield [each for each in (*(each.args["true"] for each in ifs), node.args.get("default")) if each]
        case exp.If() | exp.Nvl2():
            yield [each for each in (node.args["true"], node.args.get("false")) if each]
        case _:
            yield [each for each in node.iter_expressions() if isinstance(each, exp.Condition | exp.Interval)]


def _casts_text_among(node: exp.Expr, operands: Sequence[exp.Expr]) -> bool:
    if not any(each.is_type(*exp.DataType.TEXT_TYPES) and not isinstance(each, exp.Literal) for each in operands):
        return False
    if isinstance(node, exp.Anonymous) and node.name.lower() in _OF_NUMBERS_BY_NAME:
        return True
    if isinstance(node, exp.Func) and not isinstance(node, _OF_NUMBERS + _OF_ONE_TYPE):
        return _OF_TIMES.search(function_name(node)) is not None
    others = (exp.DType.BOOLEAN, exp.DType.INTERVAL, *exp.DataType.NUMERIC_TYPES, *exp.DataType.TEMPORAL_TYPES)
    is_mixed = isinstance(node, _OF_ONE_TYPE) and not isinstance(node, exp.DPipe)
    return isinstance(node, _OF_NUMBERS) or (is_mixed and any(each.is_type(*others) for each in operands))


def _is_failing_cast(cast: exp.Cast) -> bool:
    """Whether there are values that can't be cast, except for numbers that are too large.

    Any value can be cast to a string, and a time to another kind of time.
    """
    is_try_cast = bool(cast.args.get("safe"))  # sqlglot takes Spark's CAST for a TryCast, too.
    if is_try_cast or cast.is_type(*exp.DataType.TEXT_TYPES):
        return False
    kind = cast.this.type
    alike = (exp.DataType.TEMPORAL_TYPES, exp.DataType.NUMERIC_TYPES)
    return kind is None or not any(kind.this in each and cast.to.this in each for each in alike)


def _are_alike(left: exp.Column, right: exp.Column) -> bool:
    """Whether equal values of both columns are identical, so that one column may replace the other."""
    return left.meta.get("kind") is not None and left.meta.get("kind") == right.meta.get("kind")


def kind_of(kind: exp.DataType | None) -> str | None:
    """What columns must have in common so that one may replace the other; None for a type that keys can't have.

    Two floats may be equal without being identical, as may decimals of different scales. Maps, arrays and structs may
    contain such values.
    """
    if kind is None or isinstance(kind.this, exp.Interval):
        return None
    if kind.this in _INTEGERS:
        return "integer"
    name = kind.this.value.lower()
    if name == "decimal":
        return kind.sql(DIALECT).lower()
    if kind.find(exp.CollateColumnConstraint) or (name == "varchar" and kind.expressions):
        return None
    return name if name in _EXACT else _SYNONYMS.get(name)


def plain(expression: exp.Expr) -> exp.Expr:
    """The expression without the brackets around it.

    Raises:
        NotDerivedError: there is also a join or a LIMIT in the brackets.
    """
    while isinstance(expression, exp.Paren | exp.Subquery):
        if any(expression.args.get(key) for key in ("joins", "limit", "offset", "pivots", "sample", "with_")):
            message = "a join or LIMIT in brackets"
            raise NotDerivedError(message)
        expression = expression.this
    return expression


def conjuncts(condition: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that must all hold."""
    if condition is None:
        return []
    while isinstance(condition, exp.Paren):
        condition = condition.this
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


def linked(pairs: Iterable[tuple[exp.Column, exp.Column]]) -> dict[exp.Column, list[exp.Column]]:
    """For each column of ``pairs``, those that it is paired with."""
    found: dict[exp.Column, list[exp.Column]] = {}
    for one, other in pairs:
        found.setdefault(one, []).append(other)
        found.setdefault(other, []).append(one)
    return found


def reached(column: exp.Column, links: Mapping[exp.Column, Sequence[exp.Column]]) -> list[exp.Column]:
    """``column``, and those that ``links`` lead to from there, the closest ones first."""
    found = {column: None}
    todo = [column]
    for each in todo:
        new = [other for other in links.get(each, ()) if other not in found]
        found |= dict.fromkeys(new)
        todo += dict.fromkeys(new)
    return list(found)


_Kind = TypeVar("_Kind", bound=exp.Expr)


def within(expression: exp.Expr, *kinds: type[_Kind]) -> list[_Kind]:
    """The nodes of these kinds in an expression, except those in its subqueries."""
    walk = expression.walk(prune=lambda node: isinstance(node, exp.Query) and node is not expression)
    return [node for node in walk if isinstance(node, kinds)]


def above(node: exp.Expr, *skipped: type[exp.Expr]) -> exp.Expr | None:
    """The closest node around this one that isn't of the ``skipped`` kinds; None if there is none."""
    found = node.parent
    while isinstance(found, skipped):
        found = found.parent
    return found


def function_name(call: exp.Expr) -> str:
    """A function's name: Spark's if it is unknown here, otherwise that of its class."""
    return call.name if isinstance(call, exp.Anonymous) else type(call).__name__


def is_aggregated(expression: exp.Expr) -> bool:
    """Whether the expression has an aggregate that isn't over a window."""
    around = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)
    return any(not isinstance(above(call, *around), exp.Window) for call in within(expression, exp.AggFunc))
