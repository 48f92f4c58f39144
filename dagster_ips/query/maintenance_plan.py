"""How the result of a query is brought up to date, by what changed of its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from sqlglot import exp
from sqlglot.errors import SqlglotError, UnsupportedError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from dagster_ips.query.affected_keys import (
    AffectedReach,
    SourceChange,
    after,
    before,
    derived,
    select,
    union,
)
from dagster_ips.query.body_keys import body_keys
from dagster_ips.query.delta_terms import terms, weighted, why_body_not_linear, why_not_linear
from dagster_ips.query.key_restriction import reading, restricted, restricted_body, whole
from dagster_ips.query.query_text import Query, named
from dagster_ips.query.query_tree import (
    Node,
    NotDerivedError,
    Scan,
    SelectBlock,
    build,
    key_expression,
    kind_of,
    within,
)
from dagster_ips.query.spark_dialect import DIALECT, in_spark
from dagster_ips.query.top_grouping import Grouping, grouping


class Strategy(StrEnum):
    """How a result is brought up to date."""

    NOTHING = "nothing"
    """No source changed."""
    APPEND = "append"
    """Insert the query's rows over the rows that came."""
    COMBINE = "combine"
    """Add the aggregates of rows that came and went to those that are there."""
    KEYS = "keys"
    """Delete the rows of affected keys and insert those that the query has of them now."""
    FULL = "full"
    """Compute everything."""


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """A column of a table or a result: its name and its type in Spark's SQL."""

    name: str
    type: str


