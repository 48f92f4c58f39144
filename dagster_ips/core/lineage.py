"""Which input frames a result is computed from, how, and which of its columns are unchanged input columns.

This is read from the analyzed plan against a list of allowed operations. What isn't on the list is a fault; nothing is
guessed. A *leaf* is a frame that a view handed out, as it appears in the plan. Its *unit* says which rows a result may
combine without needing rows that the frame leaves out: single rows of a fragment (``added``), rows that share the keys
of whole groups (``affected``), or any rows of a whole table (``source``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from dagster_ips.core import varying
from dagster_ips.core.row_places import places_in
from dagster_ips.core.spark_plan import Node, PlanUnreadableError, elements, equalities
from dagster_ips.core.table_name import name_of, parts_of

RESULT = "__ips_result_"
_RESULT_COLUMN = re.compile(rf"(?P<source>.+) AS {RESULT}(?P<at>\d+)#\d+L?", re.DOTALL)
_NAME = re.compile(r"(?P<name>.+)#\d+L?", re.DOTALL)
# The name occurs twice, so that part of an odd name, such as "a AS b", isn't mistaken for another name.
_OWN_COLUMN = re.compile(r"(?P<name>.+)#\d+L? AS (?P<token>(?P=name)#\d+L?)", re.DOTALL)
_TABLE = re.compile(r"(?:`(?:[^`]|``)+`|[^\s`])+")

_ROW_BY_ROW = {
    *("Project", "Filter", "Expand", "LateralJoin", "PipeOperator"),
    *("SubqueryAlias", "View", "Sort", "Repartition", "RepartitionByExpression", "RebalancePartitions"),
    *("ResolvedHint", "CollectMetrics", "ReturnAnswer"),
}
_CONSTANT = {"LocalRelation", "OneRowRelation", "Range", "CTERelationRef", "LogicalRDD"}
_LIMITS = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset", "Tail": "tail", "Sample": "sample"}
# Not every generator depends on one row alone: one written in Python may remember earlier rows.
_GENERATORS = re.compile(r"Generate (?:explode|posexplode|inline|stack|json_tuple|variant_explode)\(")
_SUBQUERIES = re.compile(r"(?:scalar-subquery|exists|list)#\d+")  # a plan doesn't say which is which
_NUMBERING = re.compile(r"monotonically_increasing_id\(\)(?!#)")  # not a column of that name
_DECIDING = {"Filter", "Join", "LateralJoin", "Window", "Deduplicate", "Generate"}
_WITHOUT_EXPRESSIONS = {
    "Sort",
    "View",
    "SubqueryAlias",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
}
_SETS = {"Intersect": "an intersection", "Except": "a difference"}
# Casts that keep unequal values unequal, as Spark adds to unions and joins of two types: Iceberg's name, Spark's name.
_WIDER = {("int", "bigint"), ("float", "double")}
_WIDENED = re.compile(r"cast\((?P<token>.+#\d+l?) as (?P<to>[a-z]+)\)(?: as (?P<new>[^,\[\]]+#\d+l?))?")


class Unit(StrEnum):
    """Which rows of a frame belong together."""

    ROW = "row"
    GROUP = "group"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A frame of a view: the name that marks it in a plan, its upstream, and which of its rows belong together.

    ``keys`` are the columns whose values the rows of a group share; a group without keys is the whole table. If the
    groups also hold the rows that another input's change touches, ``on`` maps that input to the columns of this frame
    and the equal columns of that input. ``weight`` is the column that says whether a row was added or removed.
    ``types`` are the known Iceberg types, by column.
    """

    name: str
    upstream: str
    unit: Unit
    keys: tuple[str, ...] = ()
    on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    weight: str | None = None
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_everything(self) -> bool:
        """Whether it leaves out no row that a result could need."""
        return self.unit is Unit.WHOLE or (self.unit is Unit.GROUP and not self.keys)


@dataclass(frozen=True, slots=True)
class Fault:
    """An operation above a leaf that needs rows which the leaf leaves out; ``is_unknown`` if it only may need them.

    If it ``varies``, it needs no such rows, but decides differently in each run.
    """

    leaf: str
    what: str
    is_unknown: bool = False
    varies: bool = False


