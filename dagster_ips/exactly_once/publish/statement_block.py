"""Publish what a block of a user's own statements writes: all of it when the block ends, or nothing.

Unlike the library's own writes, the block can't be run again on a new head, and the library doesn't choose where its
statements write. So the block's commits say only whose they are. A last commit says which captures they are made of,
after all of them were found to be on the branch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.capture import Capture
from dagster_ips.core.log_lines import Event, LogLine
from dagster_ips.core.ownership import ASSET
from dagster_ips.core.ranges import quoted
from dagster_ips.errors import DirectWriteError, PublishError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.exactly_once.publish.publisher import (
    Check,
    Publication,
    Publisher,
    are_incremental,
    is_empty_root,
    published_by_another,
    require_not_staged,
    written,
)
from dagster_ips.exactly_once.target_table.target_ownership import require_columns_of
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import attempt_properties, has_attempt, is_of_attempt
from dagster_ips.spark.branches import Branch, is_conflict, stamped, table_argument
from dagster_ips.spark.writes.append import append_rows
from dagster_ips.spark.writes.overwrite import replace_rows


@dataclass
class Block:
    """A block's branch; ``publication`` is None until the block has succeeded."""

    publisher: Publisher
    branch: Branch
    before: TableMetadata
    consumer: str
    publication: Publication | None = None
    _seen: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._seen = self.before.head_snapshot_id()

    def check(self) -> TableMetadata:
        """The target's metadata as it is now.

        Raises:
            DirectWriteError: a statement of the block moved the target's ``main``.
            PublishError: someone else did, or the branch has other commits than this block's since the last check.
            TargetColumnsChangedError: the names of columns stand for other columns than when the block began.
        """
        now = self._load()
        self._require_main_as_it_was(now)
        require_columns_of(self.before.current_schema_id, now, self.consumer)
        for snapshot in now.ancestry(self.branch.name).snapshots:
            if snapshot.snapshot_id == self._seen:
                break
            # If only whole files are dropped, Spark's commit carries no properties.
            is_own = is_of_attempt(snapshot, self.branch.name) or (
                snapshot.operation == "delete" and not has_attempt(snapshot)
            )
            if not is_own and not is_empty_root(snapshot, self.before.head_snapshot_id()):
                self._fail(f"snapshot {snapshot.snapshot_id} on the branch was not written by this run")
        else:
            if self._seen is not None:
                self._fail(f"snapshot {self._seen} is no longer on the branch")
        self._seen = now.head_snapshot_id(self.branch.name)
        return now

    def announce(self, captures: Sequence[Capture], sealed: TableMetadata) -> None:
        """Announce that the branch is about to be published.

        Raises:
            PublishError: another commit to the table came in between.
        """
        try:
            self.publisher.announce(captures, sealed, self.branch, asset=self.consumer)
        except Exception as error:
            if not is_conflict(error):
                raise
            self._fail("someone else changed the table before the block's result could be published")

    def publish(self, seal: int) -> None:
        """Make the branch, whose head is ``seal``, the table's ``main``.

        Raises:
            PublishError: ``main`` moved since the last check.
        """
        try:
            with effect(Effect.PUBLISH):
                self.branch.fast_forward(self.publisher.session, onto="main")
        except Exception as error:  # noqa: BLE001  # whatever it is, main's own history shows what took effect
            if self._load().ancestry().find(seal) is None:
                self.publisher.drop_branch(self.branch)
                self._fail(f"it could not become the table's main ({type(error).__name__})")

    def written(self, now: TableMetadata) -> tuple[Snapshot, ...]:
        """The commits on the branch, oldest first."""
        known = self.before.snapshots
        return tuple(s for s in reversed(now.ancestry(self.branch.name).snapshots) if s.snapshot_id not in known)

    def require_nothing_written_directly(self, now: TableMetadata | None = None) -> None:
        """Fail if the block wrote to ``main``, which everyone sees and which can't be dropped with the branch.

        Raises:
            DirectWriteError: a statement of the block wrote to the table itself.
        """
        direct = [s for s in (now or self._load()).ancestry().snapshots if is_of_attempt(s, self.branch.name)]
        if direct:
            head, name = self.before.head_snapshot_id(), self.branch.table
            undo = f"CALL {quoted(self.branch.catalog)}.system.rollback_to_snapshot({table_argument(name)}, {head})"
            undo = undo if head is not None else "deleting all rows"
            raise DirectWriteError(table=name, snapshot_id=direct[0].snapshot_id, undo=undo)

    def _require_main_as_it_was(self, now: TableMetadata) -> None:
        if now.head_snapshot_id() != self.before.head_snapshot_id():
            self.require_nothing_written_directly(now)
            self._fail("someone else changed the table while the block ran, so the block may have read old rows")

    def _load(self) -> TableMetadata:
        return self.publisher.catalog.load(self.branch.table, asset=self.branch.table)

    def _fail(self, problem: str) -> NoReturn:
        raise PublishError(table=self.branch.table, branch=self.branch.name, problem=problem)


