"""Variants of a test: the first ones run every time, the others with the slow tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(variants: Iterable[Any], *, quick: int = 1) -> list[Any]:
    """``variants`` for ``pytest.mark.parametrize``; all but the first ``quick`` are marked as slow.

    A tuple has the values of several parameters.
    """
    every = [variant if isinstance(variant, tuple) else (variant,) for variant in variants]
    fast = [pytest.param(*values) for values in every[:quick]]
    return fast + [pytest.param(*values, marks=pytest.mark.slow) for values in every[quick:]]
