"""Which of a table's keys or partitions a proof checks: the same ones every time for the same seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Value = TypeVar("_Value")
_LEAST = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """A ``share`` above 0 and up to 1, and the ``seed`` that decides which values are in it."""

    share: float
    seed: int

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.share >= 1

    def at_least(self, rows: int, *, of: int | None) -> Sample:
        """A share that gives at least about ``rows`` of the ``of`` rows of a table; unchanged if these are unknown.

        Example:
            >>> Sample(0.01, seed=7).at_least(1000, of=4000).share, Sample(0.01, seed=7).at_least(1000, of=900).share
            (0.25, 1.0)
        """
        return self if of is None else Sample(max(self.share, min(1.0, rows / of)) if of else 1.0, self.seed)

    def of(self, values: Collection[_Value], recent: Collection[_Value]) -> list[_Value]:
        """The share of ``values``, rounded up and at least two; half of them from ``recent``, as far as there are any.

        No values give none. The order is stable.

        Example:
            >>> Sample(0.01, seed=7).of(range(100), recent={98, 99}) == Sample(0.01, seed=7).of(range(100), {99, 98})
            True
        """
        shuffled = self._shuffled(values)
        count = max(_LEAST, math.ceil(self.share * len(shuffled)))
        if count >= len(shuffled):
            return sorted(shuffled, key=repr)
        first = [value for value in shuffled if value in recent][: (count + 1) // 2]
        others = [value for value in shuffled if value not in first]
        return sorted([*first, *others[: count - len(first)]], key=repr)

    def within(self, *, chosen: int, of: int) -> Sample:
        """The share to take of the rows in ``chosen`` of ``of`` partitions, so that it is this share of all rows."""
        return Sample(min(1.0, self.share * of / chosen) if chosen else 1.0, self.seed)

    def _shuffled(self, values: Collection[_Value]) -> Sequence[_Value]:
        return sorted(values, key=lambda value: (_hash(self.seed, value), repr(value)))


def _hash(seed: int, value: object) -> bytes:
    return hashlib.blake2b(f"{seed} {value!r}".encode(), digest_size=8).digest()
