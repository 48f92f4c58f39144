"""Publish what a block of a user's own statements writes: all of it when the block ends, or nothing.

Unlike the library's own writes, the block can't be run again on a new head, and the library doesn't choose where its
statements write. So the block's commits say only whose they are. A last commit says which captures they are made of,
after all of them were found to be on the branch.

A job that was given the branch may still write to it when the block ends. So that commit, and the publication, are made
from a second branch, whose name nobody else knows.

The block of a staged run publishes to the backfill's branch, which then takes the place of ``main``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NoReturn

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture
from dagster_ips.core.ownership import ASSET, ATTEMPT
from dagster_ips.core.ranges import quoted
from dagster_ips.errors import DirectWriteError, PublishError, UnstampedCommitError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.partitions_of_run import PartitionsOfRun
from dagster_ips.exactly_once.publish.publisher import (
    Check,
    Publication,
    Publisher,
    are_incremental,
    is_empty_root,
    require_not_staged,
    written,
)
from dagster_ips.exactly_once.target_table.target_ownership import require_columns_of
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import attempt_properties, has_attempt, is_of_attempt
from dagster_ips.spark.branches import SNAPSHOT_PROPERTY, Branch, stamped, table_argument
from dagster_ips.spark.writes.overwrite import replace_rows
from dagster_ips.spark.writes.overwrite_where import delete_where


@dataclass
class Block:
    """A block's branch; ``publication`` is None until the block has succeeded.

    ``sealed`` is the branch that is published, from the moment when nothing may be added any more. ``serves_job`` says
    whether a job outside of this process writes to the branch. ``partitions`` are those that the run computes, if the
    asset has partitions.
    """

    publisher: Publisher
    branch: Branch
    before: TableMetadata
    consumer: str
    partitions: PartitionsOfRun | None = None
    publication: Publication | None = None
    sealed: Branch | None = field(default=None, init=False)
    serves_job: bool = field(default=False, init=False)
    _seen: int | None = field(default=None, init=False)
    _begun: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._seen = self._begun = self.before.head_snapshot_id()

    @property
    def ref(self) -> str:
        """The name of the branch that is to be published."""
        return (self.sealed or self.branch).name

    @property
    def stamp(self) -> dict[str, str]:
        """The summary properties by which the block knows its commits."""
        return attempt_properties(self.branch.name, self.publisher.run_id) | {ASSET: self.consumer}

    def check(self) -> TableMetadata:
        """The target's metadata as it is now.

        Raises:
            DirectWriteError: a statement of the block moved the target's ``main``.
            UnstampedCommitError: the branch has commits that don't say that they are this block's.
            PublishError: someone else moved ``main``, or the branch lacks commits of this block.
            TargetColumnsChangedError: the names of columns stand for other columns than when the block began.
            StagedBranchGoneError: the branch of the staged backfill was dropped.
        """
        now, attempt = self._load(), self.branch.name
        self._require_main_as_it_was(now)
        require_columns_of(self.before.current_schema_id, now, self.consumer)
        on_branch = now.ancestry(self.ref).snapshots
        for snapshot in on_branch:
            if snapshot.snapshot_id == self._seen or snapshot.snapshot_id in self.before.snapshots:
                break
            # If only whole files are dropped, Spark's commit carries no properties.
            is_own = is_of_attempt(snapshot, attempt) or (snapshot.operation == "delete" and not has_attempt(snapshot))
            if not is_own and not is_empty_root(snapshot, self.before.head_snapshot_id()):
                setting = f"{SNAPSHOT_PROPERTY}{ATTEMPT}={attempt}"
                raise UnstampedCommitError(self.branch.table, attempt, snapshot.snapshot_id, setting)
        found = {snapshot.snapshot_id for snapshot in on_branch}
        own = {each.snapshot_id for each in now.snapshots.values() if is_of_attempt(each, attempt)}
        lost = own - found if own & found else set()  # If none is there, they may have been staged elsewhere.
        if lost or (self._seen is not None and self._seen not in found):
            self._fail(
                f"snapshot {min(lost, default=self._seen)} isn't on the branch: someone dropped the branch in the "
                "meantime, or a job still wrote to it after the block had ended"
            )
        self._seen = now.head_snapshot_id(self.ref)
        return now

    def begin(self, captures: Sequence[Capture]) -> None:
        """Delete the rows that the block computes anew: all that the run does in mode ``full``, or new partitions."""
        is_incremental, session = are_incremental(captures), self.publisher.session
        new = sorted({capture.edge.key for capture in captures if capture.is_of_new_partition})
        if self.before.head_snapshot_id() is not None and (new or not is_incremental):
            with effect(Effect.WRITE_BRANCH):
                if self.partitions is None:
                    nothing = session.table(self.branch.sql_name).where("FALSE")
                    replace_rows(nothing, self.branch, table_is_empty=False)
                else:
                    rows = self.partitions.rows(self.before, new if is_incremental else self.partitions.keys)
                    delete_where(rows, self.branch, session, hidden=self.before.hidden_names)
        self._begun = self.check().head_snapshot_id(self.ref)

    def commits(self) -> list[Snapshot]:
        """The commits of the block's statements and jobs, newest first."""
        return self._commits(self.check())

    def _commits(self, now: TableMetadata) -> list[Snapshot]:
        on_branch = now.ancestry(self.branch.name).snapshots
        return list(takewhile(lambda snapshot: snapshot.snapshot_id != self._begun, on_branch))

    def seal(self, captures: Sequence[Capture], check: Check) -> TableMetadata:
        """Check what is on the branch, and commit which ``captures`` it is made of; returns the target's metadata.

        Raises:
            PublishError, DirectWriteError, UnstampedCommitError: as in ``check``.
            OutsidePartitionsError: rows of other partitions than the run's have changed.
            Exception: what ``check`` raised.
        """
        now, publisher, session = self.check(), self.publisher, self.publisher.session
        head = now.ancestry(self.ref).head
        sealed = publisher.new_branch(self.branch.table)
        publisher.create_branch(sealed, head, asset=self.consumer)
        self.sealed = sealed
        if self.partitions is not None:
            assert self._begun is not None  # noqa: S101  # a branch has a snapshot
            since = now.snapshots[self._begun]
            self.partitions.require_within(session, publisher.catalog, now, since, self._commits(now)[::-1])
        check(sealed)
        publisher.require_valid(captures)
        progress = publisher.progress(self.before, publisher.known(self.before, self.consumer), self.consumer)
        publisher.seal(sealed, publisher.stamp(self.branch, progress))
        return self.check()

    def drop_branches(self) -> None:
        """Try to drop the block's branches."""
        for branch in filter(None, (self.sealed, self.branch)):
            self.publisher.drop_branch(branch)

    def publish(self, seal: int) -> None:
        """Make the sealed branch, whose head is ``seal``, the table's ``main``.

        Raises:
            PublishError: ``main`` moved since the last check.
        """
        branch = self.sealed or self.branch
        try:
            self.publisher.make_main(branch, self.before, self._load(), asset=self.consumer, drops=[self.branch.name])
        except Exception as error:  # noqa: BLE001  # whatever it is, main's own history shows what took effect
            if self._load().ancestry().find(seal) is None:
                self.drop_branches()
                self._fail(f"it could not become the table's main ({type(error).__name__})")

    def written(self, now: TableMetadata, ref: str) -> tuple[Snapshot, ...]:
        """The block's commits on ``ref``, oldest first."""
        known = self.before.snapshots
        return tuple(s for s in reversed(now.ancestry(ref).snapshots) if s.snapshot_id not in known)

    def require_nothing_written_directly(self, now: TableMetadata | None = None) -> None:
        """Fail if the block wrote to ``main``, which everyone sees and which can't be dropped with the branch.

        Raises:
            DirectWriteError: a statement of the block wrote to the table itself.
        """
        lake, name = self.publisher.catalog, self.branch.table
        now = lake.on_branch(None).load(name, asset=name) if now is None or lake.branch is not None else now
        direct = [s for s in now.ancestry().snapshots if is_of_attempt(s, self.branch.name)]
        if direct:
            head = direct[-1].parent_id
            undo = f"CALL {quoted(self.branch.catalog)}.system.rollback_to_snapshot({table_argument(name)}, {head})"
            undo = undo if head is not None else "deleting all rows"
            raise DirectWriteError(table=name, snapshot_id=direct[0].snapshot_id, undo=undo)

    def _require_main_as_it_was(self, now: TableMetadata) -> None:
        is_moved = now.head_snapshot_id() != self.before.head_snapshot_id()
        if is_moved or self.publisher.catalog.branch is not None:
            self.require_nothing_written_directly(now)
        if is_moved:
            self._fail("someone else changed the table while the block ran, so the block may have read old rows")

    def _load(self) -> TableMetadata:
        found = self.publisher.catalog.load(self.branch.table, asset=self.branch.table)
        self.publisher.require_branch(found)
        return found

    def _fail(self, problem: str) -> NoReturn:
        raise PublishError(table=self.branch.table, branch=self.branch.name, problem=problem)


