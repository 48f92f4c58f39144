"""What runs record in a table's properties about its rows, because the snapshots that also say it expire.

Each fact has a name and a value, and the mark of ``main``'s head when a run was about to publish with that value for
the first time. So the value holds for everything that was published after that mark, and not for what came before.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from dagster_ips.core.capture import TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.target import is_older
from dagster_ips.iceberg.metadata import TableMetadata

DECLARED = "declared"
CODE = "code"
_PREFIX = "dagster-ips.since."


@dataclass(frozen=True, slots=True)
class LastingFact:
    """``value`` holds for all that was published after the mark ``since``; for everything if there is no mark."""

    value: str | None
    since: TargetMark | None

    def holds_for(self, published: TargetMark | None) -> bool:
        """Whether it holds for rows that were last published with the snapshot ``published``; None if unknown.

        Example:
            >>> fact = LastingFact("append()", TargetMark("9d0c", 1, 1, 1))
            >>> [fact.holds_for(TargetMark("9d0c", n, n, n)) for n in (1, 2)], fact.holds_for(None)
            ([False, True], False)
        """
        return self.since is None or (published is not None and is_older(self.since, published))


def division_of(line: Edge) -> str:
    """The name of the fact what the partition keys of ``line`` mean; its value is None without partitions."""
    return f"division.{line.id}"


def lasting_fact(metadata: TableMetadata, name: str) -> LastingFact | None:
    """The fact as it was last recorded; None if it never was."""
    text = metadata.properties.get(_PREFIX + name)
    if text is None:
        return None
    value, since = json.loads(text)
    return LastingFact(value, TargetMark(*since) if since else None)


def fact_properties(
    metadata: TableMetadata, name: str, value: str | None, *, held_before: bool = True
) -> dict[str, str]:
    """Table properties that record ``value`` for what is published from now on; empty if that is recorded already.

    Of a fact that was never recorded, ``held_before`` says whether nothing is known to contradict it.
    """
    known = lasting_fact(metadata, name)
    if known is not None and known.value == value:
        return {}
    since = None if known is None and held_before else head_mark(metadata)
    return {_PREFIX + name: json.dumps([value, astuple(since) if since else None], ensure_ascii=False)}


def head_mark(metadata: TableMetadata) -> TargetMark | None:
    """The mark of the head of ``main``; None if there is none."""
    head = metadata.ancestry().head
    if head is None:
        return None
    return TargetMark(
        metadata.uuid, head.snapshot_id, head.sequence_number, head.timestamp_ms, schema_id=head.schema_id
    )