Origin = tuple[str, str]
"""A leaf's name and a column of it."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a result is computed from.

    ``leaves`` are the names of all leaves in the plan; ``rows`` are those among them that enter the result row by row
    or group by group. ``columns`` maps each result column that is an unchanged column of leaves to its origins; for a
    union, to those in each branch. ``tables`` are the other tables that the plan reads. ``weighed`` are the leaves
    whose weight is used for more than being passed on. ``varying`` are the result columns that depend on the clock or
    on chance; ``varies_beside`` says that these decide which rows of other tables are used. ``has_rdd`` says that some
    rows come from an RDD, such as a checkpoint. ``places`` are as in ``places_in``.
    """

    leaves: frozenset[str]
    rows: frozenset[str]
    columns: Mapping[str, frozenset[Origin]]
    faults: tuple[Fault, ...]
    tables: frozenset[str]
    weighed: frozenset[str] = frozenset()
    varying: frozenset[str] = frozenset()
    varies_beside: bool = False
    has_rdd: bool = False
    places: frozenset[str] = frozenset()

    def keeps(self, column: str, *, leaf: str, as_: str) -> bool:
        """Whether the result's ``column`` is ``as_`` of ``leaf``, unchanged."""
        return (leaf, as_) in self.columns.get(column, frozenset())

    def kept(self, leaf: str) -> dict[str, frozenset[str]]:
        """The result's columns that are unchanged columns of ``leaf``, each with those that it equals."""
        named = {column: frozenset(name for of, name in found if of == leaf) for column, found in self.columns.items()}
        return {column: names for column, names in named.items() if names}


def lineage(plan: Node, columns: Sequence[str], leaves: Iterable[Leaf]) -> Lineage:
    """The lineage of a frame with ``columns``, whose analyzed ``plan`` ends by naming them ``RESULT`` and a number.

    It has neither columns that come from no leaf, nor leaves that aren't in the plan.

    Raises:
        PlanUnreadableError: the plan is too deep, or refers to a part that it doesn't have.
    """
    walk = _Walk({leaf.name: leaf for leaf in leaves})
    try:
        made = walk.visit(plan)
    except RecursionError as error:
        deep = "it is too deep"
        raise PlanUnreadableError(deep) from error
    named: dict[str, frozenset[Origin]] = {}
    changing = set()
    for element in _result_columns(plan):
        found = _RESULT_COLUMN.fullmatch(element)
        if found and walk.varies(found["source"].lower()):
            changing.add(columns[int(found["at"])])
        if found and (origins := walk.of_result.get(found["source"].lower())):
            named[columns[int(found["at"])]] = origins
    for name in sorted(made.rows & walk.looked_up):
        walk.fault(name, f"its rows aren't joined to the affected ones by {_listed(walk.leaves[name].keys)}")
    return Lineage(
        frozenset(walk.seen),
        made.rows - walk.looked_up,
        named,
        tuple(dict.fromkeys(walk.faults)),
        frozenset(walk.tables),
        frozenset(walk.weighed),
        frozenset(changing),
        walk.varies_beside,
        walk.has_rdd,
        frozenset(walk.places),
    )


def _result_columns(plan: Node) -> Sequence[str]:
    if _is_result(plan):
        return plan.first_list
    return next((found for child in plan.children if (found := _result_columns(child))), ())


def _is_result(node: Node) -> bool:
    return node.operator == "Project" and f" AS {RESULT}0#" in node.text


@dataclass(frozen=True, slots=True)
class _Made:
    """The inputs of a part of the plan: ``rows`` as in ``Lineage``, and all ``leaves``.

    ``columns`` maps the plan's own name of a column, such as ``k#12``, to the leaf columns that it equals in all rows
    that come from that leaf. The names are in lower case, because a query may write a name in another case than the
    table.
    """

    rows: frozenset[str] = frozenset()
    columns: Mapping[str, frozenset[Origin]] = field(default_factory=dict)
    leaves: frozenset[str] = frozenset()


