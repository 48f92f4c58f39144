"""A table's name in a catalog: its parts, and the one text that stands for them.

Table names are stored in the form of ``name_of`` everywhere, so that equal tables have equal names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dagster_ips.core.ranges import quoted

_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
"""As in Spark SQL: between backquotes, where a backquote is written twice; or as it is, without dot and backquote."""


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name: all but the last are the namespace.

    Raises:
        ValueError: a part is empty, or its backquotes don't match.

    Example:
        >>> parts_of("media.playback"), parts_of("media.`my.table`"), parts_of("media.`odd``name`")
        (('media', 'playback'), ('media', 'my.table'), ('media', 'odd`name'))
    """
    parts: list[str] = []
    at = 0
    while found := _PART.match(name, at):
        quoted, plain = found.groups()
        parts.append(quoted.replace("``", "`") if quoted is not None else plain)
        at = found.end() + 1
        if name[found.end() : at] != ".":
            break
    if at != len(name) + 1:
        message = f"{name!r} has an empty part or an unmatched backquote"
        raise ValueError(message)
    return tuple(parts)


def name_of(parts: Sequence[str]) -> str:
    """The name with those parts, in backquotes where they need it.

    Example:
        >>> name_of(["media", "playback"]), name_of(["media", "my.table"])
        ('media.playback', 'media.`my.table`')
    """
    return ".".join(quoted(part) if {".", "`"} & set(part) else part for part in parts)


def namespace_of(name: str) -> str:
    """A table's name without its last part.

    Example:
        >>> namespace_of("media.playback"), namespace_of("media.`my.table`")
        ('media', 'media')
    """
    return name_of(parts_of(name)[:-1])
