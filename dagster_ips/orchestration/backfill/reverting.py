"""Reverts a backfill: a new commit restores the root's rows, and the later stages follow it automatically."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import dagster as dg

from dagster_ips._compat import knowing_partitions
from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.backfill_plan import LaunchedBackfill, PlannedStage
from dagster_ips.core.capture import Mode
from dagster_ips.core.cascade import Cascade
from dagster_ips.core.interval import Interval
from dagster_ips.core.ownership import ATTEMPT, ForeignWrites, told, writer_of
from dagster_ips.core.partition_keys import Slicing
from dagster_ips.errors import BackfillError, RevertError
from dagster_ips.exactly_once.capture.file_keys import FileKeys
from dagster_ips.exactly_once.capture.tracked_input import TrackedInput, files_in, interval_of, is_readable
from dagster_ips.exactly_once.publish.publisher import Publication, Publisher
from dagster_ips.exactly_once.publish.restorer import (
    Restoration,
    require_restorable_columns,
    restore,
    with_lacking,
)
from dagster_ips.iceberg import cascade_stamps
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.iceberg.stamps import REVERTED, computed_in, has_attempt, owner_properties
from dagster_ips.orchestration.backfill.asset_lineage import AssetLineage
from dagster_ips.orchestration.backfill.differing import before_snapshot, rows_of_stage
from dagster_ips.orchestration.watch.run_at_work import UNFINISHED, run_at_work
from dagster_ips.progress.progress import InputProgress, Progress
from dagster_ips.progress.table_progress import TableProgress, progress_at, progress_before


@dataclass(frozen=True, slots=True)
class RevertPlan:
    """What reverting a backfill does to its root's table.

    ``restored`` are the partitions whose rows are restored (``""`` without partitions). ``new`` are partitions that the
    backfill computed first, so there is nothing to restore. ``changed`` are partitions with changes by others that a
    revert would lose or hide, each with what happened. ``already`` are already reverted. ``later_runs`` counts the
    later commits of the asset's own runs; their input is consumed again. ``head`` is the table's snapshot by which all
    of that was found.
    """

    restored: tuple[str, ...]
    new: tuple[str, ...]
    changed: Mapping[str, str]
    already: tuple[str, ...]
    later_runs: int
    head: int | None


@dataclass(frozen=True, slots=True)
class Reverted:
    """What reverts of a backfill have restored: ``parts``, as in ``RevertPlan``, the last of them in ``snapshot``.

    ``is_all`` says that these are all planned ones.
    """

    snapshot: Snapshot
    parts: tuple[str, ...]
    is_all: bool


@dataclass(frozen=True)
class BackfillReverter:
    """Reverts a backfill that was launched."""

    lineage: AssetLineage
    backfill: LaunchedBackfill

    def plan(self, partitions: Collection[str] | None) -> RevertPlan:
        """What a revert would do to ``partitions``, or to all that the backfill computed; changes nothing.

        Raises:
            BackfillError: there is no previous state to restore.
            RevertError: the table lost columns, or the changes to consume again can no longer be read.
            IpsError: a table can't be read.
        """
        with knowing_partitions(self.lineage.instance):
            planned = self._planned(partitions)
            if planned.restored:
                self._restoration(planned.restored)
            return planned

    def reverted(self) -> Reverted | None:
        """What has been reverted so far; None if nothing has, or the snapshots that say so have expired.

        Raises:
            IpsError: the root's table can't be read.
        """
        with knowing_partitions(self.lineage.instance):
            target = self.lineage.metadata(self._root.asset)
            history = target.ancestry().snapshots if target else ()
            found = [each for each in history if each.summary.get(REVERTED) == self.backfill.plan.id]
            if target is None or not found:
                return None
            by_commit = (self._commit(each).modes or self._partitions_of(each, target) for each in found)
            restored = set[str]().union(*by_commit)
            parts = tuple(part for part in self._root.parts if part in restored)
            return Reverted(found[0], parts, is_all=parts == self._root.parts)

    def revert(
        self, partitions: Collection[str] | None, *, leave_out_changed: bool, drop_staged: Callable[[], object]
    ) -> tuple[RevertPlan, Publication]:
        """Restore the rows by one commit, after which everything consumed since is consumed again.

        ``drop_staged`` drops what isn't published yet. It is called once nothing refuses the revert.

        Raises:
            BackfillError: a run of the root isn't finished, or there is no previous state to restore.
            RevertError: changes by others would be lost, or the changes to consume again can no longer be read.
            IpsError: a table can't be read or written.
        """
        with knowing_partitions(self.lineage.instance):
            self._require_idle()
            planned = self._planned(partitions)
            self._require_nothing_lost(planned, leave_out_changed=leave_out_changed)
            wanted = self._restoration(planned.restored, head=planned.head) if planned.restored else None
            drop_staged()
            published = restore(self._publisher(), wanted) if wanted else Publication(None)
            self._report([*planned.already, *planned.restored])  # One that was killed may not have reported the former.
            return planned, published

    def _require_nothing_lost(self, planned: RevertPlan, *, leave_out_changed: bool) -> None:
        if planned.changed and not leave_out_changed:
            said = tuple(f"{part or 'its rows'}: {what}" for part, what in planned.changed.items())
            raise self._refused(
                said, "Name the partitions to revert with --partition, or leave these out with --leave-out-changed."
            )

    @property
    def _root(self) -> PlannedStage:
        return self.backfill.plan.root

    @property
    def _inputs(self) -> Mapping[str, TrackedInput]:
        """The root's incremental inputs, by the upstream."""
        return {each.upstream: each for each in self.lineage.inputs(self._root.asset).values()}

    def _slicing(self) -> Slicing | None:
        is_partitioned = self.backfill.plan.root.partitions is not None
        return self.lineage.own_slicing(self._root.asset) if is_partitioned else None

    def _target(self) -> TableMetadata:
        return self.lineage.lake(self._root.asset).load(self._root.table, asset=self._root.asset)

    def _before(self, target: TableMetadata) -> int:
        found = before_snapshot(self.backfill, self._root, target)
        if found is None:
            problem = f"{self._root.table} had no rows before it, so there are none to restore."
            raise BackfillError(backfill=self.backfill.plan.id, problem=problem, remedy="Drop the table to start over.")
        return found

    def _planned(self, partitions: Collection[str] | None) -> RevertPlan:
        target = self._target()
        before = self._before(target)
        since = self._since(target, before)
        named = set(self._root.parts if partitions is None else partitions)
        wanted = [part for part in self._root.parts if part in named]
        if unknown := sorted(named.difference(wanted)):
            problem = f"it didn't compute {', '.join(unknown[:5])}."
            remedy = "Name partitions that are in its plan."
            raise BackfillError(backfill=self.backfill.plan.id, problem=problem, remedy=remedy)
        undone = self._undone(wanted, since, target, before)
        decisive = [
            (each, each.modes or self._partitions_of(each.snapshot, target))
            for each in since
            if each.is_of_backfill or each.is_revert
        ]
        last = {part: _last(part, decisive, undone[part]) for part in wanted}
        touched = [part for part, what in last.items() if what == _BACKFILL]
        then, inputs = self._then(target), self._inputs
        new = [part for part in touched if inputs and not _has_begun(then, part)]
        old = [part for part in touched if part not in new]
        changed = self._changed_before(old, target, then) | self._changed(old, since, undone, target)
        own = [each for each in since if inputs and each.is_own and not each.is_of_backfill and not each.is_revert]
        return RevertPlan(
            restored=tuple(part for part in touched if part not in new and part not in changed),
            new=tuple(new),
            changed=changed,
            already=tuple(part for part, what in last.items() if what == _REVERT),
            later_runs=sum(any(p in each.modes and each.id not in undone[p] for p in touched) for each in own),
            head=target.head_snapshot_id(),
        )

    def _undone(
        self, parts: Sequence[str], since: Sequence[_RootCommit], target: TableMetadata, before: int
    ) -> dict[str, set[int]]:
        """The commits of which a later revert of another backfill left nothing, and that revert, by partition.

        That revert restored the rows of an earlier snapshot. If this one is older than ``before``, or isn't known, the
        revert counts as a change.
        """
        places = target.ancestry().places()
        store, undone = self.lineage.store, {part: set[int]() for part in parts}
        for each in since:
            if each.reverts is None or each.is_revert:
                continue
            other = store.get_backfill(each.reverts)
            restored = other.before.get(self._root.table) if isinstance(other, LaunchedBackfill) else None
            if restored is None or places.get(restored, len(places)) > places[before]:
                continue
            between = [one.id for one in since if places[each.id] <= places[one.id] < places[restored]]
            for part in each.modes.keys() & undone.keys():
                if each.id not in undone[part]:
                    undone[part].update(between)
        return undone

    def _since(self, target: TableMetadata, before: int) -> list[_RootCommit]:
        """The commits that changed rows since the snapshot ``before`` the backfill, newest first.

        The commits of a block of an asset's own statements have no stamps, except for its last one, which stands for
        all of them. They are published together, so there is no other commit between them.

        Raises:
            RevertError: the table's history no longer reaches back to that snapshot.
        """
        found: list[_RootCommit] = []
        snapshots = list(takewhile(lambda each: each.snapshot_id != before, target.ancestry().snapshots))
        oldest = {each.summary.get(ATTEMPT): place for place, each in enumerate(snapshots)}
        end_of_block = -1
        for place, snapshot in enumerate(snapshots):
            is_stamped = bool(computed_in(snapshot))
            if is_stamped or not (snapshot.keeps_rows or place <= end_of_block):
                found.append(self._commit(snapshot))
            if is_stamped and has_attempt(snapshot):
                end_of_block = max(end_of_block, oldest[snapshot.summary[ATTEMPT]])
        if target.ancestry().find(before) is not None:
            return found
        problem = f"{self._root.table} was rolled back, or snapshots since the previous state have expired"
        raise self._refused((problem,), "Recompute the partitions with the code that produced them.")

    def _commit(self, snapshot: Snapshot) -> _RootCommit:
        backfill, modes = self.backfill.plan.id, computed_in(snapshot)
        if "" in modes:  # all of it
            modes = dict.fromkeys(self._root.parts, modes[""])
        return _RootCommit(
            snapshot,
            is_own=writer_of(snapshot) == self._root.asset,
            is_of_backfill=cascade_stamps.belongs_to(snapshot, backfill),
            reverts=(reverted := snapshot.summary.get(REVERTED)),
            is_revert=reverted == backfill,
            modes=modes,
        )

    def _changed(
        self,
        parts: Sequence[str],
        since: Sequence[_RootCommit],
        undone: Mapping[str, Collection[int]],
        target: TableMetadata,
    ) -> dict[str, str]:
        """The changes to partitions that a revert would lose: other recomputations, or writes from outside."""
        changed: dict[str, str] = {}
        for each in since:
            if each.is_of_backfill or each.is_revert:
                continue
            if each.modes and each.is_own:
                touched = {part for part in parts if each.modes.get(part) is Mode.FULL}
            else:
                touched = set(parts) & self._partitions_of(each.snapshot, target)
            what = (
                f"it has been recomputed since, in snapshot {each.snapshot.snapshot_id}"
                if each.is_own
                else f"someone else changed it in {told(each.snapshot)}"
            )
            lost = f"{what}, which would be lost"
            changed |= dict.fromkeys(sorted(part for part in touched if each.id not in undone[part]), lost)
        return changed

    def _changed_before(
        self, parts: Collection[str], target: TableMetadata, then: TableProgress | None
    ) -> dict[str, str]:
        """The changes by others that are in the rows to restore and that the asset's runs refuse to go on with.

        A revert would hide them: afterwards, all rows count as the asset's own.
        """
        if then is None or not self._inputs:
            return {}
        before = target.as_of(self._before(target), "main").ancestry()
        writes = ForeignWrites.of(before, self._root.asset).after([then.known_to.snapshot_id])
        changed: dict[str, str] = {}
        replaced = set[str]()
        for each in before.snapshots if writes else ():
            if each in writes:
                what = f"someone else changed it before, in {told(each)}, which would no longer be noticed"
                changed |= dict.fromkeys(sorted(self._partitions_of(each, target) & set(parts) - replaced), what)
            replaced |= {part for part, mode in self._commit(each).modes.items() if mode is Mode.FULL}
        return changed

    def _partitions_of(self, snapshot: Snapshot, target: TableMetadata) -> set[str]:
        """The partitions that a commit without captures may have changed; all of them if that is unknown."""
        slicing, parent = self._slicing(), target.snapshots.get(snapshot.parent_id or -1)
        if slicing is None or parent is None:
            return set(self._root.parts)
        storage = self.lineage.lake(self._root.asset).storage
        touched = files_in(storage, target, Interval(parent, (snapshot,)), snapshot).changes.touched
        found = FileKeys(storage, target, slicing).read(touched)
        return set(self._root.parts) if found.unread else set(found.keys)

    def _then(self, target: TableMetadata) -> TableProgress | None:
        """What the rows before the backfill were made of; None if that is unknown."""
        found = progress_before(target, self._before(target))
        if found is None and (tag := self.backfill.plan.progress_tag) in target.tags:
            found = progress_at(target, target.snapshots[target.head_snapshot_id(tag) or 0])
        if found is None or found.asset not in (None, self._root.asset):
            return None
        slicings = {upstream: each.slicing for upstream, each in self._inputs.items() if each.slicing is not None}
        return replace(found, progress=with_lacking(found.progress, slicings))

    def _restoration(self, parts: Sequence[str], *, head: int | None = None) -> Restoration:
        target, stage = self._target(), self.backfill.plan.root
        then = known.progress if (known := self._then(target)) is not None else Progress()
        if problems := (
            *self._unread(parts, then),
            *self._no_longer_read(parts, then),
            *self._redefined(then),
            *self._unfollowed(parts, then),
        ):
            raise self._refused(problems, "Recompute the partitions with the code that produced them.")
        rows = rows_of_stage(parts, target, self._slicing())
        before = self._before(target)
        partitions = () if stage.partitions is None else parts
        wanted = Restoration(self.backfill.plan.id, stage.asset, stage.table, before, rows, partitions, then, head)
        require_restorable_columns(target, wanted)
        return wanted

    def _unread(self, parts: Collection[str], then: Progress) -> Iterator[str]:
        """The problems if rows were made without some input: what of it is to be consumed again is unknown."""
        for upstream in sorted(self._inputs):
            if not all(_is_made_of(then.inputs.get(upstream), part) for part in parts):
                yield (
                    f"its previous rows were made without reading {upstream}, which {self._root.asset} reads now (if "
                    "the earlier code didn't read it, deploy that code first)"
                )

    def _no_longer_read(self, parts: Collection[str], then: Progress) -> Iterator[str]:
        """The problems if rows were made of an input that isn't read now: nothing would read it on.

        Later, with code that reads it again, changes would be missing.
        """
        for upstream in sorted(then.inputs.keys() - self._inputs.keys()):
            if any(_is_made_of(then.inputs[upstream], part) for part in parts):
                yield (
                    f"its previous rows were made by reading {upstream}, which {self._root.asset} doesn't read "
                    "now (deploy code that does first)"
                )

    def _redefined(self, then: Progress) -> Iterator[str]:
        """The problems if the asset's partitions have been redefined since the rows were computed."""
        is_partitioned = self.lineage.partitions_def(self._root.asset) is not None
        if is_partitioned != (self._root.partitions is not None) or is_partitioned != (self._slicing() is not None):
            yield f"{self._root.asset} is no longer partitioned as it was"
            return
        inputs = self._inputs
        for upstream in sorted(inputs.keys() & then.inputs.keys()):
            slicing, division = inputs[upstream].slicing, then.inputs[upstream].division
            if division != (slicing.division if slicing else None):
                yield f"the partitions of {self._root.asset} have since been redefined (they were {division})"

    def _unfollowed(self, parts: Collection[str], then: Progress) -> Iterator[str]:
        """The problems if the changes after those that the rows were made of can no longer be read."""
        inputs = self._inputs
        for upstream in sorted(inputs.keys() & then.inputs.keys()):
            known, source = then.inputs[upstream], self.lineage.metadata(upstream)
            if source is None:
                yield f"{upstream}'s table no longer exists"
                continue
            storage, ancestry = self.lineage.lake(upstream).storage, source.ancestry(inputs[upstream].ref)
            marks = Counter(known.files.to_inclusive if known.files else known.position(part or None) for part in parts)
            for mark, count in marks.items():
                if mark is None:
                    continue
                found = interval_of(storage, source, mark, ancestry)
                # What is left of a change that was taken in bites is read from its own snapshot.
                if not (isinstance(found, Interval) and _can_go_on(found, in_parts=known.files is not None)):
                    of = f"{count} partitions" if self._root.partitions is not None else "it"
                    yield (
                        f"changes of {source.table} after snapshot {mark.snapshot_id}, which {of} would have to read "
                        "again, have expired or were rolled back or replaced"
                    )

    def _publisher(self) -> Publisher:
        asset = self._root.asset
        properties = cascade_stamps.properties(Cascade((revert_cascade(self.backfill.plan.id),)))
        return Publisher(
            self.lineage.lake(asset),
            self.lineage.store,
            self.lineage.session(asset),
            str(uuid.uuid4()),
            properties | owner_properties(asset, None),
        )

    def _require_idle(self) -> None:
        key = dg.AssetKey.from_user_string(self._root.asset)
        if (run_id := run_at_work(self.lineage.instance, key, statuses=UNFINISHED)) is not None:
            problem = f"run {run_id} of {self._root.asset} is working or about to start."
            remedy = f"Wait for it, or end all of its runs: dagster-ips backfill cancel {self.backfill.plan.id}"
            raise BackfillError(backfill=self.backfill.plan.id, problem=problem, remedy=remedy)

    def _refused(self, problems: tuple[str, ...], remedy: str) -> RevertError:
        return RevertError(self.backfill.plan.id, self._root.table, problems, remedy)

    def _report(self, parts: Sequence[str]) -> None:
        """Report the restored partitions to Dagster."""
        newest = self._target().ancestry().newest_change
        snapshot = str(newest.snapshot_id) if newest else "none"
        asset, backfill = self._root.asset, self.backfill.plan.id
        for part in parts:
            self.lineage.report(asset, part or None, backfill=backfill, became="reverted", snapshot=snapshot)