@contextlib.contextmanager
def block(
    publisher: Publisher, table: str, captures: Sequence[Capture], *, consumer: str, check: Check
) -> Iterator[Block]:
    """A branch of ``table`` to write to; when the block ends, it is published and ``captures`` are committed.

    In mode ``full`` the branch starts without rows. ``check`` sees it before it is published, if there is anything to
    publish. An error leaves the table and the cursors as they were.

    Raises:
        TargetOfAnotherError, ForeignWriteError, TargetColumnsChangedError: the table isn't the asset's, or someone else
            changed its rows, or what its columns' names stand for.
        PublishError: another run published the same captures, or the table was changed meanwhile.
        DirectWriteError: the block wrote to the table itself.
        Exception: what the block or ``check`` raised.
    """
    before = publisher.catalog.load(table, asset=consumer)
    if superseded := published_by_another(publisher.catalog.storage, before, captures):
        publisher.adopt(superseded)
        problem = "another run published the same change a moment ago, so the block was not run"
        raise PublishError(table=table, branch="main", problem=problem)
    publisher.require_own(before, captures, consumer)
    branch, session = publisher.new_branch(table), publisher.session
    opened = Block(publisher, branch, before, consumer)
    try:
        with effect(Effect.CREATE_BRANCH):
            branch.create(session, head=before.ancestry().head)
        nothing = session.table(branch.sql_name).where("FALSE")
        is_incremental = are_incremental(captures)
        with stamped(session, attempt_properties(branch.name, publisher.run_id) | {ASSET: consumer}):
            if not is_incremental and before.head_snapshot_id() is not None:
                with effect(Effect.WRITE_BRANCH):
                    replace_rows(nothing, branch, table_is_empty=False)
            yield opened
        now = opened.check()
        snapshots = opened.written(now)
        if not snapshots:
            require_not_staged(now, branch, consumer)
        seal = None
        if not is_incremental or not all(snapshot.changes_no_file for snapshot in snapshots):
            publisher.tell(written(branch, snapshots))
            check(branch)
            publisher.require_valid(captures)
            with effect(Effect.WRITE_BRANCH), stamped(session, publisher.stamp(captures, branch)):
                append_rows(nothing, branch, dedup_on=(), partition_columns=())
            sealed = opened.check()
            seal = sealed.head_snapshot_id(branch.name)
            opened.announce(captures, sealed)
    except BaseException as error:
        publisher.drop_branch(branch)
        if isinstance(error, Exception) and not isinstance(error, PublishError | DirectWriteError):
            opened.require_nothing_written_directly()
        raise
    if seal is not None:
        opened.publish(seal)
        publisher.tell(LogLine.of(Event.PUBLISH, table=table, snapshot=seal))
    else:
        publisher.tell(LogLine.of(Event.SKIP, table=table, reason="the statements didn't change the table"))
    published = publisher.catalog.load(table, asset=consumer)
    publisher.commit(captures, published)
    opened.publication = Publication(published, opened.written(published) if seal is not None else ())
    publisher.drop_branch(branch)
