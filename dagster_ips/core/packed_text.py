"""Long texts in few bytes: compressed, or as a digest that only tells whether two of them differ."""

from __future__ import annotations

import base64
import hashlib
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


def digest(text: str) -> str:
    """A short text that differs if ``text`` does. It is the same in every release, because tables and cursors keep it.

    >>> digest("a"), digest("b") == digest("a")
    ('1ba3c523e770f3313cc91ab1', False)
    """
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
