"""What partition keys mean, as text, and which upstream partitions were deleted before something was computed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_WITHOUT = " without "
_SUM = re.compile(_WITHOUT + r"[0-9a-f]{32}$")


def with_losses(losses: str, names: Iterable[str]) -> str:
    """``losses`` after upstream partitions with these ``names`` were deleted too; empty text stands for none.

    The order doesn't matter. A name that is deleted again counts again, so no former state ever comes back.

    Example:
        >>> once = with_losses("", ["b"])
        >>> with_losses(once, ["c"]) == with_losses("", ["c", "b"]), with_losses(once, ["b"]) in ("", once)
        (True, False)
    """
    each = (int.from_bytes(hashlib.sha256(name.encode()).digest()[:16]) for name in names)
    return f"{(int(losses or '0', 16) + sum(each)) % 2**128:032x}"


def divided(division: str, losses: str) -> str:
    """What keys mean by ``division``, for what is computed after ``losses``.

    Example:
        >>> divided("title by value", ""), divided("title by value", "0" * 32)
        ('title by value', 'title by value without 00000000000000000000000000000000')
    """
    return f"{division}{_WITHOUT}{losses}" if losses else division


def without_losses(division: str) -> str:
    """What keys mean, whatever was deleted before.

    Example:
        >>> without_losses(divided("title by value", with_losses("", ["b"])))
        'title by value'
    """
    return _SUM.sub("", division)


def says(text: str, division: str) -> bool:
    """Whether a JSON text contains ``division``, itself encoded, with any losses.

    Example:
        >>> [says(text, '"by": "title"') for text in ('{"by": "title"}', '{"by": "title of play"}')]
        [True, False]
        >>> says('{"by": "' + divided("title", with_losses("", ["b"])) + '"}', '"by": "title"')
        True
    """
    start = division.removesuffix('"') + _WITHOUT
    if division in text:
        return True
    found = text.find(start)
    return found >= 0 and re.match(r'[0-9a-f]{32}"', text[found + len(start) :]) is not None
