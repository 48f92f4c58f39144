"""Functions that functions of tests use from another module."""

from __future__ import annotations


def twice(value: int) -> int:
    return value * 2


def thrice(value: int) -> int:
    return value * 3
