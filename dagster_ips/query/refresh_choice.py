"""Whether a run goes by what changed, or computes everything: what was asked for, and what costs less."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dagster_ips.query.maintenance_plan import Strategy


class Refresh(StrEnum):
    """How a table that is declared by its query is refreshed."""

    AUTO = "auto"
    """By what changed where that is known to be right and costs less than everything."""
    INCREMENTAL = "incremental"
    """By what changed where that is known to be right, whatever it costs."""
    STRICT = "strict"
    """By what changed, or the run fails."""
    FULL = "full"
    """Everything, each time."""


@dataclass(frozen=True, slots=True)
class SourceSize:
    """How many rows of a source changed, and how many it has; None where its metadata doesn't say."""

    changed_rows: int
    rows: int | None


_MOST = {Strategy.APPEND: 1.0, Strategy.COMBINE: 0.5, Strategy.KEYS: 0.2}
"""The share of changed rows up to which a strategy is taken to cost less than everything.

Each changed source adds a term that reads the other sources, rows that went one more, and affected keys make Spark
read sources twice.
"""


def why_full_is_cheaper(strategy: Strategy, sizes: Iterable[SourceSize]) -> str | None:
    """Why everything costs less than ``strategy``, by the sizes of the sources that changed; None if it doesn't.

    Example:
        >>> why_full_is_cheaper(Strategy.KEYS, [SourceSize(900, 1000)])
        'it would cost more than everything: 90% of the rows changed, and from 20% on all are computed'
        >>> why_full_is_cheaper(Strategy.COMBINE, [SourceSize(1, 1000)])
    """
    most = _MOST.get(strategy)
    if most is None:
        return None
    share = sum(min(1.0, size.changed_rows / size.rows) if size.rows else 1.0 for size in sizes)
    if share < most:
        return None
    return (
        f"it would cost more than everything: {share:.0%} of the rows changed, and from {most:.0%} on all are computed"
    )
