"""Restricts a query to affected keys: where it reads its tables, as far as that doesn't change the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dagster_ips.query.affected_keys import AFFECTED, after, before, derived, select
from dagster_ips.query.near_rows import NearRows, marked
from dagster_ips.query.query_tree import Equality, Node, Relation, Role, Scan, SelectBlock, Sides, key_expression

_KEY = "ips_key"


@dataclass(frozen=True, slots=True)
class ScanLimit:
    """Which columns of a scan must hold a value of which key.

    ``is_in_every_row`` says whether each row that the query selects or groups contains a row of it.
    """

    keys: Mapping[str, str]
    is_in_every_row: bool


KeyLimits = dict[int, ScanLimit]
"""The limits of scans, by their number."""


def restricted(tree: exp.Query, node: Node, places: Sequence[int]) -> exp.Select:
    """The rows of ``tree`` whose columns ``places`` of ``node`` are among the affected keys.

    ``tree`` is the tree of ``node``, or another one with the same body and these columns.
    """
    limits: KeyLimits = {}
    keys = [node.names[place] for place in places]
    _push(node, dict(zip(places, keys, strict=True)), limits, in_every_row=True)
    near = _LimitedScans(tree, node, limits)
    rows = reading(tree, lambda scan, source: near.rows(scan, after(source)))
    return _among(derived(rows, "ips_row"), {key: key for key in keys})


def restricted_body(
    tree: exp.Select, block: SelectBlock, keys: Mapping[exp.Column, str], changed: Collection[int]
) -> tuple[exp.Select, exp.Select]:
    """The rows of ``tree``, which has the body of ``block``, whose columns ``keys`` are among the affected keys.

    The first query gives them in the current state of the sources, the second as they were before the ``changed`` ones
    changed.
    """
    limits: KeyLimits = {}
    _push_body(block, dict(keys), limits, in_every_row=True)
    near = _LimitedScans(tree, block, limits)
    same = [exp.NullSafeEQ(this=column.copy(), expression=exp.column(key, _KEY)) for column, key in keys.items()]
    among = exp.Exists(this=select([exp.Literal.number(1)], exp.table_(AFFECTED, alias=_KEY)).where(*same, copy=False))

    def of_body(state: Callable[[int], str]) -> exp.Select:
        rows = reading(tree, lambda scan, source: near.rows(scan, state(source)))
        assert isinstance(rows, exp.Select)  # noqa: S101  # as the tree is
        return rows.where(among.copy(), copy=False)

    return of_body(after), of_body(lambda source: (before if source in changed else after)(source))


class _LimitedScans:
    """For each scan of a query, its source's rows with affected keys, and the columns that the query uses.

    Scans of one source with the same limits read the same rows.
    """

    def __init__(self, tree: exp.Query, node: Node, limits: KeyLimits) -> None:
        self._limits = limits
        self._sources = {scan.number: scan.source for scan in node.scans}
        keys = {number: limit.keys for number, limit in limits.items()}
        self._columns = {
            number: dict.fromkeys([*found, *keys.get(number, ())]) for number, _, found in columns_read(tree, node)
        }

    def rows(self, scan: int, table: str) -> exp.Select:
        """The rows of ``table``, which is the source of ``scan`` in some state."""
        limit = self._limits.get(scan)
        if limit is None or not limit.keys:
            return whole(table)
        alike = [each for each in sorted(self._limits) if self._reads(each) == self._reads(scan)]
        used = dict.fromkeys(name for each in alike for name in self._columns[each])
        in_every_row = any(self._limits[each].is_in_every_row for each in alike)
        near = NearRows(alike[0], self._sources[scan], table, limit.keys, in_every_row)
        return marked(_among(exp.table_(table), limit.keys, list(used)), near)

    def _reads(self, scan: int) -> tuple[int, Mapping[str, str]]:
        return self._sources[scan], self._limits[scan].keys


def columns_read(tree: exp.Query, node: Node) -> Iterator[tuple[int, int, list[str]]]:
    """The number and the source of each scan of ``node``, and which columns ``tree`` reads there, perhaps too many.

    ``tree`` is the tree of ``node``, or another one with the same scans.
    """
    aliases = {table.meta["scan"]: table.alias_or_name for table in tree.find_all(exp.Table)}
    used = {(column.table, column.name) for column in tree.find_all(exp.Column)}
    for scan in sorted(node.scans, key=lambda scan: scan.number):
        names = [name for name in scan.names if used & {(aliases[scan.number], name), ("", name)}]
        yield scan.number, scan.source, names


def by_equality(rows: exp.Query, keys: Collection[str]) -> exp.Query:
    """``rows``, as restricted above, for affected ``keys`` that are never null.

    For ``<=>``, Spark joins by a value and by whether it is null; ``=`` costs less.
    """
    copied = rows.copy()
    for each in list(copied.find_all(exp.NullSafeEQ)):
        key = each.expression
        if isinstance(key, exp.Column) and key.table == _KEY and key.name in keys:
            each.replace(exp.EQ(this=each.this, expression=key))
    return copied


def reading(tree: exp.Query, read: Callable[[int, int], exp.Query]) -> exp.Query:
    """A copy of ``tree`` that reads ``read(scan, source)`` at each scan; the arguments are their numbers."""
    copied = tree.copy()
    for table in list(copied.find_all(exp.Table)):
        query = read(table.meta["scan"], table.meta["source"])
        table.replace(derived(query, table.alias_or_name))
    return copied


def whole(name: str) -> exp.Select:
    """All rows of a table."""
    return select([exp.Star()], exp.table_(name))


def _among(table: exp.Expr, columns: Mapping[str, str], used: Sequence[str] | None = None) -> exp.Select:
    """The rows of ``table`` whose ``columns`` have an affected value of a key; all columns, or those ``used``."""
    if not columns:
        return select([exp.Star()], table)
    table.set("alias", exp.TableAlias(this=exp.to_identifier("ips_row")))
    keys = [exp.column(key) for key in dict.fromkeys(columns.values())]
    wanted = select(keys, exp.table_(AFFECTED), distinct=True)
    same = [
        exp.NullSafeEQ(this=exp.column(column, "ips_row"), expression=exp.column(key, _KEY))
        for column, key in columns.items()
    ]
    star = exp.Column(this=exp.Star(), table=exp.to_identifier("ips_row"))
    query = select([star] if used is None else [exp.column(name, "ips_row") for name in used], table)
    on = exp.and_(*same, copy=False)
    query.append("joins", exp.Join(this=derived(wanted, _KEY), side="LEFT", kind="SEMI", on=on))
    return query


def _push(node: Node, keys: Mapping[int, str], limits: KeyLimits, *, in_every_row: bool) -> None:
    """Limit what ``node`` reads if only its rows with affected ``keys`` in these columns are wanted."""
    match node:
        case Scan():
            limits[node.number] = ScanLimit({node.names[place]: key for place, key in keys.items()}, in_every_row)
        case Sides():
            _push(node.left, keys, limits, in_every_row=False)
            _push(node.right, keys, limits, in_every_row=False)
        case SelectBlock():
            have: dict[exp.Column, str] = {}
            for place, key in keys.items():
                expression = key_expression(node, place)
                if isinstance(expression, exp.Column):
                    have.setdefault(expression, key)
            _push_body(node, have, limits, in_every_row=in_every_row)


def _push_body(block: SelectBlock, have: dict[exp.Column, str], limits: KeyLimits, *, in_every_row: bool) -> None:
    todo = list(have)
    for column in todo:
        for its, equality in block.equal.get(column, ()):
            relation = block.relation(its.table)
            if its not in have and relation is not None and _may_be_limited(equality, relation):
                have[its] = have[column]
                todo.append(its)
    for relation in block.relations:
        keys = {column.name: key for column, key in have.items() if column.table == relation.alias}
        is_there = in_every_row and relation.role is Role.INNER
        if relation.inside is None:
            places = {relation.node.names.index(name): key for name, key in keys.items()}
            _push(relation.node, places, limits, in_every_row=is_there)
        elif isinstance(relation.node, SelectBlock):
            inner = {relation.inside[int(name[1:])]: key for name, key in keys.items()}
            known = {column: key for column, key in inner.items() if isinstance(column, exp.Column)}
            _push_body(relation.node, known, limits, in_every_row=is_there)


def _may_be_limited(equality: Equality, relation: Relation) -> bool:
    """Whether rows of ``relation`` without a wanted key don't affect any row with a wanted key."""
    return relation.role is Role.INNER if equality.owner is None else equality.owner is relation
