"""The exact change of a query's result: the query over changed rows, a term for each place where a source is read.

Let places 1 … n change one after another. The change at place i is the query over that place's changed rows, with the
places before it in their new state and the places after it in their old state. The terms add up to the whole change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from dagster_ips.core.aggregates import HIDDEN
from dagster_ips.query.affected_keys import SourceChange, added, after, before, derived, removed, select, union
from dagster_ips.query.key_restriction import columns_read, reading, whole
from dagster_ips.query.query_text import depends_on_ties
from dagster_ips.query.query_tree import Node, Role, Scan, SelectBlock, Sides, kind_of, within
from dagster_ips.query.spark_dialect import DIALECT

WEIGHT = "_weight"
_INNER_WEIGHT = f"{HIDDEN}weight"
"""What the weight is called on its way to the result; a source may have any column whose name isn't of hidden ones."""
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


def terms(tree: exp.Query, scans: Sequence[Scan], changed: Mapping[int, SourceChange]) -> list[exp.Query]:
    """The added rows: the query ``tree`` over the added rows of each of ``scans`` in turn.

    They are the scans whose source changed, in any fixed order.
    """
    return [
        _term(tree, scan.number, whole(added(scan.source)), _later(scans, place))
        for place, scan in enumerate(scans)
        if changed[scan.source].adds
    ]


def weighted_terms(
    tree: exp.Select, node: Node, scans: Sequence[Scan], changed: Mapping[int, SourceChange]
) -> list[exp.Query]:
    """As ``terms``, with removed rows, and with the weight of each row: 1 if it came and -1 if it went.

    A term reads added and removed rows together, so the other tables are read once for both. ``tree`` is the tree of
    ``node``, or another one with the same scans.
    """
    names = {number: read for number, _, read in columns_read(tree, node)}
    return [
        _term(tree, scan.number, _signed(scan, names, changed), _later(scans, place), is_signed=True)
        for place, scan in enumerate(scans)
    ]


def _later(scans: Sequence[Scan], place: int) -> frozenset[int]:
    return frozenset(scan.number for scan in scans[place + 1 :])


def _signed(scan: Scan, names: Mapping[int, list[str]], changed: Mapping[int, SourceChange]) -> exp.Query:
    change, columns = changed[scan.source], [exp.column(name, quoted=True) for name in names[scan.number]]
    tables = [(added(scan.source), 1)] * change.adds + [(removed(scan.source), -1)] * change.removes
    return union([select([*columns, _weight(sign, _INNER_WEIGHT)], exp.table_(table)) for table, sign in tables])


def _term(tree: exp.Query, scan: int, rows: exp.Query, later: frozenset[int], *, is_signed: bool = False) -> exp.Query:
    """The query that reads ``rows`` at ``scan``, the old state at the ``later`` scans, and the new state elsewhere.

    If it ``is_signed``, its last column is the weight of the row of ``rows`` that it is made from.
    """

    def read(number: int, source: int) -> exp.Query:
        if number == scan:
            return rows
        return whole(before(source) if number in later else after(source))

    return reading(_only(tree, scan, is_signed=is_signed), read)


def weighted(came: exp.Query, went: exp.Query) -> exp.Query:
    """The rows of both, with weight 1 if they came and -1 if they went."""
    return union([weighing(came, 1), weighing(went, -1)])


def weighing(query: exp.Query, weight: int) -> exp.Select:
    """The rows of ``query``, with this weight in a last column."""
    star = exp.Column(this=exp.Star(), table=exp.to_identifier("ips_row"))
    return select([star, _weight(weight, WEIGHT)], derived(query, "ips_row"))


def _weight(weight: int, name: str) -> exp.Expr:
    number = exp.Literal.number(abs(weight))
    return exp.alias_(exp.Neg(this=number) if weight < 0 else number, name)


def _only(tree: exp.Query, scan: int, *, is_signed: bool) -> exp.Query:
    """A copy of ``tree`` in which the other side of every UNION ALL around a scan has no rows.

    The empty side stays, because the columns' types depend on it. If it ``is_signed``, each SELECT around the scan also
    selects the weight that the scan's rows have.
    """
    copied = tree.copy()
    below: exp.Expr = next(each for each in copied.find_all(exp.Table) if each.meta["scan"] == scan)
    relation = below.alias_or_name
    while below is not copied:
        above = below.parent
        assert above is not None  # noqa: S101  # the tree is above
        if isinstance(above, exp.Union):
            other = above.expression if above.this is below else above.this
            columns = [exp.Star(), _weight(0, _INNER_WEIGHT)] if is_signed else [exp.Star()]
            empty = select(columns, derived(other.copy(), "ips_none")).where(exp.false(), copy=False)
            other.replace(empty)
        elif isinstance(above, exp.Select) and is_signed:
            weight = exp.column(_INNER_WEIGHT, exp.to_identifier(relation, quoted=True))
            above.append("expressions", exp.alias_(weight, WEIGHT if above is copied else _INNER_WEIGHT))
        relation = above.alias or relation
        below = above
    return copied
