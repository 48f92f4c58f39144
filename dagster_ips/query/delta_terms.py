"""The exact change of a query's result: the query over changed rows, a term for each place where a source is read.

Let places 1 … n change one after another. The change at place i is the query over that place's changed rows, with the
places before it in their new state and the places after it in their old state. The terms add up to the whole change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from dagster_ips.query.affected_keys import SourceChange, added, after, before, derived, removed, select, union
from dagster_ips.query.key_restriction import reading, whole
from dagster_ips.query.query_text import depends_on_ties
from dagster_ips.query.query_tree import Node, Role, Scan, SelectBlock, Sides, kind_of, within
from dagster_ips.query.spark_dialect import DIALECT

WEIGHT = "_weight"
_ROUNDED = (
    *(exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop),
    *(exp.Corr, exp.CovarPop, exp.CovarSamp, exp.Kurtosis, exp.Skewness),
    *(exp.RegrAvgx, exp.RegrAvgy, exp.RegrIntercept, exp.RegrR2, exp.RegrSlope, exp.RegrSxx, exp.RegrSxy, exp.RegrSyy),
)


def why_not_linear(node: Node, changed: frozenset[Scan]) -> str | None:
    """Why the change of the result isn't simply the query over the changed rows; None if it is."""
    match node:
        case Sides() if not isinstance(node.tree, exp.Union) or node.tree.args.get("distinct"):
            return f"{type(node.tree).__name__.upper()} compares rows with one another"
        case Sides():
            sides = [side for side in (node.left, node.right) if side.scans & changed]
            return next((why for side in sides if (why := why_not_linear(side, changed))), None)
        case SelectBlock():
            return _why_made_of_several(node) or why_body_not_linear(node, changed)
        case _:
            return None


def _why_made_of_several(block: SelectBlock) -> str | None:
    if block.tree.args.get("distinct"):
        return "DISTINCT compares rows with one another"
    if block.group or block.unkeyed:
        return block.unkeyed or "its groups aren't stored in a form that changes can be added to"
    return "a window function looks at other rows" if block.windows else None


def why_body_not_linear(block: SelectBlock, changed: frozenset[Scan]) -> str | None:
    """Like ``why_not_linear``, for the rows that the block selects, groups or compares."""
    for relation in block.relations:
        if not relation.node.scans & changed:
            continue
        if relation.role is Role.LEFT:
            return "a row on the right of a LEFT JOIN replaces nulls"
        if relation.role is Role.HIDDEN:
            return "a subquery or semi join decides about rows that did not change"
        if why := why_not_linear(relation.node, changed):
            return why
    return None


def why_not_repeatable(tree: exp.Query) -> str | None:
    """Why the rows that ``tree`` groups may be others when they are computed again; None if they are the same.

    Then what is subtracted from a group might never have been added to it.
    """
    for window in tree.find_all(exp.Window):
        if depends_on_ties(window) and not _orders_all_that_it_reads(window):
            return f"rows that tie in the ORDER BY of {window.sql(DIALECT)} may come in another order next time"
    own = {id(call) for call in within(tree, exp.AggFunc)}
    for call in tree.find_all(exp.AggFunc):
        if id(call) not in own and _depends_on_order(call):
            return f"{call.sql(DIALECT)} depends on the order of rows, which may be another one next time"
    return None


def _orders_all_that_it_reads(window: exp.Window) -> bool:
    """Whether rows that tie are the same in all columns that their SELECT uses."""
    order, select = window.args.get("order"), window.parent_select
    by = [*(window.args.get("partition_by") or []), *(each.this for each in (order.expressions if order else []))]
    if select is None:
        return False
    relations = [select.args.get("from_"), *(select.args.get("joins") or [])]
    read = {each.this.alias_or_name for each in relations if each is not None}
    read |= {each.alias for each in select.args.get("laterals") or []}
    return all(column in by for column in select.find_all(exp.Column) if column.table in read)


def _depends_on_order(call: exp.AggFunc) -> bool:
    """Whether it takes any of the rows that tie, or is rounded at each step, as sums of floats or of unknown types."""
    if isinstance(call, exp.Sum | exp.Avg):
        value = call.this.expressions[0] if isinstance(call.this, exp.Distinct) else call.this
        # Spark averages integers as doubles, which can't hold every sum of large ones.
        is_rounded = isinstance(call, exp.Avg) and value.is_type(exp.DType.BIGINT)
        return is_rounded or (kind_of(value.type) != "integer" and not value.is_type("decimal"))
    return isinstance(call, (*_ROUNDED, exp.ArgMax, exp.ArgMin, exp.AnonymousAggFunc))


def terms(
    tree: exp.Query, places: Sequence[tuple[int, int]], changed: Mapping[int, SourceChange]
) -> tuple[list[exp.Query], list[exp.Query]]:
    """The added and the removed rows: the query ``tree`` over the changed rows of each of ``places`` in turn.

    ``places`` are the scans whose source changed, as (scan, source), in any fixed order.
    """
    came, went = [], []
    for place, (scan, source) in enumerate(places):
        later = frozenset(number for number, _ in places[place + 1 :])
        if changed[source].adds:
            came.append(_term(tree, scan, added(source), later))
        if changed[source].removes:
            went.append(_term(tree, scan, removed(source), later))
    return came, went


def _term(tree: exp.Query, scan: int, rows: str, later: frozenset[int]) -> exp.Query:
    """The query that reads ``rows`` at ``scan``, the old state at the ``later`` scans, and the new state elsewhere."""

    def read(number: int, source: int) -> exp.Query:
        if number == scan:
            return whole(rows)
        return whole(before(source) if number in later else after(source))

    return reading(_only(tree, scan), read)


def weighted(came: Sequence[exp.Query], went: Sequence[exp.Query], live: Sequence[exp.Query] = ()) -> exp.Query:
    """The rows of all queries, with weight 1 if they came, -1 if they went, and 0 if they are live."""
    every = [*((query, 1) for query in came), *((query, -1) for query in went), *((query, 0) for query in live)]
    return union([_weighing(query, weight) for query, weight in every])


def _weighing(query: exp.Query, weight: int) -> exp.Select:
    star = exp.Column(this=exp.Star(), table=exp.to_identifier("ips_row"))
    number = exp.Literal.number(abs(weight))
    value = exp.Neg(this=number) if weight < 0 else number
    return select([star, exp.alias_(value, WEIGHT)], derived(query, "ips_row"))


def _only(tree: exp.Query, scan: int) -> exp.Query:
    """A copy of ``tree`` in which the other side of every UNION ALL around a scan has no rows.

    The empty side stays, because the columns' types depend on it.
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
