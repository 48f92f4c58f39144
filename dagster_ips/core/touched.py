"""Which partitions of an upstream changed since when: what a partitioned consumer remembers of the whole upstream.

A partition that nothing touched for a year is consumed up to a snapshot that expired long ago. That nothing touched it
since is remembered here, so that its next late row is read from where the upstream was last looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Touched:
    """Rows of an upstream's partition changed after ``since`` (None: at any time) and at last up to ``last``."""

    since: Watermark | None
    last: Watermark


@dataclass(frozen=True, slots=True)
class LineState:
    """How far an upstream was looked at for all partitions of a consumer, and which of its keys changed.

    A key without an entry didn't change after what its consumers have consumed, up to ``scanned``. ``unmapped`` are
    some values of rows that belong to no partition; ``abandoned`` the snapshots that a rollback took away.
    """

    edge: Edge
    scanned: Watermark | None = None
    touched: Mapping[str, Touched] = field(default_factory=dict)
    unmapped: tuple[str, ...] = ()
    abandoned: frozenset[int] = frozenset()

    def looked_at(
        self, scanned: Watermark, keys: Iterable[str], *, unmapped: tuple[str, ...] = (), abandoned: Iterable[int] = ()
    ) -> LineState:
        """``keys`` changed after what was looked at before, up to ``scanned``."""
        changed = {key: Touched(self._since(key), scanned) for key in keys}
        return replace(
            self,
            scanned=scanned,
            touched={**self.touched, **changed},
            unmapped=unmapped,
            abandoned=self.abandoned | frozenset(abandoned),
        )

    def without(self, keys: Collection[str]) -> LineState:
        """What changed of ``keys`` is consumed by all that are made of them."""
        touched = {key: each for key, each in self.touched.items() if key not in keys}
        return replace(self, touched=touched, abandoned=self.abandoned if touched else frozenset())

    def start_of(self, state: EdgeState, keys: Iterable[str]) -> Watermark | None:
        """From where a partition that is made of ``keys`` must be read: as late as it can be."""
        committed = state.committed
        if committed is None or self.scanned is None:
            return committed
        pending = [each for key in keys if (each := self.touched.get(key)) and self._is_unseen(each, committed)]
        if not pending:
            return later(committed, self.scanned)
        if any(each.since is None for each in pending):
            return committed
        oldest = min((each.since for each in pending if each.since), key=lambda since: since.position)
        return later(committed, oldest)

    def consumed_up_to(self, state: EdgeState, keys: Collection[str]) -> Watermark | None:
        """Up to where a pending partition that is made of ``keys`` is complete: None if it never was.

        One that was never computed had no row before its keys changed first.
        """
        if state.committed is not None:
            return self.start_of(state, keys)
        sinces = [each.since for key in keys if (each := self.touched.get(key))]
        known = [since for since in sinces if since is not None]
        return min(known, key=lambda since: since.position) if known and len(known) == len(sinces) else None

    def is_pending(self, state: EdgeState, keys: Iterable[str]) -> bool:
        """Whether any of ``keys`` changed after what a partition that is made of them has consumed."""
        found = [each for key in keys if (each := self.touched.get(key))]
        return any(state.committed is None or self._is_unseen(each, state.committed) for each in found)

    def _is_unseen(self, touched: Touched, committed: Watermark) -> bool:
        return committed.snapshot_id in self.abandoned or is_before(committed, touched.last)

    def _since(self, key: str) -> Watermark | None:
        known = self.touched.get(key)
        return known.since if known else self.scanned


def is_before(committed: Watermark, last: Watermark) -> bool:
    """Whether what was consumed doesn't reach ``last``; of another table it never does."""
    if committed.snapshot_id == last.snapshot_id:
        return False
    return committed.table_uuid != last.table_uuid or committed.ref != last.ref or committed.position < last.position


def later(one: Watermark, other: Watermark) -> Watermark:
    """The later one; of two tables or refs the first, whose history then can't be followed, which is an error."""
    return other if one.table_uuid == other.table_uuid and one.ref == other.ref and is_before(one, other) else one
