"""Which ICDC tables of an edge are kept, and which are dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from dagster_ips.errors import RetentionError


@dataclass(frozen=True, slots=True)
class Retention:
    """How many captures of an edge keep their ICDC tables, and for how long at most.

    Raises:
        RetentionError: ``keep_last`` is less than 1, or ``max_age`` isn't positive.
    """

    keep_last: int = 10
    max_age: timedelta = timedelta(days=30)

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            remedy = "Keep at least 1 capture: the newest is never dropped."
            raise RetentionError(setting="keep_last", found=str(self.keep_last), remedy=remedy)
        if self.max_age <= timedelta():
            remedy = "Give an age above 0: the newest capture is kept at any age."
            raise RetentionError(setting="max_age", found=str(self.max_age), remedy=remedy)

    @classmethod
    def of_days(cls, keep_last: int, max_age_days: float) -> Retention:
        """The retention with an age in days, as the settings have it.

        Raises:
            RetentionError: as for the class, or ``max_age_days`` is out of the range of a timedelta.
        """
        try:
            max_age = timedelta(days=max_age_days)
        except (OverflowError, ValueError) as error:
            remedy = f"Give a number of days up to {timedelta.max.days}."
            raise RetentionError(setting="max_age", found=f"{max_age_days} days", remedy=remedy) from error
        return cls(keep_last, max_age)

    def is_young(self, tables: Iterable[IcdcTable], *, now_ms: int) -> bool:
        """Whether the newest of a capture's ``tables`` is within ``max_age``; not so without tables."""
        longest_ms = self.max_age / timedelta(milliseconds=1)
        return any(now_ms - table.created_ms <= longest_ms for table in tables)


@dataclass(frozen=True, slots=True)
class IcdcTable:
    """A registered ICDC table by its full name, and the number of the capture that it belongs to.

    ``partitions`` are the partitions of a partitioned consumer for which it was made. ``target`` is the table that the
    consumer wrote then, ``run_id`` the run that captured.
    """

    name: str
    number: int
    created_ms: int
    partitions: tuple[str, ...] = ()
    target: str | None = None
    run_id: str = ""


def expired(
    tables: Iterable[IcdcTable], retention: Retention, *, spared: Collection[str], now_ms: int
) -> tuple[IcdcTable, ...]:
    """Those of one edge's ``tables`` that ``retention`` no longer keeps; empty without tables.

    A capture is one of a run, also if an earlier one had the same number and led to no publication. Its tables go
    together: when it is beyond the newest ``keep_last`` captures or older than ``max_age``, counted from its newest
    table. The newest capture and those with a table in ``spared`` stay in any case.

    Example:
        >>> tables = [IcdcTable(f"ips.t{number}", number, created_ms=number) for number in (1, 2, 3, 4)]
        >>> [table.name for table in expired(tables, Retention(keep_last=2), spared={"ips.t1"}, now_ms=5)]
        ['ips.t2']
    """
    captures: dict[tuple[int, str], list[IcdcTable]] = {}
    for table in tables:
        captures.setdefault((table.number, table.run_id), []).append(table)
    newest_first = sorted(captures, key=lambda each: (each[0], max(t.created_ms for t in captures[each])), reverse=True)
    gone = [
        each
        for place, each in enumerate(newest_first)
        if place and (place >= retention.keep_last or not retention.is_young(captures[each], now_ms=now_ms))
    ]
    kept = {each for each, of_capture in captures.items() if any(table.name in spared for table in of_capture)}
    return tuple(table for each in gone if each not in kept for table in captures[each])
