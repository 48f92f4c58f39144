"""Keys of the rows that a query groups, for changes that the query over the changed rows alone doesn't show.

The result needn't have these keys. Of the rows that are grouped, those that now have an affected key count as added,
and those that had one before count as removed. Both are combined into the groups, and unchanged rows cancel out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from dagster_ips.query.affected_keys import AffectedReach
from dagster_ips.query.query_tree import Role, Scan, SelectBlock, linked


def body_keys(block: SelectBlock, scans: Sequence[Scan], reach: AffectedReach) -> dict[exp.Column, str]:
    """Columns that every changed place has itself, each with a name for the key.

    Empty if the query groups by one of them: recomputing whole groups is then as cheap.
    """
    equal = linked((each.left, each.right) for each in block.equalities if each.owner is None)
    found: dict[exp.Column, None] = {}
    for column in dict.fromkeys(_candidates(block)):
        if all(reach.has_itself(block, scan, column) for scan in scans):
            if column in block.group:
                return {}
            if not any(each in found for each in equal.get(column, ())):
                found[column] = None
    return {column: f"ips_key_{place}" for place, column in enumerate(found)}


def _candidates(block: SelectBlock) -> Iterator[exp.Column]:
    """Columns of relations in every row: those in equalities, and plain columns of inner queries with a key's type."""
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
