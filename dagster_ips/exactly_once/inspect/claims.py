"""What a target claims to be made of, as inputs of a full run: reads metadata and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import Everywhere
from dagster_ips.core.interval import Interval
from dagster_ips.core.policy import OnRemoved
from dagster_ips.core.ranges import Bound, ChangeRange
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import UnprovableError
from dagster_ips.errors.remedies import full_run
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.partition_captures import live_in_partitions, rows_of
from dagster_ips.exactly_once.capture.partitioned_input import input_progress
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput, files_in
from dagster_ips.iceberg.affected_partitions import affected_partitions
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.change_reader import ChangedFiles, live_files
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import computed_in, has_attempt, is_of_same_attempt
from dagster_ips.progress.cursor import Cursors, progress_of
from dagster_ips.progress.progress import InputProgress
from dagster_ips.spark.comparison import FilesAt

_SHOWN = 5

KeyValues = tuple[Bound | None, ...]


@dataclass(frozen=True, slots=True)
class ClaimedPart:
    """The inputs of a full run that would produce the target's rows, those of ``partitions`` if the asset has any."""

    inputs: tuple[CapturedInput, ...]
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LastChange:
    """What the newest run that published to a target changed in it: the ``captured`` files, between two snapshots."""

    captured: ChangedFiles
    start: Snapshot
    head: Snapshot

    @property
    def before(self) -> FilesAt:
        """The files that may hold rows which are no longer there."""
        files = self.captured.changes
        return FilesAt(self.start.snapshot_id, tuple(file.path for file in (*files.removed, *files.hidden)))

    @property
    def after(self) -> FilesAt:
        """The files that may hold rows which weren't there before."""
        files = self.captured.changes
        return FilesAt(self.head.snapshot_id, tuple(file.path for file in (*files.added, *files.hidden)))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a consumer's table, ``target``, says that it contains of ``inputs``; ``keys`` are the asset's partitions.

    There is a single key None for an asset without partitions.
    """

    consumer: str
    target: TableMetadata
    inputs: Sequence[TrackedInput]
    sources: Sequence[TableMetadata]
    progress: Sequence[InputProgress | None]
    keys: tuple[str | None, ...]

    @property
    def begun(self) -> tuple[str | None, ...]:
        """The partitions for which something was published."""
        known = [each for each in self.progress if each is not None]
        return tuple(key for key in self.keys if any(_has_begun(each, key) for each in known))

    @property
    def removed(self) -> frozenset[str]:
        """Partitions that runs computed and that don't exist any more, so that nothing recomputes their rows."""
        computed = (computed_in(snapshot) for snapshot in self.target.ancestry().snapshots)
        return frozenset(key for of in computed for key in of if key).difference(filter(None, self.keys))

    @property
    def recent(self) -> frozenset[str | None]:
        """The partitions that the newest publication computed."""
        computed = (computed_in(snapshot) for snapshot in self.target.ancestry().snapshots)
        return frozenset(key or None for key in next(filter(None, computed), ()))

    @property
    def rows(self) -> int | None:
        """How many rows the table has; None if its newest snapshot doesn't say."""
        head = self.target.ancestry().head
        found = head.summary.get("total-records") if head else None
        return int(found) if found is not None else None

    @property
    def keeps_removed_rows(self) -> bool:
        """Whether rows that were removed upstream are meant to stay."""
        return any(tracked.policies.on_removed is OnRemoved.IGNORE for tracked in self.inputs)


