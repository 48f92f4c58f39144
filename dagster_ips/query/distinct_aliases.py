"""Aliases of relations that can't be taken for other names, in a tree whose columns are qualified by them.

Spark resolves ``x.y`` anew wherever it reads a rewritten query. There, ``x`` may be the relation that it was resolved
to here, but also a struct of a relation that is closer, the argument of a lambda, or a relation with the same alias.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlglot import exp


@dataclass(frozen=True, eq=False)
class _Named:
    """A relation: its new alias, and its columns in lower case."""

    alias: str
    columns: Collection[str]


def make_aliases_distinct(tree: exp.Query, columns: Mapping[str, Collection[str]]) -> None:
    """Rename the relations of ``tree`` whose aliases may be taken for something else, and what is qualified by them.

    ``columns`` are those of each table, in lower case.
    """
    aliases = [each.alias_or_name for select in tree.find_all(exp.Select) for each in _relations(select)]
    named = {name for names in columns.values() for name in names}
    named |= {name.lower() for select in tree.find_all(exp.Select) for name in select.named_selects}
    named |= {name.lower() for each in tree.find_all(exp.Lateral) for name in each.alias_column_names}
    arguments = {each.name.lower() for found in tree.find_all(exp.Lambda) for each in found.expressions}
    look = _Aliases(columns, set(), set())
    look.follow(tree, {})
    ambiguous = {name for name in look.of_outer_queries if name in named or aliases.count(name) > 1}
    ambiguous |= arguments & set(aliases)
    if ambiguous:
        _Aliases(columns, ambiguous, named | arguments | set(aliases)).follow(tree, {})


def _relations(select: exp.Select) -> list[exp.Expr]:
    first, joins = select.args.get("from_"), select.args.get("joins") or []
    return [*([first.this] if first else []), *(join.this for join in joins), *(select.args.get("laterals") or [])]


class _Aliases:
    """Follows aliases through a tree, and renames those in ``ambiguous`` to names that aren't ``used``."""

    def __init__(self, columns: Mapping[str, Collection[str]], ambiguous: Collection[str], used: set[str]) -> None:
        self._columns = columns
        self._ambiguous = ambiguous
        self._used = used
        self.of_outer_queries = set[str]()
        """The aliases that qualify columns in subqueries of the query that has the relation."""

    def follow(self, tree: exp.Expr, outer: Mapping[str, list[_Named]]) -> None:
        """``outer`` has the relations of the queries around ``tree``, by alias, from the closest one outwards."""
        if isinstance(tree, exp.Subquery | exp.Paren):
            self.follow(tree.this, outer)
        elif isinstance(tree, exp.SetOperation):
            self.follow(tree.this, outer)
            self.follow(tree.expression, outer)
        elif isinstance(tree, exp.Select):
            self._follow_select(tree, outer)

    def _follow_select(self, select: exp.Select, outer: Mapping[str, list[_Named]]) -> None:
        relations, known, own = _relations(select), dict(outer), set[_Named]()
        for each in relations:
            name = each.alias_or_name
            found = _Named(self._new(name) if name in self._ambiguous else name, self._names(each))
            if isinstance(each, exp.Subquery):
                self.follow(each.this, outer)
            if found.alias != name:
                each.args["alias"].set("this", exp.to_identifier(found.alias, quoted=True))
            known[name] = [found, *known.get(name, [])]
            own.add(found)
        sides = {id(each) for each in relations}
        inside: list[exp.Expr] = []
        for node in select.walk(prune=lambda node: isinstance(node, exp.Query) and node is not select):
            if isinstance(node, exp.Query) and node is not select:
                inside += [] if id(node) in sides else [node]
            elif isinstance(node, exp.Column) and (called := known.get(node.table)):
                meant = next((each for each in called if node.name.lower() in each.columns), called[0])
                if meant not in own:
                    self.of_outer_queries.add(node.table)
                if meant.alias != node.table:
                    node.set("table", exp.to_identifier(meant.alias, quoted=True))
        for query in inside:
            self.follow(query, known)

    def _names(self, relation: exp.Expr) -> Collection[str]:
        match relation:
            case exp.Table():
                return self._columns.get(relation.name, ())
            case exp.Lateral():
                return [name.lower() for name in relation.alias_column_names]
            case exp.Subquery():
                return [name.lower() for name in relation.this.unnest().named_selects]
            case _:
                return ()

    def _new(self, alias: str) -> str:
        number = 1
        while (name := f"{alias}_{number}") in self._used:
            number += 1
        self._used.add(name)
        return name
