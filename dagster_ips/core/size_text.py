"""Sizes, counts and lists as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence


def size_text(size_bytes: int) -> str:
    """The size in the largest unit in which it is at least 1.

    Example:
        >>> size_text(999), size_text(5_923_842)
        ('999 B', '5.9 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"


def counted(count: int, thing: str) -> str:
    """How many there are of a thing whose plural ends in s.

    Example:
        >>> counted(1, "file"), counted(1_200, "row")
        ('1 file', '1,200 rows')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """The first ``most`` of ``names``, and whether there are more.

    Example:
        >>> listed(["a", "b"], 2), listed(["a", "b", "c"], 2)
        ('a, b', 'a, b, …')
    """
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