@dataclass(frozen=True)
class Prover:
    """Finds what a consumer's table claims to be made of."""

    catalog: LakeCatalog
    store: Cursors

    def claim(
        self, consumer: str, table: str, inputs: Sequence[TrackedInput], partitions: Collection[str] | None
    ) -> Claim | None:
        """What ``table`` claims, and each of ``partitions`` if the asset has any; None without a table or snapshot.

        Raises:
            UnprovableError: there is none, although runs have published to it.
            IpsError: a table or a cursor can't be read.
        """
        keys: list[str | None] = [None] if partitions is None else list(partitions)
        cursor, target = self.store.get(consumer), self.catalog.find(table)
        if target is None or target.head_snapshot_id() is None:
            if cursor.copy is not None and cursor.copy.mark is not None:
                problem = f"its table {table} is gone or empty, although runs have published to it"
                raise UnprovableError(consumer=consumer, problem=problem, remedy="Its next run recomputes it.")
            return None
        known = progress_of(target, cursor, asset=consumer, storage=self.catalog.storage)
        return Claim(
            consumer=consumer,
            target=target,
            inputs=inputs,
            sources=[self.catalog.load(tracked.table, asset=consumer) for tracked in inputs],
            progress=[input_progress(known, tracked, consumer) for tracked in inputs],
            keys=tuple(keys),
        )

    def parts(
        self, claim: Claim, keys: Iterable[str | None], *, each_alone: bool = False
    ) -> tuple[list[ClaimedPart], dict[str | None, UnprovableError]]:
        """The inputs of ``keys``, and the reason for each key whose inputs are unknown.

        Partitions that were made of the same snapshots are one part, unless ``each_alone``.

        Raises:
            IpsError: a table's metadata can't be read.
        """
        alike: dict[tuple[int | str | None, ...], list[str | None]] = {}
        marks: dict[tuple[int | str | None, ...], list[Watermark | None]] = {}
        unknown: dict[str | None, UnprovableError] = {}
        for key in keys:
            try:
                found = [_made_of(claim, i, key) for i in range(len(claim.inputs))]
            except UnprovableError as error:
                unknown[key] = error
                continue
            ids = (key if each_alone else None, *[mark.snapshot_id if mark else None for mark in found])
            alike.setdefault(ids, []).append(key)
            marks[ids] = found
        return [self._part(claim, marks[ids], of) for ids, of in alike.items()], unknown

    def _part(self, claim: Claim, marks: Sequence[Watermark | None], keys: Sequence[str | None]) -> ClaimedPart:
        partitions = tuple(key for key in keys if key is not None)
        inputs = zip(claim.inputs, claim.sources, marks, strict=True)
        return ClaimedPart(tuple(self._input(claim.consumer, *each, partitions) for each in inputs), partitions)

    def _input(
        self,
        consumer: str,
        tracked: TrackedInput,
        source: TableMetadata,
        mark: Watermark | None,
        partitions: Sequence[str],
    ) -> CapturedInput:
        """The input as a full run would capture it. Spark reads the snapshot itself instead of an ICDC table."""
        snapshot = source.snapshots[mark.snapshot_id] if mark else None
        files = ChangedFiles.nothing()
        if snapshot is not None and tracked.slicing is not None:
            at = source.as_of(snapshot.snapshot_id, tracked.ref)
            files = live_in_partitions(self.catalog.storage, at, tracked, partitions)
        elif snapshot is not None:
            files = live_files(self.catalog.storage, source, head=snapshot)
        capture = Capture(
            edge=Edge(consumer, tracked.upstream),
            number=0,
            mode=Mode.FULL,
            reason="to compare with the table's rows",
            from_exclusive=None,
            to_inclusive=mark,
            icdc_table=f"{source.table}.snapshot_id_{snapshot.snapshot_id}" if snapshot else source.table,
            run_id="",
        )
        return CapturedInput(
            tracked=tracked,
            captures=(capture,),
            source=source,
            share=BacklogShare(snapshot, files),
            tags={},
            ranges={column: ChangeRange.everything(column) for column in tracked.ranges},
            rows=rows_of(source, tracked.slicing, partitions) if tracked.slicing else None,
        )

    def last_change(self, target: TableMetadata) -> LastChange | None:
        """What the newest run changed in ``target``; None if that is all that the target holds, or unknown."""
        snapshots = target.ancestry().snapshots
        newest = next((snapshot for snapshot in snapshots if has_attempt(snapshot)), None)
        if newest is None:
            return None
        since = [snapshot for snapshot in snapshots if snapshot.sequence_number <= newest.sequence_number]
        own = list(takewhile(lambda snapshot: is_of_same_attempt(newest, snapshot), since))
        start = target.snapshots.get(own[-1].parent_id) if own and own[-1].parent_id is not None else None
        if start is None:
            return None
        files = files_in(self.catalog.storage, target, Interval(start, tuple(reversed(own))), newest)
        return LastChange(files, start, newest)

    def partition_values(self, table: TableMetadata, columns: Sequence[str]) -> frozenset[KeyValues] | None:
        """The values of ``columns`` in the rows of ``table``; None if it isn't partitioned by exactly these columns."""
        head = table.ancestry().head
        files = live_files(self.catalog.storage, table, head=head) if head else ChangedFiles.nothing()
        return values_in(files, table, columns)


