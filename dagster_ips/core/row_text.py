"""A row's values, as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence


def row_text(columns: Sequence[str], values: Sequence[object]) -> str:
    """Each column and its value; strings in quotes, so that they differ from numbers.

    Example:
        >>> row_text(["day", "id", "title"], ["2026-01-05", 7, None])
        "day = '2026-01-05', id = 7, title is null"
    """
    return ", ".join(_one(column, value) for column, value in zip(columns, values, strict=True))


def _one(column: str, value: object) -> str:
    if value is None:
        return f"{column} is null"
    return f"{column} = {value!r}" if isinstance(value, str | bytes | bytearray) else f"{column} = {value}"
