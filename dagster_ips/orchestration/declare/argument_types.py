"""Refuses arguments of the wrong type where they are given: elsewhere, nobody could tell which one it was."""

from __future__ import annotations

import datetime as dt
from typing import TypeGuard

from dagster_ips.errors import DeclarationError


def require_text(value: object, parameter: str, *, of: str) -> None:
    """Fail unless an argument of the declaration ``of`` is text.

    Raises:
        DeclarationError: it isn't.
    """
    if not isinstance(value, str):
        raise DeclarationError(asset=of, problem=f"{parameter}={value!r} isn't text.", remedy="Give a string.")


def require_duration(value: object, parameter: str, *, of: str) -> None:
    """Fail unless an argument of the declaration ``of`` is a duration.

    Raises:
        DeclarationError: it isn't.

    Example:
        >>> require_duration(30, "max_wait", of="on_change()")
        Traceback (most recent call last):
        ...
        dagster_ips.errors.declaration_errors.DeclarationError: on_change(): max_wait=30 isn't a duration. Give a
        datetime.timedelta, such as timedelta(minutes=10).
    """
    if not isinstance(value, dt.timedelta):
        problem = f"{parameter}={value!r} isn't a duration."
        remedy = "Give a datetime.timedelta, such as timedelta(minutes=10)."
        raise DeclarationError(asset=of, problem=problem, remedy=remedy)


def is_whole_number(value: object) -> TypeGuard[int]:
    """Whether it is an integer, which a boolean is only to Python."""
    return isinstance(value, int) and not isinstance(value, bool)
