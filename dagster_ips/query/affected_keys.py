"""Which keys of the result a change affects, as a query over the changed rows.

All of this rests on a theorem. Let A contain every value of the result's columns K for which the result before and
the result after the change differ. Deleting the target's rows with K in A and inserting the rows with K in A of the
result after then gives the result after. So it is enough to overestimate A, and everything here does.

The places where a source is read are treated as if they changed one after another. While one changes, the others may
be in their state before or after their own change: their current rows and their removed rows together cover both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from sqlglot import exp

from dagster_ips.query.query_tree import (
    Equality,
    Node,
    NotDerivedError,
    Relation,
    Role,
    Scan,
    SelectBlock,
    Sides,
    conjuncts,
    has_equals,
    is_of_a_source,
    key_expression,
    linked,
    may_fail,
    reached,
    within,
)
from dagster_ips.query.spark_dialect import DIALECT

Wanted = Sequence[tuple[exp.Expr, str]]
"""Expressions over a block's columns, each with its name."""
AFFECTED = "ips_affected"
_ADDED, _REMOVED = "ips_added_", "ips_removed_"


def added(source: int) -> str:
    """The name in queries of the rows added to a source."""
    return f"{_ADDED}{source}"


def removed(source: int) -> str:
    """The name in queries of the rows removed from a source."""
    return f"{_REMOVED}{source}"


def kept(source: int) -> str:
    """The name in queries of the rows of a source that were there before the change and still are."""
    return f"ips_kept_{source}"


def after(source: int) -> str:
    """The name in queries of a source in its current state."""
    return f"ips_after_{source}"


def before(source: int) -> str:
    """The name in queries of a source in its state before the change."""
    return f"ips_before_{source}"


