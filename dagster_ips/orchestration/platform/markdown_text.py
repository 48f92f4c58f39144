"""Text from elsewhere in metadata that the UI shows as Markdown."""

from __future__ import annotations

import re

_MARKS = re.compile(r"[\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w)")
_BREAKS = re.compile(r"\s+")


def escaped(text: str) -> str:
    r"""Escape ``text`` so that Markdown shows it literally, on one line.

    Partition keys, and what others wrote into their snapshots, may contain anything: a link, a table, HTML.

    Example:
        >>> print(escaped("2026-01-03"), escaped("event_date"), escaped("[a](http://b)"), escaped("<b>\n- c"))
        2026-01-03 event_date \[a\](http://b) \<b\> - c
    """
    return _MARKS.sub(r"\\\g<0>", _BREAKS.sub(" ", text))
