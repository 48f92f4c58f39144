"""The branches of a staged backfill, and how they become ``main``: all in one commit, or one after the other.

Only the tables' own refs record how far a publication is, so it can be killed at any point and continued.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.backfill_plan import BackfillPlan, LaunchedBackfill, PlannedStage
from dagster_ips.errors import BackfillError
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.cascade_stamps import belongs_to
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.ref_commits import commit_refs, publication
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.launching import BackfillLauncher
from dagster_ips.orchestration.platform.staged_run import moved
from dagster_ips.progress.cursor import Copy
from dagster_ips.progress.table_progress import PIN, newest_progress


class BranchStanding(StrEnum):
    """The state of a stage's branch relative to ``main``."""

    STAGED = "staged"
    """``main`` is still where the branch was created, so the branch can be published."""
    UNCHANGED = "unchanged"
    """Nothing was written to the branch."""
    PUBLISHED = "published"
    """``main`` contains everything on the branch."""
    MOVED = "moved"
    """``main`` has changed since the branch was created, and doesn't contain it."""
    GONE = "gone"
    """There is no branch, and ``main`` contains nothing of the backfill."""


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A stage, its table's current metadata, and the state of its branch."""

    stage: PlannedStage
    metadata: TableMetadata | None
    standing: BranchStanding

    @property
    def is_through(self) -> bool:
        """Whether everything that the stage has staged is on ``main``."""
        return self.standing in (BranchStanding.PUBLISHED, BranchStanding.UNCHANGED)


@dataclass(frozen=True, slots=True)
class StagedPublication:
    """The assets whose tables were ``published``, and those ``left`` to follow automatically because ``main`` moved.

    ``is_repeated`` says that all of it had been published before, so that nothing was done.
    """

    published: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    is_repeated: bool = False


