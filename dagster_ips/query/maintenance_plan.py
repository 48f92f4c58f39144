"""How the result of a query is brought up to date, depending on what changed in its sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain

from sqlglot import exp
from sqlglot.errors import SqlglotError, UnsupportedError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from dagster_ips.query.affected_keys import (
    AffectedReach,
    SourceChange,
    after,
    derived,
    select,
    source_of,
    tables_of,
    union,
)
from dagster_ips.query.body_keys import body_keys
from dagster_ips.query.delta_terms import (
    terms,
    weighing,
    weighted,
    weighted_terms,
    why_body_not_linear,
    why_not_linear,
    why_not_repeatable,
)
from dagster_ips.query.distinct_aliases import make_aliases_distinct
from dagster_ips.query.key_restriction import columns_read, reading, restricted, restricted_body, whole
from dagster_ips.query.query_text import Query, is_function, is_of_the_moment, named
from dagster_ips.query.query_tree import (
    Node,
    NotDerivedError,
    Scan,
    SelectBlock,
    above,
    build,
    conjuncts,
    function_name,
    is_of_one_type,
    key_expression,
    kind_of,
    operands_of,
    within,
)
from dagster_ips.query.spark_dialect import DIALECT, WRITTEN, in_spark
from dagster_ips.query.top_grouping import Grouping, grouping, why_not_kept


class Strategy(StrEnum):
    """How a result is brought up to date."""

    NOTHING = "nothing"
    """No source changed."""
    APPEND = "append"
    """Insert the rows that the query gives for the added rows."""
    COMBINE = "combine"
    """Combine the aggregates of added and removed rows with the stored ones."""
    KEYS = "keys"
    """Delete the rows of affected keys and insert the rows that the query now gives for these keys."""
    FULL = "full"
    """Compute everything."""


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """A column of a table or a result: its name and its Spark SQL type."""

    name: str
    type: str


@dataclass(frozen=True)
class MaintenanceStep:
    """What to do in one run.

    ``rows`` is a query over the tables that ``reads`` names. For ``append``, it gives the rows to insert. For
    ``combine``, it gives the keys and values of added and removed rows, with their ``_weight``. For ``keys``, it gives
    the rows to insert, or, if the plan has a grouping, the keys and values to be grouped into these rows. ``affected``
    is the query of the affected keys, if ``rows`` reads them; for ``keys``, they are the result's columns ``keys``, by
    which rows are deleted. ``may_cancel`` says that ``rows`` may add and remove a row that neither was nor is there.
    ``why_not`` has the reason for each better strategy that isn't used.
    """

    strategy: Strategy
    rows: exp.Query | None = None
    affected: exp.Query | None = None
    keys: tuple[int, ...] = ()
    may_cancel: bool = False
    why_not: Mapping[Strategy, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why no better strategy is used; empty if there is none."""
        return "; ".join(f"no {strategy}: {why}" for strategy, why in self.why_not.items())

    @property
    def reads(self) -> frozenset[str]:
        """The names of the tables that its queries read."""
        queries = [query for query in (self.rows, self.affected) if query is not None]
        return frozenset().union(*map(tables_of, queries))


