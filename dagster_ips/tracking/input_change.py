"""What a writer must know of an input: what changed of it, and which of its frames the asset took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dagster_ips.core.ranges import Predicate
from dagster_ips.iceberg.partitions import AffectedPartitions
from dagster_ips.spark.changelog import added
from dagster_ips.spark.frames import distinct_keys
from dagster_ips.spark.session import DataFrame


class Frame(StrEnum):
    """A frame of a view, as an asset took it."""

    CHANGES = "changes"
    ADDED = "added"
    REMOVED = "removed"
    WEIGHTED = "weighted"
    CHANGELOG = "changelog"
    AFFECTED = "affected"
    SCOPE = "scope"
    SOURCE = "source"


_FRAGMENTS = (Frame.CHANGES, Frame.ADDED, Frame.REMOVED, Frame.WEIGHTED, Frame.CHANGELOG)


@dataclass(frozen=True)
class TakenFrame:
    """A frame that an asset took from a view, and the columns by which whole groups of rows are in it."""

    frame: Frame
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.frame}({', '.join(self.keys)})" if self.keys else self.frame


@dataclass(frozen=True)
class InputChange:
    """What a writer must know of one input: what changed, and which of it the result was made of.

    ``net`` are the added and removed rows with their weight, ``source`` the rows there are now; lazy, as every frame.
    ``pruning`` gives a condition that every row meets whose value of a column occurs in the change. ``is_bite`` says
    that the change is only some files of one, of which ``source`` has all.
    """

    upstream: str
    columns: tuple[str, ...]
    taken: tuple[TakenFrame, ...]
    is_empty: bool
    may_remove_rows: bool
    ignores_removed: bool
    net: DataFrame
    source: DataFrame
    partitions: AffectedPartitions | None
    pruning: Callable[[str], Predicate]
    is_bite: bool = False

    def has_no_change(self) -> bool:
        """Whether no row changed; runs a job only if files changed whose rows may all be as they were."""
        return self.is_empty or (self.may_remove_rows and self.net.isEmpty())

    @property
    def is_whole(self) -> bool:
        """Whether the result was made of every row, because which partitions changed can't be told."""
        return self.partitions is None and any(taken.frame is Frame.SCOPE for taken in self.taken)

    @property
    def groups(self) -> list[TakenFrame]:
        """The frames taken that hold whole groups of rows."""
        return [taken for taken in self.taken if taken.frame is Frame.AFFECTED]

    def made_of(self, keys: Sequence[str]) -> DataFrame:
        """The values of ``keys`` that rows of the result have if it keeps those columns as they are."""
        if self.fragments:
            return distinct_keys(added(self.net), keys)
        return distinct_keys(self.net if self.groups else self.source, keys)

    @property
    def fragments(self) -> list[TakenFrame]:
        """The frames taken that hold only changed rows, whatever they belong to."""
        return [taken for taken in self.taken if taken.frame in _FRAGMENTS]
