"""Times and tables as text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence


def moment(timestamp_ms: int | None) -> str:
    """To the second, in UTC; a question mark if it isn't known.

    Example:
        >>> moment(1767225600000)
        '2026-01-01T00:00:00Z'
    """
    if timestamp_ms is None:
        return "?"
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