class MaintenancePlan:
    """How the result of ``query`` is maintained; ``columns`` are the columns of each of its sources, in order.

    ``result`` are the result's columns according to the engine; without it, they are derived from the query's text.
    ``no_grouping`` says why the result isn't stored as groups to which a change can be added, even if the query has
    such groups. ``refused`` says why nothing can be derived, and is None if something can. In that case, ``text`` is
    the whole query as understood here, over the current state of the sources, and ``text_as_parsed`` is the same query
    before its names were resolved; the engine must understand both the same way.
    """

    def __init__(
        self,
        query: Query,
        columns: Sequence[Sequence[QueryColumn]],
        result: Sequence[QueryColumn] | None = None,
        *,
        no_grouping: str | None = None,
    ) -> None:
        self._given = (query, columns, result)
        self._no_grouping = no_grouping
        self.refused: str | None = None
        try:
            self._tree = _qualified(query, columns)
            self.text, self.text_as_parsed = (in_spark(_over_sources(each)) for each in (self._tree, query.tree))
            for each in self._tree.find_all(exp.Select):
                _simplify_equal(each, [call for call in within(each, exp.Coalesce) if _is_of_one_type(call)])
            self._node = build(self._tree, _names_of(columns))
            _require_all_read(self._tree, self._node)
        except NotDerivedError as error:
            self.refused = str(error)
        except RecursionError:
            self.refused = "it is nested too deeply, or has too many sides in a row"
        except UnsupportedError as error:
            self.refused = f"it can't be rewritten for changed rows: {str(error).splitlines()[0]}"
        except SqlglotError as error:
            self.refused = f"its columns can't be determined: {str(error).splitlines()[0]}"
        if self.refused is None:
            self._result = tuple(result) if result is not None else _columns_of(self._tree)
            if len(self._result) != len(self._node.names):
                self.refused = "Spark gives its result different columns than its text does"

    def without_grouping(self, why: str) -> MaintenancePlan:
        """The plan for a result that isn't stored as groups."""
        return MaintenancePlan(*self._given, no_grouping=why)

    def refusing(self, why: str) -> MaintenancePlan:
        """The same plan, from which nothing is derived because of ``why``."""
        plan = MaintenancePlan(*self._given)
        plan.refused = why
        return plan

    def means_the_same_over(self, columns: Sequence[Sequence[QueryColumn]], *, same_columns: bool) -> bool:
        """Whether each name in the query means the same column if its sources have these ``columns``.

        Unless ``same_columns`` is true, ``*`` may stand for fewer columns than now.
        """
        other = MaintenancePlan(self._given[0], columns)
        if self.refused is not None or other.refused is not None:
            return False
        mine = self._tree.copy()
        selects = [list(tree.find_all(exp.Select)) for tree in (mine, other._tree)]
        if not same_columns and len(selects[0]) == len(selects[1]):
            for one, before in zip(*selects, strict=True):
                names = before.named_selects
                if _is_side(one) and one.named_selects[: len(names)] != names:
                    return False  # Sides are put together by the position of their columns.
                one.set("expressions", [each for each in one.selects if each.alias_or_name in names])
        return bool(mine.sql(DIALECT) == other._tree.sql(DIALECT))

    def depends_on_types(self, source: int, columns: Collection[str]) -> bool:
        """Whether another value of the result may follow from a wider type of any of these columns of a source.

        A hash of a number depends on its type, for example, and so does the text of a float.
        """
        if self.refused is not None or not columns:
            return bool(columns)
        read = self.columns_read(source)
        kinds = [
            exp.DataType.build(each.type, dialect=DIALECT)
            for each in self._given[1][source]
            if each.name in columns and each.name.lower() in read
        ]
        known = _TAKES_AS_IT_IS if all(kind.this in exp.DataType.INTEGER_TYPES for kind in kinds) else _COPIES
        return bool(kinds) and not all(isinstance(node, known) for node in self._tree.walk())

    def depends_on_fields(self, source: int, structs: Collection[tuple[str, ...]]) -> bool:
        """Whether another value of the result may follow from other fields of any of these structs of a source.

        Each struct is given by the names that lead to it. One that is copied, or of which fields are read, gives the
        same, unlike its text. The fields of the copy are the result's.
        """
        if self.refused is not None or not structs:
            return bool(structs)
        read = self.columns_read(source)
        found = [tuple(map(str.lower, each)) for each in structs if each[0].lower() in read]
        used = _structs_used(self._tree) if found else ()
        return any(each[: len(path)] == path for each in found for path in used)

    @property
    def column_names(self) -> tuple[str | None, ...]:
        """The names of the result's columns as understood here, in lower case; None for those that are computed."""
        return tuple(
            each.alias.lower() if isinstance(each, exp.Alias) and isinstance(each.this, exp.Column) else None
            for each in self._tree.selects
        )

    @property
    def tables(self) -> frozenset[str]:
        """The names of the sources in their current state."""
        return frozenset(after(source) for source in range(len(self._given[1])))

    @cached_property
    def grouping(self) -> Grouping | str:
        """The result as groups to which a change can be added; or the reason why it can't be stored so."""
        if self._no_grouping is not None:
            return self._no_grouping
        found = grouping(self._node, tuple(each.name for each in self._result))
        if isinstance(found, Grouping):
            unfit = [self._result[place].name for place in found.keys if not self._is_exact(place)]
            if unfit:
                return f"{unfit[0]} has a type that keys can't have"
            assert isinstance(self._node, SelectBlock)  # noqa: S101  # else there are no groups
            return why_not_kept(self._node, found) or found
        return found

    @property
    def all_rows(self) -> exp.Query:
        """The query of the whole result: its rows, or the keys and values to be grouped into its rows."""
        return reading(self._made_of(), lambda _, source: whole(after(source)))

    def columns_read(self, source: int) -> frozenset[str]:
        """The columns of a source that the query names, in lower case."""
        found = (names for _, of, names in columns_read(self._tree, self._node) if of == source)
        return frozenset(chain.from_iterable(found))

    def step(self, changes: Mapping[int, SourceChange], *, known_before: frozenset[int]) -> MaintenanceStep:
        """What to do after these ``changes``; sources in ``known_before`` can be read in their state before them."""
        changed = {source: each for source, each in changes.items() if each.adds or each.removes}
        if self.refused is not None:
            return self.whole(self.refused) if changed else MaintenanceStep(Strategy.NOTHING)
        by_number = sorted((each for each in self._node.scans if each.source in changed), key=lambda scan: scan.number)
        # If those that lose rows change first, rows that only came are never joined to rows that are gone.
        by_loss = sorted(by_number, key=lambda scan: not changed[scan.source].removes)
        # The old state at a place is read by the terms of the places that change earlier.
        orders = (order for order in (by_loss, by_number) if all(scan.source in known_before for scan in order[1:]))
        scans = next(orders, by_number)
        if not scans:
            return MaintenanceStep(Strategy.NOTHING)
        is_lost = any(scan.source not in known_before for scan in scans[1:])
        lost = "several places changed, and the old state of a source can no longer be read" if is_lost else None
        exact, why_not = self._exact(scans, changed, known_before, lost)
        if exact is not None:
            return exact
        try:
            return self._by_keys(scans, changed, why_not)
        except NotDerivedError as error:
            return MaintenanceStep(Strategy.FULL, why_not={**why_not, Strategy.KEYS: str(error)})

    def _exact(
        self, scans: Sequence[Scan], changed: Mapping[int, SourceChange], known_before: frozenset[int], lost: str | None
    ) -> tuple[MaintenanceStep | None, dict[Strategy, str]]:
        """The step that applies the exact change of the result, or None; and why better strategies aren't used."""
        found = self.grouping
        if isinstance(found, Grouping) and isinstance(self._node, SelectBlock):
            why = why_body_not_linear(self._node, frozenset(scans)) or lost
            subtracts = why is not None or any(changed[scan.source].removes for scan in scans)
            if subtracts and (why_not_again := why_not_repeatable(self._tree)):
                return None, {Strategy.COMBINE: why_not_again}
            if why:
                is_known = all(scan.source in known_before for scan in scans)
                step = self._by_body_keys(found, self._node, scans, changed) if is_known else None
                return step, {Strategy.COMBINE: why}
            every = weighted_terms(found.rows, self._node, scans, changed)
            if found.has_extremes and any(changed[scan.source].removes for scan in scans):
                every.append(weighing(self.all_rows, 0))
            may_cancel = any(changed[scan.source].removes for scan in scans[1:])
            return MaintenanceStep(Strategy.COMBINE, union(every), may_cancel=may_cancel), {}
        is_grouped = isinstance(self._node, SelectBlock) and (bool(self._node.group) or self._node.is_one_group)
        why_not = {Strategy.COMBINE: str(found)} if is_grouped else {}
        why = why_not_linear(self._node, frozenset(scans)) or lost
        if why is None and not any(changed[scan.source].removes for scan in scans):
            return MaintenanceStep(Strategy.APPEND, union(terms(self._tree, scans, changed))), {}
        return None, why_not or {Strategy.APPEND: why or "rows were removed"}

    def _by_body_keys(
        self, found: Grouping, block: SelectBlock, scans: Sequence[Scan], changed: Mapping[int, SourceChange]
    ) -> MaintenanceStep | None:
        """The step by keys of the rows that are grouped; None without such keys, or if whole groups are as good."""
        reach = AffectedReach(changed)
        keys = body_keys(block, scans, reach)
        if not keys or found.has_extremes:
            return None
        came, went = restricted_body(found.rows, block, keys, changed)
        affected = union([reach.body_keys(block, scan, keys) for scan in scans], distinct=True)
        return MaintenanceStep(Strategy.COMBINE, weighted(came, went), affected)

    def whole(self, why: str) -> MaintenanceStep:
        """The step that computes everything, for a reason from outside the plan."""
        return MaintenanceStep(Strategy.FULL, why_not={Strategy.KEYS: why})

    def _by_keys(
        self, scans: Sequence[Scan], changed: Mapping[int, SourceChange], why_not: Mapping[Strategy, str]
    ) -> MaintenanceStep:
        reach, node = AffectedReach(changed), self._node
        problems: dict[int, str] = {}
        fit: list[int] = []
        for place in self.grouping.keys if isinstance(self.grouping, Grouping) else range(len(node.names)):
            if not self._is_exact(place):
                problems[place] = f"{self._result[place].name} has a type that keys can't have"
            elif not is_of_one_type(node, place):
                problems[place] = f"{self._result[place].name} combines columns whose types differ or are unknown"
            else:
                fit.append(place)

        def why_not_derived(places: Sequence[int]) -> str | None:
            try:
                for scan in scans:
                    reach.keys(node, scan, places)
            except NotDerivedError as error:
                return str(error)
            return None

        keys = _derived_together(fit, why_not_derived, problems)
        if any(_is_constant(node, scan, keys) for scan in scans):
            unkeyed = node.unkeyed if isinstance(node, SelectBlock) else None
            reasons = dict.fromkeys(problems[place] for place in sorted(problems))
            raise NotDerivedError(unkeyed or "; ".join(reasons) or "its columns are constants")
        parts = [
            select(
                [exp.column(node.names[place]) for place in keys],
                derived(reach.keys(node, scan, keys), "ips_reached"),
                distinct=True,
            )
            for scan in scans
        ]
        rows = restricted(self._made_of(), node, keys)
        return MaintenanceStep(Strategy.KEYS, rows, union(parts, distinct=True), tuple(keys), why_not=why_not)

    def _made_of(self) -> exp.Query:
        return self.grouping.rows if isinstance(self.grouping, Grouping) else self._tree

    def _is_exact(self, place: int) -> bool:
        try:
            return kind_of(exp.DataType.build(self._result[place].type, dialect=DIALECT)) is not None
        except SqlglotError:
            return False


