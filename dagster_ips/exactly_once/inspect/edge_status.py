"""How far an edge has consumed, and what its next capture would hold: reads only metadata and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.change_set import ChangeSet
from dagster_ips.core.edge import Edge
from dagster_ips.core.limits import Limits
from dagster_ips.core.ownership import Consent
from dagster_ips.core.retention import IcdcTable
from dagster_ips.errors import (
    CursorStorageError,
    IpsError,
    MetadataUnreadableError,
    UnknownTableError,
    UnsupportedTableError,
)
from dagster_ips.exactly_once.capture.backlog_share import share_of
from dagster_ips.exactly_once.capture.capturer import require_ref_and_columns
from dagster_ips.exactly_once.capture.edge_start import begun_at_start
from dagster_ips.exactly_once.capture.tracked_input import StartOver, TrackedInput, end_of, files_in, follow
from dagster_ips.exactly_once.target_table.target_ownership import (
    require_known_writes,
    require_own,
    require_same_columns,
)
from dagster_ips.iceberg.affected_partitions import affected_partitions
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.change_reader import live_files
from dagster_ips.iceberg.icdc.icdc_dropping import names_by_number, tables_named
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.progress.cursor import Cursor, Cursors, Request, progress_of, state_of
from dagster_ips.progress.table_progress import TableProgress


@dataclass(frozen=True, slots=True)
class Pending:
    """What a capture would hold. ``partitions`` is None if they are unknown, and if the capture holds everything.

    ``waiting`` are the snapshots that it consists of, oldest first.
    """

    is_full: bool
    snapshots: int
    files: int
    rows: int
    size_bytes: int
    partitions: int | None
    waiting: Sequence[Snapshot]

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest pending change was committed; None if none is. Snapshots without changes don't count."""
        return next((each.timestamp_ms for each in self.waiting if not each.changes_no_file), None)


def require_continuable(target: TableMetadata, consumer: str, known: TableProgress | None, cursor: Cursor) -> None:
    """Fail if the consumer's next run wouldn't go on with its table, as far as that shows without its inputs.

    What a job outside of Dagster has written is known only once it has reported.

    Raises:
        TargetOfAnotherError, ForeignWriteError, TargetColumnsChangedError: why it wouldn't.
    """
    require_own(target, consumer, Consent())
    if cursor.job is None:
        require_known_writes(target, consumer, known, accept=cursor.accepts(known))
        require_same_columns(target, consumer, known)


@dataclass(frozen=True, slots=True)
class EdgeStatus:
    """One edge: its state as the next run would find it, what is pending, and the capture that a run is working on.

    ``requests`` are what persons asked for. ``problem`` says why the next run would fail; None if no reason is known.
    ``is_waiting`` says that the upstream's table doesn't exist and never did. ``pending`` is None in both cases.
    """

    edge: Edge
    table: str
    target: str
    state: EdgeState
    requests: tuple[Request, ...]
    in_flight: IcdcTable | None
    pending: Pending | None
    problem: str | None
    is_waiting: bool


@dataclass(frozen=True)
class Inspector:
    """Looks at the edges of one consumer, whose table is ``target``; ``is_at_work`` says whether a run may be."""

    catalog: LakeCatalog
    store: Cursors
    target: str
    icdc_namespace: str = "ips"
    is_at_work: Callable[[str], bool] = lambda _: False

    def status(self, consumer: str, tracked: TrackedInput) -> EdgeStatus:
        """The edge's status; what is wrong with the edge is reported in it and not raised.

        Raises:
            CatalogUnreachableError: the catalog did not answer.
            CursorStorageError: the Dagster instance keeps no cursors.
        """
        edge, cursor = Edge(consumer, tracked.upstream), Cursor()
        found = self._target()
        metadata = found if isinstance(found, TableMetadata) else None
        state, problem, pending, is_waiting = EdgeState(edge), None, None, False
        try:
            cursor = self.store.get(consumer)
            if isinstance(found, IpsError):
                raise found
            known = progress_of(metadata, cursor, asset=consumer, storage=self.catalog.storage)
            state = state_of(edge, known, cursor)
            consumed = state.committed.snapshot_id if state.committed else None
            source = self.catalog.load(tracked.table, asset=consumer, consumed_snapshot_id=consumed)
            require_ref_and_columns(tracked, source, consumer)
            if metadata is not None:
                require_continuable(metadata, consumer, known, cursor)
            # Of the other inputs, only those matter that are declared; each has its own row.
            inputs = known.progress.inputs if known is not None else {}
            pending = self.pending(begun_at_start(state, source, tracked, known, [*inputs]), source, tracked)
        except CursorStorageError:
            raise
        except UnknownTableError as error:
            is_waiting = error.consumed_snapshot_id is None
            problem = None if is_waiting else str(error)
        except IpsError as error:
            problem = str(error)
        return EdgeStatus(
            edge=edge,
            table=tracked.table,
            target=self.target,
            state=state,
            requests=tuple(each for each in cursor.requests if each.upstream == tracked.upstream),
            in_flight=self._in_flight(edge),
            pending=pending,
            problem=problem,
            is_waiting=is_waiting,
        )

    def _in_flight(self, edge: Edge) -> IcdcTable | None:
        """The ICDC table of the newest capture whose run may be at work."""
        names = names_by_number(self.catalog, edge, namespace=self.icdc_namespace)
        newest = next(iter(names.values()), ())
        tables = tables_named(self.catalog, edge, newest) if newest else []
        return next((table for table in tables if table.run_id and self.is_at_work(table.run_id)), None)

    def _target(self) -> TableMetadata | IpsError | None:
        """The consumer's table, None if there is none, or what is wrong with this table alone."""
        try:
            return self.catalog.find(self.target)
        except (MetadataUnreadableError, UnsupportedTableError) as error:
            return error

    def pending(self, state: EdgeState, source: TableMetadata, tracked: TrackedInput) -> Pending:
        """What a capture from ``state`` would hold.

        Raises:
            BrokenHistoryError: the source can't be followed from there.
        """
        storage, ancestry = self.catalog.storage, source.ancestry(tracked.ref)
        interval, end = follow(storage, state, source, tracked), end_of(state, source, tracked.ref)
        if isinstance(interval, StartOver):
            files = live_files(storage, source, head=ancestry.head).changes.added if ancestry.head else ()
            waiting, partitions = ancestry.snapshots[::-1], None
        else:
            changes = files_in(storage, source, interval, end).changes if end else ChangeSet()
            affected = affected_partitions(changes, source)
            files, waiting = changes.touched, interval.snapshots
            partitions = len(affected.values) if affected else None
            if state.file_set is not None:
                unlimited = replace(tracked, limits=Limits())
                rest = share_of(storage, source, unlimited, state, interval)
                files, partitions = (*rest.files.changes.touched, *files), None
                waiting = (source.snapshots[state.file_set.to_inclusive.snapshot_id], *waiting)
        return Pending(
            is_full=isinstance(interval, StartOver) and not state.consumed_nothing,
            snapshots=len(waiting),
            files=len(files),
            rows=sum(file.record_count for file in files),
            size_bytes=sum(file.file_size_bytes for file in files),
            partitions=partitions,
            waiting=waiting,
        )

    def everything(self, tracked: TrackedInput, consumer: str) -> Pending:
        """What a run that computes everything would read of the input.

        Raises:
            UnknownTableError: there is no such table.
        """
        source = self.catalog.load(tracked.table, asset=consumer)
        return self.pending(EdgeState(Edge(consumer, tracked.upstream)), source, tracked)