def source_of(table: str) -> int:
    """The source that a table with one of these names belongs to."""
    return int(table.rpartition("_")[2])


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What happened to a source: whether rows were added, and whether rows were removed."""

    adds: bool
    removes: bool


@dataclass(frozen=True)
class AffectedReach:
    """The keys that a change affects. ``changed`` has the sources that changed."""

    changed: Mapping[int, SourceChange]
    _known: dict[tuple[Relation, str, Scan | None], bool] = field(default_factory=dict, repr=False)
    _walks: dict[tuple[SelectBlock, Scan | None, Relation], _EqualityWalk] = field(default_factory=dict, repr=False)

    def keys(self, node: Node, scan: Scan, places: Sequence[int]) -> exp.Query:
        """A superset of the values of the columns ``places`` in rows of ``node`` that differ when ``scan`` changes.

        Raises:
            NotDerivedError: they can't be derived.
        """
        return self._columns(node, scan, {place: node.names[place] for place in places})

    def has_itself(self, block: SelectBlock, scan: Scan, column: exp.Column) -> bool:
        """Whether the changed relation itself has ``column`` of the block's body, or a column that equals it."""
        start = block.relation_of(scan)
        try:
            return self._walk(block, scan, start).stand_in(column).table == start.alias
        except NotDerivedError:
            return False

    def body_keys(self, block: SelectBlock, scan: Scan, columns: Mapping[exp.Column, str]) -> exp.Select:
        """A superset of the values of ``columns`` in rows of the block's body that differ when ``scan`` changes."""
        return self._body(block, scan, list(columns.items()))

    def _columns(self, node: Node, scan: Scan | None, wanted: Mapping[int, str]) -> exp.Query:
        """Like ``keys``, with the names ``wanted``; if ``scan`` is None, from all rows, before and after the change."""
        match node:
            case Scan():
                return self._rows(node, wanted, is_changed=scan is not None)
            case Sides() if scan is not None:
                return self._columns(node.side_of(scan), scan, wanted)
            case Sides():
                sides = [node.left, node.right] if isinstance(node.tree, exp.Union) else [node.left]
                return union([self._columns(side, None, wanted) for side in sides])
            case SelectBlock():
                expressions = []
                for place, name in wanted.items():
                    expression = key_expression(node, place)
                    if expression is None:
                        raise NotDerivedError(_why_no_key(node, place))
                    expressions.append((expression, name))
                return self._body(node, scan, expressions)

    def _rows(self, scan: Scan, wanted: Mapping[int, str], *, is_changed: bool) -> exp.Query:
        change = self.changed.get(scan.source, SourceChange(adds=False, removes=False))
        came = [added(scan.source)] if change.adds else []
        went = [removed(scan.source)] if change.removes else []
        tables = [*came, *went] if is_changed else [after(scan.source), *went]
        columns = [exp.alias_(exp.column(scan.names[place]), name) for place, name in wanted.items()]
        return union([select(columns or [_one()], exp.table_(table)) for table in tables])

    def _body(self, block: SelectBlock, scan: Scan | None, wanted: Wanted) -> exp.Select:
        """The values of expressions in body rows of the block that differ when ``scan`` changes; in all if it is None.

        Each such row contains a row of the changed relation, and of every relation that equalities lead to from there.
        """
        columns = list(dict.fromkeys(column for expression, _ in wanted for column in within(expression, exp.Column)))
        start = block.relation_of(scan) if scan is not None else _first_of(block, columns)
        if start is None or (scan is None and block.is_one_group):  # One group is there even if no row is.
            return select([exp.alias_(expression.copy(), name) for expression, name in wanted] or [_one()], None)
        walk = self._walk(block, scan, start)
        stand_ins: dict[exp.Expr, exp.Column] = {column: walk.stand_in(column) for column in columns}
        risky = next((name for expression, name in wanted if may_fail(expression)), None)
        if risky is not None and (self._mixes(block) or not walk.joins_all()):
            message = f"{risky} can't be computed for rows that the query doesn't select"
            raise NotDerivedError(message)
        is_whole = not self._mixes(block) and walk.is_whole()
        filters = [each for each in block.filters if walk.has_all_of(each) and (is_whole or not may_fail(each))]

        def replaced(node: exp.Expr) -> exp.Expr:
            return _as_typed(block, stand_ins[node], node) if node in stand_ins else node

        outputs = [
            ((stand_ins.get(each) or each.transform(replaced)).copy(), name)  # Equal integers are one key in any type.
            for each, name in wanted
        ]
        needed = [*(expression for expression, _ in outputs), *filters]
        query = walk.joined(needed)
        query.set("expressions", [exp.alias_(expression, name) for expression, name in outputs] or [_one()])
        query.set("distinct", exp.Distinct())
        return query.where(*(each.copy() for each in filters), copy=False) if filters else query

    def _walk(self, block: SelectBlock, scan: Scan | None, start: Relation) -> _EqualityWalk:
        if (block, scan, start) not in self._walks:
            self._walks[block, scan, start] = _EqualityWalk(self, block, scan, start)
        return self._walks[block, scan, start].from_start()

    def _mixes(self, block: SelectBlock) -> bool:
        """Whether rows may be joined here that were never there at the same time: added ones to removed ones."""
        changes = [self.changed[scan.source] for scan in block.scans if scan.source in self.changed]
        return len(changes) > 1 and any(change.removes for change in changes)

    def rows_of(self, relation: Relation, scan: Scan | None, names: Sequence[str]) -> exp.Query:
        """The columns ``names`` of a relation, in its rows that differ when ``scan`` changes; in all if it is None.

        Raises:
            NotDerivedError: they can't be derived.
        """
        if relation.inside:
            assert isinstance(relation.node, SelectBlock)  # noqa: S101  # only those have expressions inside
            return self._body(relation.node, scan, [(relation.inside[int(name[1:])], name) for name in names])
        return self._columns(relation.node, scan, {relation.node.names.index(name): name for name in names})

    def knows(self, relation: Relation, scan: Scan | None, name: str) -> bool:
        """Whether ``rows_of`` can derive the column ``name``."""
        asked = (relation, name, scan)
        if asked not in self._known:
            try:
                self.rows_of(relation, scan, [name])
            except NotDerivedError:
                self._known[asked] = False
            else:
                self._known[asked] = True
        return self._known[asked]


