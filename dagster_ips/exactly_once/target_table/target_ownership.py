"""Checks that a consumer's table is its own, and holds nothing that others wrote without a person's consent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ips.core.ancestry import Ancestry, Snapshot
from dagster_ips.core.capture import Mode, TargetMark
from dagster_ips.core.ownership import (
    Consent,
    ForeignWrites,
    Published,
    hidden_change,
    live_rows,
    may_hold_rows,
    owner_of,
    told,
)
from dagster_ips.core.size_text import counted
from dagster_ips.errors import ForeignWriteError, TargetColumnsChangedError, TargetOfAnotherError, UnknownRowsError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.table_progress import TableProgress


@dataclass(frozen=True, slots=True)
class Accepted:
    """What others wrote to a target and a run accepts, newest first, up to ``head``; None if that is nothing."""

    snapshots: tuple[Snapshot, ...] = ()
    head: Snapshot | None = None


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
    target: TableMetadata, asset: str, known: TableProgress | None, *, accept: int | None = None
) -> None:
    """Fail if someone else changed rows after what is ``known``; nothing is checked if nothing is.

    ``accept`` is a snapshot up to which changes are accepted.

    Raises:
        ForeignWriteError: someone did.
    """
    if known is None:
        return
    _require_none_hidden(target, asset, known, accept=accept)
    _require_none(ForeignWrites.of(target.ancestry(), asset, accept=accept).after(_ids(known, target)), target, asset)


def require_same_columns(target: TableMetadata, asset: str, known: TableProgress | None) -> None:
    """Fail if a name stands for another column than at the last publication.

    Raises:
        TargetColumnsChangedError: one does, or may.
    """
    if known is not None and known.mark.table_uuid == target.uuid:
        require_columns_of(known.mark.schema_id, target, asset)


def require_columns_of(schema_id: str | None, target: TableMetadata, asset: str) -> None:
    """Fail if a name stands for another column than in that schema.

    Raises:
        TargetColumnsChangedError: one does, or may.
    """
    others = target.columns_of_other_meaning(schema_id)
    if others or others is None:
        raise TargetColumnsChangedError(target.table, asset, others)


def require_no_strange_rows(
    target: TableMetadata, asset: str, known: TableProgress | None, *, consent: Consent, mode: Mode
) -> None:
    """Fail if a run in ``mode``, which nobody asked for, is the first to write a table that has rows.

    ``known`` is what the table contains. A consent to accept rows doesn't allow a full run to replace them.

    Raises:
        UnknownRowsError: it is.
    """
    ancestry = target.ancestry()
    is_known = known is not None or owner_of(ancestry, target.properties) == asset
    if consent.any_writes or is_known or ancestry.head is None or not may_hold_rows(ancestry):
        return
    writes = ForeignWrites.of(ancestry, asset, accept=consent.accept)
    if mode is Mode.FULL or writes.accepted == len(ancestry.snapshots):
        raise UnknownRowsError(table=target.table, asset=asset, head_snapshot_id=ancestry.head.snapshot_id)


def accepted_writes(target: TableMetadata, asset: str, known: TableProgress | None, consent: Consent) -> Accepted:
    """What others wrote to the target since what is ``known``, if ``consent`` covers it.

    Raises:
        ForeignWriteError: ``consent`` doesn't cover all of it.
    """
    if consent.any_writes:
        return Accepted()
    if known is not None:
        _require_none_hidden(target, asset, known, accept=consent.accept)
    ids = _ids(known, target) if known is not None else []
    before, now = (
        ForeignWrites.of(target.ancestry(), asset, accept=each).after(ids) for each in (None, consent.accept)
    )
    _require_none(now, target, asset)
    is_left = before or (known is not None and known.progress.known_to is not None)
    head = target.snapshots[consent.accept] if is_left and consent.accept is not None else None
    return Accepted(before, head)


def left_unknown(target: TableMetadata, asset: str, known: TableProgress | None) -> TargetMark | None:
    """The mark up to which the target is known, if others wrote since and nobody has accepted that; else None."""
    if known is None:
        return None
    ancestry = target.ancestry()
    is_left = (
        known.progress.known_to is not None
        or ForeignWrites.of(ancestry, asset).after(_ids(known, target))
        or _hidden_rows(ancestry, known)
    )
    return known.known_to if is_left else None


def _require_none(found: Sequence[Snapshot], target: TableMetadata, asset: str) -> None:
    if found:
        commits = tuple(told(snapshot) for snapshot in reversed(found))
        raise ForeignWriteError(table=target.table, asset=asset, commits=commits, newest=found[0].snapshot_id)


def _require_none_hidden(target: TableMetadata, asset: str, known: TableProgress, *, accept: int | None) -> None:
    """Fail if the number of rows shows that someone changed them in a commit that has since expired."""
    ancestry = target.ancestry()
    if ancestry.head is None:
        return
    commits = "snapshots that have since expired"
    if not _has_expired(ancestry, asset, known, accept=accept):
        rows = _hidden_rows(ancestry, known)
        if not rows or (accept is not None and ancestry.find(accept) is not None):
            return
        commits += f" (at least {counted(abs(rows), 'row')} {'more' if rows > 0 else 'fewer'})"
    raise ForeignWriteError(table=target.table, asset=asset, commits=(commits,), newest=ancestry.head.snapshot_id)


def _hidden_rows(ancestry: Ancestry, known: TableProgress) -> int:
    """By how many rows, at least, others changed the table in expired commits since it was published; 0 if unknown."""
    rows = live_rows(known.snapshot) if known.snapshot is not None and known.progress.known_to is None else None
    return (rows and hidden_change(ancestry, Published(known.mark.snapshot_id, rows))) or 0


def _has_expired(ancestry: Ancestry, asset: str, known: TableProgress, *, accept: int | None) -> bool:
    """Whether what others wrote before the last publication has expired, and nobody has accepted it."""
    if known.progress.known_to is None:
        return False
    places = ancestry.places()
    published = places.get(known.mark.snapshot_id, len(places))
    is_accepted = accept in places and places[accept] <= published
    is_seen = any(places[each.snapshot_id] > published for each in ForeignWrites.of(ancestry, asset).found)
    return not (is_accepted or is_seen)


def _ids(known: TableProgress, target: TableMetadata) -> list[int]:
    mark = known.known_to
    return [mark.snapshot_id] if mark.table_uuid == target.uuid else []
