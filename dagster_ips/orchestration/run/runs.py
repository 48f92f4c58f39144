"""What every run does around its writes, whichever way its asset is written: capture before, clean up after."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import dagster as dg

from dagster_ips.core.capture import Capture, Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.log_lines import Event, LogLine
from dagster_ips.core.ownership import Consent, owner_of
from dagster_ips.core.policy import OnRemoved
from dagster_ips.core.retention import Retention
from dagster_ips.errors import DeclarationError, IpsError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.exactly_once.capture.capturer import Capturer
from dagster_ips.exactly_once.capture.input_to_capture import CaptureRequest
from dagster_ips.exactly_once.capture.lost_files import unreadable
from dagster_ips.exactly_once.capture.partition_captures import RunPartitions
from dagster_ips.exactly_once.capture.partition_counts import Count, counts_by_partition
from dagster_ips.exactly_once.capture.row_counts import count_rows
from dagster_ips.exactly_once.capture.tables_together import capture_together
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput
from dagster_ips.exactly_once.publish.old_icdc_tables import drop_expired_tables, drop_tables_of_refused
from dagster_ips.exactly_once.publish.publisher import Publisher
from dagster_ips.exactly_once.snapshot_rows import require_readable_by_spark
from dagster_ips.exactly_once.target_table.target_ownership import Accepted
from dagster_ips.iceberg import cascade_stamps, event_time
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import owner_properties
from dagster_ips.iceberg.storage import Storage
from dagster_ips.orchestration.declare.consumers import Consumer, without_triggers
from dagster_ips.orchestration.platform.staged_run import StagedRun
from dagster_ips.orchestration.run.cascade_tag import Running, cascade_of, is_automatic
from dagster_ips.orchestration.run.starting_over import why_started_over
from dagster_ips.orchestration.watch.asset_completeness import completion_of
from dagster_ips.orchestration.watch.run_at_work import RunsAtWork
from dagster_ips.progress.advance import Advance
from dagster_ips.progress.cursor import Cursors, ReadOnlyCursors
from dagster_ips.progress.lookups import LookedUp
from dagster_ips.run_view import RunView

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession

MODE_TAG = "dagster_ips/mode"
REMOVED_TAG = "dagster_ips/on_removed"
ACCEPT_TAG = "dagster_ips/accept"
TAKE_OVER_TAG = "dagster_ips/take_over"

_MOST_COUNTED = 500
"""The most partitions of a run for which metadata is attached to each.

For each of them Dagster searches all of the run's partitions: 22 ms with 7,804 hourly partitions.
"""

_Kind = TypeVar("_Kind", bound=StrEnum)


@dataclass(frozen=True)
class RunInputs:
    """What one attempt of one step captured: one view per input of its consumer, none if the asset captures nothing.

    ``valid_through`` is the time up to which the asset is complete once all of it is published, None if unknown.
    ``by_partition`` is how much each partition takes; empty for one partition or too many, or if that is unknown.
    ``looked_up`` are the tables that were read beside the views, as they were then. ``declared`` is as in ``Maker``,
    ``unrelated`` as in ``Consumer``.
    """

    views: Mapping[str, RunView] = field(default_factory=dict)
    seconds: float = 0.0
    cascade: Cascade = field(default_factory=Cascade)
    valid_through: dt.datetime | None = None
    by_partition: Mapping[str, Count] = field(default_factory=dict)
    looked_up: Mapping[str, LookedUp] = field(default_factory=dict)
    declared: str | None = None
    unrelated: frozenset[str] = frozenset()

    @property
    def partitions(self) -> list[str]:
        """The partitions that were captured; none if the asset isn't partitioned."""
        keys = [capture.edge.partition for capture in self.captures]
        return [key for key in dict.fromkeys(keys) if key is not None]

    @property
    def mode(self) -> Mode:
        """The mode that all captures share; ``full`` if there are none."""
        return next((view.mode for view in self.views.values()), Mode.FULL)

    @property
    def accepted(self) -> Accepted:
        """The changes by others to the asset's table that the run accepts."""
        return next((view.captured.accepted for view in self.views.values()), Accepted())

    @property
    def advance(self) -> Advance:
        """What publishing all captures adds to the progress of the asset's table."""
        return next((view.captured.advance for view in self.views.values()), Advance())

    @property
    def captures(self) -> list[Capture]:
        """The captures to commit once the result is published."""
        return [capture for view in self.views.values() for capture in view.captured.captures]