@dataclass(frozen=True)
class StagedBackfill:
    """A backfill that is staged on branches."""

    lineage: AssetLineage
    backfill: LaunchedBackfill

    @property
    def plan(self) -> BackfillPlan:
        """The backfill's plan."""
        return self.backfill.plan

    def tables(self) -> list[StagedTable]:
        """Each stage with the state of its branch."""
        found = ((stage, self.lineage.metadata(stage.asset)) for stage in self.plan.stages)
        return [StagedTable(stage, metadata, self._standing(stage, metadata)) for stage, metadata in found]

    def summary(self) -> str:
        """A sentence on whether, and how far, it is published."""
        tables = self.tables()
        of = _by_standing(tables)
        left = [*of[BranchStanding.STAGED], *of[BranchStanding.MOVED]]
        is_open = bool(left) or any(map(self._has_branch, tables))  # Branches are dropped last.
        if of[BranchStanding.PUBLISHED] and is_open:
            done, missing = ", ".join(of[BranchStanding.PUBLISHED]), "but that isn't recorded yet"
            if left:
                missing = f"{', '.join(left)} isn't"
            return (
                f"Publishing is incomplete: {done} is published, {missing}. "
                f"To continue: dagster-ips backfill publish {self.plan.id}"
            )
        if of[BranchStanding.PUBLISHED] and of[BranchStanding.GONE]:
            done, rest = (", ".join(of[each]) for each in (BranchStanding.PUBLISHED, BranchStanding.GONE))
            return f"{done} is published; of {rest}, nothing differed or it was dropped. Nothing is left to publish."
        if of[BranchStanding.PUBLISHED]:
            return "It is fully published."
        if of[BranchStanding.MOVED]:
            return (
                f"{', '.join(of[BranchStanding.MOVED])} changed since it was staged, so it can no longer be published."
            )
        if of[BranchStanding.STAGED]:
            return f"It is staged on branches {self.plan.staged_branch} and not published yet."
        return "Nothing of it is staged." if of[BranchStanding.GONE] else "Nothing staged so far differs from main."

    def require_published(self) -> None:
        """Fail if there is nothing to revert.

        Raises:
            BackfillError: nothing of it is on ``main``.
        """
        if not self._is_published():
            remedy = f"To drop the staged results: dagster-ips backfill cancel {self.plan.id}"
            raise BackfillError(self.plan.id, "nothing of it is published, so there is nothing to revert.", remedy)

    def require_no_branches(self) -> None:
        """Fail if results are still on branches: a person has to decide whether to publish or to drop them.

        Raises:
            BackfillError: some are.
        """
        if left := [each.stage.table for each in self.tables() if self._has_branch(each)]:
            problem = f"{', '.join(left)} still has its branch {self.plan.staged_branch}. Nothing was released."
            remedy = (
                f"First publish it (dagster-ips backfill publish {self.plan.id}) or drop what it has staged "
                f"(dagster-ips backfill cancel {self.plan.id})."
            )
            raise BackfillError(self.plan.id, problem, remedy)

    def discard(self) -> bool:
        """Drop the branches; returns whether nothing of the backfill was published.

        In that case the previous states are no longer kept either, because there is nothing to revert. Otherwise, what
        a publication that was killed has published is reported.
        """
        launcher = BackfillLauncher(self.lineage)
        with knowing_partitions(self.lineage.instance):
            published = [t for t in self.tables() if t.standing is BranchStanding.PUBLISHED and self._has_branch(t)]
            self._report([each.stage.asset for each in published])
        launcher.drop_branches(self.plan)
        is_published = self._is_published()  # Asked only now: until its branch was dropped, a table could be published.
        if not is_published:
            launcher.release(self.plan)
        return not is_published

    def publish(self, unfinished: Sequence[str]) -> StagedPublication:
        """Make each stage's branch its table's ``main``; ``unfinished`` says what isn't computed yet.

        All of them change in one commit if their catalog can do that, else stage after stage. A publication that was
        killed is continued. If ``main`` of a stage's table has moved since the publication began, the stage is left to
        follow automatically from what was published before it.

        Raises:
            BackfillError: a stage isn't fully staged, or something has changed since; then nothing was published.
            IpsError: a table can't be read.
        """
        with knowing_partitions(self.lineage.instance):
            tables = self.tables()
            published = tuple(each.stage.asset for each in tables if each.standing is BranchStanding.PUBLISHED)
            if published and not any(map(self._has_branch, tables)):  # Branches are dropped last.
                return StagedPublication(published, is_repeated=True)
            if not published:
                self._require_ready(tables, unfinished)
                if self._published_together([each for each in tables if each.standing is BranchStanding.STAGED]):
                    tables = self.tables()
            done = self._published(tables)
            self._report(done.published)
            BackfillLauncher(self.lineage).drop_branches(self.plan)
            return done

    def _is_published(self) -> bool:
        """Whether at least one stage is on ``main``."""
        return any(each.standing is BranchStanding.PUBLISHED for each in self.tables())

    def _has_branch(self, each: StagedTable) -> bool:
        return each.metadata is not None and self.plan.staged_branch in each.metadata.branches

    def _standing(self, stage: PlannedStage, metadata: TableMetadata | None) -> BranchStanding:
        if metadata is None:
            return BranchStanding.GONE
        cut, main, branch = self.backfill.before.get(stage.table), metadata.ancestry(), self.plan.staged_branch
        if branch not in metadata.branches:
            return BranchStanding.PUBLISHED if self._is_on_main(metadata, cut) else BranchStanding.GONE
        head = metadata.head_snapshot_id(branch)
        if head == cut:
            return BranchStanding.UNCHANGED
        if head is not None and main.find(head) is not None:
            return BranchStanding.PUBLISHED
        return BranchStanding.STAGED if metadata.head_snapshot_id() == cut else BranchStanding.MOVED

    def _is_on_main(self, metadata: TableMetadata, cut: int | None) -> bool:
        for snapshot in metadata.ancestry().snapshots:
            if snapshot.snapshot_id == cut:
                return False
            if belongs_to(snapshot, self.plan.id):
                return True
        return False

    def _require_ready(self, tables: Sequence[StagedTable], unfinished: Sequence[str]) -> None:
        """Fail unless each stage can be published as staged."""
        of = _by_standing(tables)
        if of[BranchStanding.GONE]:
            problem = f"{', '.join(of[BranchStanding.GONE])} no longer has branch {self.plan.staged_branch}."
            raise BackfillError(self.plan.id, problem, "Plan and stage it again.")
        if of[BranchStanding.MOVED]:
            raise moved(self.plan.id, of[BranchStanding.MOVED])
        if unfinished:
            problem = f"{'; '.join(unfinished)}. Nothing was published."
            remedy = f"To see how far it is: dagster-ips backfill status {self.plan.id}"
            raise BackfillError(self.plan.id, problem, remedy)
        for each in tables:
            self._require_same_columns(each)

    def _require_same_columns(self, each: StagedTable) -> None:
        """Fail if the staged rows would be shown under names that stand for other columns by now."""
        assert each.metadata is not None  # noqa: S101  # _require_ready has checked it
        cut = self.backfill.before.get(each.stage.table)
        for snapshot in each.metadata.ancestry(self.plan.staged_branch).snapshots:
            if snapshot.snapshot_id == cut:
                return
            others = each.metadata.columns_of_other_meaning(snapshot.schema_id)
            if others != ():
                names = ", ".join(others) if others else "columns (which ones is unknown)"
                problem = f"{names} of {each.stage.table} were dropped and added again, or renamed, since it was staged"
                remedy = f"Cancel it (dagster-ips backfill cancel {self.plan.id}), then plan and stage it again."
                raise BackfillError(self.plan.id, f"{problem}. Nothing was published.", remedy)

    def _published_together(self, staged: Sequence[StagedTable]) -> bool:
        """Publish all ``staged`` tables in one commit; returns False if their catalog can't, or they have several."""
        lakes = [self.lineage.lake(each.stage.asset) for each in staged]
        if len(lakes) <= 1 or any(lake is not lakes[0] for lake in lakes) or not lakes[0].commits_tables_together():
            return False
        try:
            with effect(Effect.PUBLISH):
                tables = [each.metadata for each in staged if each.metadata is not None]
                lakes[0].fast_forward_together(tables, self.plan.staged_branch, pin=PIN)
        except Exception:
            now = _by_standing(self.tables())
            if now[BranchStanding.PUBLISHED]:
                return True  # the error came after it took effect
            if now[BranchStanding.MOVED]:
                raise moved(self.plan.id, now[BranchStanding.MOVED]) from None
            raise
        return True

    def _published(self, tables: Sequence[StagedTable]) -> StagedPublication:
        through, published, left = set[str](), list[str](), list[str]()
        stages = {stage.asset for stage in self.plan.stages}
        for each in tables:
            follows_published = set(each.stage.upstreams) & stages - {each.stage.asset} <= through
            if each.standing is BranchStanding.STAGED and follows_published:
                is_through = self._publish_one(each)
            else:
                is_through = each.is_through
            if not is_through and not published:
                raise moved(self.plan.id, [each.stage.table])
            if not is_through:
                left.append(each.stage.asset)
                continue
            through.add(each.stage.asset)
            published += [each.stage.asset] if each.standing is not BranchStanding.UNCHANGED else []
        return StagedPublication(tuple(published), tuple(left))

    def _publish_one(self, each: StagedTable) -> bool:
        """Publish one stage; returns False if ``main`` has moved."""
        asset, branch, cut = each.stage.asset, self.plan.staged_branch, self.backfill.before[each.stage.table]
        head = each.metadata.head_snapshot_id(branch) if each.metadata is not None else None
        assert head is not None  # noqa: S101  # a staged table has its branch
        # The branch stays: as long as it is there, the publication isn't reported yet.
        change = replace(publication(branch, head=head, expected=cut, pin=PIN), drops=())
        try:
            with effect(Effect.PUBLISH):
                commit_refs(self.lineage.lake(asset), each.stage.table, change, asset=asset)
        except Exception:
            now = self.lineage.metadata(asset)
            if now is None or self._standing(each.stage, now) is BranchStanding.MOVED:
                return False
            raise
        return True

    def _report(self, published: Collection[str]) -> None:
        """Report to Dagster the partitions of ``published`` assets, and copy the progress of their tables.

        What staged runs reported wasn't about ``main``.
        """
        for stage in self.plan.stages:
            metadata = self.lineage.metadata(stage.asset) if stage.asset in published else None
            if metadata is not None and (known := newest_progress(metadata)) is not None:
                with effect(Effect.COPY_PROGRESS):
                    self.lineage.store.set_copy(stage.asset, Copy(known.progress, known.mark))
            newest = metadata.ancestry().newest_change if metadata else None
            if newest is None:
                continue
            snapshot = str(newest.snapshot_id)
            for part in (None,) if stage.partitions is None else stage.partitions:
                self.lineage.report(stage.asset, part, backfill=self.plan.id, became="published", snapshot=snapshot)


def _by_standing(tables: Sequence[StagedTable]) -> dict[BranchStanding, list[str]]:
    return {each: [table.stage.table for table in tables if table.standing is each] for each in BranchStanding}
