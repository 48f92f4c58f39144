"""Spans of time and tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def age(milliseconds: int) -> str:
    """In the two largest units that it has.

    Example:
        >>> age(45_000), age(3_720_000), age(200_000_000)
        ('45 s', '1 h 2 min', '2 d 7 h')
    """
    left, parts = max(0, milliseconds // 1000), []
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be.

    Example:
        >>> print(table(("A", "B"), [("long", "x")]))
        A     B
        long  x
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (headings, *rows)]
    return "\n".join(line.rstrip() for line in lines)