@dataclass(frozen=True)
class Runs:
    """What runs capture and publish with: the catalog, the cursors, and the session, opened when it is first needed.

    ``staged`` is what the runs are staged for: then ``lake`` reads and writes the backfill's branches, and ``store``
    doesn't store what is consumed.
    """

    lake: LakeCatalog
    store: Cursors
    session: Callable[[], SparkSession]
    icdc_namespace: str
    retention: Retention
    staged: StagedRun | None = None

    def staged_for(self, staged: StagedRun | None) -> Runs:
        """The same for runs that are staged; unchanged if ``staged`` is None."""
        if staged is None:
            return self
        return replace(self, lake=self.lake.on_branch(staged.branch), store=ReadOnlyCursors(self.store), staged=staged)

    def capture(self, consumer: Consumer, running: Running) -> RunInputs:
        """As ``capture_together``, for a single asset."""
        return self.capture_together([consumer], running)[consumer.name]

    def capture_together(self, consumers: Sequence[Consumer], running: Running) -> dict[str, RunInputs]:
        """Take one capture per input of ``consumers`` and partition of the run, as the run's tags ask for; by asset.

        The assets are of one step, and so have the same inputs. Those that are ahead wait for the others, and are left
        out.

        Raises:
            IpsError: nothing was captured, and no state changed.
        """
        started, run = time.monotonic(), running.run
        names = ", ".join(each.name for each in consumers)
        inputs = consumers[0].tracked(running.job_def.asset_layer.asset_graph, running.instance)
        self._require_unmoved(consumers)
        wished = [_with_wishes(tracked, run.tags, names) for tracked in inputs.values()]
        asked_for, consent = _wish(Mode, run.tags, MODE_TAG, names), _consent(run.tags, names)
        because = why_started_over(running)
        requests = [
            CaptureRequest(
                each.name,
                wished,
                target=each.table,
                asked_for=self._asked_for(each, asked_for),
                partitions=self._partitions(each, running) if each.is_partitioned else None,
                consent=consent,
                maker=each.maker,
                because=because,
            )
            for each in consumers
        ]
        lake = self.lake.reading_once()
        captured = capture_together(Capturer(lake, self.store, self.icdc_namespace), requests, run_id=run.run_id)
        self._require_usable(consumers, captured, lake)
        self._require_unmoved(consumers)  # If so, the cursors that were read in between hold for the branches, too.
        session, weighs = self.session(), any(each.weighs_live_rows for each in consumers)
        views = _views_of_tables(captured, list(inputs), session, lake, weighs_live_rows=weighs)
        for name, view in next(iter(views.values())).items():
            if (rows := count_rows(view.captured, session, self.lake.name)) is not None:
                running.log.info(
                    "%s: the run's partitions took %d of %d rows captured", name, rows.taken, rows.captured
                )
        return {
            each.name: self._captured(each, running, views[each.name], started, lake)
            for each in consumers
            if each.name in views
        }

    def _require_unmoved(self, consumers: Sequence[Consumer]) -> None:
        if self.staged is not None:
            tables = {table for each in consumers for table in (each.table, *(of.table for of in each.inputs.values()))}
            self.staged.require_unmoved(self.lake.on_branch(None), tables)

    def _require_usable(
        self, consumers: Sequence[Consumer], captured: Mapping[str, Sequence[CapturedInput]], lake: LakeCatalog
    ) -> None:
        """Refuse tables that Spark can't read and, when they are captured first, those that share their folder.

        Raises:
            UnreadableColumnError, SharedFolderError: there is one; what was captured is dropped.
        """
        inputs = [each for of_one in captured.values() for each in of_one]
        try:
            for each in inputs:
                require_readable_by_spark(each.source)
            if any(each.capture.number == 1 for each in inputs):
                targets = [lake.find(each.table) for each in consumers]
                for table in [*(each.source for each in inputs), *(each for each in targets if each is not None)]:
                    lake.require_own_folder(table.table, table.location)
        except IpsError:
            for consumer in consumers:
                found = [capture for each in captured.get(consumer.name, ()) for capture in each.captures]
                drop_tables_of_refused(self.lake, found, target=consumer.table)
            raise

    def _asked_for(self, consumer: Consumer, wish: Mode | None) -> Mode | None:
        """The mode that was asked for; of unpartitioned assets in a staged backfill, ``full`` for the root only."""
        if self.staged is not None and not consumer.is_partitioned:
            return Mode.FULL if consumer.name == self.staged.root else None
        return wish

    def _partitions(self, consumer: Consumer, running: Running) -> RunPartitions:
        """The run's partitions, and whether a person named them or they follow from a change."""
        follows = is_automatic(running.run) or (self.staged is not None and consumer.name != self.staged.root)
        return RunPartitions(tuple(running.partition_keys), named_by_person=not follows)

    def publisher(
        self, run: dg.DagsterRun, asset: dg.AssetKey, captured: RunInputs, *, table: str, log: Callable[[str], None]
    ) -> Publisher:
        """The publisher of the asset's ``table``; this session's commits are stamped with what ``captured`` says.

        Each step is logged as one line to ``log``, and which of the run's tags have no effect.
        """
        name = asset.to_user_string()
        if run.tags.keys() & {ACCEPT_TAG, TAKE_OVER_TAG, REMOVED_TAG}:
            found = [view.captured for view in captured.views.values()]
            for told in _without_effect(run.tags, found, self.lake.find(table), name):
                log(told)
        properties = cascade_stamps.properties(captured.cascade) | event_time.properties(captured.valid_through)
        properties |= owner_properties(name, captured.accepted.head)
        consent = _consent(run.tags, name)

        def tell(line: LogLine) -> None:
            log(str(LogLine(line.event, {"asset": name, **line.values})))

        return Publisher(
            self.lake, self.store, self.session(), run.run_id, properties, consent, tell, advance=captured.advance
        )

    def _captured(
        self, consumer: Consumer, running: Running, views: Mapping[str, RunView], started: float, lake: LakeCatalog
    ) -> RunInputs:
        graph = running.job_def.asset_layer.asset_graph
        if missing := without_triggers(consumer.key, graph):
            running.log.warning(missing)
        found = [view.captured for view in views.values()]
        for name, view in views.items():
            running.log.info(str(_capture_line(name, view.captured)))
        consumed = [(each.source, each.capture) for each in found]
        advance = found[0].advance if found else Advance()
        cascade = self.staged.cascade if self.staged else cascade_of(running, consumed, advance)
        valid_through = completion_of(consumer, graph, lake.storage).after(found)
        seconds, declared = time.monotonic() - started, consumer.maker.declared
        captured = RunInputs(views, seconds, cascade, valid_through, declared=declared, unrelated=consumer.unrelated)
        return replace(captured, by_partition=_counts(lake.storage, captured))

    @contextlib.contextmanager
    def writing(
        self, captured: RunInputs, target: str, looked_up: Mapping[str, LookedUp] | None = None
    ) -> Iterator[None]:
        """Wrap writes to ``target``: name what can't be read, and release what Spark has cached at the end.

        ``looked_up`` are all tables that were read beside the views, as they were then. An error also
        drops the run's ICDC tables. A staged run keeps them: see ``drop_old_tables``.

        Raises:
            FilesGoneError: a data file that the captures refer to can no longer be read.
            IcdcTableGoneError: an ICDC table was dropped in the meantime.
            SnapshotGoneError: a snapshot that is read expired in the meantime.
        """
        views = list(captured.views.values())
        try:
            yield
        except Exception as error:
            beside = [each.table for each in (looked_up or {}).values()]
            lost = unreadable(error, [view.captured for view in views], self.lake, beside)
            if self.staged is None:
                drop_tables_of_refused(self.lake, captured.captures, target=target)
            if lost:
                raise lost from error
            raise
        finally:
            for view in views:
                view.release()

    def drop_old_tables(self, captured: RunInputs, instance: dg.DagsterInstance) -> None:
        """Drop the ICDC tables that need not be kept any longer. Called after the commit; never raises.

        A staged run drops none: other runs of its backfill may read them, and no cursor says so. Later runs do.
        """
        if self.staged is not None:
            return
        for view in captured.views.values():
            drop_expired_tables(
                self.lake,
                view.captured.capture,
                self.retention,
                is_at_work=RunsAtWork(instance, self.store, view.captured.capture.edge.consumer),
            )


