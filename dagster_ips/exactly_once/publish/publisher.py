"""Write on a branch, publish by fast-forward, commit: the target's stamps decide what happened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture, Mode, Stamp
from dagster_ips.core.log_lines import Event, LogLine, Tell, tell_nobody
from dagster_ips.core.ownership import ACCEPTED, ASSET, Consent
from dagster_ips.core.target import Standing, TargetHistory, committed, is_older, standing_of
from dagster_ips.errors import (
    BranchNotKeptError,
    CaptureVoidError,
    DeclarationError,
    IpsError,
    PublishError,
    StagedBranchGoneError,
)
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.snapshot_rows import branch_rows
from dagster_ips.exactly_once.target_table.target_history import histories_since, store_settled
from dagster_ips.exactly_once.target_table.target_ownership import (
    require_columns_of,
    require_known_writes,
    require_own,
    require_same_columns,
)
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.code_stamps import lasting_properties
from dagster_ips.iceberg.lasting_facts import renewed_facts
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import (
    announcement,
    division_properties,
    divisions_of,
    is_of_attempt,
    last_divided_otherwise,
    published,
    stamp_properties,
    target_histories,
)
from dagster_ips.iceberg.storage import Storage
from dagster_ips.spark.branches import Branch, branch_of_run, is_conflict, stamped
from dagster_ips.spark.targets import set_properties
from dagster_ips.spark.writes.append import append_rows
from dagster_ips.state.store import EdgeStore

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession

_MOST_ATTEMPTS = 20
"""How often a run writes its result. Of runs that end at once, each may have to wait for all others."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Publication:
    """The outcome of a run's writes.

    ``snapshots`` are those that are now on the target's ``main``, oldest first; none if there was nothing to write or
    another run had published the same captures (``superseded_by`` are its stamps).
    """

    metadata: TableMetadata | None
    snapshots: tuple[Snapshot, ...] = ()
    superseded_by: tuple[Stamp, ...] = ()


Write = Callable[[Branch, TableMetadata], None]
"""Writes a run's result to the branch; the metadata is the target's from before the branch was created."""

Check = Callable[[Branch], None]
"""Checks what was written to the branch before it is published, and raises if it must not be."""


def unchecked(_: Branch) -> None:
    """Publish what was written without a check."""