def _derived_together(
    places: Sequence[int], why_not: Callable[[Sequence[int]], str | None], problems: dict[int, str]
) -> list[int]:
    """The ``places`` that can be derived together, from the first on; adds to ``problems`` why others can't.

    What can't be derived alone isn't derived beside others. Nearly all others are derived in a few attempts, so that
    the time for a wide table grows with its columns, and not with their square.
    """
    if not places or why_not(places) is None:
        return list(places)
    alone = {place: why for place in places if (why := why_not([place])) is not None}
    problems |= alone
    found: list[int] = []
    todo = [[place for place in places if place not in alone]]
    while todo:
        batch = todo.pop()
        why = why_not([*found, *batch]) if batch else None
        if why is None:
            found += batch
        elif len(batch) == 1:
            problems[batch[0]] = why
        else:
            half = len(batch) // 2
            todo += [batch[half:], batch[:half]]
    return found


_COPIES = (exp.Select, exp.From, exp.Table, exp.TableAlias, exp.Identifier, exp.Alias, exp.Column)
_TAKES_AS_IT_IS = (
    *_COPIES,
    *(exp.Join, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Distinct, exp.SetOperation, exp.Subquery),
    *(exp.Paren, exp.Connector, exp.Not, exp.Predicate, exp.Literal, exp.Boolean, exp.Null, exp.Star, exp.Tuple),
    *(exp.Case, exp.If, exp.Coalesce, exp.Filter, exp.Count, exp.CountIf, exp.Sum, exp.Min, exp.Max),
    *(exp.Window, exp.WindowSpec, exp.RowNumber, exp.Rank, exp.DenseRank),
)
"""What gives the same for an integer of any type."""
_WITH_LISTS = (*(exp.In, exp.Any, exp.All, exp.Values), *(exp.Group, exp.GroupingSets, exp.Cube, exp.Rollup))
"""Within these, ``(a, b)`` is a list and no struct."""
_AS_GIVEN = "ips_as_given"
"""What the meta of a name has, and of a call of coalesce that is in the query: the name as it was given."""
_OF_TIMES = re.compile(
    r"date|time|day|month|year|week|quarter|hour|minute|second|unix|trunc|extract|tsor", re.IGNORECASE
)