class _EqualityWalk:
    """Follows equalities from a relation that all relevant rows contain to other relations that they contain too."""

    def __init__(self, reach: AffectedReach, block: SelectBlock, scan: Scan | None, start: Relation) -> None:
        self._reach = reach
        self._block = block
        self._scan = scan
        self._start = start
        self._parents: dict[Relation, tuple[Relation, Equality] | None] = {start: None}
        self.inside = [start]
        grows = True
        while grows:
            grows = False
            for relation in block.relations:
                if relation not in self._parents and relation.role is not Role.HIDDEN:
                    link = next(self._links(relation, self._parents), None)
                    if link is not None:
                        self._parents[relation] = link
                        grows = True
        self._equal = linked((each.left, each.right) for each in block.equalities if self._holds(each))

    def from_start(self) -> _EqualityWalk:
        """The same walk, with no relation joined yet."""
        walk = copy(self)
        walk.inside = [self._start]
        return walk

    def stand_in(self, column: exp.Column) -> exp.Column:
        """``column``, or a column equal to it, of a joined relation; joins further relations if necessary.

        Raises:
            NotDerivedError: no equality leads to the column, or its values can't be derived.
        """
        equal = self._equal_to(column)
        found = next((each for each in equal if self._relation(each) in self.inside and self._is_known(each)), None)
        if found is not None:
            return found
        relation = self._relation(column)
        if relation not in self._parents:
            start = "a subquery" if self._start.role is Role.HIDDEN else self._start.alias
            message = f"no chain of equalities leads from {start} to {_shown(column)}"
            raise NotDerivedError(message)
        self._reach.rows_of(relation, self._scan_of(relation), [column.name])
        self._join(relation)
        return column

    def _join(self, relation: Relation) -> None:
        """Join a relation that equalities lead to, and those on the way to it."""
        while relation not in self.inside:
            self.inside.append(relation)
            link = self._parents[relation]
            assert link is not None  # noqa: S101  # only the start has no link, and it is inside
            relation = link[0]

    def has_all_of(self, condition: exp.Expr) -> bool:
        """Whether the joined relations have all columns of a condition that holds in every row, as they are there."""
        columns = within(condition, exp.Column)
        relations = [self._block.relation(column.table) for column in columns]
        is_there = all(each is not None and each.role is Role.INNER and each in self.inside for each in relations)
        is_same = not any(has_equals(self._block, column) for column in columns)
        return bool(columns) and is_there and is_same and all(self._is_known(column) for column in columns)

    def joins_all(self) -> bool:
        """Join every relation that every row contains; whether exactly the query's rows are left, as ``is_whole``."""
        for relation in self._block.relations:
            if relation.role is Role.INNER and relation in self._parents:
                self._join(relation)
        return self.is_whole()

    def is_whole(self) -> bool:
        """Whether the joined relations and their conditions give no row that the query excludes.

        What fails for such a row, as a cast may, would otherwise fail here although the query gives its result.
        """
        block = self._block
        if block.laterals or any(each.role is Role.HIDDEN for each in block.relations):
            return False
        is_there = all(each in self.inside for each in block.relations if each.role is Role.INNER)
        return is_there and all(map(self.has_all_of, block.filters))

    def joined(self, expressions: Sequence[exp.Expr]) -> exp.Select:
        """The join of the relations found so far, with the columns that ``expressions`` need."""
        order = [relation for relation in self._parents if relation in self.inside]
        conditions: dict[Relation, list[exp.Expr]] = {relation: [] for relation in order}
        for place, relation in enumerate(order):
            for mine, equal in self._equal.items():
                if self._relation(mine) is relation:
                    before = [its for its in equal if self._relation(its) in order[:place]]
                    conditions[relation] += [exp.EQ(this=mine.copy(), expression=its.copy()) for its in before]
        needed = [*expressions, *(condition for found in conditions.values() for condition in found)]
        names: dict[Relation, list[str]] = {relation: [] for relation in order}
        for expression in needed:
            for column in within(expression, exp.Column):
                relation = self._relation(column)
                if column.name not in names[relation]:
                    names[relation].append(column.name)
        tables = [derived(self._reach.rows_of(each, self._scan_of(each), names[each]), each.alias) for each in order]
        query = select([], tables[0])
        for relation, table in zip(order[1:], tables[1:], strict=True):
            query.append("joins", exp.Join(this=table, on=exp.and_(*conditions[relation], copy=False)))
        return query

    def _links(self, relation: Relation, found: Mapping[Relation, object]) -> Iterator[tuple[Relation, Equality]]:
        for equality in self._block.equalities:
            sides = self._sides(equality)
            if relation in sides and (equality.owner is None or equality.owner in found):
                other = sides[0] if sides[1] is relation else sides[1]
                if other is not None and other in found and self._can_join(equality):
                    yield other, equality

    def _holds(self, equality: Equality) -> bool:
        is_there = all(side in self._parents for side in self._sides(equality))
        return is_there and (equality.owner is None or equality.owner in self._parents) and self._can_join(equality)

    def _sides(self, equality: Equality) -> tuple[Relation | None, Relation | None]:
        return self._block.relation(equality.left.table), self._block.relation(equality.right.table)

    def _can_join(self, equality: Equality) -> bool:
        return self._is_known(equality.left) and self._is_known(equality.right)

    def _is_known(self, column: exp.Column) -> bool:
        relation = self._relation(column)
        if relation.role is Role.HIDDEN and relation is not self._start:
            return False
        return self._reach.knows(relation, self._scan_of(relation), column.name)

    def _equal_to(self, column: exp.Column) -> list[exp.Column]:
        """The columns with the same value in all relevant rows, ``column`` first."""
        return reached(column, self._equal)

    def _relation(self, column: exp.Column) -> Relation:
        relation = self._block.relation(column.table)
        if relation is None:
            message = f"{_shown(column)} belongs to an outer query"
            raise NotDerivedError(message)
        return relation

    def _scan_of(self, relation: Relation) -> Scan | None:
        return self._scan if relation is self._start else None


