"""The exact change of a query's result: the query over changed rows, a term for each place where a source is read.

Let places 1 … n change one after another. The change at place i is the query over that place's changed rows, where
those before it are read as they are now and those after it as they were: the terms add up to the whole change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from dagster_ips.query.affected import Changed, added, after, before, derived, removed, select, union
from dagster_ips.query.restricted import reading, whole
from dagster_ips.query.tree import Block, Node, Role, Scan, Sides

WEIGHT = "_weight"


def why_not_linear(node: Node, changed: frozenset[Scan]) -> str | None:
    """Why the result doesn't change by the query over changed rows alone; None if it does."""
    match node:
        case Sides() if not isinstance(node.tree, exp.Union) or node.tree.args.get("distinct"):
            return f"{type(node.tree).__name__.upper()} compares rows with one another"
        case Sides():
            sides = [side for side in (node.left, node.right) if side.scans & changed]
            return next((why for side in sides if (why := why_not_linear(side, changed))), None)
        case Block():
            if node.tree.args.get("distinct"):
                return "DISTINCT compares rows with one another"
            if node.group or node.unkeyed:
                return node.unkeyed or "a GROUP BY below the top is computed by groups"
            if node.windows:
                return "a window function looks at other rows"
            return why_body_not_linear(node, changed)
        case _:
            return None


def why_body_not_linear(block: Block, changed: frozenset[Scan]) -> str | None:
    """As ``why_not_linear``, of the rows that the block selects, groups or compares."""
    for relation in block.relations:
        if not relation.node.scans & changed:
            continue
        if relation.role is Role.LEFT:
            return "a row on the right of a LEFT JOIN takes the place of nulls"
        if relation.role is Role.HIDDEN:
            return "a subquery or semi join decides about rows that did not change"
        if why := why_not_linear(relation.node, changed):
            return why
    return None


def terms(
    tree: exp.Query, places: Sequence[tuple[int, int]], changed: Mapping[int, Changed]
) -> tuple[list[exp.Query], list[exp.Query]]:
    """What came and what went: the query ``tree`` over the changed rows of each of ``places`` in turn.

    ``places`` are the scans whose source changed, as (scan, source), in any order that is kept.
    """
    came, went = [], []
    for place, (scan, source) in enumerate(places):
        later = {number for number, _ in places[place + 1 :]}
        of_place = _only(tree, scan)

        def term(rows: str, of_place: exp.Query = of_place, scan: int = scan, later: set[int] = later) -> exp.Query:
            def read(number: int, of: int) -> exp.Query:
                if number == scan:
                    return whole(rows)
                return whole(before(of) if number in later else after(of))

            return reading(of_place, read)

        if changed[source].adds:
            came.append(term(added(source)))
        if changed[source].removes:
            went.append(term(removed(source)))
    return came, went


def weighted(came: Sequence[exp.Query], went: Sequence[exp.Query], live: Sequence[exp.Query] = ()) -> exp.Query:
    """All of the rows, with a weight of 1, -1 or 0."""
    every = [*((query, 1) for query in came), *((query, -1) for query in went), *((query, 0) for query in live)]
    return union([_weighing(query, weight) for query, weight in every])


def _weighing(query: exp.Query, weight: int) -> exp.Select:
    star = exp.Column(this=exp.Star(), table=exp.to_identifier("ips_row"))
    number = exp.Literal.number(abs(weight))
    value = exp.Neg(this=number) if weight < 0 else number
    return select([star, exp.alias_(value, WEIGHT)], derived(query, "ips_row"))


def _only(tree: exp.Query, scan: int) -> exp.Query:
    """A copy of ``tree`` in which every UNION ALL around a scan has no rows of its other side.

    The side stays, as it has a say in the columns' types.
    """
    copied = tree.copy()
    table = next(each for each in copied.find_all(exp.Table) if each.meta["scan"] == scan)
    below: exp.Expr = table
    while below is not copied:
        above = below.parent
        assert above is not None  # noqa: S101  # the tree is above
        if isinstance(above, exp.Union):
            other = above.expression if above.this is below else above.this
            empty = select([exp.Star()], derived(other.copy(), "ips_none")).where(exp.false(), copy=False)
            other.replace(empty)
        below = above
    return copied