@dataclass(frozen=True)
class Publisher:
    """Publishes to one target table by the session's commits.

    ``properties`` are added to the stamps of the snapshots that complete the run's work; if they ``are_news``, such a
    snapshot is published even if no row changed. ``consent`` is what a person allows the run; ``tell`` is called for
    each step. If the ``catalog`` has a branch, that is published to instead of ``main``: only those who look at the
    branch see it, and nothing is announced.
    """

    catalog: LakeCatalog
    store: EdgeStore
    session: SparkSession
    run_id: str
    properties: Mapping[str, str] = field(default_factory=dict)
    consent: Consent = field(default_factory=Consent)
    tell: Tell = tell_nobody
    are_news: bool = False

    def publish(
        self, table: str, captures: Sequence[Capture], write: Write, *, consumer: str, check: Check = unchecked
    ) -> Publication:
        """Make ``write``'s result the head of ``table``, if ``check`` allows it, and commit ``captures``, its stamps.

        If ``main`` moves in the meantime, or another commit comes in between, the branch is dropped and written again
        on the newest head. If another run published the same captures first, this run's work is dropped and what the
        other run stamped is committed.

        Raises:
            CaptureVoidError: a person has meanwhile changed what is consumed.
            TargetOfAnotherError, ForeignWriteError, TargetColumnsChangedError: see ``require_own``.
            StagedBranchGoneError: the catalog has a branch that the table doesn't have.
            BranchNotKeptError: the catalog doesn't keep branches.
            PublishError: ``main`` kept moving, or the branch holds commits that aren't this run's.
            Exception: whatever ``write`` or ``check`` raised; nothing is published or consumed then.
        """
        announced: set[str] = set()
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            before = self.catalog.load(table, asset=consumer)
            self.require_branch(before)
            if superseded := self.superseded(before, captures):
                return superseded
            self.require_own(before, captures, consumer)
            branch, published_it = self.new_branch(table), True
            try:
                published_it = self._write_and_fast_forward(
                    branch, before, captures, write, check, asset=consumer, announced=announced
                )
            except Exception as error:
                after = self.catalog.load(table, asset=consumer)
                # The error may have come after the fast-forward took effect: only main's own history shows that.
                if not _own_snapshots(after, branch):
                    self.drop_branch(branch)
                    moved = is_conflict(error) or isinstance(error, _MainMovedError)
                    moved = moved or after.head_snapshot_id() != before.head_snapshot_id()
                    if not moved or isinstance(error, IpsError):
                        raise
                    if attempt == _MOST_ATTEMPTS:
                        raise _moved_each_time(branch) from error
                    _LOG.info(
                        "%s changed while %s was being written; writing again on top of its head", table, branch.name
                    )
                    continue
            if not published_it:
                self.commit(captures, before)
                self.drop_branch(branch)
                return Publication(before)
            published = self.catalog.load(table, asset=consumer)
            self.commit(captures, published)
            self.drop_branch(branch)
            return Publication(published, _own_snapshots(published, branch))
        raise AssertionError  # the last attempt returned or raised

    def stamp(self, captures: Sequence[Capture], branch: Branch) -> dict[str, str]:
        """The summary properties of the commits to ``branch``."""
        stamp = stamp_properties(tuple(captures), attempt=branch.name, run_id=self.run_id)
        return stamp | dict(self.properties)

    def superseded(self, target: TableMetadata, captures: Sequence[Capture]) -> Publication | None:
        """What another run published of ``captures``, after committing it; None if none did.

        Raises:
            CaptureVoidError: a person has meanwhile changed what is consumed.
            PublishError: as in ``published_by_another`` and ``require_not_overtaken``; or another run published some of
                the partitions, and not all.
        """
        self.require_valid(captures)
        superseded = published_by_another(self.catalog.storage, target, captures)
        if not superseded:
            self.require_not_overtaken(target.table, captures)
            return None
        self.adopt(superseded)
        _require_all_superseded(target.table, captures, superseded)
        self.tell(LogLine.of(Event.SKIP, table=target.table, reason="another run published the same change"))
        return Publication(target, superseded_by=tuple(h.newest for _, h in superseded if h.newest))

    def require_own(self, target: TableMetadata, captures: Sequence[Capture], asset: str) -> None:
        """Fail unless the table is the asset's, and all that others wrote to it is known or replaced.

        Raises:
            TargetOfAnotherError: another asset writes it.
            ForeignWriteError: someone else changed rows after the captures were taken.
            TargetColumnsChangedError: someone gave the names of columns to other columns.
        """
        require_own(target, asset, self.consent)
        edges = [capture.edge for capture in captures if capture.mode is Mode.INCREMENTAL]
        states = self.store.get_many(edges).values()
        require_known_writes(target, asset, states, accept=self.consent.accept)
        require_same_columns(target, asset, states)

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

    def commit_without_writing(self, captures: Sequence[Capture]) -> None:
        """Commit ``captures`` that held nothing to write; nothing is published.

        Raises:
            CaptureVoidError: a person has meanwhile changed what is consumed.
        """
        self.require_valid(captures)
        self.tell(LogLine.of(Event.SKIP, reason="no change"))
        self.commit(captures, None)

    def _write_and_fast_forward(  # noqa: PLR0913  # all are independent
        self,
        branch: Branch,
        before: TableMetadata,
        captures: Sequence[Capture],
        write: Write,
        check: Check,
        *,
        asset: str,
        announced: set[str],
    ) -> bool:
        """Write and publish; return whether it was published.

        It isn't if an incremental run wrote nothing, so that no consumer of the table is woken.
        """
        with effect(Effect.CREATE_BRANCH):
            branch.create(self.session, head=before.ancestry().head)
        self.require_kept(branch, asset)
        stamp = self.stamp(captures, branch)
        with effect(Effect.WRITE_BRANCH), stamped(self.session, stamp):
            write(branch, before)
        now = self.catalog.load(branch.table, asset=branch.table)
        if self.are_news and not _own_on_branch(now, branch):
            with effect(Effect.WRITE_BRANCH), stamped(self.session, stamp):
                nothing = self.session.table(branch.sql_name).where("FALSE")
                append_rows(nothing, branch, dedup_on=(), partition_columns=())
            now = self.catalog.load(branch.table, asset=branch.table)
        self.require_branch(now)
        _require_own_work_only(now, branch, before)
        require_columns_of(before.current_schema_id, now, asset)
        own = _own_on_branch(now, branch)
        if not own:
            require_not_staged(now, branch, asset)
        if are_incremental(captures) and not self.are_news and all(snapshot.changes_no_file for snapshot in own):
            self.tell(LogLine.of(Event.SKIP, table=branch.table, reason="the change doesn't affect the table"))
            return False
        self.tell(written(branch, own))
        check(branch)
        self.require_valid(captures)
        self.require_not_overtaken(branch.table, captures)
        # Loaded again, as checks may take long: meanwhile, other runs may announce and publish something else, and a
        # staged backfill may be cancelled.
        now = self.catalog.load(branch.table, asset=branch.table)
        self.require_branch(now)
        if now.head_snapshot_id() != before.head_snapshot_id():
            raise _MainMovedError
        _require_own_work_only(now, branch, before)
        if self.catalog.branch is None:
            announced |= self.announce(captures, now, branch, asset=asset, announced=announced)
        with effect(Effect.PUBLISH):
            branch.fast_forward(self.session, onto=self.catalog.branch or "main")
        self.tell(LogLine.of(Event.PUBLISH, table=branch.table, snapshot=now.head_snapshot_id(branch.name)))
        return True

    def rows_of(self, branch: Branch) -> DataFrame:
        """The rows of a branch as readers of the table would see them."""
        now = self.catalog.load(branch.table, asset=branch.table)
        return branch_rows(self.session, branch, now, storage=self.catalog.storage)

    def require_branch(self, target: TableMetadata) -> None:
        """Fail if the branch is missing: the fast-forward would re-create it, or ``main`` would be written instead."""
        branch = self.catalog.branch
        if branch is not None and branch not in target.branches:
            raise StagedBranchGoneError(table=target.table, branch=branch)

    def announce(
        self,
        captures: Sequence[Capture],
        target: TableMetadata,
        branch: Branch,
        *,
        asset: str,
        announced: Collection[str] = (),
    ) -> set[str]:
        """Announce in the table's properties that ``branch``'s head is about to be published: see ``shows_all_since``.

        Also record whose table it is, how it is made and divided, if the properties don't say so, and how many rows it
        has. This can't be one step with the publication, so it comes first: nothing can be published without having
        been announced. Facts that an attempt before has ``announced`` begin now. Returns the names of the properties.
        """
        head = target.head_snapshot_id(branch.name)
        if head is None:
            return set()
        snapshot = target.snapshots.get(head)
        properties = {ASSET: asset} if target.properties.get(ASSET) != asset else {}
        properties |= announcement(captures, head) | published(snapshot)
        properties |= renewed_facts(target, announced)
        properties |= division_properties(target, divisions_of(captures))
        properties |= lasting_properties(target, [snapshot.summary] if snapshot else [])
        if properties:
            with effect(Effect.ANNOUNCE):
                set_properties(self.session, branch.catalog, branch.table, properties)
        return set(properties)

    def commit(self, captures: Sequence[Capture], target: TableMetadata | None) -> None:
        """Commit ``captures`` as consumed, as far as the stamps of ``target`` and what is known about others allow it.

        ``target`` is None if the run did not look at it, because there was nothing to write.
        """
        edges = [capture.edge for capture in captures]
        histories, states = target_histories(target, edges) if target else {}, self.store.get_many(edges)
        now = {each.edge: committed(states[each.edge], each, histories.get(each.edge)) for each in captures}
        done = [capture for capture in captures if now[capture.edge] is not states[capture.edge]]
        if done:
            with effect(Effect.COMMIT):
                self.store.set(*(now[capture.edge] for capture in done))
        for line in dict.fromkeys(capture.edge.line for capture in done):
            self.tell(_committed([capture for capture in done if capture.edge.line == line]))

    def require_valid(self, captures: Sequence[Capture]) -> None:
        """Fail if a person has meanwhile changed what is consumed.

        Raises:
            CaptureVoidError: a person has.
        """
        states = self.store.get_many(capture.edge for capture in captures)
        for capture in captures:
            state = states[capture.edge]
            if capture.number <= state.voided:
                edge, last = capture.edge, state.interventions[-1]
                raise CaptureVoidError(
                    consumer=edge.consumer,
                    upstream=edge.upstream,
                    number=capture.number,
                    kind=last.kind,
                    who=last.who,
                    why=last.why,
                )

    def require_not_overtaken(self, table: str, captures: Sequence[Capture]) -> None:
        """Fail if another run has meanwhile consumed later changes of a partition and had nothing to write.

        What it consumed may take back what ``captures`` hold. If they were published now, a partition would have to
        consume that again, but by then it may be forgotten that it changed (``LineState.without``). Fail as well if a
        partition is to be computed anew since: what is added to it now would hide that.

        Raises:
            PublishError: another run has, or a partition is.
        """
        partitions = [capture for capture in captures if capture.edge.partition is not None]
        states = self.store.get_many(capture.edge for capture in partitions)
        for capture in partitions:
            if states[capture.edge].is_beyond(capture):
                problem = (
                    f"since this run began, another run has consumed later changes of {capture.edge}, or it was marked "
                    "to be recomputed"
                )
                raise PublishError(table=table, branch=self.catalog.branch or "main", problem=problem)

    def adopt(self, superseded: Sequence[tuple[Capture, TargetHistory]]) -> None:
        """Commit as consumed what other runs published, as far as their stamps say."""
        histories = {capture.edge: history for capture, history in superseded}
        store_settled(self.store, self.store.get_many(histories), histories)

    def drop_branch(self, branch: Branch) -> None:
        """Try to drop the branch: one left behind expires by its own retention, and its work is published or void."""
        try:
            with effect(Effect.DROP_BRANCH):
                branch.drop(self.session)
        except Exception:  # noqa: BLE001  # whatever the engine raises, the outcome of the run is decided
            _LOG.warning("branch %s of %s could not be dropped; it will expire on its own", branch.name, branch.table)