def _structs_used(tree: exp.Query) -> Iterator[tuple[str, ...]]:
    """What may be used as a whole if it is a struct, as the names that lead to it; not what is only copied or counted.

    What is copied within the query must keep its name: by that, it is found where it is used. An element has the name
    of its list, also where LATERAL VIEW gives it another.
    """
    elements: dict[tuple[str, str], tuple[str, ...]] = {}
    for lateral in tree.find_all(exp.Lateral):
        listed = lateral.this.this if isinstance(lateral.this, exp.Explode) else None
        while isinstance(listed, exp.Dot | exp.Bracket):
            listed = listed.this
        if isinstance(listed, exp.Column):
            _, path = _with_fields(listed, elements)
            names = lateral.alias_column_names[isinstance(lateral.this, exp.Posexplode) :]
            elements |= {(lateral.alias.lower(), name.lower()): path for name in names}
    for column in tree.find_all(exp.Column):
        value, path = _with_fields(column, elements)
        above = value.parent
        is_element = isinstance(above, exp.Explode) and isinstance(above.parent, exp.Lateral)
        if not (is_element or isinstance(above, exp.Is | exp.Count) or _is_copied(value, path, tree)):
            yield path


def _with_fields(
    column: exp.Column, elements: Mapping[tuple[str, str], tuple[str, ...]]
) -> tuple[exp.Expr, tuple[str, ...]]:
    """``column``, or the field that is read of it, and the names that lead to that, in lower case."""
    node: exp.Expr = column
    name = column.name.lower()
    path = [*elements.get((column.table.lower(), name), (name,))]
    while isinstance(node.parent, exp.Dot | exp.Bracket) and node.parent.this is node:
        node = node.parent
        path += [node.name.lower()] if isinstance(node, exp.Dot) else []
    return node, tuple(path)