class _Walk:
    """One walk over a plan, from its leaves up."""

    def __init__(self, leaves: Mapping[str, Leaf]) -> None:
        joined_to = {of: on for leaf in leaves.values() for of, on in leaf.on.items()}
        # The rows of an input that changed groups are joined with may be combined only by the join columns.
        joined = {
            name: replace(leaf, unit=Unit.GROUP, keys=tuple(joined_to[leaf.upstream].values()))
            for name, leaf in leaves.items()
            if leaf.unit is Unit.WHOLE and leaf.upstream in joined_to
        }
        self.leaves = {**leaves, **joined}
        self.looked_up = frozenset(joined)
        self.of_result: Mapping[str, frozenset[Origin]] = {}
        self.seen: set[str] = set()
        self.tables: set[str] = set()
        self.faults: list[Fault] = []
        self.weighed: set[str] = set()
        self.varies_beside = False
        self.has_rdd = False
        self.places: set[str] = set()
        self._varying: set[str] = set()
        self._shared: dict[str, tuple[Node, _Made]] = {}

    def fault(self, leaf: str, what: str, *, is_unknown: bool = False) -> None:
        """Record that ``what`` occurs above ``leaf``."""
        self.faults.append(Fault(leaf, what, is_unknown))

    def varies(self, text: str) -> bool:
        """Whether an expression, given in lower case, depends on the clock or on chance."""
        return varying.IN_PLANS.search(text) is not None or any(_has(token, text) for token in self._varying)

    def visit(self, node: Node) -> _Made:
        """The inputs of the part of the plan that has ``node`` at its top."""
        made = self._leaf(node) or self._combined(node)
        self.places.update(places_in(node))
        for subquery in node.subqueries:
            inner = self.visit(subquery)
            for name in inner.rows:
                self.fault(name, "a subquery in an expression")
            for generator in _unknown_generators(subquery):
                self._refuse(generator, made.rows)
            if any(self.varies(token) for token in _order(subquery) or ()):
                self._varying.update(_SUBQUERIES.findall(node.text.lower()))
            made = replace(made, rows=made.rows | inner.rows, leaves=made.leaves | inner.leaves)
        self._follow_varying(node, made)
        return made

    def _leaf(self, node: Node) -> _Made | None:
        self.has_rdd |= node.operator == "LogicalRDD"
        name = node.text.partition(" ")[2] if node.operator == "SubqueryAlias" else ""
        if name in self.leaves and node.children and node.children[0].operator == "Project":
            listed = node.children[0].first_list
            return self._of_leaf(name, [own["token"] for each in listed if (own := _OWN_COLUMN.fullmatch(each))])
        if not node.children and node.operator.startswith("RelationV2"):
            table = _table_in(node.text)
            if table in self.leaves:
                return self._of_leaf(table, node.first_list)
            self.tables.add(table)
        elif not node.children and node.operator not in _CONSTANT:
            self.tables.add(node.text.rpartition("] ")[2] or node.operator)  # files, or another system's table
        return None

    def _of_leaf(self, name: str, tokens: Sequence[str]) -> _Made:
        leaf = self.leaves[name]
        self.seen.add(name)
        named = {token: found["name"] for token in tokens if (found := _NAME.fullmatch(token))}
        columns = {token.lower(): frozenset([(name, column)]) for token, column in named.items()}
        own = frozenset([name])
        return _Made(frozenset() if leaf.unit is Unit.WHOLE else own, columns, own)

    def _combined(self, node: Node) -> _Made:
        match node.operator:
            case "WithCTE":
                for definition in node.children[:-1]:
                    made = self.visit(definition.children[0])
                    self._shared[_shared_name(definition)] = (definition.children[0], made)
                return self.visit(node.children[-1])
            case "CTERelationRef":
                return self._reference(node)
            case "Join" if len(node.children) == 2:  # noqa: PLR2004  # its two sides
                sides = [self.visit(child) for child in node.children]
                for each in sides:
                    self._weigh(node, each)
                return self._join(node, *sides)
            case "Union":
                return self._union(node, [self.visit(child) for child in node.children])
        below = [self.visit(child) for child in node.children]
        for each in below:
            self._weigh(node, each)
        if _is_result(node) and below:
            self.of_result = below[0].columns
        all_ = _together(below)
        if len(below) != 1 or not self._allows(node, below[0]):
            self._refuse(node, all_.rows)
            return all_
        return replace(all_, columns=self._passed_on(node, below[0]))

    def _allows(self, node: Node, below: _Made) -> bool:
        """Whether the operator is known; faults of a known operator are recorded."""
        lists = node.lists
        if _NUMBERING.search(node.text):
            for name in self._partial(below.rows):
                self.fault(name, "monotonically_increasing_id(), whose numbering starts over in each run")
        match node.operator:
            case "Generate":
                return _GENERATORS.match(node.text) is not None
            case "Aggregate":
                grouping = node.first_list if len(lists) > 1 else ()
                self._require_keys(below, grouping, "an aggregate", "grouped")
            case "Window":
                partition = (elements(lists[1]) or ()) if len(lists) > 1 else ()
                self._require_keys(below, partition, "a window", "partitioned")
            case "Deduplicate":
                self._require_keys(below, node.first_list, "distinct rows", "told apart")
            case "Distinct":
                self._require_keys(below, _order(node.children[0]) or (), "distinct rows", "told apart")
            case limit if limit in _LIMITS:
                # Limit 0 has no rows in a full run either, and Spark is asked for the plan with it.
                partial = [] if node.text.endswith("Limit 0") else self._partial(below.rows)
                for name in partial:
                    self.fault(name, f"a {_LIMITS[limit]}")
            case operator:
                return operator in _ROW_BY_ROW
        return True

    def _follow_varying(self, node: Node, made: _Made) -> None:
        """Record the columns that vary, and a fault if a choice of rows or groups varies."""
        text = node.text.lower()
        grouping = node.lists[0].lower() if node.operator == "Aggregate" and len(node.lists) > 1 else ""
        if self.varies(text if node.operator in _DECIDING else grouping):
            self.varies_beside |= not made.rows
            for name in self._partial(made.rows):
                what = f"a choice that depends on the clock or on chance ({node.operator}) and differs between runs"
                self.faults.append(Fault(name, what, varies=True))
        for new, old in self._renamed(node):
            if self.varies(old):
                self._varying.add(new)

    def _renamed(self, node: Node) -> Iterator[tuple[str, str]]:
        """The columns that a node makes, each with its expression, in lower case; once per row if it makes several."""
        match node.operator:
            case "Project" | "Aggregate":
                made = [each.lower().rpartition(" as ") for each in node.last_list]
                yield from ((new, old) for old, _, new in made if old)
            case "Expand":
                kept = [each.lower() for each in node.last_list]
                for row in node.first_list:
                    yield from zip(kept, elements(row[1:-1].lower()) or (), strict=False)
            case "Union":
                for child in node.children:
                    yield from zip(_order(node) or (), _order(child) or (), strict=False)
            case "CTERelationRef":
                definition, _ = self._shared[_shared_name(node)]
                yield from zip(_order(node) or (), _order(definition) or (), strict=False)

    def _weigh(self, node: Node, below: _Made) -> None:
        """Record the leaves whose weight is used in an expression of the node."""
        if node.operator in _WITHOUT_EXPRESSIONS:
            return
        text = node.text.lower()
        for token, origins in below.columns.items():
            leaves = {name for name, column in origins if column == self.leaves[name].weight}
            if leaves and (_is_used(token, text) or _is_repeated(token, node)):
                self.weighed |= leaves

    def _require_keys(self, below: _Made, by: Sequence[str], what: str, how: str) -> None:
        """Record a fault unless the rows that are combined share the keys of whole groups."""
        for name in self._partial(below.rows):
            leaf = self.leaves[name]
            kept = {column for token in by for of, column in below.columns.get(token.lower(), ()) if of == name}
            if leaf.unit is Unit.ROW:
                self.fault(name, what)
            elif not set(leaf.keys) <= kept:
                self.fault(name, f"{what} that isn't {how} by {_listed(leaf.keys)} of the upstream")

    def _partial(self, rows: frozenset[str]) -> list[str]:
        return sorted(name for name in rows if not self.leaves[name].is_everything)

    def _passed_on(self, node: Node, below: _Made) -> Mapping[str, frozenset[Origin]]:
        """The columns that a node passes on unchanged, under their own names or new ones."""
        if node.operator not in {"Project", "Aggregate"}:
            return below.columns
        listed = node.text.lower()
        passed: dict[str, frozenset[Origin]] = {}
        for token, origins in below.columns.items():
            found = re.findall(rf"(?:\[|, ){re.escape(token)}(?: as ([^,\[\]]+#\d+l?))?(?=, |\])", listed)
            for renamed in found:
                passed[renamed or token] = origins
        for element in node.last_list if "cast(" in listed else ():
            if (cast := _WIDENED.fullmatch(element.lower())) and cast["new"] and self._widens(cast, below.columns):
                passed[cast["new"]] = below.columns[cast["token"]]
        return passed

    def _widens(self, cast: re.Match[str], columns: Mapping[str, frozenset[Origin]]) -> bool:
        """Whether a column of a frame is cast, and unequal values of it stay unequal."""
        types = {self.leaves[name].types.get(column, "") for name, column in columns.get(cast["token"], ())}
        return bool(types) and all((each, cast["to"]) in _WIDER for each in types)

    def _refuse(self, node: Node, rows: frozenset[str]) -> None:
        for name in self._partial(rows):
            if node.operator in _SETS:
                self.fault(name, _SETS[node.operator])
            else:
                self.fault(name, f"{node.operator}, whose rows can't be traced", is_unknown=True)

    def _reference(self, node: Node) -> _Made:
        found = self._shared.get(_shared_name(node))
        if found is None:
            raise PlanUnreadableError(node.text)
        definition, made = found
        own, theirs = _order(node), _order(definition)
        if own is None or theirs is None or len(own) != len(theirs):
            return replace(made, columns={})
        pairs = zip(own, theirs, strict=True)
        return replace(made, columns={new: made.columns[old] for new, old in pairs if old in made.columns})

    def _union(self, node: Node, below: Sequence[_Made]) -> _Made:
        all_ = _together(below)
        if all_.rows and not all(each.rows for each in below):
            for name in self._partial(all_.rows):
                self.fault(name, "a union with rows that aren't part of a change")
        orders = [_order(child) for child in node.children]
        known = [order for order in orders if order is not None]
        if len(known) < len(orders) or len({len(order) for order in known}) != 1:
            return all_
        columns = {}
        for tokens in zip(*known, strict=True):
            parts = [
                (made.leaves, made.columns.get(token, frozenset())) for made, token in zip(below, tokens, strict=True)
            ]
            origins = frozenset[Origin]().union(*[of for _, of in parts])
            columns[tokens[0]] = frozenset(o for o in origins if all(o in of for leaves, of in parts if o[0] in leaves))
        return replace(all_, columns=columns)

    def _join(self, node: Node, left: _Made, right: _Made) -> _Made:
        kind, _, condition = node.text.removeprefix("Join ").partition(", ")
        kept = {"LeftOuter": left, "RightOuter": right, "LeftSemi": left, "LeftAnti": left}.get(kind)
        is_known = kept is not None or kind in {"Inner", "Cross"}
        rows = left.rows | right.rows
        both = {**left.columns, **right.columns}
        equal = [
            (self._uncast(one.lower(), both), self._uncast(two.lower(), both)) for one, two in equalities(condition)
        ]
        for made, other in ((left, right), (right, left)):
            for name in self._partial(made.rows):
                if not is_known:
                    self.fault(name, f"a {kind} join")
                elif kept is other and not self._goes_with(name, other, made, equal):
                    self.fault(name, f"a {kind} join, on the side that doesn't decide which rows there are")
                elif self._partial(other.rows) and not self._goes_with_any(name, made, other, equal):
                    others = ", ".join(sorted({self.leaves[each].upstream for each in self._partial(other.rows)}))
                    self.fault(name, f"a join with other changed rows ({others})")
        joined = {of for name in rows for of in self.leaves[name].on}
        absorbed = {name for name in rows & self.looked_up if self.leaves[name].upstream in joined}
        columns: dict[str, frozenset[Origin]] = {}
        if kept is not None:
            columns = dict(kept.columns)  # the other side's are null where a row has no match
        elif is_known:
            columns = {**left.columns, **right.columns}
            for one, two in equal:
                if origins := columns.get(one, frozenset()) | columns.get(two, frozenset()):
                    columns[one] = columns[two] = origins
        return _Made(rows - absorbed, columns, left.leaves | right.leaves)

    def _uncast(self, side: str, columns: Mapping[str, frozenset[Origin]]) -> str:
        """One side of an equality; just its column if the side only widens that to the other side's type."""
        cast = _WIDENED.fullmatch(side)
        return cast["token"] if cast and self._widens(cast, columns) else side

    def _goes_with_any(self, name: str, made: _Made, other: _Made, equal: Sequence[tuple[str, str]]) -> bool:
        return all(self._pair(name, made, each, other, equal) for each in self._partial(other.rows))

    def _goes_with(self, name: str, other: _Made, made: _Made, equal: Sequence[tuple[str, str]]) -> bool:
        """Whether each row of the side that the join keeps meets only whole groups of the other side's leaf."""
        if name not in self.looked_up and other.rows & self.looked_up:
            return False  # a looked-up input is read whole, including rows that no affected row looks up
        return bool(self._partial(other.rows)) and self._goes_with_any(name, made, other, equal)

    def _pair(self, one: str, made: _Made, two: str, other: _Made, equal: Sequence[tuple[str, str]]) -> bool:
        """Whether rows of two leaves meet only within groups that both leaves hold completely."""
        first, second = self.leaves[one], self.leaves[two]
        if Unit.ROW in {first.unit, second.unit}:
            return False
        if two in self.looked_up and second.upstream in first.on:
            pairs = set(first.on[second.upstream].items())
        elif one in self.looked_up and first.upstream in second.on:
            pairs = {(mine, theirs) for theirs, mine in second.on[first.upstream].items()}
        elif (first.upstream, set(first.keys), first.on) == (second.upstream, set(second.keys), second.on):
            pairs = {(key, key) for key in first.keys}
        else:
            return False
        return all(_are_equal((one, mine), made, (two, theirs), other, equal) for mine, theirs in pairs)


