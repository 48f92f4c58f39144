"""Variants of a test: the first ones run every time, the others with the slow tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def mostly_slow(variants: Iterable[Any], *, quick: int = 1) -> Iterator[Any]:
    """``variants`` for ``pytest.mark.parametrize``; all but the first ``quick`` are marked as slow.

    A tuple has the values of several parameters.
    """
    for number, variant in enumerate(variants):
        values = variant if isinstance(variant, tuple) else (variant,)
        yield pytest.param(*values, marks=[] if number < quick else pytest.mark.slow)
