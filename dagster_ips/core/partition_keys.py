"""How a table's rows belong to the partition keys of an asset, as far as files and SQL can tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dagster_ips.core.ranges import Bound, Predicate


class ColumnKind(StrEnum):
    """What a column's values are, as far as partition keys are made of them."""

    DATE = "date"
    TIMESTAMP = "timestamp without time zone"
    TIMESTAMPTZ = "timestamp with time zone"
    STRING = "string"
    OTHER = "another type"


@dataclass(frozen=True, slots=True)
class Span:
    """The values of a column in one file: from ``lower`` to ``upper``, None where that isn't known; maybe nulls.

    ``is_exact`` says that both are values of rows and not only bounds of them.
    """

    lower: Bound | None
    upper: Bound | None
    has_null: bool = False
    is_exact: bool = False

    @property
    def nulls(self) -> tuple[str, ...]:
        """The value that has no key in any partitioning, if it may occur."""
        return ("null",) if self.has_null else ()

    @property
    def holds_only_nulls(self) -> bool:
        """Whether no row has a value."""
        return self.is_exact and self.lower is None and self.upper is None


@dataclass(frozen=True, slots=True)
class KeysFound:
    """The keys that a file's rows may have; ``keys`` is None if any. ``unmapped`` are values that have no key."""

    keys: frozenset[str] | None
    unmapped: tuple[str, ...] = ()


class PartitionKeys(Protocol):
    """Divides rows among keys by the values of ``columns``."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at."""

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        """The keys of a file's rows, from one span per column."""

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        """The rows that have one of ``keys``; none for no key."""

    def known(self) -> frozenset[str]:
        """Every key there is now."""


class Slicing(Protocol):
    """How the partitions of a consumer are made of an upstream's rows.

    The upstream's rows have keys of their own, its partitions', and each partition of the consumer takes some of them.
    """

    @property
    def upstream_keys(self) -> PartitionKeys:
        """How the upstream's rows are divided."""

    def taken_by(self, consumer_key: str) -> frozenset[str]:
        """The upstream's keys whose rows a partition of the consumer is made of."""

    def made_of(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """The partitions of the consumer, of those there are now, that are made of rows with one of these keys."""

    def lost(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """Those of the upstream's keys that no partition of the consumer is made of, now or ever."""
