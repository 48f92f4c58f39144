"""What a target claims to be made of, as inputs of a full run: reads metadata and changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, EdgeState, Mode
from dagster_ips.core.edge import Edge
from dagster_ips.core.history_place import Everywhere
from dagster_ips.core.interval import Interval
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.core.policy import OnRemoved
from dagster_ips.core.ranges import Bound, ChangeRange
from dagster_ips.core.target import TargetHistory, settle
from dagster_ips.core.touched import LineState
from dagster_ips.core.watermark import Watermark
from dagster_ips.errors import UnprovableError
from dagster_ips.errors.remedies import full_run
from dagster_ips.exactly_once.capture.backlog_share import BacklogShare
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.line_look import as_divided_now
from dagster_ips.exactly_once.capture.partition_captures import live_in_partitions, rows_of
from dagster_ips.exactly_once.capture.pending_partitions import PartitionWatch
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput, files_in
from dagster_ips.iceberg.affected_partitions import affected_partitions
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.change_reader import ChangedFiles, live_files
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import has_attempt, is_of_same_attempt, partitions_ever_stamped, target_histories
from dagster_ips.spark.comparison import FilesAt
from dagster_ips.state.store import EdgeStore

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
    """What the newest stamps and cursors of a consumer say, with an entry for each of ``inputs``.

    ``target`` is the consumer's table. ``states`` and ``histories`` are by partition; the key is None for an asset
    without partitions.
    """

    consumer: str
    target: TableMetadata
    inputs: Sequence[TrackedInput]
    sources: Sequence[TableMetadata]
    lines: Sequence[LineState | None]
    states: Sequence[Mapping[str | None, EdgeState]]
    histories: Sequence[Mapping[str | None, TargetHistory]]

    @property
    def begun(self) -> tuple[str | None, ...]:
        """The partitions for which something was published or consumed."""
        return tuple(key for key in self.states[0] if any(_has_begun(of[key]) for of in self.states))

    @property
    def removed(self) -> frozenset[str]:
        """Partitions that runs computed and that don't exist any more, so that nothing recomputes their rows."""
        stamped = frozenset[str]()
        for tracked in self.inputs:
            if tracked.slicing is not None:
                line = Edge(self.consumer, tracked.upstream)
                stamped |= partitions_ever_stamped(self.target, line, tracked.slicing.division)
        return stamped - self.states[0].keys()

    @property
    def recent(self) -> frozenset[str | None]:
        """The partitions that the newest stamp names."""
        newest: dict[str | None, int] = {}
        for of in self.histories:
            for key, history in of.items():
                if history.newest is not None:
                    newest[key] = max(newest.get(key, 0), history.newest.target.sequence_number)
        return frozenset(key for key, number in newest.items() if number == max(newest.values()))

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
    store: EdgeStore

    def claim(
        self, consumer: str, table: str, inputs: Sequence[TrackedInput], partitions: Collection[str] | None
    ) -> Claim | None:
        """What ``table`` claims, and each of ``partitions`` if the asset has any; None without a table or snapshot.

        Lines are read first, then cursors, then the target, so that what a run does in the meantime isn't claimed.

        Raises:
            UnprovableError: there is none, although runs have published to it.
            IpsError: a table or a cursor can't be read.
        """
        keys: list[str | None] = [None] if partitions is None else list(partitions)
        edges = [{key: Edge(consumer, tracked.upstream, key) for key in keys} for tracked in inputs]
        watch = PartitionWatch(self.catalog.storage, self.store, consumer, self.catalog.find(table))
        lines = [None if tracked.slicing is None else watch.known(tracked) for tracked in inputs]
        stored = [self.store.get_many(of.values()) for of in edges]
        target = self.catalog.find(table)
        if target is None or target.head_snapshot_id() is None:
            if any(state.target for of in stored for state in of.values()):
                problem = f"its table {table} is gone or empty, although runs have published to it"
                raise UnprovableError(consumer=consumer, problem=problem, remedy="Its next run recomputes it.")
            return None
        histories = [target_histories(target, of.values()) for of in edges]
        return Claim(
            consumer=consumer,
            target=target,
            inputs=inputs,
            sources=[self.catalog.load(tracked.table, asset=consumer) for tracked in inputs],
            lines=lines,
            states=[
                _settled(edges[i], stored[i], histories[i], target, lines[i], tracked.slicing)
                for i, tracked in enumerate(inputs)
            ],
            histories=[{key: histories[i][edge] for key, edge in of.items()} for i, of in enumerate(edges)],
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
            after_stamp=None,
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


def _settled(  # noqa: PLR0913, PLR0917  # all are independent
    edges: Mapping[str | None, Edge],
    stored: Mapping[Edge, EdgeState],
    histories: Mapping[Edge, TargetHistory],
    target: TableMetadata,
    line: LineState | None,
    slicing: Slicing | None,
) -> Mapping[str | None, EdgeState]:
    settled = {edge: settle(stored[edge], histories[edge]) for edge in edges.values()}
    if slicing is not None and line is not None:
        settled = as_divided_now(settled.values(), target, line, slicing)
    return {key: settled[edge] for key, edge in edges.items()}


def _has_begun(state: EdgeState) -> bool:
    return state.holds_up_to is not None or state.has_begun


def _made_of(claim: Claim, i: int, key: str | None) -> Watermark | None:
    """Up to where input ``i`` of a partition was read; None if it had no snapshot then.

    For a partition, it is the last point up to which the upstream is known not to have changed there.

    Raises:
        UnprovableError: that is unknown, or can't be read.
    """
    tracked, source, state, line = claim.inputs[i], claim.sources[i], claim.states[i][key], claim.lines[i]

    def unprovable(problem: str, remedy: str) -> UnprovableError:
        return UnprovableError(consumer=str(state.edge), problem=problem, remedy=remedy)

    if tracked.start is not Everywhere.ALL:
        problem = f"its table holds only rows after start={str(tracked.start)!r}, but a recompute gives all of them"
        raise unprovable(problem, "Read it from the beginning, without start.")
    if not _has_begun(state):
        problem = "neither a stamp of its table nor a cursor says which changes its rows include"
        raise unprovable(problem, f"To recompute it: {full_run(state.edge.consumer)}.")
    _require_whole(state, tracked, key)
    mark = _latest_mark(state, line, tracked, key)
    if mark is None:
        if source.ancestry(tracked.ref).head is not None:
            problem = f"{source.table} had no snapshot when it was consumed, but has one now"
            raise unprovable(problem, "Prove it again after its next run.")
        return None
    if mark.table_uuid != source.uuid:
        problem = f"{source.table} has been dropped and created again since it was consumed"
        raise unprovable(problem, "Its next run fails with an error that says what to do.")
    snapshot = source.snapshots.get(mark.snapshot_id)
    if snapshot is None:
        problem = f"snapshot {mark.snapshot_id} of {source.table}, which its rows were computed from, has expired"
        remedy = "Keep its snapshots until the next proof, or prove with each run: proof(..., with_each_run=True)."
        raise unprovable(problem, remedy)
    seen = state.committed.schema_id if state.committed else mark.schema_id
    if seen is not None and snapshot.schema_id not in (None, seen, source.current_schema_id):
        problem = f"columns of {source.table} changed after snapshot {mark.snapshot_id}, the last one it consumed"
        raise unprovable(problem, "Prove it again after it has consumed a later snapshot.")
    return mark


def _require_whole(state: EdgeState, tracked: TrackedInput, key: str | None) -> None:
    """Fail if a partition lacks rows from before its mark, which a recompute has.

    Raises:
        UnprovableError: it does.
    """
    if state.file_set is not None:
        problem = f"it is in the middle of a change that it consumes in parts; {state.file_set.left:,} files are left"
        raise UnprovableError(str(state.edge), problem, "Prove it again when they are consumed.")
    taken = tracked.slicing.taken_by(key) if tracked.slicing is not None and key is not None else frozenset[str]()
    if lacking := state.left_out & taken:
        some = ", ".join(sorted(lacking)[:_SHOWN])
        problem = f"it was computed before Dagster had the partitions of {tracked.upstream} that it takes now ({some})"
        raise UnprovableError(str(state.edge), problem, "Prove it again after its next run.")


def _latest_mark(state: EdgeState, line: LineState | None, tracked: TrackedInput, key: str | None) -> Watermark | None:
    mark = state.holds_up_to
    if mark is None or line is None or tracked.slicing is None or key is None:
        return mark
    return line.start_of(state, tracked.slicing.taken_by(key)) or mark