def _is_copied(value: exp.Expr, path: Sequence[str], tree: exp.Query) -> bool:
    """Whether ``value``, to which the names ``path`` lead, is a column of the result, or of a relation by that name."""
    select = value.parent.parent if isinstance(value.parent, exp.Alias) else value.parent
    if not isinstance(select, exp.Select) or select.args.get("distinct"):
        return False
    is_derived = isinstance(select.parent, exp.Subquery) and isinstance(select.parent.parent, exp.From | exp.Join)
    name = value.parent.alias if isinstance(value.parent, exp.Alias) else value.name
    return select is tree or (is_derived and tuple(path) == (name.lower(),))


def _qualified(query: Query, columns: Sequence[Sequence[QueryColumn]]) -> exp.Query:
    """The tree with every column qualified, and with the kinds of the columns that can be compared as keys."""
    schema: dict[str, object] = {
        named(source): {each.name: each.type for each in found} for source, found in enumerate(columns)
    }
    for found in columns:
        if len({each.name.lower() for each in found}) < len(found):
            message = "a source has two columns whose names differ only in case"
            raise NotDerivedError(message)
    _require_known_relations(query.tree)
    tree = query.tree.copy()
    _mark_as_given(tree)
    tree = qualify(tree, schema=schema, dialect=DIALECT)
    _require_columns_named(tree)
    for each in tree.find_all(exp.Select):
        _name_groups(each)
    make_aliases_distinct(tree, _names_of(columns))
    annotate_types(tree, schema=schema, dialect=DIALECT)
    _keep_names_in_values(tree)
    computes_decimals = any(map(_is_computed_decimal, tree.walk()))
    for node in tree.walk():
        if isinstance(node, exp.Column):
            # Spark gives a computed decimal another scale than sqlglot says.
            is_known = not (computes_decimals and node.is_type("decimal"))
            node.meta["kind"] = kind_of(node.type) if is_known else None
        if is_of_the_moment(node) and _may_be_time(node):
            message = f"{node.sql(DIALECT)} may mean the time of the run"
            raise NotDerivedError(message)
        if isinstance(node, exp.Table):
            node.meta["source"] = source_of(node.name)
    for each in tree.find_all(exp.Select):
        _simplify_equal(each, [call for call in within(each, exp.Coalesce) if _AS_GIVEN not in call.meta])  # of USING
    for exists in tree.find_all(exp.Exists):
        _read_no_columns(exists.this)
    return tree


