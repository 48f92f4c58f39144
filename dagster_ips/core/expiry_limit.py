"""Up to where a table's snapshots may expire without removing what its consumers still have to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dagster_ips.core.ancestry import Ancestry, Snapshot


@dataclass(frozen=True, slots=True)
class Need:
    """``consumer`` still reads what the ``ref`` holds beyond the snapshot ``after``; None if that is unknown.

    ``sequence_number`` is that snapshot's; 0 if it has none, or it is unknown.
    """

    consumer: str
    ref: str
    after: int | None
    sequence_number: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Snapshots committed before ``before_ms`` may expire; ``held_by`` is the consumer for which more are kept."""

    before_ms: int
    held_by: str | None = None


def expiry(
    needs: Iterable[Need], snapshots: Mapping[int, Snapshot], ancestries: Mapping[str, Ancestry], *, wanted_ms: int
) -> Expiry:
    """The latest moment up to ``wanted_ms`` before which nothing is needed; ``ancestries`` are those of the refs.

    An unknown need keeps everything. A need for a snapshot that is already gone keeps what came after it if all of that
    is retained, because it can still be followed; otherwise nothing.

    Example:
        >>> history = {n: Snapshot(n, n - 1 or None, n, n * 10, "append", f"m{n}") for n in (1, 2, 3)}
        >>> ancestries = {"main": Ancestry.of(history, head_snapshot_id=3)}
        >>> expiry([Need("agg", "main", 2)], history, ancestries, wanted_ms=100)
        Expiry(before_ms=20, held_by='agg')
        >>> expiry([Need("agg", "main", 2)], history, ancestries, wanted_ms=15)
        Expiry(before_ms=15, held_by=None)
    """
    found = Expiry(wanted_ms)
    for need in needs:
        kept = _kept(need, snapshots, ancestries)
        if kept and (earliest := min(each.timestamp_ms for each in kept)) < found.before_ms:
            found = Expiry(earliest, need.consumer)
    return found


def refs_to_hold(
    needs: Iterable[Need],
    snapshots: Mapping[int, Snapshot],
    ancestries: Mapping[str, Ancestry],
    *,
    kept_from_ms: Mapping[str, int],
) -> Mapping[str, str]:
    """The branches that would by their own settings expire a snapshot that is needed, each with a consumer of it.

    ``kept_from_ms`` has the branches with such settings: each keeps snapshots from that moment on.

    Example:
        >>> history = {n: Snapshot(n, n - 1 or None, n, n * 10, "append", f"m{n}") for n in (1, 2, 3)}
        >>> ancestries = {"main": Ancestry.of(history, head_snapshot_id=3)}
        >>> refs_to_hold([Need("agg", "main", 2)], history, ancestries, kept_from_ms={"main": 30})
        {'main': 'agg'}
    """
    found: dict[str, str] = {}
    for need in needs:
        kept = {each.snapshot_id for each in _kept(need, snapshots, ancestries)}
        for ref, from_ms in kept_from_ms.items():
            if any(each.timestamp_ms < from_ms and each.snapshot_id in kept for each in ancestries[ref].snapshots[1:]):
                found.setdefault(ref, need.consumer)
    return found


def _kept(need: Need, snapshots: Mapping[int, Snapshot], ancestries: Mapping[str, Ancestry]) -> list[Snapshot]:
    """The snapshots that the need requires: all from the one that it names to the ref's head, also via a rollback."""
    if need.after is None or need.ref not in ancestries:
        return list(snapshots.values())
    history = ancestries[need.ref].snapshots
    if need.after not in snapshots:
        return list(history) if history and _may_follow(history[-1], need) else []
    places = ancestries[need.ref].places()
    abandoned, at = [], snapshots.get(need.after)
    while at is not None and at.snapshot_id not in places:
        abandoned.append(at)
        at = None if at.parent_id is None else snapshots.get(at.parent_id)
    return [*abandoned, *(history[: places[at.snapshot_id] + 1] if at else history)]


def _may_follow(oldest: Snapshot, need: Need) -> bool:
    """Whether the oldest retained snapshot is the child of the needed one, as ``interval_since`` finds it."""
    if oldest.parent_id is not None or oldest.begins_history:
        return oldest.parent_id == need.after
    return 0 < need.sequence_number == oldest.sequence_number - 1  # PyIceberg removes the id of an expired parent.
