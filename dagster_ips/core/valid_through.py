"""Up to which event time a table is complete: it contains every event before it, or what is computed from them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

ALWAYS = dt.datetime.max.replace(tzinfo=dt.UTC)
"""The time of a table without event time, which is always complete."""

_ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class EventTime:
    """How the rows of an outside table show up to when it is complete: no event is more than ``lateness`` late.

    ``column`` is None for a table without event time, such as one of titles or plans: it is always complete.
    """

    column: str | None
    lateness: dt.timedelta = dt.timedelta(0)

    def through(self, highest: dt.datetime | None, *, committed_ms: int) -> dt.datetime | None:
        """The time before which everything has arrived; None if nothing has.

        ``highest`` is the newest event time seen, ``committed_ms`` is when its commit was. If a clock was ahead, the
        commit's time counts, as nothing is complete that hasn't happened yet.

        Example:
            >>> seen = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC)
            >>> EventTime("at", dt.timedelta(hours=2)).through(seen, committed_ms=1_800_000_000_000).hour
            10
        """
        if self.column is None:
            return ALWAYS
        if highest is None:
            return None
        return min(highest, dt.datetime.fromtimestamp(committed_ms / 1000, dt.UTC)) - self.lateness


def least(times: Iterable[dt.datetime | None]) -> dt.datetime | None:
    """The time up to which all are complete: the earliest. None if one of them is None, unknown, or there are none.

    Example:
        >>> least([ALWAYS, None]) is None
        True
    """
    known = list(times)
    return min((each for each in known if each is not None), default=None) if None not in known else None


def instant(value: dt.date | dt.datetime) -> dt.datetime:
    """A column's value as a time: dates begin at midnight, and values without a time zone are UTC.

    Example:
        >>> instant(dt.date(2026, 1, 5)).isoformat()
        '2026-01-05T00:00:00+00:00'
    """
    if not isinstance(value, dt.datetime):
        return dt.datetime.combine(value, dt.time(), dt.UTC)
    return value.astimezone(dt.UTC) if value.tzinfo else value.replace(tzinfo=dt.UTC)


def as_text(time: dt.datetime) -> str:
    """The time as text for a stamp: ISO 8601 in UTC, or ``always``."""
    return _ALWAYS if time == ALWAYS else time.astimezone(dt.UTC).isoformat()


def from_text(text: str) -> dt.datetime:
    """The time that ``as_text`` or someone else's job wrote: a date or a time, UTC unless it says otherwise.

    Raises:
        ValueError: it is neither.

    Example:
        >>> from_text("2026-01-05").isoformat()
        '2026-01-05T00:00:00+00:00'
    """
    return ALWAYS if text == _ALWAYS else instant(dt.datetime.fromisoformat(text))


def period_begin(time: dt.datetime, every: dt.timedelta) -> dt.datetime:
    """The last multiple of ``every`` since the epoch up to ``time``: periods that end by then are complete.

    Example:
        >>> period_begin(dt.datetime(2026, 1, 5, 13, tzinfo=dt.UTC), dt.timedelta(days=1)).isoformat()
        '2026-01-05T00:00:00+00:00'
    """
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return epoch + (time - epoch) // every * every
