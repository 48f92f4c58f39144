"""Checks that a consumer's table is its own, and holds nothing that others wrote without a person's consent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import EdgeState, Mode, TargetMark
from dagster_ips.core.ownership import Consent, ForeignWrites, hidden_change, may_hold_rows, owner_of, told
from dagster_ips.core.size_text import counted
from dagster_ips.errors import ForeignWriteError, TargetColumnsChangedError, TargetOfAnotherError, UnknownRowsError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import last_published


@dataclass(frozen=True, slots=True)
class Accepted:
    """What others wrote to a target and a run accepts, newest first, up to ``head``; None if that is nothing."""

    snapshots: tuple[Snapshot, ...] = ()
    head: Snapshot | None = None

    def known_to(self, state: EdgeState, target: TableMetadata) -> EdgeState:
        """``state`` with a mark that includes the accepted writes."""
        if self.head is None or state.target is None:
            return state
        places = target.ancestry().places()
        is_newer = places.get(state.target.snapshot_id, len(places)) > places[self.head.snapshot_id]
        return replace(state, target=TargetMark.at(self.head, target.uuid)) if is_newer else state


def require_own(target: TableMetadata, asset: str, consent: Consent) -> str | None:
    """The asset that ``asset`` takes the table over from; None if the table is its own or nobody's.

    Raises:
        TargetOfAnotherError: another asset writes it.
    """
    owner = owner_of(target.ancestry(), target.properties)
    if owner is None or owner == asset:
        return None
    if owner != consent.take_over:
        raise TargetOfAnotherError(table=target.table, asset=asset, owner=owner)
    return owner


def require_known_writes(
    target: TableMetadata, asset: str, states: Iterable[EdgeState], *, accept: int | None = None
) -> None:
    """Fail if someone else changed rows after the marks of ``states``; states without a mark aren't checked.

    ``accept`` is a snapshot up to which changes by expired commits are accepted.

    Raises:
        ForeignWriteError: someone did.
    """
    writes, of_all = ForeignWrites.of(target.ancestry(), asset), list(states)
    _require_none_hidden(target, asset, of_all, accept=accept)
    for of_partition in _by_partition(of_all):
        if known := _known(of_partition, target):
            _require_none(writes.after(known), target, asset)


def require_same_columns(target: TableMetadata, asset: str, states: Iterable[EdgeState]) -> None:
    """Fail if a name stands for another column than when the rows that the ``states`` know about were published.

    Raises:
        TargetColumnsChangedError: one does, or may.
    """
    known = (state.target for state in states)
    for schema_id in {each.schema_id for each in known if each and each.table_uuid == target.uuid}:
        require_columns_of(schema_id, target, asset)


def require_columns_of(schema_id: str | None, target: TableMetadata, asset: str) -> None:
    """Fail if a name stands for another column than in that schema.

    Raises:
        TargetColumnsChangedError: one does, or may.
    """
    others = target.columns_of_other_meaning(schema_id)
    if others or others is None:
        raise TargetColumnsChangedError(target.table, asset, others)


def require_no_strange_rows(
    target: TableMetadata, asset: str, states: Sequence[EdgeState], *, consent: Consent, mode: Mode
) -> None:
    """Fail if a run in ``mode``, which nobody asked for, is the first to write a table that has rows.

    ``states`` are those of the edges that it reads. A consent to accept rows doesn't allow a full run to replace them.

    Raises:
        UnknownRowsError: it is.
    """
    ancestry = target.ancestry()
    is_known = _known(states, target) or owner_of(ancestry, target.properties) == asset
    if consent.any_writes or is_known or ancestry.head is None or not may_hold_rows(ancestry):
        return
    writes = ForeignWrites.of(ancestry, asset, accept=consent.accept)
    if mode is Mode.FULL or writes.accepted == len(ancestry.snapshots):
        raise UnknownRowsError(table=target.table, asset=asset, head_snapshot_id=ancestry.head.snapshot_id)


def accepted_writes(
    target: TableMetadata,
    asset: str,
    states: Sequence[EdgeState],
    consent: Consent,
    others: Callable[[], Iterable[EdgeState]],
) -> Accepted:
    """What others wrote to the target since the ``states`` knew all of it, if ``consent`` covers it.

    A partition that was never computed is replaced, whatever it contains. ``others`` gives the states of the asset's
    other partitions, one of which may have been published last.

    Raises:
        ForeignWriteError: ``consent`` doesn't cover all of it.
    """
    if consent.any_writes:
        return Accepted()
    ancestry, last = target.ancestry(), last_published(target)
    is_in_history = last is None or last.snapshot_id in _known(states, target) or ancestry.find(last.snapshot_id)
    every = states if is_in_history else [*states, *others()]
    _require_none_hidden(target, asset, every, accept=consent.accept)
    before, now = (ForeignWrites.of(ancestry, asset, accept=each) for each in (None, consent.accept))
    accepted: dict[int, Snapshot] = {}
    for of_partition in _by_partition(states):
        known = _known(of_partition, target)
        if known or of_partition[0].edge.partition is None:
            _require_none(now.after(known), target, asset)
            accepted |= {each.snapshot_id: each for each in before.after(known)}
    head = target.snapshots[consent.accept] if accepted and consent.accept is not None else None
    return Accepted(tuple(accepted.values()), head)


def _require_none(found: Sequence[Snapshot], target: TableMetadata, asset: str) -> None:
    if found:
        commits = tuple(told(snapshot) for snapshot in reversed(found))
        raise ForeignWriteError(table=target.table, asset=asset, commits=commits, newest=found[0].snapshot_id)


def _require_none_hidden(target: TableMetadata, asset: str, states: Sequence[EdgeState], *, accept: int | None) -> None:
    """Fail if the number of rows shows that someone changed them in a commit that has since expired."""
    ancestry = target.ancestry()
    is_accepted = accept is not None and ancestry.find(accept) is not None
    rows = None if is_accepted else hidden_change(ancestry, last_published(target), _known(states, target))
    if rows and ancestry.head:
        least = f"at least {counted(abs(rows), 'row')} {'more' if rows > 0 else 'fewer'}"
        commits = (f"snapshots that have since expired ({least})",)
        raise ForeignWriteError(table=target.table, asset=asset, commits=commits, newest=ancestry.head.snapshot_id)


def _by_partition(states: Iterable[EdgeState]) -> list[list[EdgeState]]:
    """The states of all inputs by partition: what is published for a partition is so for all of its inputs."""
    found: dict[str | None, list[EdgeState]] = {}
    for state in states:
        found.setdefault(state.edge.partition, []).append(state)
    return list(found.values())


def _known(states: Iterable[EdgeState], target: TableMetadata) -> list[int]:
    marks = (state.target for state in states)
    return [each.snapshot_id for each in marks if each is not None and each.table_uuid == target.uuid]
