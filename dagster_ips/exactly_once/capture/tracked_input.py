"""Decides whether an input can be followed from where it was consumed, by its own policies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from dagster_ips.core.ancestry import MAIN, Ancestry, Snapshot
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.history_place import Everywhere, Start
from dagster_ips.core.interval import Break, Interval, interval_since
from dagster_ips.core.limits import Limits
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.policy import InputPolicies, OnExpired, OnRollback
from dagster_ips.core.valid_through import EventTime
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import (
    BrokenHistoryError,
    SourceColumnsChangedError,
    SourceExpiredError,
    SourceFileOverwrittenError,
    SourceRecreatedError,
    SourceReplacedError,
    SourceRolledBackError,
)
from dagster_ips.iceberg.change_reader import (
    ChangedFiles,
    appended_files,
    changed_files,
    lists_work_of,
    shows_what_moved,
)
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage


@dataclass(frozen=True, slots=True)
class TrackedInput:
    """An upstream that a consumer reads incrementally: its asset key, its table and the ref that is watched.

    ``ranges`` are the columns whose change ranges the consumer wants, ``limits`` is the most that one capture takes,
    ``start`` is where the edge begins while nothing is consumed. ``slicing`` says which of the upstream's rows the
    partitions of a partitioned consumer are made of, ``event_time`` up to when the upstream is complete.
    """

    upstream: str
    table: str
    ranges: tuple[str, ...] = ()
    ref: str = MAIN
    policies: InputPolicies = field(default_factory=InputPolicies)
    limits: Limits = field(default_factory=Limits)
    start: Start = Everywhere.ALL
    slicing: Slicing | None = None
    event_time: EventTime | None = None

    @property
    def known_slicing(self) -> Slicing:
        """``slicing``, for the inputs of partitioned consumers, which all have it."""
        assert self.slicing is not None  # noqa: S101  # asked for partitioned consumers only
        return self.slicing


@dataclass(frozen=True, slots=True)
class StartOver:
    """Everything is to be recomputed; ``reason`` says why, as part of a sentence.

    If none of the input's policies says so, ``otherwise`` is what a person can do if it mustn't be.
    """

    reason: str
    otherwise: str | None = None


def follow(storage: Storage, state: EdgeState, source: TableMetadata, tracked: TrackedInput) -> Interval | StartOver:
    """The interval since ``state``'s watermark, up to ``end_of``.

    ``StartOver`` if there is no such interval and the policy allows to start over.

    If only some files of a change are consumed, the interval is what follows that change. The other files of the change
    are read from its own snapshot, which must be retained.

    Raises:
        BrokenHistoryError: there is no such interval; the subclass says why.
    """
    committed = state.file_set.to_inclusive if state.file_set else state.committed
    if committed is None:
        return StartOver(f"nothing has been consumed from {tracked.upstream} yet")
    found = _since(storage, committed, state, source, tracked.ref)
    policies, values = tracked.policies, _common_values(state, committed, source, tracked.ref)
    if _is_rollback(found) and policies.on_rollback is OnRollback.FULL:
        return StartOver(f"{tracked.upstream} was rolled back")
    if _is_rollback(found) and policies.on_rollback is OnRollback.ERROR:
        raise SourceRolledBackError(**values, common_snapshot_id=_common(found))
    if isinstance(found, Interval) and _can_go_on(found, state):
        others = source.columns_of_other_meaning(committed.schema_id)
        if others:
            raise SourceColumnsChangedError(**values, columns=others)
        if others is not None:
            return found
    # A rollback can't be followed if the snapshots that it took back have expired.
    if policies.on_expired is OnExpired.FULL:
        return StartOver(_why_over(found, tracked.upstream))
    raise _error(found, state, committed, source, tracked.ref)


def without_overwritten(
    paths: Collection[str], state: EdgeState, source: TableMetadata, tracked: TrackedInput
) -> StartOver | None:
    """Why a change can't be read in which the data files ``paths`` were overwritten in place; None if there are none.

    Raises:
        SourceFileOverwrittenError: there are, and the policy doesn't allow to start over.
    """
    if not paths or state.committed is None:
        return None
    if tracked.policies.on_expired is OnExpired.FULL:
        return StartOver(f"data files of {tracked.upstream} were overwritten in place")
    values = _common_values(state, state.committed, source, tracked.ref)
    raise SourceFileOverwrittenError(**values, file=min(paths))


def _since(
    storage: Storage, committed: Watermark, state: EdgeState, source: TableMetadata, ref: str
) -> Interval | Break:
    end = end_of(state, source, ref)
    if state.reread_to and end is None and source.uuid == committed.table_uuid:
        return Break.EXPIRED
    return interval_of(storage, source, committed, Ancestry.of(source.snapshots, end.snapshot_id if end else None))


def _is_rollback(found: Interval | Break) -> bool:
    return found is Break.ROLLED_BACK or (isinstance(found, Interval) and bool(found.lost))


def interval_of(storage: Storage, source: TableMetadata, committed: Watermark, ancestry: Ancestry) -> Interval | Break:
    """What happened on ``ancestry`` since ``committed``: ``interval_since`` applied to the retained snapshots.

    If the start has expired, rewrites must list what they moved: there is nothing to compare their files with.

    Raises:
        MetadataUnreadableError: a manifest that is needed for that can't be read.
    """
    found = interval_since(
        committed,
        table_uuid=source.uuid,
        retained=source.snapshots,
        ancestry=ancestry,
        descends=lambda snapshot: lists_work_of(storage, source, snapshot, committed),
    )
    is_lost = isinstance(found, Interval) and found.start is None and not shows_what_moved(storage, source, found)
    return Break.EXPIRED if is_lost else found


def end_of(state: EdgeState, source: TableMetadata, ref: str) -> Snapshot | None:
    """Where ``follow`` ends: at the head of ``ref``, but after a rewind at what was consumed before the rewind."""
    end = state.reread_to
    return source.snapshots.get(end.snapshot_id) if end else source.ancestry(ref).head


def files_in(storage: Storage, source: TableMetadata, interval: Interval, head: Snapshot) -> ChangedFiles:
    """The files whose rows changed in an interval that ``follow`` returned."""
    if interval.is_append_only:
        return appended_files(storage, source, interval.snapshots, head=head)
    return changed_files(storage, source, interval, head=head)


def is_readable(interval: Interval) -> bool:
    """Whether what was live at the start of the interval can be read, or isn't needed."""
    return interval.start is not None or interval.first_removal is None


