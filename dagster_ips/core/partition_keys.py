"""Which partition keys of an asset the rows of a table have, as far as files and SQL show it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dagster_ips.core.ranges import Bound, Predicate, extreme


class ColumnKind(StrEnum):
    """The kind of a column's values, as far as it matters for partition keys."""

    DATE = "date"
    TIMESTAMP = "timestamp without time zone"
    TIMESTAMPTZ = "timestamp with time zone"
    STRING = "string"
    OTHER = "another type"


@dataclass(frozen=True, slots=True)
class Span:
    """The values of a column in one file: from ``lower`` to ``upper`` (None if unknown), and maybe nulls.

    ``has_null`` is None if unknown. ``is_exact`` says that both bounds are values of rows, not only limits.
    """

    lower: Bound | None
    upper: Bound | None
    has_null: bool | None = False
    is_exact: bool = False

    @classmethod
    def around(cls, spans: Sequence[Span]) -> Span:
        """The smallest span that holds all values of ``spans``, of which there must be at least one.

        Example:
            >>> Span.around([Span(1, 3), Span(5, 9), Span(None, None, has_null=True, is_exact=True)])
            Span(lower=1, upper=9, has_null=None, is_exact=False)
        """
        valued = [each for each in spans if not each.holds_only_nulls]
        if not valued:
            return spans[0]
        lower, upper = extreme(min, [each.lower for each in valued]), extreme(max, [each.upper for each in valued])
        return cls(lower, upper, has_null=False if all(each.has_null is False for each in spans) else None)

    @property
    def holds_only_nulls(self) -> bool:
        """Whether no row has a value."""
        return self.is_exact and self.lower is None and self.upper is None

    @property
    def values(self) -> tuple[Bound | None, ...] | None:
        """Every value that occurs; None if that is unknown."""
        if self.holds_only_nulls:
            return (None,)
        if self.lower is None or self.lower != self.upper or self.has_null is None:
            return None
        return (self.lower, None) if self.has_null else (self.lower,)

    def may_meet(self, other: Span) -> bool:
        """Whether a value, other than null, may be in both; so it is on a side where one of them is open."""
        ends = ((self.lower, other.upper), (other.lower, self.upper))
        return all(lower is None or upper is None or lower <= upper for lower, upper in ends)  # type: ignore[operator]  # of one column

    def may_share(self, other: Span) -> bool:
        """As ``may_meet``, but null is a value like any other.

        Example:
            >>> Span(1, 3).may_share(Span(4, 9)), Span(1, 3, has_null=None).may_share(Span(4, 9, has_null=True))
            (False, True)
        """
        if self.has_null is not False and other.has_null is not False:
            return True
        return not (self.holds_only_nulls or other.holds_only_nulls) and self.may_meet(other)


@dataclass(frozen=True, slots=True)
class KeysFound:
    """The keys of a file's rows; None if they are unknown, which means neither no key nor every key.

    A key needn't have a partition. ``unmapped`` are values that have no key. If ``is_exact`` is False, the rows have no
    other keys than these, but there may be no row with some of them. If keys of several dimensions are unknown,
    ``dimensions`` says what is known of each.
    """

    keys: frozenset[str] | None
    unmapped: tuple[str, ...] = ()
    is_exact: bool = True
    dimensions: tuple[KeysFound, ...] = ()

    @classmethod
    def unknown(cls, dimensions: tuple[KeysFound, ...] = ()) -> KeysFound:
        """The keys if nothing is known, except about ``dimensions``."""
        return cls(None, is_exact=False, dimensions=dimensions)


NULL = "null"
"""How the value null is shown, which has no key in any partitioning."""


class PartitionKeys(Protocol):
    """Divides rows among keys by the values of ``columns``. By default, nobody adds or deletes partitions."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose values decide the key."""

    @property
    def by_minute(self) -> tuple[str, ...]:
        """Those of ``columns`` whose times matter only to the minute."""
        return ()

    @property
    def division(self) -> str:
        """What a key means, as text: while it stays the same, a key has the same rows, whatever keys there are."""

    def of_file(self, spans: Sequence[Span]) -> KeysFound:
        """The keys of a file's rows, from one span per column."""

    def of_values(self, rows: Collection[tuple[Bound | None, ...]]) -> KeysFound:
        """The keys of ``rows``, which have a value for each column; unknown if a value's type can't have keys."""

    def possible(self, found: KeysFound, keys: Collection[str]) -> frozenset[str]:
        """Those of ``keys`` that rows may have, given what was ``found`` of them."""
        return frozenset(keys) if found.keys is None else found.keys & frozenset(keys)

    def predicate(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> Predicate:
        """The condition for rows that have one of ``keys``, exactly as ``of_values`` says; without keys, for no row."""

    def extent(self, keys: Collection[str], kinds: Mapping[str, ColumnKind]) -> tuple[Span, ...]:
        """For each column, between which values the rows are that have one of ``keys``; open where it is unknown."""

    def known(self) -> frozenset[str]:
        """Every key that has a partition now."""

    def outside(self, keys: Collection[str]) -> frozenset[str]:
        """Those of ``keys`` that have no partition and never will, unless the definition is changed."""

    def landmarks(self) -> frozenset[str]:
        """What to remember of ``known`` in order to see later whether any of these keys is gone."""

    def lacks_any(self, landmarks: Collection[str]) -> bool:
        """Whether any of the partitions that existed when the ``landmarks`` were taken is gone now."""

    def deleted(self, landmarks: Collection[str]) -> frozenset[str]:  # noqa: ARG002  # where nothing is deleted
        """Those of the ``landmarks`` that stand for partitions by name that have been deleted since."""
        return frozenset()

    def added(self, keys: Collection[str], landmarks: Collection[str]) -> frozenset[str]:  # noqa: ARG002  # as above
        """Those of ``keys`` whose partitions someone has added by name since the ``landmarks`` were taken."""
        return frozenset()

    def to_be_added(self, keys: Collection[str]) -> frozenset[str]:  # noqa: ARG002  # where nothing is added
        """Those of ``keys`` that get a partition only when someone adds it; others have one, or will as time passes."""
        return frozenset()


class Slicing(Protocol):
    """How the partitions of a consumer are computed from an upstream's rows.

    The upstream's rows have the keys of the upstream's partitions, and each partition of the consumer takes the rows of
    some of these keys.
    """

    @property
    def upstream_keys(self) -> PartitionKeys:
        """How the upstream's rows are divided."""

    @property
    def division(self) -> str:
        """What the keys of the consumer's partitions and those of the upstream's rows mean, as text.

        While it stays the same, the rows of a partition are computed from the same rows.
        """

    @property
    def sharing(self) -> frozenset[str]:
        """The present partitions of the consumer that may be computed from keys that other partitions use too."""

    def taken_by(self, consumer_key: str) -> frozenset[str]:
        """The upstream's keys from whose rows a partition of the consumer is computed."""

    def made_of(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """The present partitions of the consumer that are computed from rows with one of these keys."""

    def made_of_each(self, upstream_keys: Collection[str]) -> Mapping[str, frozenset[str]]:
        """As ``made_of``, for each of the keys by itself."""

    def lost(self, upstream_keys: Collection[str]) -> frozenset[str]:
        """Those of the upstream's keys that no partition of the consumer uses now or will use later.

        This holds unless a partitions definition is changed.
        """


def taken_by_any(slicing: Slicing, keys: Iterable[str]) -> frozenset[str]:
    """The upstream's keys from whose rows any of the partitions ``keys`` of the consumer is computed."""
    return frozenset[str]().union(*map(slicing.taken_by, keys))
