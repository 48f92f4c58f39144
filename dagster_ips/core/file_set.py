"""What is consumed of a change that is taken in several bites.

A snapshot's manifest list and manifests never change, so they list its data files in an order that never changes. A
single number therefore says which data files are consumed, however many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_ips.core.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Bite:
    """Files ``[first, end)`` of the ``total`` that a change has, in the order in which its snapshot lists them."""

    first: int
    end: int
    total: int

    @property
    def is_last(self) -> bool:
        """Whether nothing of the change is left after it."""
        return self.end >= self.total

    def __str__(self) -> str:
        return f"files {self.first + 1:,} to {self.end:,} of {self.total:,}"


@dataclass(frozen=True, slots=True)
class FileSet:
    """The first ``taken`` of the ``total`` files of a change up to ``to_inclusive`` are consumed.

    Example:
        >>> FileSet(Watermark("9d0c", "main", 8412, 7, 1767225600000), taken=100, total=10_000).left
        9900
    """

    to_inclusive: Watermark
    taken: int
    total: int

    @property
    def left(self) -> int:
        """How many files of the change aren't consumed."""
        return self.total - self.taken


def consumed_after(
    from_exclusive: Watermark | None, to_inclusive: Watermark | None, bite: Bite | None
) -> tuple[Watermark | None, FileSet | None]:
    """The watermark, and what is consumed beyond it, once ``(from, to]`` or a ``bite`` of it is consumed."""
    if to_inclusive is None or bite is None or bite.is_last:
        return to_inclusive, None
    return from_exclusive, FileSet(to_inclusive, bite.end, bite.total)
