"""Places in a table's history that a person names: a snapshot, a moment, the beginning or the end."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from dagster_ips.core.ancestry import Ancestry, Snapshot


@dataclass(frozen=True, slots=True)
class AtSnapshot:
    """Right after a snapshot."""

    snapshot_id: int

    def __str__(self) -> str:
        return f"snapshot {self.snapshot_id}"


@dataclass(frozen=True, slots=True)
class AtTime:
    """Right after the last snapshot that was committed by this time."""

    timestamp_ms: int

    def __str__(self) -> str:
        return dt.datetime.fromtimestamp(self.timestamp_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")


class Everywhere(StrEnum):
    """The two places that every table has."""

    ALL = "all"
    LATEST = "latest"


Place: TypeAlias = AtSnapshot | AtTime
Start: TypeAlias = Everywhere | Place


class Nowhere(StrEnum):
    """Why a place can't be found, as the end of a sentence; ``BEFORE_ALL`` is before the table's first snapshot."""

    BEFORE_ALL = "lies before its first snapshot"
    EXPIRED = "lies before its oldest retained snapshot"
    UNKNOWN = "isn't in its history: it never existed, was rolled back or has expired"
    FUTURE = "is in the future"


def parse_place(text: str) -> Place:
    """A snapshot id, or a date or time in ISO 8601; without an offset it is UTC.

    Raises:
        ValueError: it is neither.

    Example:
        >>> parse_place("8412"), str(parse_place("2026-01-02T10:00:00+02:00"))
        (AtSnapshot(snapshot_id=8412), '2026-01-02T08:00:00.000+00:00')
    """
    if re.fullmatch(r"\d+", text):
        return AtSnapshot(int(text))
    time = dt.datetime.fromisoformat(text)
    try:
        time = time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
    except OverflowError as error:  # beyond Python's calendar
        raise ValueError(text) from error
    return AtTime(round(time.timestamp() * 1000))


def parse_start(text: str) -> Start:
    """A place as in ``parse_place``, or ``all`` or ``latest``.

    Raises:
        ValueError: it is none of them.
    """
    return Everywhere(text) if text in set(Everywhere) else parse_place(text)


def find_place(place: Place, ancestry: Ancestry, *, now_ms: int) -> Snapshot | Nowhere:
    """The newest snapshot of ``ancestry`` that isn't after ``place``, or why there is none."""
    if isinstance(place, AtSnapshot):
        return ancestry.find(place.snapshot_id) or Nowhere.UNKNOWN
    if place.timestamp_ms > now_ms:
        return Nowhere.FUTURE
    found = next((s for s in ancestry.snapshots if s.timestamp_ms <= place.timestamp_ms), None)
    if found is not None:
        return found
    return Nowhere.BEFORE_ALL if ancestry.is_whole else Nowhere.EXPIRED
