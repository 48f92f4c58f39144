"""Where a table may hold rows, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldRows:
    """The ``partitions`` that a table may hold rows of, of those that were asked for; of the others it has none.

    ``most`` is how many rows it holds in them at most; None if that is unknown.
    """

    partitions: Sequence[tuple[object, ...]]
    most: int | None
