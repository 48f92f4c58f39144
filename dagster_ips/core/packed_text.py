"""Long texts in the few bytes that a database's column may be limited to."""

from __future__ import annotations

import base64
import zlib

_PACKED = "zlib:"
_LONG = 16_000


def packed(text: str) -> str:
    """``text``, compressed if it is long.

    >>> packed("short"), unpacked(packed("long" * 10_000)) == "long" * 10_000
    ('short', True)
    """
    return text if len(text) <= _LONG else _PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked(text: str) -> str:
    """The text that ``packed`` was given.

    Raises:
        ValueError: it is damaged.
    """
    content = text.removeprefix(_PACKED)
    if content == text:
        return text
    try:
        return zlib.decompress(base64.b64decode(content)).decode()
    except zlib.error as error:
        raise ValueError(str(error)) from error
