"""What Dagster's storage keeps of an asset: a copy of its table's progress, and what no table can say.

A copy counts only while its table's last publication is the one that it was made of. So one that is lost, restored or
late is never wrong; at most, something is read again that needs no work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from dagster_ips.core.capture import Capture, EdgeState, TargetMark
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark, is_certainly_before
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.storage import Storage
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.table_progress import NO_SNAPSHOT, TableProgress, table_progress

_KEPT_REQUESTS = 5


class RequestKind(StrEnum):
    """``RESET`` forgets everything that was consumed of an upstream, ``REWIND`` what was consumed after a snapshot."""

    RESET = "reset"
    REWIND = "rewind"


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for: to read an upstream again, from ``after`` on (None: from its beginning).

    The next run fulfils it, and the progress that it publishes says so by ``id``, a time in ms. ``before`` is up to
    where the upstream was consumed. ``head`` is the table's snapshot then: what others wrote up to there is accepted.
    """

    id: int
    kind: RequestKind
    upstream: str
    who: str
    why: str
    before: Watermark | None
    after: Watermark | None
    head: int | None = None

    def applied_to(self, state: EdgeState) -> EdgeState:
        """``state`` as the run that fulfils the request finds it."""
        if self.kind is RequestKind.RESET or state.committed is None:
            return EdgeState(state.edge, number=state.number, target=state.target, request=self.id)
        if self.after is not None and not is_certainly_before(self.after.position, state.committed.position):
            return replace(state, request=self.id)  # The table was taken back to before that: it never moves forward.
        return replace(
            state,
            committed=self.after,
            file_set=None,
            reread_to=state.reread_to or state.committed,
            request=self.id,
        )


@dataclass(frozen=True, slots=True)
class Copy:
    """A ``progress`` whose table's last publication is ``mark``; it may contain more than that says.

    A run may have found nothing to write, which only the copy records. If it ``is_reported``, a job wrote the table,
    and nothing else says what it contains. Without a mark, nothing was published yet. ``begun`` is where upstreams
    begin of which nothing was published yet.
    """

    progress: Progress
    mark: TargetMark | None = None
    is_reported: bool = False
    begun: Mapping[str, Watermark | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A capture for a job that Dagster doesn't run, and the ``progress`` once it has reported that it is done."""

    captures: tuple[Capture, ...]
    progress: Progress


@dataclass(frozen=True, slots=True)
class Cursor:
    """What Dagster's storage has of an asset; ``requests`` are the latest, oldest first."""

    copy: Copy | None = None
    requests: tuple[Request, ...] = ()
    job: Job | None = None

    def with_request(self, request: Request) -> Cursor:
        """With one more request; the oldest are forgotten."""
        return replace(self, requests=(*self.requests, request)[-_KEPT_REQUESTS:])

    def open_requests(self, known: TableProgress | None) -> list[Request]:
        """The requests that the table doesn't fulfil yet."""
        obeyed = known.progress.obeyed if known else 0
        return [each for each in self.requests if each.id > obeyed]

    @property
    def asks_to_reset(self) -> bool:
        """Whether a person asked for a reset since Dagster last heard of a publication."""
        obeyed = self.copy.progress.obeyed if self.copy is not None else 0
        return any(each.kind is RequestKind.RESET and each.id > obeyed for each in self.requests)

    def accepts(self, known: TableProgress | None) -> int | None:
        """The snapshot up to which an open request accepts what others wrote; None if there is none."""
        return next((each.head for each in reversed(self.open_requests(known))), None)

    def rolled_back_from(self, known: TableProgress | None) -> int | None:
        """How often the table had been published before someone rolled it back; None if nobody did."""
        if self.copy is None or self.copy.mark is None or known is None:
            return None
        is_same = self.copy.mark.table_uuid == known.mark.table_uuid
        number = self.copy.progress.number
        return number if is_same and number > known.progress.number else None

    @property
    def begun(self) -> Mapping[str, Watermark | None]:
        """Where upstreams begin of which nothing was published yet."""
        return self.copy.begun if self.copy is not None else {}


class Cursors(Protocol):
    """Keeps the cursor of each asset, by its key; what was set is durable when the method returns."""

    def get(self, asset: str) -> Cursor:
        """The stored cursor; an empty one if nothing was ever stored."""

    def get_many(self, assets: Iterable[str]) -> dict[str, Cursor]:
        """Like ``get`` for each of ``assets``, in few requests."""

    def set_copy(self, asset: str, copy: Copy) -> None:
        """Store a copy of the progress."""

    def set_requests(self, asset: str, requests: tuple[Request, ...]) -> None:
        """Store what persons asked for."""

    def set_job(self, asset: str, job: Job | None) -> None:
        """Store what a job outside of Dagster is working on."""


@dataclass(frozen=True)
class ReadOnlyCursors:
    """A Cursors that shows what ``store`` has and changes nothing: for runs that write to branches."""

    store: Cursors

    def get(self, asset: str) -> Cursor:
        """As ``store`` has it."""
        return self.store.get(asset)

    def get_many(self, assets: Iterable[str]) -> dict[str, Cursor]:
        """As ``store`` has them."""
        return self.store.get_many(assets)

    def set_copy(self, asset: str, copy: Copy) -> None:
        """Nothing is stored."""

    def set_requests(self, asset: str, requests: tuple[Request, ...]) -> None:
        """Nothing is stored."""

    def set_job(self, asset: str, job: Job | None) -> None:
        """Nothing is stored."""


def progress_of(target: TableMetadata | None, cursor: Cursor, *, asset: str, storage: Storage) -> TableProgress | None:
    """What ``target`` contains; None if it was never published. Read the ``cursor`` before ``target``.

    Then a run that publishes in between makes the cursor's copy count for nothing.

    Raises:
        TargetChangedError, UnknownPublicationError, StateVersionError, StateUnreadableError: see ``table_progress``.
    """
    return known_progress(table_progress(target, asset=asset, storage=storage), cursor, target)


def known_progress(found: TableProgress | None, cursor: Cursor, target: TableMetadata | None) -> TableProgress | None:
    """What ``target`` contains: as ``found`` in it, or more if the cursor's copy is of the same publication."""
    copy = cursor.copy
    if copy is None or copy.mark is None or target is None or copy.mark.table_uuid != target.uuid:
        return found
    if copy.is_reported and (found is None or found.mark.position < copy.mark.position):
        return TableProgress(copy.progress, copy.mark) if _descends_from(target, copy.mark) else found
    if found is None or copy.mark.snapshot_id != found.mark.snapshot_id:
        return found
    return replace(found, progress=copy.progress)


def _descends_from(target: TableMetadata, mark: TargetMark) -> bool:
    """Whether ``main`` contains the snapshot with ``mark``, or did before it expired, as far as is known."""
    ancestry = target.ancestry()
    if mark.snapshot_id == NO_SNAPSHOT or ancestry.find(mark.snapshot_id) is not None:
        return True
    if mark.snapshot_id in target.snapshots or ancestry.is_whole:
        return False
    return not is_certainly_before(ancestry.snapshots[-1].position, mark.position)


def state_of(edge: Edge, known: TableProgress | None, cursor: Cursor) -> EdgeState:
    """How far an asset without partitions has consumed an upstream, as its next run finds it."""
    state = known.progress.state(edge, known.mark) if known is not None else EdgeState(edge)
    if not state.has_begun and edge.upstream in cursor.begun:
        state = replace(state, committed=cursor.begun[edge.upstream], is_beginning=True)
    for request in cursor.open_requests(known):
        if request.upstream == edge.upstream:
            state = request.applied_to(state)
    return state
