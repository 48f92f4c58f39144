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

    ``has_null`` is None where it isn't known. ``is_exact`` says that both bounds are values of rows and not only bounds
    of them.
    """

    lower: Bound | None
    upper: Bound | None
    has_null: bool | None = False
    is_exact: bool = False

    @property
    def holds_only_nulls(self) -> bool:
        """Whether no row has a value."""
        return self.is_exact and self.lower is None and self.upper is None

    @property
    def values(self) -> tuple[Bound | None, ...] | None:
        """Every value that occurs; None if that isn't known."""
        if self.holds_only_nulls:
            return (None,)
        if self.lower is None or self.lower != self.upper or self.has_null is None:
            return None
        return (self.lower, None) if self.has_null else (self.lower,)


@dataclass(frozen=True, slots=True)
class KeysFound:
    """The keys of a file's rows; None if they aren't known, which is neither none nor all.

    A key needn't have a partition. ``unmapped`` are values that have no key. If it isn't ``is_exact``, rows have no
    other keys than these, and may not have each of them. Where keys of several dimensions aren't known, ``dimensions``
    says what is known of each.
    """

    keys: frozenset[str] | None
    unmapped: tuple[str, ...] = ()
    is_exact: bool = True
    dimensions: tuple[KeysFound, ...] = ()

    @classmethod
    def unknown(cls, dimensions: tuple[KeysFound, ...] = ()) -> KeysFound:
        """Nothing is known, but of ``dimensions``."""
        return cls(None, is_exact=False, dimensions=dimensions)


NULL = "null"
"""A value that has no key in any partitioning, as it is shown."""


class PartitionKeys(Protocol):
    """Divides rows among keys by the values of ``columns``."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at."""

    @property
    def by_minute(self) -> tuple[str, ...]:
        """Those of them of whose times only the minute matters."""

    @property
    def division(self) -> str:
        """What a key means, as text: as long as it stays the same, so do the rows of a key, whatever keys there are."""

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        """The keys of a file's rows, from one span per column."""

    def of_values(self, rows: Collection[tuple[Bound | None, ...]]) -> KeysFound:
        """The keys of ``rows``, which have a value for each column; unknown if they have one of a type without keys."""

    def possible(self, found: KeysFound, keys: Collection[str]) -> frozenset[str]:
        """Those of ``keys`` that rows may have of which ``found`` is known."""

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        """The rows that have one of ``keys``; none for no key. It takes a row if and only if ``of_values`` says so."""

    def known(self) -> frozenset[str]:
        """Every key there is a partition of now."""

    def outside(self, keys: Collection[str]) -> frozenset[str]:
        """Those of ``keys`` that have no partition, now or ever, unless the definition is changed."""

    def landmarks(self) -> frozenset[str]:
        """What to remember of ``known``, so that it shows later whether any of it is gone."""

    def lacks_any(self, landmarks: Collection[str]) -> bool:
        """Whether of the partitions that there were, by the ``landmarks`` of then, any isn't there now."""

    def to_be_added(self, keys: Collection[str]) -> frozenset[str]:
        """Those of ``keys`` that get a partition when someone adds it; the others have one, or time will bring it."""


class Slicing(Protocol):
    """How the partitions of a consumer are made of an upstream's rows.

    The upstream's rows have keys of their own, its partitions', and each partition of the consumer takes some of them.
    """

    @property
    def upstream_keys(self) -> PartitionKeys:
        """How the upstream's rows are divided."""

    @property
    def division(self) -> str:
        """What the keys of the consumer's partitions mean, as the upstream's say it."""

    @property
    def sharing(self) -> frozenset[str]:
        """The partitions of the consumer there are now that may be made of keys of which others are made as well."""

    def taken_by(self, consumer_key: str) -> frozenset[str]:
        """The upstream's keys whose rows a partition of the consumer is made of."""

    def left_out(self, consumer_key: str, upstream_keys: Collection[str]) -> frozenset[str]:
        """Those of the upstream's keys without a partition yet that one of the consumer may take once they have one."""

    def made_of(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """The partitions of the consumer, of those there are now, that are made of rows with one of these keys."""

    def lost(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """Those of the upstream's keys that no partition of the consumer is made of, now or ever.

        Unless a partitions definition is changed.
        """
