"""Publish what a run made: write on a branch, seal it with the table's progress, make it the table's ``main``.

The branch's commits carry the whole progress. One commit of the table's metadata moves ``main`` and the tag that keeps
the progress, and drops the branch; the catalog refuses it if ``main`` isn't what the progress was computed from.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_ips.core.ancestry import MAIN, Snapshot
from dagster_ips.core.capture import Capture, Mode, TargetMark
from dagster_ips.core.log_lines import Event, LogLine, Tell, tell_nobody
from dagster_ips.core.ownership import ACCEPTED, ASSET, Consent
from dagster_ips.errors import (
    BranchNotKeptError,
    CaptureVoidError,
    DeclarationError,
    IpsError,
    PublishError,
    RefMovedError,
    StagedBranchGoneError,
)
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.snapshot_rows import branch_rows
from dagster_ips.exactly_once.target_table.target_ownership import (
    left_unknown,
    require_columns_of,
    require_known_writes,
    require_own,
    require_same_columns,
)
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.ref_commits import branching, commit_refs, publication
from dagster_ips.iceberg.stamps import attempt_properties, computed_properties, is_of_attempt
from dagster_ips.progress.advance import Advance, Standing
from dagster_ips.progress.cursor import Copy, Cursors, progress_of
from dagster_ips.progress.lookups import LookedUp, lookups_after
from dagster_ips.progress.made_rows import MadeBy, made_after
from dagster_ips.progress.progress import Progress
from dagster_ips.progress.progress_text import progress_text
from dagster_ips.progress.table_progress import PIN, PROGRESS, TableProgress, newest_progress
from dagster_ips.spark.branches import Branch, branch_of_run, is_conflict, stamped
from dagster_ips.spark.targets import set_properties
from dagster_ips.spark.writes.append import append_rows

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession

_MOST_ATTEMPTS = 20
"""How often a run writes its result. Of runs that end at once, each may have to wait for all others."""
_SHOWN = 5
_DROPPED = "someone dropped the branch while the run wrote to it, so it lacks a part of the result"
_DAY_MS = 86_400_000
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Publication:
    """The outcome of a run's writes.

    ``snapshots`` are those that are now on the target's ``main``, oldest first; none if there was nothing to write.
    ``superseded_by`` is what another run had published of the same change, if it had.
    """

    metadata: TableMetadata | None
    snapshots: tuple[Snapshot, ...] = ()
    superseded_by: TableProgress | None = None


Write = Callable[[Branch, TableMetadata], None]
"""Writes a run's result to the branch; the metadata is the target's from before the branch was created."""

Check = Callable[[Branch], None]
"""Checks what was written to the branch before it is published, and raises if it must not be."""


def unchecked(_: Branch) -> None:
    """Publish what was written without a check."""


@dataclass(frozen=True)
class Publisher:
    """Publishes to one target table by the session's commits.

    ``advance`` is what that adds to the table's progress; the rows are made as ``origin`` says and looked up in the
    tables ``looked_up``. ``sealed`` gives the progress otherwise, for a run that restores rows. ``properties`` are
    added to the summaries of the snapshots; if they ``are_news``, such a snapshot is published even if no row changed.
    ``consent`` is what a person allows the run; ``tell`` is called for each step. If the ``catalog`` has a branch, that
    is published to instead of ``main``: only those who look at the branch see it.
    """

    catalog: LakeCatalog
    store: Cursors
    session: SparkSession
    run_id: str
    properties: Mapping[str, str] = field(default_factory=dict)
    consent: Consent = field(default_factory=Consent)
    tell: Tell = tell_nobody
    are_news: bool = False
    advance: Advance = field(default_factory=Advance)
    origin: MadeBy = field(default_factory=MadeBy)
    looked_up: Mapping[str, LookedUp] = field(default_factory=dict)
    sealed: Callable[[TableProgress | None], Progress] | None = None

    def publish(
        self, table: str, captures: Sequence[Capture], write: Write, *, consumer: str, check: Check = unchecked
    ) -> Publication:
        """Make ``write``'s result the head of ``table``, if ``check`` allows it.

        If ``main`` moves in the meantime, or another commit comes in between, the branch is dropped and written again
        on the newest head. If another run published the same change first, this run's work is dropped.

        Raises:
            CaptureVoidError: a person has meanwhile changed what is consumed.
            TargetOfAnotherError, ForeignWriteError, TargetColumnsChangedError: see ``require_own``.
            StagedBranchGoneError: the catalog has a branch that the table doesn't have.
            BranchNotKeptError: the catalog doesn't keep branches.
            PublishError: ``main`` kept moving, or the branch holds commits that aren't this run's.
            Exception: whatever ``write`` or ``check`` raised; nothing is published or consumed then.
        """
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            before = self.catalog.load(table, asset=consumer)
            self.require_branch(before)
            known = self.known(before, consumer)
            if superseded := self.superseded(before, captures, consumer):
                return superseded
            self.require_own(before, captures, consumer)
            branch, published_it = self.new_branch(table), True
            try:
                published_it = self._write_and_publish(branch, before, known, captures, write, check, asset=consumer)
            except Exception as error:
                after = self.catalog.load(table, asset=consumer)
                # The error may have come after main had moved: only its own history shows that.
                if not _own_snapshots(after, branch):
                    self.drop_branch(branch)
                    has_moved = is_conflict(error) or after.head_snapshot_id() != before.head_snapshot_id()
                    if not isinstance(error, RefMovedError) and (isinstance(error, IpsError) or not has_moved):
                        raise
                    if attempt == _MOST_ATTEMPTS:
                        raise _moved_each_time(branch) from error
                    _LOG.info(
                        "%s changed while %s was being written; writing again on top of its head", table, branch.name
                    )
                    continue
            if not published_it:
                self.drop_branch(branch)
                self._consume_without_writing(known, consumer)
                return Publication(before)
            published = self.catalog.load(table, asset=consumer)
            self.copy_progress(published, consumer)
            return Publication(published, _own_snapshots(published, branch))
        raise AssertionError  # the last attempt returned or raised

    def known(self, target: TableMetadata, asset: str) -> TableProgress | None:
        """What the table contains; None if a run that computes everything can't know.

        Raises:
            TargetChangedError, UnknownPublicationError, StateUnreadableError: see ``table_progress``.
        """
        try:
            return progress_of(target, self.store.get(asset), asset=asset, storage=self.catalog.storage)
        except IpsError:
            if self.advance.mode is not Mode.FULL:
                raise
            return None

    def stamp(self, branch: Branch, progress: Progress) -> dict[str, str]:
        """The summary properties of the commits that complete the run's work on ``branch``."""
        computed = computed_properties(self.advance.mode, self.advance.partitions)
        own = attempt_properties(branch.name, self.run_id) | computed | {PROGRESS: progress_text(progress)}
        return own | dict(self.properties)

    def progress(self, target: TableMetadata, known: TableProgress | None, asset: str) -> Progress:
        """The table's progress once the run is published on ``target``, of which that is ``known``."""
        if self.sealed is not None:
            return self.sealed(known)
        advance, before = self.advance, known.progress if known is not None else None
        if known is not None and known.asset not in (None, asset):
            before = None  # All rows of the former owner are to be replaced.
        made = made_after(
            before,
            self.origin,
            mode=advance.mode,
            anew=advance.anew,
            partitions=advance.partitions,
            every=advance.every,
            was_empty=advance.was_empty,
            schema_id=target.current_schema_id,
            has_inputs=bool(advance.inputs),
        )
        lookups = lookups_after(before, self.looked_up, replaces_all=self._replaces_all(target))
        found = advance.progress(known, made=made, lookups=lookups, known_to=self._left_unknown(target, known, asset))
        return replace(found, code=self.origin.code)

    def _replaces_all(self, target: TableMetadata) -> bool:
        """Whether every row of the table is recomputed."""
        is_whole = self.origin.replaces_all or self.advance.mode is Mode.FULL
        return (is_whole and not self.advance.partitions) or target.head_snapshot_id() is None

    def _left_unknown(self, target: TableMetadata, known: TableProgress | None, asset: str) -> TargetMark | None:
        if self._replaces_all(target) or ACCEPTED in self.properties or self.consent.any_writes:
            return None
        return left_unknown(target, asset, known)

    def superseded(self, target: TableMetadata, captures: Sequence[Capture], asset: str) -> Publication | None:
        """What another run published of ``captures``; None if none did.

        Raises:
            CaptureVoidError: a person has meanwhile changed what is consumed.
            PublishError: another run published some of it, or something else of the same partitions.
        """
        self.require_valid(captures)
        known = self.known(target, asset)
        match self.advance.standing(known):
            case Standing.MAY_PUBLISH:
                return None
            case Standing.DONE:
                self.tell(LogLine.of(Event.SKIP, table=target.table, reason="another run published the same change"))
                return Publication(target, superseded_by=known)
            case Standing.PARTLY_DONE:
                of = f" of {', '.join(self.advance.partitions[:_SHOWN])}" if self.advance.partitions else ""
                problem = f"another run has meanwhile published another change{of}, so run this again"
                raise PublishError(table=target.table, branch=self.catalog.branch or MAIN, problem=problem)

    def require_own(self, target: TableMetadata, captures: Sequence[Capture], asset: str) -> None:
        """Fail unless the table is the asset's, and all that others wrote to it is known or replaced.

        Raises:
            TargetOfAnotherError: another asset writes it.
            ForeignWriteError: someone else changed rows after the captures were taken.
            TargetColumnsChangedError: someone gave the names of columns to other columns.
        """
        require_own(target, asset, self.consent)
        if any(capture.mode is Mode.INCREMENTAL and not capture.is_of_new_partition for capture in captures):
            known = self.known(target, asset)
            if not self.consent.any_writes:
                accept = self.consent.accept or self.advance.accepts
                require_known_writes(target, asset, known, accept=accept)
            require_same_columns(target, asset, known)

    def settling(self, target: TableMetadata | None, asset: str) -> Publisher:
        """A publisher to which it is news if a person's consent has an effect: only a published snapshot records that.

        Raises:
            TargetOfAnotherError: another asset writes the table.
        """
        settles = target is not None and (
            ACCEPTED in self.properties or require_own(target, asset, self.consent) is not None
        )
        return replace(self, are_news=True) if settles else self

    def new_branch(self, table: str) -> Branch:
        """A branch with a name that only this attempt uses; it isn't created yet."""
        return branch_of_run(self.catalog.name, table, self.run_id)

    def require_kept(self, branch: Branch, asset: str) -> None:
        """Fail unless the catalog has kept the ``branch``, which was just created.

        Raises:
            BranchNotKeptError: it hasn't.
        """
        if branch.name not in self.catalog.load(branch.table, asset=asset).branches:
            raise BranchNotKeptError(catalog=self.catalog.name, table=branch.table, branch=branch.name)

    def commit_without_writing(self, captures: Sequence[Capture], asset: str, *, reason: str = "no change") -> None:
        """Count ``captures`` that held nothing to write, for a ``reason``, as consumed; nothing is published.

        Raises:
            CaptureVoidError: a person has meanwhile changed what is consumed.
        """
        self.require_valid(captures)
        self.tell(LogLine.of(Event.SKIP, reason=reason))
        self._consume_without_writing(self.advance.base, asset)

    def _consume_without_writing(self, known: TableProgress | None, asset: str) -> None:
        """Store what the table contains just as it is, if it is still the one of the capture."""
        progress, base = self.advance.without_writing(), self.advance.base
        if (base and base.mark) != (known and known.mark):
            return
        if progress is None or base is None:
            return
        if progress != base.progress:
            with effect(Effect.COPY_PROGRESS):
                self.store.set_copy(asset, Copy(progress, base.mark))
        self._tell_of_progress(progress)

    def copy_progress(self, target: TableMetadata, asset: str) -> None:
        """Store a copy of the table's progress. What is published is published, so this never fails."""
        try:
            known = newest_progress(target) if self.catalog.branch is None else None
            if known is not None:
                with effect(Effect.COPY_PROGRESS):
                    self.store.set_copy(asset, Copy(known.progress, known.mark))
                self._tell_of_progress(known.progress)
        except Exception as error:  # noqa: BLE001  # the copy only saves work
            _LOG.warning("the progress of %s could not be copied to Dagster (%s)", asset, type(error).__name__)

    def _tell_of_progress(self, progress: Progress) -> None:
        for each in self.advance.inputs:
            self.tell(
                LogLine.of(
                    Event.COMMIT,
                    upstream=each.upstream,
                    number=None if each.is_partitioned else progress.number,
                    partitions=len(each.starts) if each.is_partitioned else None,
                    to_inclusive=each.to.snapshot_id if each.to else None,
                )
            )

    def _write_and_publish(  # noqa: PLR0913, PLR0917  # all are independent
        self,
        branch: Branch,
        before: TableMetadata,
        known: TableProgress | None,
        captures: Sequence[Capture],
        write: Write,
        check: Check,
        *,
        asset: str,
    ) -> bool:
        """Write and publish; return whether it was published.

        It isn't if an incremental run wrote nothing, so that no consumer of the table is woken.
        """
        self.create_branch(branch, before.ancestry().head, asset=asset)
        self.require_kept(branch, asset)
        stamp = self.stamp(branch, self.progress(before, known, asset))
        with effect(Effect.WRITE_BRANCH), stamped(self.session, stamp):
            write(branch, before)
        now = self.catalog.load(branch.table, asset=branch.table)
        if branch.name not in now.branches:  # Sealing would create it again, without what was written to it.
            raise PublishError(table=branch.table, branch=branch.name, problem=_DROPPED)
        own = _own_on_branch(now, branch)
        # A table's first progress is published even if there is no row: where the asset began must outlast the cursor.
        are_news = self.are_news or known is None
        must_say = are_news or not are_incremental(captures)  # Even if all rows were there already.
        if (must_say and not own) or (own and PROGRESS not in own[0].summary):
            self.seal(branch, stamp)
            now = self.catalog.load(branch.table, asset=branch.table)
        self.require_branch(now)
        _require_own_work_only(now, branch, before)
        require_columns_of(before.current_schema_id, now, asset)
        own = _own_on_branch(now, branch)
        if not own:
            require_not_staged(now, branch, asset)
        if are_incremental(captures) and not are_news and all(snapshot.changes_no_file for snapshot in own):
            self.tell(LogLine.of(Event.SKIP, table=branch.table, reason="the change doesn't affect the table"))
            return False
        self.tell(written(branch, own))
        check(branch)
        self.require_valid(captures)
        # Loaded again, as checks may take long: meanwhile, a staged backfill may be cancelled.
        now = self.catalog.load(branch.table, asset=branch.table)
        self.require_branch(now)
        _require_own_work_only(now, branch, before)
        self.own(now, asset)
        self.make_main(branch, before, now, asset=asset)
        return True

    def own(self, target: TableMetadata, asset: str) -> None:
        """Say in the table's properties whose it is, if they don't: snapshots that say it expire."""
        if self.catalog.branch is None and target.properties.get(ASSET) != asset:
            with effect(Effect.ALTER_TARGET):
                set_properties(self.session, self.catalog.name, target.table, {ASSET: asset})

    def create_branch(self, branch: Branch, head: Snapshot | None, *, asset: str) -> None:
        """Create a branch of the table at ``head``; of a table without snapshots, by a statement of Spark.

        It is kept for a day. Once something is committed to it, it is kept for a day and as long again as ``head`` was
        old.
        """
        with effect(Effect.CREATE_BRANCH):
            if head is None:
                branch.create(self.session, head=None)
                return
            age_ms = max(0, time.time_ns() // 1_000_000 - head.timestamp_ms)
            change = branching(branch.name, at=head.snapshot_id, age_ms=age_ms + _DAY_MS)
            commit_refs(self.catalog, branch.table, change, asset=asset)

    def seal(self, branch: Branch, stamp: Mapping[str, str]) -> None:
        """Commit ``stamp`` to ``branch`` without any row."""
        with effect(Effect.WRITE_BRANCH), stamped(self.session, stamp):
            nothing = self.session.table(branch.sql_name).where("FALSE")
            append_rows(nothing, branch, dedup_on=(), partition_columns=())

    def make_main(
        self, branch: Branch, before: TableMetadata, now: TableMetadata, *, asset: str, drops: Sequence[str] = ()
    ) -> None:
        """Make the head of ``branch``, as it is ``now``, the head of ``main``, if that is as ``before``, in one commit.

        The branch goes with it, and other branches, ``drops``.

        Raises:
            RefMovedError: the head has moved since, or someone wrote to the branch.
            PublishError: others committed to the table each time.
        """
        head = now.head_snapshot_id(branch.name)
        if head is None:
            raise RefMovedError(table=branch.table, ref=branch.name, expected=None, found=None)
        onto = self.catalog.branch
        change = publication(
            branch.name,
            head=head,
            expected=before.head_snapshot_id(),
            pin=PIN if onto is None else None,
            onto=onto or MAIN,
            drops=drops,
        )
        with effect(Effect.PUBLISH):
            commit_refs(self.catalog, branch.table, change, asset=asset)
        self.tell(LogLine.of(Event.PUBLISH, table=branch.table, snapshot=head))

    def rows_of(self, branch: Branch) -> DataFrame:
        """The rows of a branch as readers of the table would see them."""
        now = self.catalog.load(branch.table, asset=branch.table)
        return branch_rows(self.session, branch, now, storage=self.catalog.storage)

    def require_branch(self, target: TableMetadata) -> None:
        """Fail if the branch is missing: the publication would re-create it, or ``main`` would be written instead."""
        branch = self.catalog.branch
        if branch is not None and branch not in target.branches:
            raise StagedBranchGoneError(table=target.table, branch=branch)

    def require_valid(self, captures: Sequence[Capture]) -> None:
        """Fail if a person has meanwhile changed what is consumed.

        Raises:
            CaptureVoidError: a person has.
        """
        upstreams = {capture.edge.upstream for capture in captures}
        for capture in captures[:1]:
            asset = capture.edge.consumer
            base = self.advance.base.progress.obeyed if self.advance.base is not None else 0
            for each in self.store.get(asset).requests:
                if each.upstream in upstreams and each.id > max(base, self.advance.obeyed):
                    raise CaptureVoidError(
                        consumer=asset,
                        upstream=each.upstream,
                        number=capture.number,
                        kind=each.kind,
                        who=each.who,
                        why=each.why,
                    )

    def drop_branch(self, branch: Branch) -> None:
        """Try to drop the branch: one left behind expires by its own retention, and its work is published or void."""
        try:
            with effect(Effect.DROP_BRANCH):
                branch.drop(self.session)
        except Exception:  # noqa: BLE001  # whatever the engine raises, the outcome of the run is decided
            _LOG.warning("branch %s of %s could not be dropped; it will expire on its own", branch.name, branch.table)


def are_incremental(captures: Sequence[Capture]) -> bool:
    """Whether a run with these captures adds a change to the table; a run without captures replaces all rows."""
    return bool(captures) and all(capture.mode is Mode.INCREMENTAL for capture in captures)


def written(branch: Branch, snapshots: Sequence[Snapshot]) -> LogLine:
    """The log line with what the snapshots on a branch have added and removed, by their summaries."""
    counts = {
        "rows_added": "added-records",
        "rows_removed": "deleted-records",
        "files": "added-data-files",
        "bytes": "added-files-size",
    }
    sums = {name: sum(int(s.summary.get(key, 0)) for s in snapshots) for name, key in counts.items()}
    return LogLine.of(Event.WRITE, table=branch.table, branch=branch.name, **sums)


def _moved_each_time(branch: Branch) -> PublishError:
    problem = (
        f"each of {_MOST_ATTEMPTS} times that the rows were written, something else was committed to the table in the "
        "meantime. If the asset's own runs did it, let fewer of them run at once: give the asset a pool in Dagster "
        "(@dg.asset(pool=...)), and the pool a limit"
    )
    return PublishError(table=branch.table, branch=branch.name, problem=problem)


def _own_snapshots(target: TableMetadata, branch: Branch) -> tuple[Snapshot, ...]:
    """The attempt's snapshots in ``main``'s history, oldest first."""
    return tuple(s for s in reversed(target.ancestry().snapshots) if is_of_attempt(s, branch.name))


def _own_on_branch(target: TableMetadata, branch: Branch) -> list[Snapshot]:
    """The attempt's snapshots on its branch, newest first."""
    return [s for s in target.ancestry(branch.name).snapshots if is_of_attempt(s, branch.name)]


def _require_own_work_only(now: TableMetadata, branch: Branch, before: TableMetadata) -> None:
    """Fail if the branch isn't the one that was created: the next commit after a drop re-creates it on a newer head.

    Nothing reports that, and rows would be duplicated.

    Raises:
        PublishError: the branch isn't exactly this attempt's snapshots on top of the head where it was created.
    """
    own_root, there = before.head_snapshot_id(), 0
    for snapshot in now.ancestry(branch.name).snapshots:
        if snapshot.snapshot_id == own_root:
            break
        if not is_of_attempt(snapshot, branch.name) and not is_empty_root(snapshot, own_root):
            problem = f"snapshot {snapshot.snapshot_id} on the branch was not written by this run"
            raise PublishError(table=branch.table, branch=branch.name, problem=problem)
        there += is_of_attempt(snapshot, branch.name)
    else:
        if own_root is not None:
            problem = f"the branch no longer starts at snapshot {own_root}, where it was cut"
            raise PublishError(table=branch.table, branch=branch.name, problem=problem)
    new = (now.snapshots[each] for each in now.snapshots.keys() - before.snapshots.keys())
    if 0 < there < sum(is_of_attempt(each, branch.name) for each in new):
        raise PublishError(table=branch.table, branch=branch.name, problem=_DROPPED)


def require_not_staged(now: TableMetadata, branch: Branch, asset: str) -> None:
    """Fail if the attempt that wrote to ``branch``, which has none of its commits, made commits all the same.

    Raises:
        DeclarationError: they were staged for an audit, as a setting of the session asks for.
    """
    if any(is_of_attempt(snapshot, branch.name) for snapshot in now.snapshots.values()):
        raise DeclarationError(
            asset=asset,
            problem=f"the Spark session has spark.wap.id set, so what the run wrote to {branch.table} was staged for "
            "an audit, and isn't on the run's branch. Nothing was published and nothing was consumed.",
            remedy="Unset spark.wap.id in the session, or set the table's property write.wap.enabled to false.",
        )


def is_empty_root(snapshot: Snapshot, own_root: int | None) -> bool:
    """Whether this is the empty snapshot that creating a branch of a table without snapshots commits."""
    return own_root is None and snapshot.parent_id is None and snapshot.summary.get("total-records", "0") == "0"