def _names_of(columns: Sequence[Sequence[QueryColumn]]) -> dict[str, list[str]]:
    """The names of each source's columns, in lower case, by the source's name in trees."""
    return {named(source): [each.name.lower() for each in found] for source, found in enumerate(columns)}


def _name_groups(select: exp.Select) -> None:
    """Name the columns that GROUP BY ALL stands for: those without an aggregate, if every other column is one's."""
    group = select.args.get("group")
    if not group or not group.args.get("all"):
        return
    values = [each.unalias() for each in select.selects]
    keys = [each for each in values if not within(each, exp.AggFunc)]
    if any(within(each, exp.Query, exp.Window) for each in values):
        return
    if any(not within(each, exp.Column) for each in keys):
        return  # A number would be the place of a column.
    group.set("all", None)
    group.set("expressions", [each.copy() for each in keys])
    if not keys:
        select.set("group", None)


def _mark_as_given(tree: exp.Query) -> None:
    for node in tree.find_all(exp.Identifier, exp.Coalesce):
        node.meta[_AS_GIVEN] = node.name


def _require_known_relations(tree: exp.Expr) -> None:
    if any(map(is_function, tree.find_all(exp.Table))):
        message = "a table function in FROM"
        raise NotDerivedError(message)
    if any(join.method for join in tree.find_all(exp.Join)):
        message = "NATURAL JOIN: existing rows change when both tables get a column of the same name"
        raise NotDerivedError(message)
    if any(map(_joins_again_after_right, tree.find_all(exp.Select))):
        message = "JOIN ... USING after a RIGHT JOIN"  # It joins by the right table's columns, unlike in sqlglot.
        raise NotDerivedError(message)
    if any(_has_other_order(each) and _is_read_by_place(each) for each in tree.find_all(exp.Select)):
        message = "its columns are read by their places, and t.* beside JOIN ... USING may give them in another order"
        raise NotDerivedError(message)


def _has_other_order(select: exp.Select) -> bool:
    """Whether it has a ``t.*`` in which Spark puts the columns of a USING first, unlike sqlglot."""
    is_using = any(join.args.get("using") for join in select.args.get("joins") or [])
    return is_using and any(isinstance(each, exp.Column) and each.is_star for each in select.expressions)


def _is_read_by_place(select: exp.Select) -> bool:
    """Whether it is within a side of a set operation, or a derived table whose columns are renamed."""
    around = select.parent
    while around is not None:
        if isinstance(around, exp.SetOperation) or (isinstance(around, exp.Subquery) and around.alias_column_names):
            return True
        around = around.parent
    return False


def _is_side(tree: exp.Expr) -> bool:
    """Whether it is a side of a set operation."""
    return isinstance(above(tree, exp.Paren, exp.Subquery), exp.SetOperation)


def _require_columns_named(tree: exp.Expr) -> None:
    """Refuse a ``*`` that stands for columns, except where it lists them: then it has been replaced by their names."""
    for star in tree.find_all(exp.Star):
        listed = star.parent if isinstance(star.parent, exp.Column) else star
        call = listed.parent
        counts_rows = isinstance(call, exp.Count) and listed is star
        if call is not None and not counts_rows and not isinstance(call, exp.Select):
            message = f"{call.sql(DIALECT)} doesn't name the columns that it is computed from"
            raise NotDerivedError(message)


