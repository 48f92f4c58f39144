"""Whether a run processes only what changed or computes everything: by what is requested and what costs less."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dagster_ips.query.maintenance_plan import Strategy


class Refresh(StrEnum):
    """How a table that is declared by its query is refreshed."""

    AUTO = "auto"
    """From what changed, where that is known to be correct and costs less than computing everything."""
    INCREMENTAL = "incremental"
    """From what changed, where that is known to be correct, whatever it costs."""
    STRICT = "strict"
    """From what changed; if that isn't possible, the run fails."""
    FULL = "full"
    """Everything, each time."""


@dataclass(frozen=True, slots=True)
class SourceSize:
    """How many rows of a source changed, and how many it has; None if its metadata doesn't say."""

    changed_rows: int
    rows: int | None


_MOST = {Strategy.APPEND: 1.0, Strategy.COMBINE: 0.5, Strategy.KEYS: 0.2}
"""The share of changed rows up to which a strategy is assumed to cost less than computing everything.

Each changed source adds a term that reads the other sources. With affected keys, Spark reads sources again, and their
rows with these keys are computed as they were and as they are.
"""
MOST_OF_KEYS = 0.1
"""The share of affected keys up to which that is assumed. Their rows may be in all files, and are kept in a cache."""


@dataclass(frozen=True, slots=True)
class PastRefresh:
    """What an earlier run did and for how many seconds it worked.

    ``share`` of its sources' ``rows`` had changed.
    """

    strategy: Strategy
    share: float
    rows: int
    seconds: float


def share_of_rows(sizes: Iterable[SourceSize]) -> float:
    """The sum of the shares of changed rows over the changed sources; 1 for a source of unknown size.

    It is rounded to four digits. Earlier runs' shares, which are in their metadata, are compared with it.

    Example:
        >>> share_of_rows([SourceSize(900, 1000), SourceSize(1, None)]), share_of_rows([SourceSize(2, 30_000)])
        (1.9, 6.667e-05)
    """
    share = sum(min(1.0, size.changed_rows / size.rows) if size.rows else 1.0 for size in sizes)
    return float(f"{share:.4g}")


def most_share(strategy: Strategy, *, is_by_keys: bool) -> float | None:
    """The share of changed rows at which computing everything is assumed to cost less; None for other strategies.

    ``is_by_keys`` says that it needs affected keys, as ``combine`` may.
    """
    return _MOST.get(Strategy.KEYS if is_by_keys else strategy)


def why_full_is_cheaper(
    strategy: Strategy,
    share: float,
    rows: int | None = None,
    past: Sequence[PastRefresh] = (),
    *,
    share_of_keys: float | None = None,
) -> str | None:
    """Why a full refresh costs less than ``strategy`` if ``share`` of all source ``rows`` changed; None if it doesn't.

    ``share_of_keys`` is the share of keys that are known to be affected; None if ``strategy`` needs no keys.

    Earlier runs of ``strategy`` decide, if one had no larger share of changed rows and was slower than a full refresh,
    or had no smaller share and wasn't slower. Their seconds are scaled up to the present number of rows. Otherwise, an
    estimate decides, see ``most_share`` and ``MOST_OF_KEYS``.

    Example:
        >>> print(why_full_is_cheaper(Strategy.KEYS, 0.9))
        it would cost more than a full refresh: 90% of the rows changed, summed over its sources, and the limit is 20%
        >>> print(why_full_is_cheaper(Strategy.KEYS, 0.01, share_of_keys=0.3))
        it would cost more than a full refresh: at least 30% of the keys are affected, and the limit is 10%
        >>> past = [PastRefresh(Strategy.FULL, 1, 1000, 30.0), PastRefresh(Strategy.KEYS, 0.95, 1000, 8.0)]
        >>> why_full_is_cheaper(Strategy.KEYS, 0.9, 1000, past)
    """
    most = most_share(strategy, is_by_keys=share_of_keys is not None)
    if most is None:
        return None
    took = [(run, run.seconds * max(1.0, (rows or 0) / max(1, run.rows))) for run in past]
    everything = [seconds for run, seconds in took if run.strategy is Strategy.FULL]
    if rows is not None and everything:
        best = min(everything)
        less = [(seconds, run) for run, seconds in took if run.strategy is strategy and run.share <= share]
        if less and min(seconds for seconds, _ in less) > best:
            seconds, run = min(less, key=lambda each: each[0])
            return (
                f"it would take more than {seconds:.0f} s, which it took when {run.share:.2%} of the rows had changed "
                f"({share:.2%} have now), and a full refresh about {best:.0f} s"
            )
        if any(run.strategy is strategy and run.share >= share and seconds <= best for run, seconds in took):
            return None
    if share >= most:
        what = f"{share:.0%} of the rows changed, summed over its sources"
    elif share_of_keys is not None and share_of_keys >= MOST_OF_KEYS:
        most = MOST_OF_KEYS
        what = f"at least {share_of_keys:.0%} of the keys are affected"
    else:
        return None
    return f"it would cost more than a full refresh: {what}, and the limit is {most:.0%}"
