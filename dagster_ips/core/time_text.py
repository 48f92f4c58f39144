"""Times as a person reads them."""

from __future__ import annotations

import datetime as dt


def moment(timestamp_ms: int | None) -> str:
    """To the second, in UTC; a question mark if it isn't known.

    Example:
        >>> moment(1767225600000)
        '2026-01-01T00:00:00Z'
    """
    if timestamp_ms is None:
        return "?"
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