def _keep_names_in_values(tree: exp.Expr) -> None:
    """Give the names that are part of a value the case they were given in, unlike names of columns, which have none.

    These are the fields of a struct that is made or cast to, which ``to_json`` shows, and the keys in ``m.Key`` if
    ``m`` is a map or may be one. In ``(a, b)`` and ``arrays_zip(a, b)``, the columns name the fields. As another column
    may replace one of ``(a, b)``, its fields are given names.
    """
    for node in tree.walk():
        match node:
            case exp.PropertyEQ() | exp.ColumnDef():
                name = node.this
            case exp.Dot() if not node.this.is_type(exp.DType.STRUCT, exp.DType.ARRAY):
                name = node.expression
            case exp.Tuple() if not isinstance(above(node, exp.Paren), _WITH_LISTS):
                fields = [_field(each, place) for place, each in enumerate(node.expressions, start=1)]
                made = exp.Struct(expressions=fields)
                made.type = exp.DType.STRUCT
                node.replace(made)
                continue
            case exp.ArraysZip():
                for each in node.expressions:
                    last = each.expression if isinstance(each, exp.Dot) else each.this
                    if isinstance(last, exp.Identifier):
                        last.meta[WRITTEN] = last.meta.get(_AS_GIVEN)
                continue
            case _:
                continue
        name.set("this", name.meta.get(_AS_GIVEN, name.name))


def _field(value: exp.Expr, place: int) -> exp.PropertyEQ:
    """A field of ``(a, b)``, with the name that Spark gives it."""
    match value:
        case exp.Alias():
            name, value = value.args["alias"], value.this
        case exp.Dot():
            name = value.expression
        case exp.Column():
            name = value.this
        case _:
            name = value  # the argument of a lambda, or something without a name
    is_named = isinstance(name, exp.Identifier)
    text = name.meta.get(_AS_GIVEN, name.name) if is_named else f"col{place}"
    return exp.PropertyEQ(this=exp.to_identifier(text, quoted=True), expression=value)


def _is_computed_decimal(node: exp.Expr) -> bool:
    return isinstance(node, exp.Binary | exp.Func) and node.is_type("decimal")


def _joins_again_after_right(select: exp.Select) -> bool:
    joins: list[exp.Join] = select.args.get("joins") or []
    first = next((place for place, join in enumerate(joins) if (join.side or "").upper() == "RIGHT"), len(joins))
    return any(join.args.get("using") for join in joins[first + 1 :])


def _may_be_time(text: exp.Expr) -> bool:
    """Whether Spark may cast a string to a date or a time: for a function of times, or beside one."""
    call = above(text, exp.Paren)
    if isinstance(call, exp.If) and isinstance(call.parent, exp.Case):
        call = call.parent
    if not isinstance(call, exp.Func | exp.Predicate):
        return any(kind is not None and kind.this in exp.DataType.TEMPORAL_TYPES for kind in _kinds_of_sides(text))
    if _OF_TIMES.search(function_name(call)):
        return True
    beside = [listed for listed in operands_of(call) if any(each.unnest() is text for each in listed)]
    kinds = [each.type for listed in beside for each in listed if each.unnest() is not text]
    return any(kind is None or kind.this in (exp.DType.UNKNOWN, *exp.DataType.TEMPORAL_TYPES) for kind in kinds)


def _kinds_of_sides(value: exp.Expr) -> Iterator[exp.DataType | None]:
    """The types of the columns that a set operation combines with ``value``, if that is a column of a side."""
    select = above(value, exp.Paren, exp.Alias)
    if isinstance(select, exp.Select):
        place = next(place for place, each in enumerate(select.selects) if each.unalias().unnest() is value)
        side: exp.Expr = select
        while isinstance(around := above(side, exp.Paren, exp.Subquery), exp.SetOperation):
            yield from (each.unnest().selects[place].type for each in (around.this, around.expression))
            side = around