def _as_typed(block: SelectBlock, stand_in: exp.Column, column: exp.Expr) -> exp.Expr:
    """``stand_in`` with the type of ``column``: a function of it, such as its hash, may depend on the integer type.

    Null if it is too large for that type: then no row has this value in ``column``.

    Raises:
        NotDerivedError: only Spark knows the integer type that ``column`` is computed in.
    """
    copy, kind = stand_in.copy(), column.type
    if stand_in == column or column.meta.get("kind") != "integer":
        return copy
    if kind is None or not isinstance(column, exp.Column) or not is_of_a_source(block, column):
        message = f"it is unknown which type of integer {column.sql(DIALECT)} is, on which a key may depend"
        raise NotDerivedError(message)
    return exp.TryCast(this=copy, to=kind.copy(), safe=True)


def _first_of(block: SelectBlock, columns: Sequence[exp.Column]) -> Relation | None:
    """A relation that every row contains: the first that has any of ``columns``; None if there is none."""
    relations = [block.relation(column.table) for column in columns] or block.relations
    return next((each for each in relations if each is not None and each.role is Role.INNER), None)


def _why_no_key(block: SelectBlock, place: int) -> str:
    name = block.names[place]
    if block.unkeyed:
        return block.unkeyed
    expression = block.tree.selects[place].unalias()
    columns = within(expression, exp.Column)
    roles = [relation.role for column in columns if (relation := block.relation(column.table)) is not None]
    if any(column.table == lateral.alias for column in columns for lateral in block.laterals):
        return f"{name} is computed from a LATERAL VIEW"
    if Role.LEFT in roles:
        return f"{name} is null where a LEFT JOIN finds nothing"
    if other := next((column for column in columns if has_equals(block, column)), None):
        return f"{name} may differ between equal values of {_shown(other)}"
    if block.windows:
        return f"{name} isn't in every PARTITION BY"
    return f"{name} isn't what the rows are grouped by" if block.group else f"{name} isn't computed from columns alone"


def _shown(column: exp.Column) -> str:
    return f"{column.table}.{column.name}"


def _one() -> exp.Expr:
    return exp.alias_(exp.Literal.number(1), "ips_one")


def origins(query: exp.Query, names: Collection[str]) -> dict[str, frozenset[tuple[str, str]]]:
    """For columns ``names`` of ``query``, the columns that hold every value of them, each with its table, if known.

    ``query`` is one of those that are made here, or is made of them. Columns of changed rows are preferred.
    """
    if isinstance(query, exp.Subquery):
        return origins(query.this, names)
    if isinstance(query, exp.Union):
        left, right = (origins(side, names) for side in (query.left, query.right))
        return {name: left[name] | right[name] for name in left if name in right}
    selected = {each.alias_or_name: each.unalias() for each in query.selects}
    columns = {name: value for name in names if isinstance(value := selected[name], exp.Column)}
    if not columns:
        return {}
    joins = query.args.get("joins") or []
    conditions = [each for join in joins for each in conjuncts(join.args["on"]) if isinstance(each, exp.EQ)]
    links = linked((each.this, each.expression) for each in conditions)
    equal = {name: reached(column, links) for name, column in columns.items()}
    held = dict[exp.Column, frozenset[tuple[str, str]]]()
    for relation in [query.args["from_"].this, *(join.this for join in joins)]:
        its = {each: each.name for found in equal.values() for each in found}
        its = {each: name for each, name in its.items() if each.table in ("", relation.alias_or_name)}
        if isinstance(relation, exp.Table):
            held |= {each: frozenset({(relation.name, name)}) for each, name in its.items()}
        else:
            inside = origins(relation, set(its.values()))
            held |= {each: inside[name] for each, name in its.items() if name in inside}
    known = {name: [held[each] for each in found if each in held] for name, found in equal.items()}
    return {name: next(filter(_are_changed, found), found[0]) for name, found in known.items() if found}


def _are_changed(columns: Collection[tuple[str, str]]) -> bool:
    return all(table.startswith((_ADDED, _REMOVED)) for table, _ in columns)


def tables_of(query: exp.Query) -> frozenset[str]:
    """The names of the tables that a query reads."""
    return frozenset(table.name for table in query.find_all(exp.Table))


def select(columns: Sequence[exp.Expr], table: exp.Expr | None, *, distinct: bool = False) -> exp.Select:
    """SELECT ``columns`` FROM ``table``."""
    from_ = exp.From(this=table) if table is not None else None
    return exp.Select(expressions=list(columns), from_=from_, distinct=exp.Distinct() if distinct else None)


def derived(query: exp.Query, alias: str) -> exp.Subquery:
    """``query`` as a derived table."""
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def union(queries: Sequence[exp.Query], *, distinct: bool = False) -> exp.Query:
    """The rows of all ``queries``."""
    found, *others = queries
    for each in others:
        found = exp.Union(this=found, expression=each, distinct=distinct)
    return found