def _capture_line(name: str, captured: CapturedInput) -> LogLine:
    """The log line that says what was captured from the input ``name``."""
    capture, changes = captured.capture, captured.files.changes
    start, end = capture.from_exclusive, capture.to_inclusive
    return LogLine.of(
        Event.CAPTURE,
        asset=capture.edge.consumer,
        input=name,
        upstream=capture.edge.upstream,
        source=captured.source.table,
        number=capture.number,
        mode=capture.mode,
        reason=capture.reason,
        from_exclusive=start.snapshot_id if start else None,
        from_ms=start.timestamp_ms if start else None,
        to_inclusive=end.snapshot_id if end else None,
        to_ms=end.timestamp_ms if end else None,
        files=len(changes.touched),
        files_added=len(changes.added),
        rows=sum(file.record_count for file in changes.touched),
        rows_added=changes.row_count,
        bytes=sum(file.file_size_bytes for file in changes.touched),
        partitions=len(captured.captures) if capture.edge != captured.captures[0].edge else None,
        icdc_table=capture.icdc_table,
    )


def _views_of_tables(
    captured: Mapping[str, Sequence[CapturedInput]],
    inputs: Sequence[str],
    session: SparkSession,
    lake: LakeCatalog,
    *,
    weighs_live_rows: bool,
) -> dict[str, dict[str, RunView]]:
    """Each consumer's views, by input; a frame taken from one view of an input counts as taken from all of them."""
    first = next(iter(captured.values()))
    read = {
        name: RunView(found, session, lake.name, storage=lake.storage, weighs_live_rows=weighs_live_rows)
        for name, found in zip(inputs, first, strict=True)
    }
    return {
        consumer: {name: read[name].of_another_table(each) for name, each in zip(inputs, found, strict=True)}
        for consumer, found in captured.items()
    }