def _simplify_equal(tree: exp.Select, calls: Sequence[exp.Coalesce]) -> None:
    """Turn ``coalesce(left.x, right.x)``, which USING expands to, into ``left.x`` where both are the same.

    In a row in which a LEFT JOIN finds nothing, only the columns of its right side are null. After a RIGHT JOIN, which
    is the first join, it is ``right.x``.
    """
    joins = tree.args.get("joins") or []
    equal = dict[tuple[exp.Expr, exp.Expr], exp.Expr]()
    sides = [(join.side or "").upper() for join in joins]
    if "FULL" in sides or "RIGHT" in sides[1:]:
        return
    for join, side in zip(joins, sides, strict=True):
        if (join.kind or "").upper() in ("SEMI", "ANTI"):
            continue
        for condition in conjuncts(join.args.get("on")):
            if isinstance(condition, exp.EQ) and _kind(condition.this) == _kind(condition.expression) is not None:
                left, right = condition.this, condition.expression
                if not side or left.table != join.alias_or_name == right.table:
                    equal[left, right] = right if side == "RIGHT" else left
    for call in calls:
        same = [equal.get((call.this, each)) for each in call.expressions]
        left = [each for each, found in zip(call.expressions, same, strict=True) if found != call.this]
        if not left:
            call.replace(call.this)
        elif len(same) == 1 and same[0] is not None:
            call.replace(same[0].copy())
        else:
            call.set("expressions", left)


def _is_of_one_type(call: exp.Coalesce) -> bool:
    """Whether all operands have one type: else a function of it, such as its hash, would be one of another type."""
    return all(each.type == call.this.type for each in call.expressions)


def _read_no_columns(query: exp.Expr) -> None:
    """Let the query of an EXISTS select a constant in place of its relations' columns, which nobody sees."""
    if not isinstance(query, exp.Select) or any(map(query.args.get, ("distinct", "group", "having"))):
        return
    if all(isinstance(each.unalias(), exp.Column) for each in query.selects):
        query.set("expressions", [exp.alias_(exp.Literal.number(1), "1")])


def _kind(expression: exp.Expr) -> str | None:
    return expression.meta.get("kind") if isinstance(expression, exp.Column) else None


def _columns_of(tree: exp.Query) -> tuple[QueryColumn, ...]:
    kinds = [each.type.sql(DIALECT) if each.type else "unknown" for each in tree.selects]
    return tuple(QueryColumn(name, kind) for name, kind in zip(tree.named_selects, kinds, strict=True))


def _require_all_read(tree: exp.Query, node: Node) -> None:
    if len(node.scans) < sum(1 for _ in tree.find_all(exp.Table)):
        message = "it has a subquery in an unsupported place"
        raise NotDerivedError(message)


def _over_sources(tree: exp.Query) -> exp.Query:
    """A copy of ``tree`` over the current state of the sources, whose columns have names by the same rules."""
    copied = tree.copy()
    for query in copied.find_all(exp.Select):
        query.set("expressions", [_called(each, f"_col_{place}") for place, each in enumerate(query.expressions)])
    for table in copied.find_all(exp.Table):
        if not is_function(table):
            table.set("this", exp.to_identifier(after(source_of(table.name)), quoted=True))
    return copied


def _called(selected: exp.Expr, name: str) -> exp.Expr:
    """``selected`` with a name if it is computed, and without one if it is a column of that name."""
    inner = selected.unalias()
    if isinstance(inner, exp.Column) and inner.name.lower() == selected.alias_or_name.lower():
        return inner
    is_named = isinstance(selected, exp.Alias | exp.Aliases | exp.Column | exp.Dot | exp.Star)
    return selected if is_named else exp.alias_(selected, name, quoted=True)


def _is_constant(node: Node, scan: Scan, places: Sequence[int]) -> bool:
    """Whether all rows that differ when ``scan`` changes have the same values in these columns, whatever the change."""
    match node:
        case SelectBlock():
            return all(not within(each, exp.Column) for place in places if (each := key_expression(node, place)))
        case Scan():
            return not places
        case _:
            return _is_constant(node.side_of(scan), scan, places)