def _table_in(relation: str) -> str:
    """The table that a relation reads, as ``name_of`` writes it: Spark puts more names in backquotes."""
    shown = relation.rpartition("] ")[2]
    found = _TABLE.match(shown)
    try:
        return name_of(parts_of(found.group() if found else ""))
    except ValueError:  # another source than a catalog
        return shown


def _is_used(token: str, text: str) -> bool:
    """Whether an operator uses a column in an expression, and doesn't only list it, under its own or another name."""
    for inside in Node("", text).lists:
        for element in elements(inside) or [f"({inside})"]:
            passes = element == token or re.fullmatch(rf"{re.escape(token)} as [^,()\[\]]+#\d+l?", element)
            if not passes and _is_used(token, element):
                return True
        text = text.replace(f"[{inside}]", "", 1)
    return _has(token, text)


def _has(token: str, text: str) -> bool:
    return re.search(rf"(?<![\w`]){re.escape(token)}(?!\w)", text) is not None


def _is_repeated(token: str, node: Node) -> bool:
    """Whether an operator that turns one row into several moves, repeats or drops the column in any of them."""
    if node.operator != "Expand":
        return False
    kept = [each.lower() for each in node.last_list]
    made = [elements(each[1:-1].lower()) or () for each in node.first_list]
    return any(
        [at for at, each in enumerate(row) if each == token] != [at for at, each in enumerate(kept) if each == token]
        for row in made
    )