def _counts(storage: Storage, captured: RunInputs) -> Mapping[str, Count]:
    """How much each of a run's partitions takes, summed over the inputs.

    Empty if that is unknown, and if the run has one partition or too many.
    """
    counts: dict[str, Count] = {}
    is_counted = 1 < len(captured.partitions) <= _MOST_COUNTED
    for view in captured.views.values() if is_counted else ():
        slicing = view.captured.tracked.slicing
        of_input = counts_by_partition(storage, view.captured, slicing, captured.partitions) if slicing else None
        if of_input is None:
            return {}
        counts |= {key: counts.get(key, Count()).plus(count) for key, count in of_input.items()}
    return counts


def _with_wishes(tracked: TrackedInput, tags: Mapping[str, str], asset: str) -> TrackedInput:
    """The input with the policies that the run's tags set for this run only."""
    on_removed = _wish(OnRemoved, tags, REMOVED_TAG, asset)
    return replace(tracked, policies=replace(tracked.policies, on_removed=on_removed)) if on_removed else tracked


def _wish(kind: type[_Kind], tags: Mapping[str, str], tag: str, asset: str) -> _Kind | None:
    wish = tags.get(tag)
    if wish is None:
        return None
    if wish not in set(kind):
        problem = f"the run tag {tag}={wish!r} has an unknown value."
        raise DeclarationError(asset=asset, problem=problem, remedy=f"Use one of {', '.join(kind)}.")
    return kind(wish)


def _without_effect(
    tags: Mapping[str, str], captured: Sequence[CapturedInput], target: TableMetadata | None, asset: str
) -> Iterator[str]:
    """For each tag with which a person permitted what there is no occasion for, that it has no effect, and why."""
    told = "{}: the run tag {}={} has no effect: {}".format
    owner = owner_of(target.ancestry(), target.properties) if target else None
    if ACCEPT_TAG in tags and not any(each.accepted.snapshots for each in captured):
        is_full = all(each.capture.mode is Mode.FULL for each in captured)
        why = "the run replaces all rows" if is_full else "there is nothing that another writer changed"
        yield told(asset, ACCEPT_TAG, tags[ACCEPT_TAG], why)
    if TAKE_OVER_TAG in tags and owner in (None, asset):
        yield told(asset, TAKE_OVER_TAG, tags[TAKE_OVER_TAG], "the table doesn't belong to another asset")
    if REMOVED_TAG in tags and not any(each.files.changes.may_remove_rows for each in captured):
        yield told(asset, REMOVED_TAG, tags[REMOVED_TAG], "no row was removed")


def _consent(tags: Mapping[str, str], asset: str) -> Consent:
    """What the run's tags allow the run to do.

    Raises:
        DeclarationError: the snapshot to accept isn't given as a number.
    """
    accept = tags.get(ACCEPT_TAG)
    if accept is not None and not accept.isdecimal():
        problem = f"the run tag {ACCEPT_TAG}={accept!r} isn't the id of a snapshot."
        remedy = "Use the id from the error that reported the change by someone else."
        raise DeclarationError(asset=asset, problem=problem, remedy=remedy)
    return Consent(int(accept) if accept is not None else None, tags.get(TAKE_OVER_TAG))
