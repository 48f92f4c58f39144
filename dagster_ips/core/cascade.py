"""Which changes caused a run: a backfill, a run or an outside commit that started a cascade."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_MOST = 5
_DIGITS, _LETTERS = 10, 8
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MORE = re.compile(r"\+(\d+)")


def short(id_: str) -> str:
    """As much of an id as the UI's list of runs has room for in a tag; of a run's, as much as Dagster itself shows.

    Example:
        >>> short("8371507338330841060"), short("309d1c24-4d92-4c3a-9d3a-6e0f6f0b7a11"), short("abcdefgh")
        ('8371507338', '309d1c24', 'abcdefgh')
    """
    return id_[:_DIGITS] if id_.isdecimal() else id_[:_LETTERS] if _UUID.fullmatch(id_) else id_


@dataclass(frozen=True, slots=True)
class Cascade:
    """The ids of the cascades that meet in a run: those that a person started first, then the newest.

    ``more`` counts those that are left out. An id is a backfill's, or the ``short`` one of a run or outside snapshot.

    Example:
        >>> Cascade.of(["8412", "abcdefgh", "8412"]).ids
        ('abcdefgh', '8412')
    """

    ids: tuple[str, ...] = ()
    more: int = 0

    @classmethod
    def of(cls, ids: Iterable[str], *, more: int = 0) -> Cascade:
        """The cascade of ``ids``, newest first, each once; of very many, the first ones."""
        # Snapshot ids are numbers; what a person started comes first, as it is looked for more often.
        ordered = sorted(dict.fromkeys(map(short, ids)), key=str.isdigit)
        return cls(tuple(ordered[:_MOST]), more + len(ordered[_MOST:]))

    @classmethod
    def from_text(cls, text: str) -> Cascade:
        """The cascade whose ``str`` is ``text``."""
        parts = [part for part in text.split(",") if part]
        more = _MORE.fullmatch(parts[-1]) if parts else None
        return cls(tuple(map(short, parts[:-1])), int(more[1])) if more else cls(tuple(map(short, parts)))

    @property
    def main(self) -> str | None:
        """The id by which the run is found; None if there is none."""
        return self.ids[0] if self.ids else None

    def __str__(self) -> str:
        return ",".join([*self.ids, *([f"+{self.more}"] if self.more else [])])


def together(cascades: Iterable[Cascade]) -> Cascade:
    """One cascade of all ids, newest cascade first. Ids left out of several may be the same, but are all counted.

    Example:
        >>> str(together([Cascade(("a", "b")), Cascade(("b",), more=2)]))
        'a,b,+2'
    """
    met = list(cascades)
    return Cascade.of((each for cascade in met for each in cascade.ids), more=sum(cascade.more for cascade in met))
