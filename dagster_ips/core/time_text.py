"""Times, and spans of time, as a person reads them."""

from __future__ import annotations

import datetime as dt


def moment(timestamp_ms: int | None) -> str:
    """The time to the second, in UTC; a question mark if it is unknown.

    Example:
        >>> moment(1767225600000)
        '2026-01-01T00:00:00Z'
    """
    if timestamp_ms is None:
        return "?"
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(milliseconds: int) -> str:
    """The span in the two largest units that it has.

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
