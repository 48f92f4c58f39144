"""What differs between two texts of a query, clause by clause, for people who review a new text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from dagster_ips.query.query_text import Query, RefusedQueryError, named, read
from dagster_ips.query.query_tree import conjuncts
from dagster_ips.query.spark_dialect import DIALECT

_BY_ITSELF = ("expressions", "from_", "joins", "where", "having", "group", "with_")
"""The clauses of a SELECT that are compared piece by piece; the others as a whole."""


def query_differences(before: str, now: str) -> tuple[str, ...]:
    """What the query ``now`` does differently than the query ``before``, as sentences without a full stop.

    Empty if they differ in nothing but comments, spaces, the case of keywords and the like.

    Raises:
        RefusedQueryError: ``now`` isn't a query that a table can be declared by.

    Example:
        >>> query_differences(
        ...     "SELECT day, count(*) AS n FROM plays GROUP BY day",
        ...     "SELECT day, count(*) AS n, sum(seconds) AS s FROM plays WHERE seconds > 0 GROUP BY day",
        ... )
        ('column s is new: SUM(seconds)', 'only rows with seconds > 0 are left')
    """
    new = read(now)
    try:
        old = read(before)
    except RefusedQueryError as error:
        return (f"the earlier query is one that would be refused now: {error}",)
    return tuple(_differences(_readable(old), _readable(new), ""))


def _readable(query: Query) -> exp.Query:
    """The query's tree with its tables' own names."""
    names = {named(source): parts for source, parts in enumerate(query.sources)}
    tree = query.tree.copy()
    for table in list(tree.find_all(exp.Table)):
        if parts := names.get(table.name):
            own = [exp.to_identifier(part) for part in parts]
            table.set("this", exp.Dot.build(own) if len(own) > 1 else own[0])
            if table.alias == parts[-1]:
                table.set("alias", None)
    return tree


def _differences(before: exp.Query, now: exp.Query, where: str) -> Iterator[str]:
    if before == now:
        return
    if not (isinstance(before, exp.Select) and isinstance(now, exp.Select)):
        yield f"{where}it is another query as a whole"
        return
    yield from _columns(before, now, where)
    yield from _relations(before, now, where)
    for clause, what in (("where", "rows"), ("having", "groups")):
        old, new = _conjuncts(before.args.get(clause)), _conjuncts(now.args.get(clause))
        yield from (f"{where}only {what} with {each} are left" for each in new if each not in old)
        yield from (f"{where}{what} without {each} are no longer left out" for each in old if each not in new)
    if _group(before) != _group(now):
        yield f"{where}it is grouped by {_group(now) or 'nothing'}, and was by {_group(before) or 'nothing'}"
    for clause in sorted({*before.args, *now.args} - {*_BY_ITSELF}):
        was, is_now = before.args.get(clause) or None, now.args.get(clause) or None
        if was != is_now:
            how = "is new" if was is None else "is gone" if is_now is None else "is another one"
            yield f"{where}its {clause.strip('_').upper()} {how}"


def _columns(before: exp.Select, now: exp.Select, where: str) -> Iterator[str]:
    was, is_now = _named_columns(before), _named_columns(now)
    for name, value in is_now.items():
        if name not in was:
            yield f"{where}column {name} is new: {value}"
        elif was[name] != value:
            yield f"{where}column {name} is {value}, and was {was[name]}"
    for name in was.keys() - is_now.keys():
        yield f"{where}column {name} is gone"
    if list(was) != list(is_now) and was.keys() == is_now.keys():
        yield f"{where}its columns are in another order"


def _named_columns(select: exp.Select) -> dict[str, str]:
    return {each.alias_or_name or _text(each): _text(each.unalias()) for each in select.expressions}


def _relations(before: exp.Select, now: exp.Select, where: str) -> Iterator[str]:
    """What it reads: tables and joins by their text, and subqueries that kept their alias by what is in them."""
    was, is_now = _by_alias(before), _by_alias(now)
    for alias in was.keys() & is_now.keys():
        (old, old_subquery), (new, new_subquery) = was[alias], is_now[alias]
        if old_subquery is not None and new_subquery is not None:
            yield from _differences(old_subquery, new_subquery, f"{where}in {alias}, ")
        if old != new:
            yield f"{where}{new} is read instead of {old}"
    yield from (f"{where}{new} is new" for alias, (new, _) in is_now.items() if alias not in was)
    yield from (f"{where}{old} is gone" for alias, (old, _) in was.items() if alias not in is_now)


def _by_alias(select: exp.Select) -> dict[str, tuple[str, exp.Query | None]]:
    """The text of each relation, without what is in its subquery, and the subquery, by alias, or else by its place."""
    found: dict[str, tuple[str, exp.Query | None]] = {}
    for place, clause in enumerate([select.args.get("from_"), *(select.args.get("joins") or ())], start=1):
        if clause is not None:
            shown = clause.copy()
            relation = shown.this
            name = relation.alias_or_name or f"relation {place}"
            inner = relation.this if isinstance(relation, exp.Subquery) else None
            if inner is not None:
                relation.set("this", exp.to_identifier("…"))
            found[name] = (_text(shown), inner)
    return found


def _conjuncts(clause: exp.Expression | None) -> Sequence[str]:
    return [_text(each) for each in conjuncts(clause.this if clause else None)]


def _group(select: exp.Select) -> str:
    clause = select.args.get("group")
    return _text(clause).removeprefix("GROUP BY ") if clause else ""


def _text(tree: exp.Expr) -> str:
    return tree.sql(DIALECT)