def readable_interval(
    storage: Storage, source: TableMetadata, committed: Watermark, ancestry: Ancestry
) -> Interval | None:
    """As ``interval_of``; None if there is no such interval, or what changed in it can't be read."""
    found = interval_of(storage, source, committed, ancestry)
    return found if isinstance(found, Interval) and is_readable(found) else None


def _can_go_on(interval: Interval, state: EdgeState) -> bool:
    """Whether the interval is readable; with a file set, its start must be retained too, as the rest is read there."""
    return is_readable(interval) and (interval.start is not None or state.file_set is None)


def _why_over(found: Interval | Break, upstream: str) -> str:
    match found:
        case Break.RECREATED:
            return f"{upstream} was dropped and created again"
        case Break.REPLACED:
            return f"{upstream} was replaced (CREATE OR REPLACE TABLE)"
        case _:
            return f"needed snapshots of {upstream} have expired"


def _error(
    found: Interval | Break, state: EdgeState, committed: Watermark, source: TableMetadata, ref: str
) -> BrokenHistoryError:
    values = _common_values(state, committed, source, ref)
    match found:
        case Break.RECREATED:
            return SourceRecreatedError(**values, consumed_uuid=committed.table_uuid, current_uuid=source.uuid)
        case Break.REPLACED:
            return SourceReplacedError(**values)
        case Break.ROLLED_BACK:
            return SourceRolledBackError(**values, common_snapshot_id=None)
        case _:
            return SourceExpiredError(**values, needed_for=_needed_for(found, state, committed))


def _common_values(state: EdgeState, committed: Watermark, source: TableMetadata, ref: str) -> dict[str, Any]:
    return {
        "table": source.table,
        "consumer": state.edge.consumer,
        "consumed_snapshot_id": committed.snapshot_id,
        "head_snapshot_id": source.head_snapshot_id(ref),
    }


def _common(found: Interval | Break) -> int | None:
    return found.abandoned[-1].parent_id if isinstance(found, Interval) else None


def _needed_for(found: Interval | Break, state: EdgeState, committed: Watermark) -> str:
    if state.file_set is not None:
        return f"to read {state.file_set.left:,} of its {state.file_set.total:,} files, which aren't consumed yet"
    if not isinstance(found, Interval):
        return "to find out what was committed in between"
    if found.start is None and (removal := found.first_removal) is not None:
        return f"to find out which rows snapshot {removal.snapshot_id}, a `{removal.operation}`, removed"
    number = str(committed.schema_id or "").partition("-")[0]
    schema = f"schema {number}" if number else "the schema"
    return (
        f"to find out whether its column names still refer to the same columns: {schema}, which its rows were read "
        "with, was removed from its metadata along with them"
    )
