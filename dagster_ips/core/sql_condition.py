"""What the text of a SQL condition shows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator


def mentions(condition: str, columns: Iterable[str]) -> Iterator[str]:
    """The names of ``columns``, in any case, that ``condition`` contains, as spelled there; even if in a literal.

    Example:
        >>> list(mentions("`event_date` >= DATE '2026-01-03' AND Account = 'a'", ["account", "event", "event_date"]))
        ['Account', 'event_date']
    """
    text = condition.replace("``", "`")
    for name in columns:
        yield from re.findall(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)


def mentions_only(condition: str, columns: Collection[str], *, of: Iterable[str]) -> bool:
    """Whether every column ``of`` a table that ``condition`` contains is one of ``columns``, spelled the same way.

    Example:
        >>> mentions_only("event_date >= DATE '2026-01-03'", ["event_date"], of=["event_date", "account"])
        True
        >>> mentions_only("event_date >= '2026-01-03' OR account IS NULL", ["event_date"], of=["event_date", "account"])
        False
    """
    return all(name in columns for name in mentions(condition, of))