class _MainMovedError(Exception):
    """``main`` isn't where the branch was cut. If someone moved it back, a fast-forward would undo that."""


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


def _committed(captures: Sequence[Capture]) -> LogLine:
    """The log line for captures of one line: a single capture, or one for each partition."""
    capture, up_to = captures[0], captures[0].to_inclusive
    is_partitioned = capture.edge.partition is not None
    return LogLine.of(
        Event.COMMIT,
        upstream=capture.edge.upstream,
        number=None if is_partitioned else capture.number,
        partitions=len(captures) if is_partitioned else None,
        to_inclusive=up_to.snapshot_id if up_to else None,
    )


def published_by_another(
    storage: Storage, target: TableMetadata, captures: Sequence[Capture]
) -> list[tuple[Capture, TargetHistory]]:
    """The captures whose number, or a later one, is stamped on the target already, with the history that says so.

    Raises:
        PublishError: the target's newest stamp isn't the one from when the capture began, nor that of a later capture:
            the target was changed from outside, and what the capture builds on may be gone. Or a full run was
            requested, and what another run published meanwhile isn't one. Or another run may have published something
            that has expired already. Or the partitions were redefined, and a run that knows it has published.
    """
    superseded = []
    histories = histories_since(storage, target, {capture.edge: capture.target for capture in captures})
    for capture in captures:
        history = histories[capture.edge]
        match standing_of(capture, history):
            case Standing.SUPERSEDED:
                superseded.append((capture, history))
            case Standing.MAY_PUBLISH:
                pass
            case problem:
                raise PublishError(table=target.table, branch="main", problem=problem.format(edge=capture.edge))
    if not superseded:
        _require_same_division(target, captures)
    return superseded


