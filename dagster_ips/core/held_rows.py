"""Where a table may hold rows, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Those of the requested partitions of which a table may hold rows: ``partitions``. It holds none of the others.

    ``most`` is how many rows it holds in them at most; None if that is unknown.
    """

    partitions: Sequence[tuple[object, ...]]
    most: int | None
