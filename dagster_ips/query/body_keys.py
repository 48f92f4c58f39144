"""Keys of the rows that a query groups, by which a change is told that the query over changed rows doesn't tell.

The result needn't have such keys. Of the rows that are grouped, those with an affected key as they are now came, and
those as they were went: groups take both, and rows that stayed the same cancel out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from dagster_ips.query.affected_keys import AffectedReach
from dagster_ips.query.query_tree import Role, Scan, SelectBlock


def body_keys(block: SelectBlock, scans: Sequence[Scan], reach: AffectedReach) -> dict[exp.Column, str]:
    """Columns that every place that changed has itself, and what they are called.

    None if the groups have one of them: then whole groups are as little.
    """
    found: list[exp.Column] = []
    for column in dict.fromkeys(_candidates(block)):
        if all(reach.has_itself(block, scan, column) for scan in scans):
            if column in block.group:
                return {}
            if not any(_are_equal(block, column, each) for each in found):
                found.append(column)
    return {column: f"ips_key_{place}" for place, column in enumerate(found)}


def _candidates(block: SelectBlock) -> Iterator[exp.Column]:
    """Columns of relations that are there in every row: those that equalities name, and what inner queries group by."""
    for equality in block.equalities:
        for column in (equality.left, equality.right):
            relation = block.relation(column.table)
            if relation is not None and relation.role is Role.INNER:
                yield column
    for relation in block.relations:
        if relation.role is Role.INNER and isinstance(node := relation.node, SelectBlock):
            for name, selected in zip(node.names, node.tree.selects, strict=True):
                if selected.unalias().meta.get("kind"):
                    yield exp.column(name, relation.alias)


def _are_equal(block: SelectBlock, one: exp.Column, other: exp.Column) -> bool:
    return any(
        equality.owner is None and {equality.left, equality.right} == {one, other} for equality in block.equalities
    )