def _require_same_division(target: TableMetadata, captures: Sequence[Capture]) -> None:
    """Fail if a run has published rows of redefined partitions after incremental ``captures`` were taken.

    When they were taken, everything that was divided otherwise was older than the mark of their states: otherwise all
    would be recomputed. New partitions have no mark; all of their rows are replaced.

    Raises:
        PublishError: a run has.
    """
    others = {line: last_divided_otherwise(target, line, of) for line, of in divisions_of(captures).items()}
    for capture in captures:
        other = None if capture.is_of_new_partition else others.get(capture.edge.line)
        if capture.mode is Mode.INCREMENTAL and other and is_older(capture.target, other):
            problem = (
                f"the partitions were redefined after this run had captured {capture.edge}, and another run has "
                f"published since, which may have written the same rows"
            )
            raise PublishError(table=target.table, branch="main", problem=problem)


def _require_all_superseded(
    table: str, captures: Sequence[Capture], superseded: Sequence[tuple[Capture, TargetHistory]]
) -> None:
    """Fail if others published only some partitions: the rest can't be separated from what is written with them.

    Raises:
        PublishError: another run published some of a run's partitions, and not all.
    """
    done = {capture.edge.partition for capture, _ in superseded}
    if left := sorted({capture.edge.key for capture in captures if capture.edge.partition not in done}):
        listed = f"{left[0]} to {left[-1]}" if len(left) > 1 else left[0]
        problem = (
            f"another run published {len(done)} of this run's partitions a moment ago; the other {len(left)} "
            f"({listed}) were not written, so run them again"
        )
        raise PublishError(table=table, branch="main", problem=problem)


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
        problem = "someone dropped the branch while the run wrote to it, so it lacks a part of the result"
        raise PublishError(table=branch.table, branch=branch.name, problem=problem)


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
