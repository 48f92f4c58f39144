"""Tables, watermarks and JSON as text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dagster_ips.core.time_text import moment
from dagster_ips.core.watermark import Watermark


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text, with columns as wide as necessary.

    Example:
        >>> print(table(("A", "B"), [("long", "x")]))
        A     B
        long  x
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (headings, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def json_text(value: object) -> str:
    """JSON that people can read, too."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def moment_json(timestamp_ms: int | None) -> str | None:
    """The time as JSON; null if it is unknown."""
    return None if timestamp_ms is None else moment(timestamp_ms)


def at_text(at: Watermark | None) -> str:
    """The snapshot consumed up to, and its time."""
    return f"{at.snapshot_id} ({moment(at.timestamp_ms)})" if at else "nothing"


def at_json(at: Watermark | None) -> dict[str, str] | None:
    """The same as JSON."""
    return {"snapshot_id": str(at.snapshot_id), "at": moment(at.timestamp_ms)} if at else None