_BACKFILL, _REVERT = "backfill", "revert"


@dataclass(frozen=True, slots=True)
class _RootCommit:
    """A commit to the root's table. ``modes`` are the modes in which a run computed partitions, by partition.

    ``reverts`` is the backfill that it reverts, if any; ``is_revert`` says that it is this one.
    """

    snapshot: Snapshot
    is_own: bool
    is_of_backfill: bool
    reverts: str | None
    is_revert: bool
    modes: Mapping[str, Mode]

    @property
    def id(self) -> int:
        """The id of its snapshot."""
        return self.snapshot.snapshot_id


def _last(part: str, decisive: Sequence[tuple[_RootCommit, Collection[str]]], undone: Collection[int]) -> str | None:
    """Which of the backfill and a revert of it decides a partition's rows; None if it computed no such partition.

    ``decisive`` are the commits of both, newest first, each with the partitions that it wrote. A revert of another
    backfill that restored a state from before this one has reverted this one as well.
    """
    is_reverted = False
    for each, computed in decisive:
        if part not in computed:
            continue
        if each.id not in undone:
            return _BACKFILL if each.is_of_backfill else _REVERT
        is_reverted |= each.is_of_backfill
    return _REVERT if is_reverted else None


def _can_go_on(interval: Interval, *, in_parts: bool) -> bool:
    """Whether the changes can be read, and what is left of the one at their start if it was consumed ``in_parts``."""
    return not interval.abandoned and is_readable(interval) and not (in_parts and interval.start is None)


def _has_begun(then: TableProgress | None, part: str) -> bool:
    """Whether a partition was ever computed."""
    inputs = then.progress.inputs.values() if then is not None else ()
    return any(not part or each.position(part) is not None for each in inputs)


def _is_made_of(known: InputProgress | None, part: str) -> bool:
    """Whether it is known up to where rows of a partition were made of an input.

    Before the input had a snapshot, nothing of it was read: that is known, too.
    """
    return known is not None and (not part or known.at is None or known.position(part) is not None)


def revert_cascade(backfill: str) -> str:
    """The cascade of everything that follows from reverting a backfill.

    Example:
        >>> revert_cascade("qwertyui")
        'qwertyui-revert'
    """
    return f"{backfill}-revert"
