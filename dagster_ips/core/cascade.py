"""Which changes caused a run: a backfill, a run or an outside commit that started a cascade."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_MOST = 5
_MORE = re.compile(r"\+(\d+)")


@dataclass(frozen=True, slots=True)
class Cascade:
    """The ids of the cascades that meet in a run: those that a person started first, then the newest.

    ``more`` counts those that are left out. An id is a backfill's, a run's or an outside snapshot's.

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
        ordered = sorted(dict.fromkeys(ids), key=str.isdigit)
        return cls(tuple(ordered[:_MOST]), more + len(ordered[_MOST:]))

    @classmethod
    def from_text(cls, text: str) -> Cascade:
        """The cascade whose ``str`` is ``text``."""
        parts = [part for part in text.split(",") if part]
        more = _MORE.fullmatch(parts[-1]) if parts else None
        return cls(tuple(parts[:-1]), int(more[1])) if more else cls(tuple(parts))

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
