"""The rows with affected keys that a restricted query reads, as tables of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dagster_ips.query.affected_keys import added, after, before, kept, removed, select, union
from dagster_ips.query.query_tree import fails_itself, may_fail

_NEAR = "ips_near"


@dataclass(frozen=True)
class NearRows:
    """The rows of a ``table`` of ``source`` whose columns ``keys`` hold a value of the affected key they map to.

    ``number`` is that of the first scan which reads them. ``is_in_every_row`` says whether each row that the query
    selects or groups contains one of them.
    """

    number: int
    source: int
    table: str
    keys: Mapping[str, str]
    is_in_every_row: bool

    def holds_all(self, keys: Collection[str]) -> bool:
        """Whether its table has no fewer rows than there are values of ``keys`` in the query's rows."""
        return self.is_in_every_row and set(self.keys.values()) == set(keys)

    @property
    def name(self) -> str:
        """Its name as a table."""
        return f"ips_near_{self.number}_of_{self.table}"


@dataclass(frozen=True)
class NearQuery:
    """The query of ``rows``, which a restricted query reads in so many ``places``."""

    rows: NearRows
    query: exp.Select
    places: int


def marked(query: exp.Select, rows: NearRows) -> exp.Select:
    """``query``, which selects ``rows``, in a form that ``near_rows`` finds."""
    query.meta[_NEAR] = rows
    return query


def near_rows(rows: exp.Query, loses_rows: Mapping[int, bool]) -> tuple[exp.Query, dict[str, NearQuery]]:
    """``rows`` as a query over tables of rows with affected keys, and the queries of these tables, by name.

    Where it reads both the current and the earlier state of a source, they are put together from rows that were kept,
    added and removed, so that most rows are read once. ``loses_rows`` are the sources of which the kept rows can be
    read, and whether rows were removed. What was added or removed isn't restricted: most of it has affected keys. But
    of other keys, groups are then incomplete; if an error might follow from that, it is restricted, too.
    """
    copied = rows.copy()
    part = _over if _may_fail_for_rows(copied) else _unrestricted
    states = {(near.number, near.table) for near, _ in _found(copied)}
    for near, query in _found(copied):
        source = near.source
        went = [removed(source)] if loses_rows.get(source) else []
        others = {after(source): [added(source)], before(source): went}
        if source in loses_rows and all((near.number, state) in states for state in others):
            query.replace(union([_over(query, kept(source)), *(part(query, each) for each in others[near.table])]))
    found = _found(copied)
    places = Counter(near.name for near, _ in found)
    for near, query in found:
        query.replace(select([exp.Star()], exp.table_(near.name)))
    return copied, {near.name: NearQuery(near, query, places[near.name]) for near, query in found}


def _found(rows: exp.Query) -> list[tuple[NearRows, exp.Select]]:
    return [(each.meta[_NEAR], each) for each in rows.find_all(exp.Select) if _NEAR in each.meta]


def _may_fail_for_rows(query: exp.Query) -> bool:
    """Whether what is computed from columns or groups may be an error."""
    return any(
        node.find(exp.Column, exp.AggFunc) and not any(map(may_fail, node.iter_expressions()))
        for node in query.walk()
        if fails_itself(node)
    )


def _over(query: exp.Select, table: str) -> exp.Select:
    copied = query.copy()
    copied.args["from_"].this.set("this", exp.to_identifier(table))
    return marked(copied, replace(query.meta[_NEAR], table=table))


def _unrestricted(query: exp.Select, table: str) -> exp.Select:
    copied = _over(query, table)
    copied.set("joins", None)
    copied.meta.pop(_NEAR)
    return copied
