"""What runs record in a table's properties about its rows, because the snapshots that also say it expire.

Each fact has a name and a value, and the mark of ``main``'s head when a run was about to publish with that value for
the first time. So the value holds for everything that was published after that mark, and not for what came before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
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
    uuid, value, since = json.loads(metadata.properties.get(_PREFIX + name, "[null, null, null]"))
    # A table that was created again from its own DDL has the properties of the one before.
    return LastingFact(value, TargetMark(*since) if since else None) if uuid == metadata.uuid else None


def fact_properties(
    metadata: TableMetadata, name: str, value: str | None, *, held_before: bool = True
) -> dict[str, str]:
    """Table properties that record ``value`` for what is published from now on; empty if that is recorded already.

    ``held_before`` says whether nothing that was published since it was recorded, or ever if it never was, is known to
    contradict it. A run may do so that was at work when another announced a new value and then was killed.
    """
    known = lasting_fact(metadata, name)
    if known is not None and known.value == value and held_before:
        return {}
    return _recorded(metadata, name, value, since=None if known is None and held_before else head_mark(metadata))


def renewed_facts(metadata: TableMetadata, properties: Iterable[str]) -> dict[str, str]:
    """Those of the table's ``properties`` that are facts, as if they were recorded for the first time now.

    For a run that recorded them and then could not publish, because another run published something else meanwhile.
    """
    found: dict[str, str] = {}
    for name in [each.removeprefix(_PREFIX) for each in properties if each.startswith(_PREFIX)]:
        if fact := lasting_fact(metadata, name):
            found |= _recorded(metadata, name, fact.value, since=head_mark(metadata))
    return found


def _recorded(metadata: TableMetadata, name: str, value: str | None, *, since: TargetMark | None) -> dict[str, str]:
    text = json.dumps([metadata.uuid, value, astuple(since) if since else None], ensure_ascii=False)
    return {_PREFIX + name: text}


def head_mark(metadata: TableMetadata) -> TargetMark | None:
    """The mark of the head of ``main``; None if there is none."""
    head = metadata.ancestry().head
    return TargetMark.at(head, metadata.uuid) if head else None