@dataclass(frozen=True)
class MaintenanceStep:
    """What to do in one run.

    ``rows`` is a query over tables that ``reads`` names: for ``append`` of the rows to insert; for ``combine`` of the
    keys and values of rows that came and went, with their ``_weight``; for ``keys`` of those to insert, or of the keys
    and values that they are groups of, if the plan has a grouping. ``affected`` is that of affected keys, where
    ``rows`` reads them; for ``keys`` they are the result's columns ``keys``, to delete by. ``why_not`` has the reason
    for each better strategy that isn't taken.
    """

    strategy: Strategy
    rows: exp.Query | None = None
    affected: exp.Query | None = None
    keys: tuple[int, ...] = ()
    why_not: Mapping[Strategy, str] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why it isn't done better; empty if it couldn't be."""
        return "; ".join(f"no {strategy}: {why}" for strategy, why in self.why_not.items())

    @property
    def reads(self) -> frozenset[str]:
        """The names of the tables that its queries read."""
        queries = [query for query in (self.rows, self.affected) if query is not None]
        return frozenset(table.name for query in queries for table in query.find_all(exp.Table))


class MaintenancePlan:
    """How the result of ``query`` is maintained, whose sources have the columns ``columns``, in order.

    ``result`` are the columns that the engine gives the result; without, they are those that the text tells.
    ``no_grouping`` is why the result isn't kept as groups that a change is added to, though it may be some. ``refused``
    says why nothing can be derived; None if something can. Then ``text`` is the whole query as it is read here, over
    sources as they are now: what the engine must take alike.
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
            names = {named(source): [each.name.lower() for each in found] for source, found in enumerate(columns)}
            self._node = build(self._tree, names, {named(source): source for source in range(len(columns))})
            _require_all_read(self._tree, self._node)
            self.text = in_spark(reading(self._tree, lambda _, source: whole(after(source))))
        except NotDerivedError as error:
            self.refused = str(error)
        except UnsupportedError as error:
            self.refused = f"it can't be rewritten for changed rows: {str(error).splitlines()[0]}"
        except SqlglotError as error:
            self.refused = f"its columns can't be determined: {str(error).splitlines()[0]}"
        if self.refused is None:
            self._result = tuple(result) if result is not None else _columns_of(self._tree)
            if len(self._result) != len(self._node.names):
                self.refused = "Spark gives its result different columns than its text does"

    def without_grouping(self, why: str) -> MaintenancePlan:
        """The plan of a result that isn't kept as groups."""
        return MaintenancePlan(*self._given, no_grouping=why)

    def refusing(self, why: str) -> MaintenancePlan:
        """The plan from which nothing is derived."""
        plan = MaintenancePlan(*self._given)
        plan.refused = why
        return plan

    @property
    def tables(self) -> frozenset[str]:
        """The names of the sources as they are now."""
        return frozenset(after(source) for source in range(len(self._given[1])))

    @cached_property
    def grouping(self) -> Grouping | str:
        """The result as groups to which a change can be added; or why it is none."""
        if self._no_grouping is not None:
            return self._no_grouping
        found = grouping(self._node, tuple(each.name for each in self._result))
        if isinstance(found, Grouping):
            unfit = [self._result[place].name for place in found.keys if not self._is_exact(place)]
            if unfit:
                return f"{unfit[0]} has a type that keys can't have"
        return found

    @property
    def all_rows(self) -> exp.Query:
        """All that the result is made of: its rows, or the keys and values that it is groups of."""
        return reading(self._made_of(), lambda _, source: whole(after(source)))

    def step(self, changes: Mapping[int, SourceChange], *, known_before: frozenset[int]) -> MaintenanceStep:
        """What to do when sources changed as ``changes`` says; those in ``known_before`` can be read as they were."""
        changed = {source: each for source, each in changes.items() if each.adds or each.removes}
        if self.refused is not None:
            return self.whole(self.refused) if changed else MaintenanceStep(Strategy.NOTHING)
        scans = sorted((each for each in self._node.scans if each.source in changed), key=lambda scan: scan.number)
        if not scans:
            return MaintenanceStep(Strategy.NOTHING)
        # What a place was before is read by the terms of those that change earlier.
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
        self,
        scans: Sequence[Scan],
        changed: Mapping[int, SourceChange],
        known_before: frozenset[int],
        lost: str | None,
    ) -> tuple[MaintenanceStep | None, dict[Strategy, str]]:
        """The step by the exact change of the result; None if there is none, and why."""
        places = [(scan.number, scan.source) for scan in scans]
        found = self.grouping
        if isinstance(found, Grouping) and isinstance(self._node, SelectBlock):
            if why := why_body_not_linear(self._node, frozenset(scans)) or lost:
                is_known = all(scan.source in known_before for scan in scans)
                step = self._by_body_keys(found, self._node, scans, changed) if is_known else None
                return step, {Strategy.COMBINE: why}
            came, went = terms(found.rows, places, changed)
            live = [self.all_rows] if went and found.has_extremes else []
            return MaintenanceStep(Strategy.COMBINE, weighted(came, went, live)), {}
        is_grouped = isinstance(self._node, SelectBlock) and (bool(self._node.group) or self._node.is_one_group)
        why_not = {Strategy.COMBINE: str(found)} if is_grouped else {}
        why = why_not_linear(self._node, frozenset(scans)) or lost
        if why is None and not any(changed[source].removes for _, source in places):
            came, _ = terms(self._tree, places, changed)
            return MaintenanceStep(Strategy.APPEND, union(came)), {}
        return None, why_not or {Strategy.APPEND: why or "rows were removed"}

    def _by_body_keys(
        self, found: Grouping, block: SelectBlock, scans: Sequence[Scan], changed: Mapping[int, SourceChange]
    ) -> MaintenanceStep | None:
        """The step by keys of the rows that are grouped; None if there are none, or whole groups are as good."""
        reach = AffectedReach(changed)
        keys = body_keys(block, scans, reach)
        if not keys or found.has_extremes:
            return None
        came = restricted_body(found.rows, block, keys, after)
        went = restricted_body(found.rows, block, keys, lambda source: (before if source in changed else after)(source))
        affected = union([reach.body_keys(block, scan, keys) for scan in scans], distinct=True)
        return MaintenanceStep(Strategy.COMBINE, weighted([came], [went]), affected)

    def whole(self, why: str) -> MaintenanceStep:
        """To compute everything, for a reason that the plan doesn't know."""
        return MaintenanceStep(Strategy.FULL, why_not={Strategy.KEYS: why})

    def _by_keys(
        self, scans: Sequence[Scan], changed: Mapping[int, SourceChange], why_not: Mapping[Strategy, str]
    ) -> MaintenanceStep:
        reach, node = AffectedReach(changed), self._node
        keys: list[int] = []
        problems: dict[str, None] = {}
        for place in self.grouping.keys if isinstance(self.grouping, Grouping) else range(len(node.names)):
            if not self._is_exact(place):
                problems.setdefault(f"{self._result[place].name} has a type that keys can't have")
                continue
            try:
                for scan in scans:
                    reach.keys(node, scan, [*keys, place])
            except NotDerivedError as error:
                problems.setdefault(str(error))
            else:
                keys.append(place)
        if any(_is_constant(node, scan, keys) for scan in scans):
            unkeyed = node.unkeyed if isinstance(node, SelectBlock) else None
            raise NotDerivedError(unkeyed or "; ".join(problems) or "its columns are constants")
        names = [node.names[place] for place in keys]
        parts = []
        for scan in scans:
            columns = [exp.column(name) for name in names]
            part = select(columns, derived(reach.keys(node, scan, keys), "ips_reached"))
            part.set("distinct", exp.Distinct())
            parts.append(part)
        rows = restricted(self._made_of(), node, keys)
        return MaintenanceStep(Strategy.KEYS, rows, union(parts, distinct=True), tuple(keys), why_not)

    def _made_of(self) -> exp.Query:
        return self.grouping.rows if isinstance(self.grouping, Grouping) else self._tree

    def _is_exact(self, place: int) -> bool:
        try:
            return kind_of(exp.DataType.build(self._result[place].type, dialect=DIALECT)) is not None
        except SqlglotError:
            return False