@contextlib.contextmanager
def block(  # noqa: PLR0913  # all are independent
    publisher: Publisher,
    table: str,
    captures: Sequence[Capture],
    *,
    consumer: str,
    check: Check,
    partitions: PartitionsOfRun | None = None,
) -> Iterator[Block]:
    """A branch of ``table`` to write to; when the block ends, it is published and ``captures`` are committed.

    In mode ``full`` the branch starts without rows, or without those of the run's ``partitions``. ``check`` sees it
    before it is published, if there is anything to publish. An error leaves the table and the cursors as they were.

    Raises:
        TargetOfAnotherError, ForeignWriteError, TargetColumnsChangedError: the table isn't the asset's, or someone else
            changed its rows, or what its columns' names stand for.
        PublishError: another run published the same captures, or the table was changed meanwhile.
        DirectWriteError: the block wrote to the table itself.
        OutsidePartitionsError: it changed rows of other partitions than the run's.
        Exception: what the block or ``check`` raised.
    """
    before = publisher.catalog.load(table, asset=consumer)
    publisher.require_branch(before)
    if publisher.superseded(before, captures, consumer):
        problem = "another run published the same change a moment ago, so the block was not run"
        raise PublishError(table=table, branch="main", problem=problem)
    publisher.require_own(before, captures, consumer)
    publisher = publisher.settling(before, consumer)
    branch, session = publisher.new_branch(table), publisher.session
    opened = Block(publisher, branch, before, consumer, partitions)
    try:
        publisher.create_branch(branch, before.ancestry().head, asset=consumer)
        publisher.require_kept(branch, consumer)
        with stamped(session, opened.stamp):
            opened.begin(captures)
            yield opened
        now = opened.check()
        snapshots = opened.written(now, opened.ref)
        if not snapshots:
            require_not_staged(now, branch, consumer)
        seal = None
        is_changed = not all(snapshot.changes_no_file for snapshot in snapshots)
        is_first = publisher.known(before, consumer) is None
        if is_first or is_changed or publisher.are_news or not are_incremental(captures):
            publisher.tell(written(branch, snapshots))
            sealed = opened.seal(captures, check)
            seal = sealed.head_snapshot_id(opened.ref)
            publisher.own(sealed, consumer)
    except BaseException as error:
        opened.drop_branches()
        if isinstance(error, Exception) and not isinstance(error, PublishError | DirectWriteError):
            opened.require_nothing_written_directly()
        raise
    if seal is not None:
        opened.publish(seal)
    else:
        reason = "the statements didn't change the table"
        publisher.commit_without_writing(captures, consumer, reason=reason)
    published = publisher.catalog.load(table, asset=consumer)
    if seal is not None:
        publisher.copy_progress(published, consumer)
    opened.publication = Publication(published, opened.written(published, "main") if seal is not None else ())
    if seal is None:
        opened.drop_branches()