def values_in(files: ChangedFiles, table: TableMetadata, columns: Sequence[str]) -> frozenset[KeyValues] | None:
    """The values of ``columns`` in the partitions that ``files`` are in; None if they are unknown."""
    found = affected_partitions(files.changes, table)
    if found is None or sorted(found.columns) != sorted(columns):
        return None
    order = [found.columns.index(column) for column in columns]
    return frozenset(tuple(value[i] for i in order) for value in found.values)


def _has_begun(progress: InputProgress, key: str | None) -> bool:
    return key is None or progress.position(key) is not None


def _made_of(claim: Claim, i: int, key: str | None) -> Watermark | None:
    """Up to where input ``i`` of a partition was read; None if it had no snapshot then.

    Raises:
        UnprovableError: that is unknown, or can't be read.
    """
    tracked, source, progress = claim.inputs[i], claim.sources[i], claim.progress[i]
    edge = Edge(claim.consumer, tracked.upstream, key)

    def unprovable(problem: str, remedy: str) -> UnprovableError:
        return UnprovableError(consumer=str(edge), problem=problem, remedy=remedy)

    if tracked.start is not Everywhere.ALL:
        problem = f"its table holds only rows after start={str(tracked.start)!r}, but a recompute gives all of them"
        raise unprovable(problem, "Read it from the beginning, without start.")
    if progress is None or not _has_begun(progress, key):
        problem = "its table doesn't say which changes its rows include"
        raise unprovable(problem, f"To recompute it: {full_run(claim.consumer)}.")
    if progress.files is not None:
        problem = f"it is in the middle of a change that it consumes in parts; {progress.files.left:,} files are left"
        raise unprovable(problem, "Prove it again when they are consumed.")
    taken = tracked.slicing.taken_by(key) if tracked.slicing is not None and key is not None else frozenset[str]()
    if lacking := progress.untaken.keys() & taken:
        some = ", ".join(sorted(lacking)[:_SHOWN])
        problem = f"it was computed before Dagster had the partitions of {tracked.upstream} that it takes now ({some})"
        raise unprovable(problem, "Prove it again after its next run.")
    mark = progress.position(key)
    if mark is not None:
        _require_readable(mark, source, unprovable)
    elif source.ancestry(tracked.ref).head is not None:
        problem = f"{source.table} had no snapshot when it was consumed, but has one now"
        raise unprovable(problem, "Prove it again after its next run.")
    return mark


def _require_readable(
    mark: Watermark, source: TableMetadata, unprovable: Callable[[str, str], UnprovableError]
) -> None:
    """Fail if what ``source`` contained at ``mark`` can't be read any more as it was read then."""
    if mark.table_uuid != source.uuid:
        problem = f"{source.table} has been dropped and created again since it was consumed"
        raise unprovable(problem, "Its next run fails with an error that says what to do.")
    snapshot = source.snapshots.get(mark.snapshot_id)
    if snapshot is None:
        problem = f"snapshot {mark.snapshot_id} of {source.table}, which its rows were computed from, has expired"
        remedy = "Keep its snapshots until the next proof, or prove with each run: proof(..., with_each_run=True)."
        raise unprovable(problem, remedy)
    if mark.schema_id is not None and snapshot.schema_id not in (None, mark.schema_id, source.current_schema_id):
        problem = f"columns of {source.table} changed after snapshot {mark.snapshot_id}, the last one it consumed"
        raise unprovable(problem, "Prove it again after it has consumed a later snapshot.")