def _qualified(query: Query, columns: Sequence[Sequence[QueryColumn]]) -> exp.Query:
    """The tree with every column qualified, and columns' types noted that may be compared as keys."""
    schema: dict[str, object] = {
        named(source): {each.name: each.type for each in found} for source, found in enumerate(columns)
    }
    for found in columns:
        if len({each.name.lower() for each in found}) < len(found):
            message = "a source has two columns whose names differ only in case"
            raise NotDerivedError(message)
    tree = qualify(query.tree.copy(), schema=schema, dialect=DIALECT)
    annotate_types(tree, schema=schema, dialect=DIALECT)
    for node in tree.walk():
        if isinstance(node, exp.Column):
            node.meta["kind"] = kind_of(node.type)
        if isinstance(node, exp.Table):
            node.meta["source"] = int(node.name.rpartition("_")[2])
    for each in tree.find_all(exp.Select):
        _simplify_using(each)
    return tree


def _simplify_using(tree: exp.Select) -> None:
    """Make ``coalesce(left.x, right.x)``, which USING stands for, to ``left.x`` where that is the same."""
    joins = tree.args.get("joins") or []
    equal = set[tuple[exp.Expr, exp.Expr]]()
    if any((join.side or "").upper() in ("RIGHT", "FULL") for join in joins):
        return
    for join in joins:
        on = join.args.get("on")
        if (join.kind or "").upper() in ("SEMI", "ANTI"):
            continue
        for condition in on.flatten() if isinstance(on, exp.And) else [on] if on else []:
            if isinstance(condition, exp.EQ) and _kind(condition.this) == _kind(condition.expression) is not None:
                equal.add((condition.this, condition.expression))
    for call in list(tree.find_all(exp.Coalesce)):
        if len(call.expressions) == 1 and (call.this, call.expressions[0]) in equal:
            call.replace(call.this)


def _kind(expression: exp.Expr) -> str | None:
    return expression.meta.get("kind") if isinstance(expression, exp.Column) else None


def _columns_of(tree: exp.Query) -> tuple[QueryColumn, ...]:
    kinds = [each.type.sql(DIALECT) if each.type else "unknown" for each in tree.selects]
    return tuple(QueryColumn(name, kind) for name, kind in zip(tree.named_selects, kinds, strict=True))


def _require_all_read(tree: exp.Query, node: Node) -> None:
    if len(node.scans) < sum(1 for _ in tree.find_all(exp.Table)):
        message = "it has a subquery in an unsupported place"
        raise NotDerivedError(message)


def _is_constant(node: Node, scan: Scan, places: Sequence[int]) -> bool:
    """Whether all rows that differ by ``scan`` have one value of these columns, whichever they are."""
    match node:
        case SelectBlock():
            return all(not within(each, exp.Column) for place in places if (each := key_expression(node, place)))
        case Scan():
            return not places
        case _:
            return _is_constant(node.side_of(scan), scan, places)
