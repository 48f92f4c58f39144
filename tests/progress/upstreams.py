"""An upstream table of the model: rows that come, go and return; rollbacks; snapshots that expire."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

Slot = str
"""A value of the upstream's partition column. A partition's key covers one or more of them."""
Rows = frozenset[int]

SLOTS: tuple[Slot, ...] = ("a", "b", "c", "d")


class Upstream:
    """What a table held at each snapshot (for the checks: also at expired ones), and which can still be read."""

    def __init__(self, random: Random, first_row: int) -> None:
        self.random = random
        self.next_row = first_row
        self.held: list[dict[Slot, Rows]] = [dict.fromkeys(SLOTS, frozenset())]
        self.parents: list[int | None] = [None]
        self.retained = {0}
        self.head = 0

    def change(self) -> None:
        """Adds rows, removes some, or lets one return that was removed; or compacts, which changes none."""
        state = dict(self.held[self.head])
        for slot in self.random.sample(SLOTS, self.random.randint(0, 2)):
            gone = sorted({row for past in self.held for row in past[slot]} - state[slot])
            match self.random.randrange(4):
                case 0 if state[slot]:
                    state[slot] -= {self.random.choice(sorted(state[slot]))}
                case 1 if gone:
                    state[slot] |= {self.random.choice(gone)}
                case _:
                    new = range(self.next_row, self.next_row + self.random.randint(1, 3))
                    self.next_row = new.stop
                    state[slot] |= set(new)
        self.commit(state)

    def commit(self, state: dict[Slot, Rows]) -> None:
        self.held.append(state)
        self.parents.append(self.head)
        self.head = len(self.held) - 1
        self.retained.add(self.head)

    def roll_back(self) -> None:
        self.head = self.random.choice(sorted(set(self.ancestry(self.head)) & self.retained))

    def expire(self) -> None:
        newest = list(self.ancestry(self.head))[: self.random.randint(1, 4)]
        self.retained &= set(newest)

    def ancestry(self, snapshot: int) -> Iterator[int]:
        """A snapshot and its ancestors, as far as is known: the last may itself have expired."""
        ancestor: int | None = snapshot
        while ancestor is not None:
            yield ancestor
            ancestor = self.parents[ancestor] if ancestor in self.retained else None

    def is_readable(self, begin_exclusive: int, end_inclusive: int) -> bool:
        """Whether each snapshot between them, by way of their nearest common ancestor, is retained."""
        return bool(set(self.ancestry(begin_exclusive)) & set(self.ancestry(end_inclusive)))

    def rows(self, snapshot: int | None, slots: frozenset[Slot]) -> Rows:
        """What these slots held at a snapshot; none before the first."""
        if snapshot is None:
            return frozenset()
        return frozenset(row for slot in slots for row in self.held[snapshot][slot])