def _together(below: Sequence[_Made]) -> _Made:
    """The inputs of several parts together; their columns are no longer known."""
    rows = frozenset[str]().union(*[each.rows for each in below])
    return _Made(rows, leaves=frozenset[str]().union(*[each.leaves for each in below]))


def _are_equal(one: Origin, made: _Made, two: Origin, other: _Made, equal: Sequence[tuple[str, str]]) -> bool:
    return any(
        (one in made.columns.get(a, ()) and two in other.columns.get(b, ()))
        or (one in made.columns.get(b, ()) and two in other.columns.get(a, ()))
        for a, b in equal
    )


def _shared_name(node: Node) -> str:
    """The name by which a plan knows what several of its parts read, in its definition and in references to it."""
    return node.text.split()[1].rstrip(",")


def _order(node: Node) -> list[str] | None:
    """The plan's names of a node's columns, in order; None if they are unknown."""
    match node.operator:
        case "Project" | "Aggregate":
            listed = elements(node.lists[-1]) if node.lists else None
            return None if listed is None else [element.rpartition(" AS ")[2].lower() for element in listed]
        case "Join" if len(node.children) == 2:  # noqa: PLR2004  # its two sides
            left, right = [_order(child) for child in node.children]
            if any(kind in node.text[:16] for kind in ("LeftSemi", "LeftAnti")):
                return left
            return None if left is None or right is None else [*left, *right]
        case "Generate" | "Window" | "Expand" | "WithCTE":
            return None
        case operator if operator in {"CTERelationRef", "LocalRelation"} or operator.startswith("RelationV2"):
            listed = elements(node.lists[0]) if node.lists else None
            return None if listed is None else [element.lower() for element in listed]
        case _:
            return _order(node.children[0]) if node.children else None


def _unknown_generators(node: Node) -> Iterator[Node]:
    if node.operator == "Generate" and not _GENERATORS.match(node.text):
        yield node
    for each in (*node.children, *node.subqueries):
        yield from _unknown_generators(each)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "its key"
