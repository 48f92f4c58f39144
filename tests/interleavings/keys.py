"""Partitions by the value of a column; people add some in the course of a life."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dagster_ips.core.partition_keys import ColumnKind, KeysFound, PartitionKeys, Span
from dagster_ips.core.ranges import Bound, Predicate


@dataclass(frozen=True)
class KeysByValue(PartitionKeys):
    """As Dagster's dynamic partitions: ``there`` are those that have been added."""

    there: frozenset[str]

    @property
    def columns(self) -> tuple[str, ...]:
        return ("key",)

    @property
    def division(self) -> str:
        return "key by value"

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        (span,) = spans
        return KeysFound.unknown() if span.values is None else self.of_values([(value,) for value in span.values])

    def of_values(self, rows: Collection[tuple[Bound | None, ...]]) -> KeysFound:
        return KeysFound(frozenset(str(value) for (value,) in rows))

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:  # noqa: ARG002  # as in the base class
        return f"key IN ({', '.join(sorted(keys))})"

    def extent(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> tuple[Span, ...]:  # noqa: ARG002  # as in the base class
        return (Span(None, None, has_null=None),)

    def known(self) -> frozenset[str]:
        return self.there

    def outside(self, keys: Collection[str]) -> frozenset[str]:  # noqa: ARG002  # as in the base class
        return frozenset()

    def landmarks(self) -> frozenset[str]:
        return self.there

    def lacks_any(self, landmarks: Collection[str]) -> bool:
        return not self.there.issuperset(landmarks)

    def to_be_added(self, keys: Collection[str]) -> frozenset[str]:
        return frozenset(keys) - self.there
