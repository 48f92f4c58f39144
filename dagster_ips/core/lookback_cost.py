"""What rewriting a table cost, by its history, and what following the change would have cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class CommitCost:
    """What one commit wrote. ``bytes_in_changed`` are the bytes of its files in partitions that it really changed."""

    timestamp_ms: int
    rows_added: int
    rows_removed: int
    bytes_added: int
    bytes_in_changed: int

    @property
    def bytes_of_net_rows(self) -> int:
        """The bytes of the rows that it added beyond those that it removed, at the average size of its rows."""
        net = max(0, self.rows_added - self.rows_removed)
        return round(self.bytes_added * net / self.rows_added) if self.rows_added else 0


@dataclass(frozen=True, slots=True)
class LookbackCost:
    """What was written to a table in ``days``, and how much of it was new.

    At least the net new rows were new: ``bytes_new_at_least``. At most everything written to partitions that really
    changed, by the sizes and statistics of their files, was new: ``bytes_new_at_most``. Rows that an overwrite changed
    in place are only in the latter. ``unknown`` counts the commits of which nothing is known; they are in ``commits``,
    but in none of the other numbers.
    """

    days: float
    commits: int
    overwrites: int
    unknown: int
    bytes_written: int
    bytes_new_at_least: int
    bytes_new_at_most: int

    @property
    def bytes_written_per_day(self) -> float:
        """The bytes written per day, on average."""
        return self.bytes_written / self.days

    @property
    def saved(self) -> tuple[float, float] | None:
        """The least and the greatest share of the bytes that following the change would have saved; None without any.

        Example:
            >>> LookbackCost(1.0, 1, 1, 0, 100, 5, 20).saved
            (0.8, 0.95)
        """
        if not self.bytes_written:
            return None
        at_most, at_least = (self.bytes_written - new for new in (self.bytes_new_at_least, self.bytes_new_at_most))
        return at_least / self.bytes_written, at_most / self.bytes_written


def lookback_cost(commits: Sequence[CommitCost], *, unknown: int) -> LookbackCost:
    """The cost of commits, newest first. A history shorter than a day counts as one day; no commits, no bytes."""
    span = commits[0].timestamp_ms - commits[-1].timestamp_ms if commits else 0
    return LookbackCost(
        days=max(1.0, span / _DAY_MS),
        commits=len(commits) + unknown,
        overwrites=sum(each.rows_removed > 0 for each in commits),
        unknown=unknown,
        bytes_written=sum(each.bytes_added for each in commits),
        bytes_new_at_least=sum(each.bytes_of_net_rows for each in commits),
        bytes_new_at_most=sum(each.bytes_in_changed for each in commits),
    )


def total(costs: Iterable[LookbackCost]) -> LookbackCost:
    """The cost of several tables together, over the longest of their histories."""
    every = list(costs)
    return LookbackCost(
        days=max((each.days for each in every), default=1.0),
        commits=sum(each.commits for each in every),
        overwrites=sum(each.overwrites for each in every),
        unknown=sum(each.unknown for each in every),
        bytes_written=sum(each.bytes_written for each in every),
        bytes_new_at_least=sum(each.bytes_new_at_least for each in every),
        bytes_new_at_most=sum(each.bytes_new_at_most for each in every),
    )
